package reaper

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
)

// facts counts what is proposed: kinds, and the most allocations that one of them takes away.
type facts struct {
	*linktest.Ledger
	kinds map[string]int
	most  int
}

func (p *facts) Propose(ctx context.Context, f state.Fact) (uint64, any, error) {
	before := p.Latest().AllocCount()
	index, v, err := p.Ledger.Propose(ctx, f)
	p.kinds[fmt.Sprintf("%T", f)]++
	p.most = max(p.most, before-p.Latest().AllocCount())
	return index, v, err
}

// submit makes a job with defaults and places its members, and end ends their newest attempts.
func (r *rig) submit(spec *api.JobSpec) muster.JobUID {
	r.t.Helper()
	spec.Command, spec.Resources = []string{"true"}, api.ResourcesSpec{CPU: 0.001, Memory: api.MinMemory}
	spec.Defaults()
	uid := muster.JobUID("u" + spec.Name)
	r.must(&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: spec.Name}, UID: uid, Spec: spec})
	return uid
}

// large brings a node with room for everything.
func (r *rig) large() {
	r.t.Helper()
	room := muster.Resources{CPU: 1 << 30, Memory: 1 << 50}
	r.must(&state.NodeLaunching{ID: "n1", Token: "t", Offering: muster.Offering{Capacity: room}})
	r.must(&state.NodeLaunched{ID: "n1", Instance: "i"})
	r.must(&state.NodeJoined{ID: "n1", Capacity: room})
}

func (r *rig) place(uid muster.JobUID) {
	r.t.Helper()
	snap := r.l.Latest()
	j := snap.JobByUID(uid)
	f := &state.PlanCommitted{}
	for i := range j.Count() {
		attempt := 1
		if m := snap.Member(uid, i); m != nil {
			attempt = m.Attempt + 1
		}
		f.Placements = append(f.Placements, state.Placement{UID: uid, Version: j.Version, Index: i, Attempt: attempt, Node: "n1"})
	}
	r.must(f)
}

func (r *rig) end(uid muster.JobUID, outcome muster.Outcome) {
	r.t.Helper()
	f := &state.AllocsReported{Node: "n1"}
	r.l.Latest().JobAllocs(uid, 0, func(a *state.Alloc) bool {
		if a.Live() {
			f.Allocs = append(f.Allocs, state.AllocUpdate{ID: a.ID, Status: muster.AllocEnded, Outcome: outcome, Output: &state.Output{Stage: state.OutputComplete, BlobBytes: 3}})
		}
		return true
	})
	r.must(f)
}

// What has ended is collected in batches that are short to apply, also of one job that has many allocations, and of
// a service that lives for ever the newest attempts of each member are kept.
func TestCollectsInBoundedBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.large()
		large := r.submit(&api.JobSpec{Name: "large", Count: 10_000})
		r.place(large)
		r.end(large, muster.OutcomeSucceeded)
		for i := range 600 {
			uid := r.submit(&api.JobSpec{Name: fmt.Sprintf("small%d", i), Count: 10})
			r.place(uid)
			r.end(uid, muster.OutcomeSucceeded)
		}
		web := r.submit(&api.JobSpec{Name: "web", Type: "service", Count: 100})
		for range 30 {
			r.place(web)
			r.end(web, muster.OutcomeStopped)
		}
		r.place(web)
		old, newest := blob.StreamKey("default", web, muster.NewAllocID(web, 7, 20), "stdout", 0), blob.StreamKey("default", web, muster.NewAllocID(web, 7, 29), "stdout", 0)
		for _, key := range []string{old, newest} {
			if _, err := r.s.Put(t.Context(), key, strings.NewReader("abc")); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Hour)

		p := &facts{Ledger: r.l, kinds: map[string]int{}}
		c, err := New(Config{State: r.l, Proposer: p, Blobs: r.s, Jobs: time.Hour, Attempts: 3})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.step(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		snap := r.l.Latest()
		if n := snap.JobCount(); n != 1 {
			t.Errorf("%d jobs are left, want the service", n)
		}
		if n := snap.AllocCount(); n != 100*4 {
			t.Errorf("%d allocations are left, want of 100 members the one that lives and three before it", n)
		}
		if p.most > allocBatch {
			t.Errorf("one fact took %d allocations away, want at most %d", p.most, allocBatch)
		}
		if p.kinds["*state.AllocsPurged"] < 4+2700/batch || p.kinds["*state.JobsPurged"] < 3 {
			t.Errorf("facts: %v", p.kinds)
		}
		if err := snap.Check(); err != nil {
			t.Error(err)
		}
		has := func(key string) bool {
			list, _ := r.s.List(t.Context(), key)
			return len(list) > 0
		}
		left, kept := has(old), has(newest)
		if left || !kept {
			t.Errorf("output of the attempt that was forgotten is there: %v; of one that is kept: %v", left, kept)
		}
		if j := snap.JobByUID(web); j.OutputBytes != 100*3*3 {
			t.Errorf("the service has %d bytes of output, of 300 attempts", j.OutputBytes)
		}
	})
}

// Of a system job each node has a member of its own; what those leave that went with their nodes does not grow for as long as
// the job lives.
func TestSystemJobsForgetNodesThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.large()
		uid := r.submit(&api.JobSpec{Name: "agent", Type: "system"})
		for i := range 12 {
			r.must(&state.SystemSized{UID: uid, Version: 1, Count: i + 1})
			r.must(&state.PlanCommitted{Placements: []state.Placement{{UID: uid, Version: 1, Index: i, Attempt: 1, Node: "n1"}}})
			if i < 11 {
				r.must(&state.NodeEvicted{ID: "n1", Reason: "goes"})
				r.end(uid, muster.OutcomeStopped)
			}
		}
		if n := r.l.Latest().AllocCount(); n != 12 {
			t.Fatalf("%d allocations", n)
		}
		c, err := New(Config{State: r.l, Proposer: r.l, Blobs: r.s, Jobs: time.Hour, Attempts: 3})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.step(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		var left []int
		r.l.Latest().JobAllocs(uid, 0, func(a *state.Alloc) bool { left = append(left, a.Index); return true })
		if fmt.Sprint(left) != "[8 9 10 11]" {
			t.Errorf("left of members %v, want the one that lives and the last three", left)
		}
		if err := r.l.Latest().Check(); err != nil {
			t.Error(err)
		}
	})
}

// D12: earlier attempts of a job are purged in batches; what a batch costs does not depend on those before it. At two sizes,
// for the ratio.
func BenchmarkGrowthAttempts(b *testing.B) {
	for _, members := range []int{5_000, 20_000} {
		b.Run(fmt.Sprint("members=", members), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				r := newRig(b)
				r.large()
				uid := r.submit(&api.JobSpec{Name: "web", Type: "service", Count: members})
				for range 3 {
					r.place(uid)
					r.end(uid, muster.OutcomeStopped)
				}
				r.place(uid)
				c, err := New(Config{State: r.l, Proposer: r.l, Blobs: r.s, Attempts: 1})
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if err := c.attempts(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if n := r.l.Latest().AllocCount(); n != 2*members {
					b.Fatalf("%d allocations are left of %d members", n, members)
				}
				b.StartTimer()
			}
		})
	}
}
