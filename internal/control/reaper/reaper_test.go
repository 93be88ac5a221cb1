package reaper

import (
	"context"
	"errors"
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

// store is linktest's with uploads.
type store struct {
	linktest.Blobs
	uploads map[string]bool
	fail    error
	broken  string // a prefix that cannot be deleted
}

func (s *store) DeletePrefix(ctx context.Context, prefix string) error {
	if s.fail != nil {
		return s.fail
	}
	if s.broken != "" && strings.HasPrefix(prefix, s.broken) {
		return errors.New("that one is broken")
	}
	return s.Blobs.DeletePrefix(ctx, prefix)
}

func (s *store) SweepUploads(_ context.Context, _ time.Time, _ time.Duration, referred func(string) bool) (int, error) {
	n := 0
	for d := range s.uploads {
		if !referred(d) {
			delete(s.uploads, d)
			n++
		}
	}
	return n, nil
}

type rig struct {
	t testing.TB
	l *linktest.Ledger
	s *store
}

func newRig(t testing.TB) *rig {
	l, err := linktest.NewLedger("c1")
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t, l, &store{uploads: map[string]bool{}}}
}

func (r *rig) must(f state.Fact) {
	r.t.Helper()
	if _, _, err := r.l.Propose(r.t.Context(), f); err != nil {
		r.t.Fatalf("%T: %v", f, err)
	}
}

// ended makes a job of one member that has run on node n1 and has so much output in the store.
func (r *rig) ended(name string, output int64, stage state.OutputStage, edit ...func(*api.JobSpec)) muster.JobUID {
	r.t.Helper()
	return r.endedOf(1, "default", name, output, stage, edit...)
}

func (r *rig) endedIn(ns muster.Namespace, name string, output int64, stage state.OutputStage) muster.JobUID {
	r.t.Helper()
	return r.endedOf(1, ns, name, output, stage)
}

// endedOf is endedIn for the first of count members; the others wait.
func (r *rig) endedOf(count int, ns muster.Namespace, name string, output int64, stage state.OutputStage, edit ...func(*api.JobSpec)) muster.JobUID {
	r.t.Helper()
	spec := &api.JobSpec{Name: name, Template: api.Template{Command: []string{"true"}}, Count: count}
	for _, fn := range edit {
		fn(spec)
	}
	spec.Defaults()
	uid := muster.JobUID("u" + name)
	r.must(&state.JobSubmitted{Key: muster.JobKey{Namespace: ns, Name: name}, UID: uid, Spec: spec})
	r.must(&state.PlanCommitted{Placements: []state.Placement{{UID: uid, Version: 1, Attempt: 1, Node: "n1"}}})
	id := muster.NewAllocID(uid, 0, 1)
	if output > 0 {
		if _, err := r.s.Put(r.t.Context(), blob.StreamKey(ns, uid, id, "stdout", 0), strings.NewReader(strings.Repeat("x", int(output)))); err != nil {
			r.t.Fatal(err)
		}
	}
	out := &state.Output{Stage: stage, BlobBytes: output}
	if stage == state.OutputIncomplete {
		out.BlobBytes = 0 // as when its node went in the middle of shipping
	}
	r.must(&state.AllocsReported{Node: "n1", Allocs: []state.AllocUpdate{{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded, Output: out}}})
	return uid
}

func (r *rig) node(id muster.NodeID) {
	room := muster.Resources{CPU: 64_000, Memory: 64 * muster.GiB}
	r.must(&state.NodeLaunching{ID: id, Token: muster.Token(id), Offering: muster.Offering{Capacity: room}})
	r.must(&state.NodeLaunched{ID: id, Instance: muster.InstanceID(id)})
	r.must(&state.NodeJoined{ID: id, Capacity: room})
}

func (r *rig) sweep(cfg Config) error {
	r.t.Helper()
	cfg.State, cfg.Proposer, cfg.Blobs = r.l, r.l, r.s
	p, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return p.step(r.t.Context(), time.Now())
}

func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.node("n1")
		whole := r.ended("a", 10, state.OutputComplete)
		cut := r.ended("b", 10, state.OutputIncomplete)
		r.ended("open", 10, state.OutputOpen)
		time.Sleep(30 * time.Minute)
		young := r.ended("c", 10, state.OutputComplete)
		if err := r.sweep(Config{Jobs: time.Hour}); err != nil || r.l.Latest().JobCount() != 4 {
			t.Fatal(err, r.l.Latest().JobCount())
		}
		time.Sleep(30 * time.Minute)
		if err := r.sweep(Config{Jobs: time.Hour}); err != nil {
			t.Fatal(err)
		}
		snap := r.l.Latest()
		if snap.JobByUID(whole) != nil || snap.JobByUID(cut) != nil || snap.JobByUID(young) == nil {
			t.Fatal("the wrong jobs were forgotten")
		}
		// What is still on its way is not forgotten, and nothing else is left behind.
		if snap.JobByUID("uopen") == nil || r.s.Usage() != 20 {
			t.Fatalf("%d bytes stored", r.s.Usage())
		}
	})
}

func TestBlobsGoBeforeTheJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.node("n1")
		uid := r.ended("a", 10, state.OutputComplete)
		time.Sleep(2 * time.Hour)
		r.s.fail = errors.New("the store is down")
		if err := r.sweep(Config{Jobs: time.Hour}); err == nil || r.l.Latest().JobByUID(uid) == nil {
			t.Fatal("the job was forgotten with its output still stored", err)
		}
		r.s.fail = nil
		if err := r.sweep(Config{Jobs: time.Hour}); err != nil || r.l.Latest().JobByUID(uid) != nil || r.s.Usage() != 0 {
			t.Fatal(err, r.s.Usage())
		}
	})
}

// Declared outputs that were given up may have left what no fact counts.
func TestUncountedDeclaredOutputs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.node("n1")
		spec := &api.JobSpec{Name: "a", Template: api.Template{Command: []string{"true"}}, Outputs: []api.OutputSpec{{Path: "x"}}}
		spec.Defaults()
		r.must(&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: "a"}, UID: "ua", Spec: spec})
		r.must(&state.PlanCommitted{Placements: []state.Placement{{UID: "ua", Version: 1, Attempt: 1, Node: "n1"}}})
		if _, err := r.s.Put(t.Context(), blob.OutputKey("default", "ua", "ua-0-1", 0), strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
		r.must(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "a"}})
		r.must(&state.AllocsReported{Node: "n1", Allocs: []state.AllocUpdate{{ID: "ua-0-1", Status: muster.AllocEnded, Outcome: muster.OutcomeStopped, Output: &state.Output{Stage: state.OutputComplete}}}})
		time.Sleep(DefaultRetention)
		if err := r.sweep(Config{}); err != nil {
			t.Fatal(err)
		}
		if r.l.Latest().JobByUID("ua") != nil || r.s.Usage() > 0 {
			t.Errorf("%d bytes are left", r.s.Usage())
		}
	})
}

func TestQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.node("n1")
		for i := range 5 {
			r.ended(fmt.Sprintf("j%d", i), 100, state.OutputComplete)
			time.Sleep(time.Second)
		}
		if err := r.sweep(Config{Quota: 250}); err != nil {
			t.Fatal(err)
		}
		if r.s.Usage() != 200 {
			t.Fatalf("%d bytes stored", r.s.Usage())
		}
		snap := r.l.Latest()
		for i := range 5 {
			j := snap.JobByUID(muster.JobUID(fmt.Sprintf("uj%d", i)))
			if j.Pruned != (i < 3) {
				t.Errorf("job %s: pruned %v", j.Key, j.Pruned)
			}
			if a := snap.Alloc(muster.NewAllocID(j.UID, 0, 1)); (a.Output.Stage == state.OutputPruned) != (i < 3) {
				t.Errorf("job %s: output %s", j.Key, a.Output.Stage)
			}
		}
	})
}

// D15: output of a job that cannot be deleted keeps nothing else from being swept.
func TestOneThatCannotBeDeletedIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.node("n1")
		for i := range 3 {
			r.ended(fmt.Sprintf("j%d", i), 100, state.OutputComplete)
		}
		r.s.broken = blob.JobPrefix("default", "uj0")
		time.Sleep(2 * time.Hour)
		if err := r.sweep(Config{Quota: 150}); err == nil || r.s.Usage() != 100 {
			t.Errorf("%d bytes are stored; %v", r.s.Usage(), err)
		}
		if err := r.sweep(Config{Jobs: time.Hour}); err == nil || r.l.Latest().JobCount() != 1 || r.l.Latest().JobByUID("uj0") == nil {
			t.Errorf("%d jobs are left; %v", r.l.Latest().JobCount(), err)
		}
		r.s.broken = ""
		if err := r.sweep(Config{Jobs: time.Hour}); err != nil || r.l.Latest().JobCount() != 0 {
			t.Errorf("%d jobs are left; %v", r.l.Latest().JobCount(), err)
		}
	})
}

// What one namespace stores takes nothing from another one that stores less.
func TestQuotaIsSharedByNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.node("n1")
		r.ended("small", 100, state.OutputComplete) // the longest ended of all
		time.Sleep(time.Second)
		for i := range 5 {
			r.endedIn("flood", fmt.Sprintf("f%d", i), 100, state.OutputComplete)
			time.Sleep(time.Second)
		}
		if err := r.sweep(Config{Quota: 250}); err != nil || r.s.Usage() != 200 {
			t.Fatalf("%d bytes are stored; %v", r.s.Usage(), err)
		}
		if r.l.Latest().JobByUID("usmall").Pruned || r.l.Latest().JobByUID("uf4").Pruned {
			t.Error("the small one's output is gone, or the newest of the other")
		}
	})
}

// Output of a job that goes on cannot be deleted. It counts against its own namespace, and not against others.
func TestQuotaCountsOutputOfLiveJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.node("n1")
		r.ended("small", 100, state.OutputComplete)
		r.endedOf(2, "flood", "live", 500, state.OutputComplete)
		time.Sleep(time.Second)
		r.endedIn("flood", "dead", 100, state.OutputComplete)
		if err := r.sweep(Config{Quota: 250}); err != nil {
			t.Fatal(err)
		}
		snap := r.l.Latest()
		if snap.JobByUID("usmall").Pruned || !snap.JobByUID("udead").Pruned || r.s.Usage() != 600 {
			t.Errorf("pruned: small %v, dead %v; %d bytes are stored", snap.JobByUID("usmall").Pruned, snap.JobByUID("udead").Pruned, r.s.Usage())
		}
	})
}

// D9: what a service may be reverted to keeps its inputs.
func TestInputsOfEarlierVersionsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		first, second := "sha256:"+strings.Repeat("a", 64), "sha256:"+strings.Repeat("b", 64)
		r.s.uploads[first], r.s.uploads[second] = true, true
		for _, digest := range []string{first, second} {
			spec := &api.JobSpec{Name: "a", Type: "service", Template: api.Template{Command: []string{"true"}, Inputs: []api.InputSpec{{Path: "x", Digest: digest}}}}
			spec.Defaults()
			r.must(&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: "a"}, UID: "ua", Spec: spec})
		}
		if err := r.sweep(Config{}); err != nil || !r.s.uploads[first] || !r.s.uploads[second] {
			t.Fatal(err, r.s.uploads)
		}
	})
}

func TestTooManyAreForgottenOldestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.node("n1")
		for i := range 700 {
			r.ended(fmt.Sprintf("j%04d", i), 0, state.OutputComplete)
			time.Sleep(time.Millisecond)
		}
		if err := r.sweep(Config{MaxJobs: 10}); err != nil {
			t.Fatal(err)
		}
		snap := r.l.Latest()
		if snap.JobCount() != 10 || snap.JobByUID("uj0699") == nil || snap.AllocCount() != 10 {
			t.Fatal(snap.JobCount(), snap.AllocCount())
		}
		for i := range 5 {
			id := muster.NodeID(fmt.Sprintf("g%d", i))
			r.node(id)
			r.must(&state.NodeGone{ID: id})
			time.Sleep(time.Second)
		}
		if err := r.sweep(Config{MaxNodes: 2}); err != nil || r.l.Latest().GoneNodeCount() != 2 || r.l.Latest().Node("g4") == nil {
			t.Fatal(err, r.l.Latest().GoneNodeCount())
		}
		time.Sleep(25 * time.Hour)
		if err := r.sweep(Config{}); err != nil || r.l.Latest().GoneNodeCount() != 0 || r.l.Latest().JobCount() != 0 {
			t.Fatal(err, r.l.Latest().GoneNodeCount())
		}
		if r.l.Latest().Node("n1") == nil {
			t.Fatal("a live node was forgotten")
		}
	})
}

// D22: what ended jobs take in memory is bounded, however long their specs are.
func TestLongSpecsAreForgottenOldestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.node("n1")
		for i := range 20 {
			r.ended(fmt.Sprintf("j%04d", i), 0, state.OutputComplete, func(s *api.JobSpec) { s.Env = map[string]string{"LONG": strings.Repeat("x", 100<<10)} })
			time.Sleep(time.Millisecond)
		}
		if err := r.sweep(Config{MaxJobBytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		if snap := r.l.Latest(); snap.JobCount() != 10 || snap.JobByUID("uj0019") == nil || snap.EndedJobBytes() > 1<<20 {
			t.Fatal(snap.JobCount(), snap.EndedJobBytes())
		}
	})
}

func TestUploadsOfJobsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		used, lost := "sha256:"+strings.Repeat("a", 64), "sha256:"+strings.Repeat("b", 64)
		r.s.uploads[used], r.s.uploads[lost] = true, true
		spec := &api.JobSpec{Name: "a", Template: api.Template{Command: []string{"true"}, Inputs: []api.InputSpec{{Path: "x", Digest: used}}}}
		spec.Defaults()
		r.must(&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: "a"}, UID: "ua", Spec: spec})
		if err := r.sweep(Config{}); err != nil || !r.s.uploads[used] || r.s.uploads[lost] {
			t.Fatal(err, r.s.uploads)
		}
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.node("n1")
		r.ended("a", 1, state.OutputComplete)
		p, err := New(Config{State: r.l, Proposer: r.l, Blobs: r.s, Jobs: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(2 * time.Hour)
		if r.l.Latest().JobCount() != 0 {
			t.Error("the loop did not forget the job")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
