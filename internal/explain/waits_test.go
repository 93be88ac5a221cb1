package explain

import (
	"errors"
	"fmt"
	"testing"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/present"
)

// The line names the first of: the job is parked, its members back off, the scheduler is paused, no node fits.
func TestWaits(t *testing.T) {
	const none = "1 node considered: 1 short of cpu (2 asked, at most 1 free)"
	for name, test := range map[string]struct {
		cluster, want string
		loops         loops
	}{
		"nothing waits": {"node n1 cpu=2 memory=4GiB\njob j cpu=2\nplace j 0 n1\n", "", loops{paused: "a test"}},
		"parked":        {"job j cpu=2\npark j refused again and again\n", "refused again and again", loops{paused: "a test"}},
		"backs off": {"node n1 cpu=2 memory=4GiB\njob j cpu=2 attempts=3 backoff=10s\nplace j 0 n1\nrun j 0\nend j 0 failed\n",
			"the next attempt is in 10s; the last one ended: attempt 1 of 3: exit", loops{paused: "a test"}},
		"paused":       {"node n1 cpu=1 memory=4GiB\njob j cpu=2\n", "a test", loops{paused: "a test"}},
		"no node fits": {"node n1 cpu=1 memory=4GiB\njob j cpu=2\n", none, loops{}},
		"a node comes": {"node n1 cpu=1 memory=4GiB\nnode n2 cpu=4 memory=4GiB stage=booting\njob j cpu=2\n",
			"2 nodes considered: 1 short of cpu (2 asked, at most 1 free), 1 booting; 1 node is on its way", loops{}},
		"outputs wait": {"node n1 cpu=2 memory=4GiB\njob j cpu=2\nplace j 0 n1\nrun j 0\n",
			"its command has ended, and its declared outputs are not stored yet: no room", loops{unstored: 1}},
		"both": {"node n1 cpu=2 memory=4GiB\njob j cpu=2 count=3\nplace j 0 n1\nrun j 0\n",
			"1 node considered: 1 short of cpu (2 asked, at most 0 free); the command of 1 member has ended, and its declared outputs are not stored yet: no room", loops{unstored: 1}},
	} {
		c := fittest.Read(t, test.cluster)
		e := &Explainer{Snapshot: c.Snapshot(), Now: c.Now(), Loops: &test.loops}
		if got := e.Waits(c.Snapshot().Job(fittest.Key("j"))); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
	c := fittest.Read(t, "node n1 cpu=1 memory=4GiB\njob j cpu=2\n")
	j := c.Snapshot().Job(fittest.Key("j"))
	l := &loops{decisions: &size.Decisions{Waits: []size.Wait{{Shape: j.Run.Shape, Priority: j.Priority(), Reason: "the pool is full"}}}}
	if got, want := (&Explainer{Snapshot: c.Snapshot(), Now: c.Now(), Loops: l}).Waits(j), none+"; no more nodes are launched for it: the pool is full"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTrouble(t *testing.T) {
	for times, want := range map[int]string{
		1: "destroy failed once since 1970-01-01T00:01:00Z: no right",
		2: "destroy failed 2 times since 1970-01-01T00:01:00Z: no right",
	} {
		if got := Trouble("destroy", times, 60e6, errors.New("no right")); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A list explains those that wait wholly, and not more than a server can at once.
func TestWaitsInList(t *testing.T) {
	c := fittest.Read(t, "node n1 cpu=2 memory=4GiB\njob a cpu=1\nplace a 0 n1\nrun a 0\njob b cpu=9\njob c cpu=1\nstop c\n")
	for i := range 250 {
		c.Do(fmt.Sprintf("job w%d cpu=9", i))
	}
	page, err := present.Jobs(c.Snapshot(), present.JobSelection{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	var shown []api.Job
	for _, j := range page.Rows {
		shown = append(shown, present.Job(j))
	}
	(&Explainer{Snapshot: c.Snapshot(), Now: c.Now(), Loops: &loops{}}).WaitsInList(page.Rows, shown)
	explained := 0
	for _, j := range shown {
		if j.Waits != "" {
			explained++
		}
		if j.Name == "b" && j.Waits != "1 node considered: 1 short of cpu (9 asked, at most 1 free)" || (j.Name == "a" || j.Name == "c") && j.Waits != "" {
			t.Errorf("%s: %q", j.Name, j.Waits)
		}
	}
	if explained != 200 {
		t.Errorf("%d are explained", explained)
	}
}
