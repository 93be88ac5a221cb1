package sim

import (
	"fmt"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/decide/roll"
	"github.com/musterhq/muster/internal/state"
)

// strangerFor is how long an instance may be in the cloud while a leader leads
// and the state does not know it: a sweep and a few lists that failed.
const strangerFor = 10 * time.Minute

// watch looks after each fact whether what must always be true is.
type watch struct {
	c *Cluster
	// ended is what became of each allocation and job that has ended; submitted the jobs that were accepted.
	allocs    map[muster.AllocID]muster.Outcome
	jobs      map[muster.JobUID]muster.JobOutcome
	submitted map[muster.JobUID]muster.JobKey
	strangers map[muster.InstanceID]time.Time

	// seen is how far the change feed was read. claims are the runners' claims, made when each was made, broken since when nodes are.
	seen   state.Position
	claims map[muster.AllocID]muster.ClaimID
	made   map[muster.ClaimID]time.Time
	broken map[muster.NodeID]time.Time
	// needed is when something last kept a node: output to be stored, a reservation, its health, a hold.
	needed map[muster.NodeID]time.Time
	// offered are the offerings that the state ever had; excused are jobs that failed before it had all of them.
	offered map[muster.OfferingName]bool
	excused map[muster.JobUID]bool
	// unchecked grows with each fact until the whole state is looked at.
	unchecked int
	// stocked is what environments wanted when the loops began, unsettled when something last waited.
	stocked   map[muster.JobUID]stocked
	unsettled time.Time
	mu        sync.Mutex // held by committed, and for each check of what is due
}

func newWatch(c *Cluster) *watch {
	return &watch{c: c, allocs: map[muster.AllocID]muster.Outcome{}, jobs: map[muster.JobUID]muster.JobOutcome{},
		submitted: map[muster.JobUID]muster.JobKey{}, strangers: map[muster.InstanceID]time.Time{},
		claims: map[muster.AllocID]muster.ClaimID{}, made: map[muster.ClaimID]time.Time{}, broken: map[muster.NodeID]time.Time{}, needed: map[muster.NodeID]time.Time{},
		offered: map[muster.OfferingName]bool{}, excused: map[muster.JobUID]bool{}}
}

// committed is called after each fact.
func (c *Cluster) committed(f state.Fact, err error) {
	// Loops propose from several goroutines.
	c.watch.mu.Lock()
	defer c.watch.mu.Unlock()
	c.note("fact %s%s", describe(f), refusal(err))
	snap := c.Log.Latest()
	for _, look := range []func(*state.Snapshot) error{c.watch.consistent, c.watch.sandboxes, c.watch.instances} {
		if err := look(snap); err != nil {
			c.fail(err)
		}
	}
	if waits(snap) {
		c.watch.unsettled = time.Now()
	}
	c.watch.changed(snap)
	if err != nil {
		return
	}
	switch f := f.(type) {
	case *state.PlanCommitted:
		if err := rolled(snap, f); err != nil {
			c.fail(err)
		}
	case *state.JobSubmitted:
		c.mu.Lock()
		if j := snap.Job(f.Key); j != nil {
			c.watch.submitted[j.UID] = j.Key
		}
		c.mu.Unlock()
	case *state.OfferingsSeen:
		for i := range f.Offerings {
			c.watch.offered[f.Offerings[i].Name] = true
		}
	case *state.PoolsSet:
		// What a minimum or spare nodes were a reason for is no longer needed.
		snap.LiveNodes(func(n *state.Node) bool { c.watch.needed[n.ID] = time.Now(); return true })
	case *state.JobsPurged:
		c.mu.Lock()
		clear(c.watch.submitted)
		c.mu.Unlock()
	case *state.PoolTripped:
		// An operator has a look and lets it go on.
		time.AfterFunc(20*time.Second+c.delay(time.Second, "resume", f.Pool), func() {
			_ = c.propose(&state.PoolResumed{Pool: f.Pool, Who: "sim"})
		})
	}
}

// rowsForFact is how many rows are looked at for each fact: all of them in most scenarios.
const rowsForFact = 256

// consistent: the state does not contradict itself. Of a large state that is looked at after some facts only, so that the cost
// is not that of facts times rows: what is wrong stays wrong until then.
func (w *watch) consistent(snap *state.Snapshot) error {
	w.unchecked += rowsForFact
	if w.unchecked < snap.AllocCount()+snap.JobCount()+snap.LiveNodeCount()+snap.GoneNodeCount() {
		return nil
	}
	w.unchecked = 0
	return snap.Check()
}

// sandboxes: of each member one lives at most, and no command is started twice.
func (w *watch) sandboxes(snap *state.Snapshot) error {
	type member struct {
		uid   muster.JobUID
		index int
	}
	live := map[member]muster.AllocID{}
	for _, m := range w.c.running() {
		for _, id := range m.Live() {
			uid, index, _, err := id.Parse()
			if err != nil {
				return err
			}
			if other, twice := live[member{uid, index}]; twice && (other == id || sameVersion(snap, other, id)) {
				return fmt.Errorf("two live sandboxes of one member: %s and %s", other, id)
			}
			live[member{uid, index}] = id
		}
		if err := startedOnce(m); err != nil {
			return err
		}
	}
	return nil
}

// startedOnce: a node starts no command twice.
func startedOnce(m *linktest.Node) error {
	for id, times := range m.Ran() {
		if times > 1 {
			return fmt.Errorf("the command of allocation %s was started %d times", id, times)
		}
	}
	return nil
}

// sameVersion tells whether two allocations are of one version of their job:
// those of a replaced version may still be ending. Of a standing job all are: it never has two of a member.
func sameVersion(snap *state.Snapshot, a, b muster.AllocID) bool {
	x, y := snap.Alloc(a), snap.Alloc(b)
	return x != nil && y != nil && (x.Version == y.Version || x.Run.Standing())
}

// restored looks at a state that was made of the log again, which the change feed says nothing of.
func (w *watch) restored(snap *state.Snapshot) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	snap.Allocs("", func(a *state.Alloc) bool { w.alloc(snap, nil, a); return true })
	snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
		if w.jobEnded(j) {
			w.c.fail(fmt.Errorf("job %s had ended (%s) and is %s %s", j.Key, w.jobs[j.UID], j.Stage, j.Result))
		}
		return true
	})
	return snap.Check()
}

// instances: none is in the cloud for long that the state does not know.
func (w *watch) instances(snap *state.Snapshot) error {
	known := map[muster.Token]bool{}
	snap.LiveNodes(func(n *state.Node) bool { known[n.Token] = true; return true })
	now, there := time.Now(), w.c.Cloud.Instances()
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	strangers := map[muster.InstanceID]time.Time{}
	for _, in := range there {
		if known[in.Tags.Token] || w.c.ledSince.IsZero() || w.c.haltedLocked(in.ID) {
			continue
		}
		since, ok := w.strangers[in.ID]
		if !ok || since.Before(w.c.ledSince) {
			since = now
		}
		strangers[in.ID] = since
		if now.Sub(since) > strangerFor {
			return fmt.Errorf("instance %s of node %s is in the cloud for %s, and the state does not know it", in.ID, in.Tags.Node, now.Sub(since))
		}
	}
	w.strangers = strangers
	return nil
}

// acknowledged: what was accepted is there after a restart.
func (w *watch) acknowledged(snap *state.Snapshot) error {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	for uid, key := range w.submitted {
		if snap.JobByUID(uid) == nil && snap.Job(key) == nil {
			return fmt.Errorf("job %s was accepted and is not there after a restart", key)
		}
	}
	return nil
}

// rolled: no healthy member is taken for another version while more than max_parallel of those wanted are missing.
func rolled(snap *state.Snapshot, f *state.PlanCommitted) error {
	now := snap.Meta().Time
	for _, st := range f.Stops {
		a := snap.Alloc(st.Alloc)
		if a == nil || st.Reason != muster.StopUpdated {
			continue
		}
		j, n := snap.JobByUID(a.UID), snap.Node(a.Node)
		u := j.Run.Spec.Update
		if at, ok := a.HealthyAt(u); !ok || at > now || n == nil || n.Health == muster.NodeLost {
			continue
		}
		if p := roll.ProgressOf(snap, j, now); p.Available < p.Wanted-u.MaxParallel {
			return fmt.Errorf("job %s: %d of %d members are available after %s was stopped for version %d; %d may be missing", j.Key, p.Available, p.Wanted, a.ID, j.Version, u.MaxParallel)
		}
	}
	return nil
}
