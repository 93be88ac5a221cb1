package clouds

import (
	"testing"

	"github.com/musterhq/muster"
)

// An idle machine is stopped and started again for the next job, by its own instance and SSH host key, also
// when the server is killed in between. In the end it is destroyed.
func TestStoppedMachine(t *testing.T) {
	need(t)
	t.Parallel()
	c := openEC2(t, "instance: turns 1s..2s")
	c.pool = ", stop: {most: 1, timeout: 1h}"
	w := serve(t, c, "1s")
	state := func() string {
		made := w.c.made()
		if len(made) != 1 {
			t.Fatalf("%d machines were made", len(made))
		}
		return made[0].State
	}
	// Spot instances are not stopped.
	onDemand := []string{"--constraint", "market=" + string(muster.OnDemand)}
	if err := w.submit("first", 1, "true", onDemand...); err != nil {
		t.Fatal(err)
	}
	w.ended("first")
	w.Until("the node is to be stopped", func() bool {
		p, err := w.Client.Pool(t.Context(), "main")
		return err == nil && p.Nodes.Stopped == 1
	})
	w.Kill()
	w.Again()
	w.Until("the machine is stopped", func() bool { return state() == "stopped" })
	if err := w.submit("second", 1, "true", onDemand...); err != nil {
		t.Fatal(err)
	}
	w.ended("second")
	first, second := w.allocs("first"), w.allocs("second")
	if len(first) != 1 || len(second) != 1 || first[0].Node != second[0].Node {
		t.Errorf("the first job ran at %+v, the second at %+v", first, second)
	}
	w.Until("it is stopped again", func() bool { return state() == "stopped" })
	w.succeeds("node", "drain", first[0].Node)
	w.empty()
}
