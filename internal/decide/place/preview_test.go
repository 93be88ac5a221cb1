package place

import (
	"testing"

	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/state"
)

// A preview says where members would go and why, who would give way, and changes nothing.
func TestTry(t *testing.T) {
	c := fittest.Read(t, `
node n1 cpu=4 memory=4GiB arch=arm
node n2 cpu=2 memory=4GiB
node n3 cpu=1 memory=4GiB
job low priority=10 cpu=1 memory=1GiB
place low 0 n3
`)
	before := c.Snapshot()
	f, err := fittest.Job("new", "count=7", "priority=60", "cpu=1", "memory=1GiB", "likes", "arch", "=", "arm", "+40")
	if err != nil {
		t.Fatal(err)
	}
	after, _, err := before.Suppose(f, c.Now())
	if err != nil {
		t.Fatal(err)
	}
	p := Try(after, after.Job(f.Key), c.Now(), 1000)
	if len(p.Choices) != 2 || p.Choices[0] != (Choice{"n1", 4, "preference +40.0, tightness 0.25"}) || p.Choices[1].Node != "n2" || p.Choices[1].Members != 2 {
		t.Errorf("%+v", p.Choices)
	}
	if p.Waiting != 1 || len(p.Stops) != 1 || before.Alloc(p.Stops[0].Alloc).Run.Key.Name != "low" {
		t.Errorf("%d wait, %+v", p.Waiting, p.Stops)
	}
	if before != c.Snapshot() {
		t.Error("something has changed")
	}
}

// A system job is previewed on each node that fits, also one that has no room now.
func TestTrySystem(t *testing.T) {
	c := fittest.Read(t, "node n1 cpu=4 memory=4GiB\nnode n2 cpu=2 memory=4GiB\nnode n3 cpu=0.5 memory=4GiB\njob low cpu=2\nplace low 0 n2")
	f, err := fittest.Job("agent", "type=system")
	if err != nil {
		t.Fatal(err)
	}
	after, _, err := c.Snapshot().Suppose(f, c.Now())
	if err != nil {
		t.Fatal(err)
	}
	// As its rollout would size it: one member for each node that is large enough.
	if after, _, err = after.Suppose(&state.SystemSized{UID: f.UID, Version: 1, Count: 2}, c.Now()); err != nil {
		t.Fatal(err)
	}
	if p := Try(after, after.Job(f.Key), c.Now(), 1000); len(p.Choices) != 1 || p.Choices[0].Node != "n1" || p.Choices[0].Members != 1 || p.Waiting != 1 {
		t.Errorf("%+v", p)
	}
}
