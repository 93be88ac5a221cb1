package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/fencing"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func TestRunsToTheEndOnceAndKeepsTheResult(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	d := set(run("u-0-1", "exit", "0"), run("u-1-1", "exit", "7"), run("u-2-1", "refuse"))
	r.must(d)
	if got := r.until("u-0-1", muster.AllocEnded); got.Outcome != muster.OutcomeSucceeded || got.Failure != nil || got.Started == 0 || got.Ended < got.Started {
		t.Errorf("%+v", got)
	}
	if got := r.until("u-1-1", muster.AllocEnded); got.Outcome != muster.OutcomeFailed || got.ExitCode != 7 || got.Failure.Reason != muster.ReasonExit {
		t.Errorf("%+v", got)
	}
	if got := r.until("u-2-1", muster.AllocEnded); got.Outcome != muster.OutcomeFailed || got.Failure.Reason != muster.ReasonCommandNotFound {
		t.Errorf("%+v", got)
	}
	for range 3 {
		r.must(d) // the whole again changes nothing
	}
	for _, id := range []muster.AllocID{"u-0-1", "u-1-1", "u-2-1"} {
		if n := rt.started(id); n != 1 {
			t.Errorf("%s was started %d times", id, n)
		}
	}
}

func TestEnvironmentIsCleanAndTellsTheMember(t *testing.T) {
	t.Setenv("MUSTER_TEST_LEAK", "1")
	rt := newPlayed()
	r := newRig(t, rt, "")
	al := run("u-0-1", "exit", "0")
	al.Spec.Env = map[string]string{"PATH": "/mine", "A": "b=c", "MUSTER_INDEX": "99"}
	al.Spec.TimeoutMillis, al.Spec.OutputLimit = 2500, 77
	al.Spec.Resources = muster.Resources{CPU: 500, Memory: muster.GiB}
	r.must(set(al))
	r.until("u-0-1", muster.AllocEnded)
	c := rt.config("u-0-1")
	box := filepath.Join(r.dir, "sandboxes", "u-0-1")
	want := []string{
		"A=b=c", "HOME=" + box + "/work", "MUSTER_ALLOC=u-0-1", "MUSTER_ATTEMPT=1", "MUSTER_COUNT=5", "MUSTER_INDEX=2",
		"MUSTER_JOB=j", "MUSTER_JOB_VERSION=4", "MUSTER_NAMESPACE=default", "PATH=/mine", "TMPDIR=" + box + "/tmp",
	}
	if !reflect.DeepEqual(c.Env, want) {
		t.Errorf("environment\n got %q\nwant %q", c.Env, want)
	}
	if c.Dir != box || c.Work != box+"/work" || c.Timeout != 2500*time.Millisecond || c.KillGrace != 1500*time.Millisecond || c.OutputLimit != 77 || c.Resources != al.Spec.Resources {
		t.Errorf("%+v", c)
	}
	for _, dir := range []string{c.Work, box + "/tmp"} {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// Case N16, as are the next two.
func TestStop(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	r.must(set(run("u-0-1", "wait"), run("u-1-1", "hold")))
	r.until("u-0-1", muster.AllocRunning)
	r.until("u-1-1", muster.AllocRunning)
	r.must(set(stop("u-0-1", "u-1-1")...))
	if got := r.until("u-0-1", muster.AllocEnded); got.Outcome != muster.OutcomeStopped || got.Failure != nil || got.Signal != "SIGTERM" {
		t.Errorf("%+v", got)
	}
	b := rt.box("u-1-1")
	r.eventually("hold was asked to stop", func() bool { return len(b.stopGraces()) > 0 })
	r.must(set(stop("u-1-1")...))
	r.must(set(run("u-1-1", "hold")))   // a stop is never taken back
	b.end(contract.Result{ExitCode: 0}) // it ended by itself before the signal reached it
	if got := r.until("u-1-1", muster.AllocEnded); got.Outcome != muster.OutcomeSucceeded {
		t.Errorf("%+v", got)
	}
	if g := b.stopGraces(); !reflect.DeepEqual(g, []time.Duration{1500 * time.Millisecond}) {
		t.Errorf("graces %v", g)
	}
}

func TestStopBeforeStartEndsWithoutRunning(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	al := run("u-0-1", "exit", "0")
	al.Desired = muster.AllocStop
	r.must(set(al))
	if got := r.until("u-0-1", muster.AllocEnded); got.Outcome != muster.OutcomeStopped || got.Started != 0 {
		t.Errorf("%+v", got)
	}
	// One that waits for its input, too.
	waits := run("u-1-1", "exit", "0")
	waits.Spec.Inputs = []wire.Input{{Path: "a", Digest: "sha256:" + strings.Repeat("0", 64)}}
	r.must(set(waits))
	r.until("u-1-1", muster.AllocStarting)
	r.must(set(stop("u-1-1")...))
	if got := r.until("u-1-1", muster.AllocEnded); got.Outcome != muster.OutcomeStopped {
		t.Errorf("%+v", got)
	}
	if rt.started("u-0-1")+rt.started("u-1-1") != 0 {
		t.Error("it was started")
	}
}

func TestAbsenceStopsNothing(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	r.must(set(run("u-0-1", "wait")))
	r.until("u-0-1", muster.AllocRunning)
	r.must(set())
	r.must(set(run("u-1-1", "exit", "0")))
	r.until("u-1-1", muster.AllocEnded)
	if got := r.report("u-0-1"); got == nil || got.Status != muster.AllocRunning || len(rt.box("u-0-1").stopGraces()) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestForget(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	r.must(set(run("u-0-1", "exit", "0"), run("u-1-1", "wait")))
	r.until("u-0-1", muster.AllocEnded)
	r.until("u-1-1", muster.AllocRunning)
	dir := rt.config("u-0-1").Dir
	a := r.must(wire.Desired{Forget: []muster.AllocID{"u-0-1", "u-1-1", "u-9-1"}})
	if !reflect.DeepEqual(a.NotEnded, []muster.AllocID{"u-1-1"}) {
		t.Errorf("not ended: %v", a.NotEnded)
	}
	if !strings.Contains(r.log.String(), "have not ended") {
		t.Error("not in the log")
	}
	r.eventually("its directory is deleted", func() bool {
		_, err := os.Stat(dir)
		return errors.Is(err, os.ErrNotExist)
	})
	if r.report("u-0-1") != nil || r.report("u-1-1").Status != muster.AllocRunning {
		t.Error("reports after forget")
	}
	// Sent again, by mistake or late, with the highest fence: never run again.
	a = r.must(set(run("u-0-1", "exit", "0"), run("u-9-1", "exit", "0")))
	if !reflect.DeepEqual(a.Forgotten, []muster.AllocID{"u-0-1", "u-9-1"}) {
		t.Errorf("forgotten: %v", a.Forgotten)
	}
	if rt.started("u-0-1") != 1 || rt.started("u-9-1") != 0 {
		t.Error("a forgotten allocation was run")
	}
}

func TestForgottenIsBounded(t *testing.T) {
	f := newForgotten(3)
	for _, id := range []muster.AllocID{"a", "b", "a", "c", "d"} {
		f.add(id)
	}
	if f.has("a") || !f.has("b") || !f.has("c") || !f.has("d") || len(f.ids) != 3 {
		t.Errorf("%v", f.ids)
	}
}

func TestUnknownWithoutSpec(t *testing.T) {
	r := newRig(t, newPlayed(), "")
	a := r.must(set(wire.DesiredAlloc{ID: "u-0-1", Desired: muster.AllocRun}, wire.DesiredAlloc{ID: "u-1-1", Desired: muster.AllocStop}))
	if !reflect.DeepEqual(a.Unknown, []muster.AllocID{"u-0-1", "u-1-1"}) {
		t.Errorf("%+v", a)
	}
}

func TestFences(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	at := func(cluster string, epoch, term, index uint64, allocs ...wire.DesiredAlloc) wire.Desired {
		return wire.Desired{Fence: wire.Fence{Cluster: cluster, Epoch: epoch, Term: term, Index: index}, Allocs: allocs}
	}
	r.refused(wire.RefusedCluster, at("", 1, 1, 1))
	r.must(at("c1", 2, 5, 10))
	r.must(at("c1", 2, 5, 10)) // equal is the same again
	for _, low := range []wire.Desired{at("c1", 2, 5, 9), at("c1", 2, 4, 99), at("c1", 1, 9, 99)} {
		low.Allocs = []wire.DesiredAlloc{run("u-0-1", "exit", "0")}
		got := r.refused(wire.RefusedFence, low)
		if got.Fence != (wire.Fence{Cluster: "c1", Epoch: 2, Term: 5, Index: 10}) {
			t.Errorf("fence %v", got.Fence)
		}
	}
	if got := r.refused(wire.RefusedCluster, at("other", 99, 99, 99)); !strings.Contains(got.Message, "c1") || !strings.Contains(got.Message, "other") {
		t.Error(got.Message)
	}
	r.must(at("c1", 2, 5, 11)) // within the term
	r.stop()
	r = newRig(t, rt, r.dir)
	if h, err := r.client.Hello(t.Context()); err != nil || h.Fence.Index != 11 {
		t.Errorf("%+v, %v", h.Fence, err)
	}
	r.refused(wire.RefusedFence, at("c1", 2, 5, 10))
	r.must(at("c1", 3, 1, 1)) // a restored backup
	r.stop()
	r = newRig(t, rt, r.dir)
	r.refused(wire.RefusedFence, at("c1", 2, 5, 12))
	r.refused(wire.RefusedCluster, at("other", 9, 9, 9))

	if err := r.client.Release(t.Context(), "wrong"); err == nil || !strings.Contains(err.Error(), "c1") {
		t.Errorf("release of a wrong cluster: %v", err)
	}
	if err := r.client.Release(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	r.must(at("other", 1, 1, 1))
	r.stop()
	r = newRig(t, rt, r.dir)
	r.refused(wire.RefusedCluster, at("c1", 9, 9, 9))
	if rt.started("u-0-1") != 0 {
		t.Error("a refused set was obeyed")
	}
}

func TestFenceThatCannotBeReadStopsTheAgent(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fencing.FenceName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{Dir: dir, Node: "n1", Runtimes: []contract.Runtime{newPlayed()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), fencing.FenceName) {
		t.Errorf("got %v", err)
	}
}

func TestMassStopMustBeNamed(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	var ids []muster.AllocID
	var all []wire.DesiredAlloc
	for i := range 6 {
		id := muster.AllocID(fmt.Sprintf("u-%d-1", i))
		ids = append(ids, id)
		all = append(all, run(id, "hold"))
	}
	r.must(set(all...))
	for _, id := range ids {
		r.until(id, muster.AllocRunning)
	}
	before, _ := r.client.Hello(t.Context())
	r.refused(wire.RefusedMassStop, set(stop(ids[:4]...)...))
	partly := set(stop(ids[:4]...)...)
	partly.Named = ids[:3]
	r.refused(wire.RefusedMassStop, partly)
	if after, _ := r.client.Hello(t.Context()); after.Fence != before.Fence {
		t.Error("the fence of a refused set was kept as obeyed")
	}
	r.must(set(stop(ids[:3]...)...)) // half is not more than half
	// Piece by piece does not get round it: those already stopping count.
	r.refused(wire.RefusedMassStop, set(stop(ids[:4]...)...))
	named := set(stop(ids...)...)
	named.Named = ids
	r.must(named)
	for _, id := range ids {
		b := rt.box(id)
		r.eventually("stop of "+string(id), func() bool { return len(b.stopGraces()) == 1 })
		b.end(contract.Result{Stopped: true, Signal: "SIGTERM"})
		r.until(id, muster.AllocEnded)
	}
}

func TestMassStopOfFewIsObeyed(t *testing.T) {
	r := newRig(t, newPlayed(), "")
	var ids []muster.AllocID
	for i := range 4 {
		id := muster.AllocID(fmt.Sprintf("u-%d-1", i))
		ids = append(ids, id)
		r.must(set(run(id, "wait")))
		r.until(id, muster.AllocRunning)
	}
	r.must(set(stop(ids...)...))
	for _, id := range ids {
		r.until(id, muster.AllocEnded)
	}
}

func TestBadSets(t *testing.T) {
	r := newRig(t, newPlayed(), "")
	for _, d := range []wire.Desired{
		set(run("../escape", "exit", "0")), set(run("", "exit", "0")), set(run(".", "exit", "0")),
		set(wire.DesiredAlloc{ID: "u-0-1", Desired: "maybe"}),
	} {
		if _, err := r.send(d); muster.KindOf(err) != muster.FaultInvalid {
			t.Errorf("%+v: %v", d.Allocs, err)
		}
	}
}

func TestSpecsThatCannotBeCarriedOut(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	none := run("u-0-1")
	relative := run("u-1-1", "exit", "0")
	relative.Spec.Workdir = "here"
	image := run("u-2-1", "exit", "0")
	image.Spec.Image = "debian:12"
	output := run("u-3-1", "exit", "0")
	output.Spec.Outputs = []wire.Output{{Path: "../x"}}
	r.must(set(none, relative, image, output))
	for id, want := range map[muster.AllocID]muster.Failure{
		"u-0-1": {Class: muster.FailureUser, Reason: muster.ReasonSpec, Message: "no command"},
		"u-1-1": {Class: muster.FailureUser, Reason: muster.ReasonSpec, Message: "here"},
		"u-2-1": {Class: muster.FailureNode, Reason: muster.ReasonNoRuntime, Message: "debian:12"},
		"u-3-1": {Class: muster.FailureUser, Reason: muster.ReasonSpec, Message: "../x"},
	} {
		got := r.until(id, muster.AllocEnded).Failure
		if got == nil || got.Class != want.Class || got.Reason != want.Reason || !strings.Contains(got.Message, want.Message) {
			t.Errorf("%s: %+v", id, got)
		}
		if rt.started(id) != 0 {
			t.Errorf("%s was started", id)
		}
	}
}
