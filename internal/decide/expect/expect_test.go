package expect

import (
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/state"
)

// running reports a member as started and lets it run for a time, to its end if that is said.
func running(c *fittest.Cluster, job string, index int, node muster.NodeID, d time.Duration, ends bool) {
	id := muster.NewAllocID(muster.JobUID(job), index, 1)
	c.Apply(&state.AllocsReported{Node: node, Allocs: []state.AllocUpdate{{ID: id, Status: muster.AllocRunning, Started: c.Now()}}})
	c.Do("wait " + d.String())
	if ends {
		c.Apply(&state.AllocsReported{Node: node, Allocs: []state.AllocUpdate{{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded, Ended: c.Now()}}})
	}
}

func TestStart(t *testing.T) {
	c := fittest.Read(t, "node n1 cpu=2 memory=2GiB\nnode n2 cpu=2 memory=2GiB zone=z\njob known count=9 cpu=1\njob new count=3 cpu=1\nplace known 0 n1")
	running(c, "known", 0, "n1", 100*time.Second, true)
	shape := fit.ShapeOf(c.Snapshot().JobByUID("known").Run)
	if e := Start(c.Snapshot(), "other", shape, 0, c.Now()); e.Start != c.Now() || e.Ends != 0 {
		t.Errorf("there is room: %+v", e)
	}
	c.Do("place known 1 2 n1\nplace new 0 1 n2")
	running(c, "known", 1, "n1", 10*time.Second, false)
	running(c, "known", 2, "n1", 10*time.Second, false)
	in := func(e Estimate) time.Duration { return e.Start.Sub(c.Now()).Round(time.Second) }
	// Of new nothing is known; the first of known has run for 20 s of about 100.
	if e := Start(c.Snapshot(), "other", shape, 0, c.Now()); in(e) != 80*time.Second || e.Ends != 1 || e.Unknown != 2 {
		t.Errorf("the first to end: in %s, %+v", in(e), e)
	}
	if e := Start(c.Snapshot(), "other", shape, 1, c.Now()); in(e) != 90*time.Second || e.Ends != 2 {
		t.Errorf("one is served before: in %s, %+v", in(e), e)
	}
	if e := Start(c.Snapshot(), "other", shape, 2, c.Now()); e.Start != 0 || e.Unknown != 2 {
		t.Errorf("nothing is known of the third: %+v", e)
	}
	// What is overdue will be as long again; what is told to stop ends now.
	c.Do("wait 180s")
	if e := Start(c.Snapshot(), "other", shape, 0, c.Now()); in(e) != 90*time.Second {
		t.Errorf("overdue for 90 s: in %s", in(e))
	}
	c.Do("stop known")
	if e := Start(c.Snapshot(), "other", shape, 0, c.Now()); in(e) != 0 || e.Start == 0 {
		t.Errorf("what stops: in %s, %+v", in(e), e)
	}
	// Nodes that would never do do not count.
	c.Do("job far count=1 cpu=1 needs zone = z")
	if e := Start(c.Snapshot(), "other", fit.ShapeOf(c.Snapshot().JobByUID("far").Run), 0, c.Now()); e.Start != 0 || e.Unknown != 2 {
		t.Errorf("only n2 would do: %+v", e)
	}
}

// A member that lacks only a device, a port or a host of its own starts when one of those is
// released, however much cpu is free.
func TestStartOfScarce(t *testing.T) {
	for name, asks := range map[string]string{"device": "gpu=1", "port": "port=80", "host": "distinct"} {
		t.Run(name, func(t *testing.T) {
			c := fittest.Read(t, "node n1 cpu=8 memory=8GiB gpu=A:1\njob known count=9 cpu=1 "+asks+"\njob new count=3 cpu=1 "+asks+"\nplace known 0 n1")
			running(c, "known", 0, "n1", 100*time.Second, true)
			c.Do("place known 1 n1")
			running(c, "known", 1, "n1", 10*time.Second, false)
			start := func(job muster.JobUID, ahead int) Estimate {
				return Start(c.Snapshot(), job, fit.ShapeOf(c.Snapshot().JobByUID(job).Run), ahead, c.Now())
			}
			if e := start("known", 0); e.Start.Sub(c.Now()).Round(time.Second) != 90*time.Second || e.Ends != 1 {
				t.Errorf("the one that runs has 90 s to go: %+v", e)
			}
			e := start("new", 0)
			if name == "host" {
				if e.Start != c.Now() {
					t.Errorf("another job's member keeps none off: %+v", e)
				}
			} else if e.Ends != 1 {
				t.Errorf("another job needs the same: %+v", e)
			}
			if e := start("new", 1); name != "host" && (e.Start != 0 || e.Ends != 1) {
				t.Errorf("what is released goes to the one served before: %+v", e)
			}
		})
	}
}
