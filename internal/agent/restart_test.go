package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func TestRestartFindsWhatRuns(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	r.must(set(run("u-0-1", "hold"), run("u-1-1", "hold"), run("u-2-1", "exit", "3")))
	r.until("u-0-1", muster.AllocRunning)
	r.until("u-1-1", muster.AllocRunning)
	before := r.until("u-2-1", muster.AllocEnded)
	first, _ := r.client.Hello(t.Context())
	r.stop()
	rt.box("u-1-1").out[wire.Stdout].write([]byte("while the agent was away\n"))
	rt.box("u-1-1").end(contract.Result{ExitCode: 0})

	r = newRig(t, rt, r.dir)
	if second, _ := r.client.Hello(t.Context()); second.Run == first.Run || second.Allocs != 3 {
		t.Errorf("%+v then %+v", first, second)
	}
	whole := r.whole()
	if !whole.Whole || len(whole.Allocs) != 3 || whole.Allocs[0].Status != muster.AllocRunning {
		t.Errorf("the first report after a restart: %+v", whole)
	}
	got := r.until("u-1-1", muster.AllocEnded)
	if got.Outcome != muster.OutcomeSucceeded || string(got.Stdout.Inline) != "while the agent was away\n" {
		t.Errorf("%+v", got)
	}
	if got := r.report("u-2-1"); got.Outcome != muster.OutcomeFailed || got.ExitCode != 3 || got.Ended != before.Ended {
		t.Errorf("%+v, before %+v", got, before)
	}
	r.must(set(run("u-0-1", "hold"), run("u-1-1", "hold"), run("u-2-1", "exit", "3")))
	rt.box("u-0-1").end(contract.Result{ExitCode: 0})
	r.until("u-0-1", muster.AllocEnded)
	for _, id := range []muster.AllocID{"u-0-1", "u-1-1", "u-2-1"} {
		if rt.started(id) != 1 {
			t.Errorf("%s was started %d times", id, rt.started(id))
		}
	}
}

// leave writes what an agent leaves that is killed at a certain point: steps, and raw lines.
func leave(t *testing.T, dir string, id muster.AllocID, lines ...any) string {
	t.Helper()
	box := string(journal.OfAlloc(dir, id))
	if err := os.MkdirAll(box, 0o700); err != nil {
		t.Fatal(err)
	}
	var written []byte
	for _, line := range lines {
		raw, ok := line.(string)
		if !ok {
			b, err := json.Marshal(line)
			if err != nil {
				t.Fatal(err)
			}
			raw = string(b) + "\n"
		}
		written = append(written, raw...)
	}
	if lines != nil {
		if err := os.WriteFile(filepath.Join(box, "alloc.jsonl"), written, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return box
}

func TestKilledBeforeItBegan(t *testing.T) {
	rt := newPlayed()
	dir := t.TempDir()
	al := run("u-0-1", "exit", "0")
	leave(t, dir, al.ID, journal.Step{Spec: al.Spec})
	leave(t, dir, "u-1-1", journal.Step{Spec: al.Spec})
	r := newRig(t, rt, dir)
	if got := r.report("u-0-1"); got == nil || got.Status != muster.AllocStarting {
		t.Fatalf("%+v", got)
	}
	// Meanwhile the server may have given it to another node: it waits for a set that wants it.
	r.must(set())
	if rt.started("u-0-1") != 0 {
		t.Fatal("started without being wanted")
	}
	r.must(set(append(stop("u-1-1"), wire.DesiredAlloc{ID: "u-0-1", Desired: muster.AllocRun})...)) // without spec: it holds it
	if got := r.until("u-0-1", muster.AllocEnded); got.Outcome != muster.OutcomeSucceeded || rt.started("u-0-1") != 1 {
		t.Errorf("%+v", got)
	}
	if got := r.until("u-1-1", muster.AllocEnded); got.Outcome != muster.OutcomeStopped || rt.started("u-1-1") != 0 {
		t.Errorf("%+v", got)
	}
}

// TestKilledWhileItBegan: nothing of it ever ran, so it is no failure; but what may be left of it
// goes first, and it is begun only if a set still asks for it.
func TestKilledWhileItBegan(t *testing.T) {
	rt := newPlayed()
	dir := t.TempDir()
	al := run("u-0-1", "exit", "0")
	box := leave(t, dir, al.ID, journal.Step{Spec: al.Spec}, journal.Step{Begun: &journal.Begun{Runtime: "played", At: 5}})
	r := newRig(t, rt, dir)
	r.eventually("what might be left of it is removed", func() bool {
		rt.mu.Lock()
		defer rt.mu.Unlock()
		return len(rt.removed) > 0 && rt.removed[0] == box
	})
	if rt.started("u-0-1") != 0 {
		t.Error("it was started before a set asked for it")
	}
	// R21: nobody may take it for one that runs.
	if got := r.report("u-0-1"); got.Status != muster.AllocStarting {
		t.Errorf("before it is begun again it is reported as %+v", got)
	}
	r.must(set(al))
	if got := r.until("u-0-1", muster.AllocEnded); got.Outcome != muster.OutcomeSucceeded || rt.started("u-0-1") != 1 {
		t.Errorf("started %d times, %+v", rt.started("u-0-1"), got)
	}
}

// TestKilledEachTimeItBegan: it may be what ends its agents.
func TestKilledEachTimeItBegan(t *testing.T) {
	rt := newPlayed()
	dir := t.TempDir()
	al := run("u-0-1", "exit", "0")
	begun := journal.Step{Begun: &journal.Begun{Runtime: "played", At: 5}}
	leave(t, dir, al.ID, journal.Step{Spec: al.Spec}, begun, begun, begun)
	r := newRig(t, rt, dir)
	got := r.until("u-0-1", muster.AllocEnded)
	if got.Outcome != muster.OutcomeFailed || got.Failure.Class != muster.FailureNode || got.Failure.Reason != muster.ReasonSandboxDied {
		t.Errorf("%+v", got)
	}
	r.must(set(al))
	if rt.started("u-0-1") != 0 {
		t.Error("it was started again")
	}
}

func TestTornJournals(t *testing.T) {
	rt := newPlayed()
	dir := t.TempDir()
	al := run("u-0-1", "exit", "0")
	begun := journal.Step{Begun: &journal.Begun{Runtime: "played", At: 5}}
	leave(t, dir, "torn-0-1", `{"spec":{"command":["exi`)
	leave(t, dir, "torn-1-1", journal.Step{Spec: al.Spec}, `{"beg`)
	rubbish := []string{leave(t, dir, "empty-0-1"), leave(t, dir, "empty-1-1", "")}
	leave(t, dir, "u-1-1", "\x00\x00\n", begun)
	leave(t, dir, "u-2-1", journal.Step{Spec: al.Spec}, begun, `{"end":{"id":"u-2-1"`)
	for _, id := range []string{"u-1-1", "u-2-1"} {
		b := &playedBox{rt: rt, start: time.Now(), done: make(chan struct{}), out: map[string]*playedLog{wire.Stdout: {}, wire.Stderr: {}}}
		b.end(contract.Result{ExitCode: 4, Failure: &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonExit}})
		rt.boxes[string(journal.OfAlloc(dir, muster.AllocID(id)))] = b
	}
	r := newRig(t, rt, dir)
	for _, id := range []muster.AllocID{"u-1-1", "u-2-1"} {
		if got := r.until(id, muster.AllocEnded); got.ExitCode != 4 || got.Outcome != muster.OutcomeFailed {
			t.Errorf("%s: %+v", id, got)
		}
	}
	// It cannot be told whether these have begun: they are not begun again.
	again := set(run("torn-0-1", "exit", "0"), run("torn-1-1", "exit", "0"))
	r.must(again)
	for _, id := range []muster.AllocID{"torn-0-1", "torn-1-1"} {
		if got := r.until(id, muster.AllocEnded); got.Failure == nil || got.Failure.Reason != muster.ReasonSandboxDied || rt.started(id) != 0 {
			t.Errorf("%s: %+v", id, got)
		}
	}
	r.must(again)
	for _, path := range rubbish {
		r.eventually(path+" is deleted", func() bool {
			_, err := os.Stat(path)
			return errors.Is(err, os.ErrNotExist)
		})
		id := muster.AllocID(filepath.Base(path))
		r.must(set(run(id, "exit", "0"))) // nothing was ever told of it: it may be had
		r.until(id, muster.AllocEnded)
	}
}

func TestRuntimeThatCannotTellYet(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	r.must(set(run("u-0-1", "hold")))
	r.until("u-0-1", muster.AllocRunning)
	r.stop()
	rt.attachErr = errors.New("too many open files")
	r = newRig(t, rt, r.dir)
	r.eventually("it was asked", func() bool { return strings.Contains(r.log.String(), "too many open files") })
	if got := r.report("u-0-1"); got.Status != muster.AllocRunning {
		t.Errorf("not knowing was told as %+v", got)
	}
	rt.mu.Lock()
	rt.attachErr = nil
	rt.mu.Unlock()
	rt.box("u-0-1").end(contract.Result{ExitCode: 0})
	if got := r.until("u-0-1", muster.AllocEnded); got.Outcome != muster.OutcomeSucceeded {
		t.Errorf("%+v", got)
	}
}

func TestStartUnderWayIsFinishedBeforeTheAgentEnds(t *testing.T) {
	rt := newPlayed()
	begun, let := make(chan struct{}), make(chan struct{})
	rt.onStart = func(contract.SandboxConfig) { close(begun); <-let }
	r := newRig(t, rt, "")
	r.must(set(run("u-0-1", "hold")))
	<-begun
	r.cancel()
	select {
	case <-r.ended:
		t.Fatal("the agent ended in the middle of a start")
	case <-time.After(50 * time.Millisecond):
	}
	close(let)
	<-r.ended
	rt.onStart = nil
	r = newRig(t, rt, r.dir)
	rt.box("u-0-1").end(contract.Result{ExitCode: 0})
	if got := r.until("u-0-1", muster.AllocEnded); got.Outcome != muster.OutcomeSucceeded || rt.started("u-0-1") != 1 {
		t.Errorf("%+v", got)
	}
}

func TestSecondAgentIsRefusedUnlessItReplaces(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	r.must(set(run("u-0-1", "hold")))
	r.until("u-0-1", muster.AllocRunning)
	second, err := New(Config{Dir: r.dir, Node: "n1", Runtimes: []contract.Runtime{rt}})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--replace") {
		t.Fatalf("got %v", err)
	}
	next := newRig(t, rt, r.dir, func(c *Config) { c.Replace, c.Version = true, "v-next" })
	<-r.ended
	if !errors.Is(r.err, ErrReplaced) {
		t.Errorf("the first agent ended with %v", r.err)
	}
	h, err := next.client.Hello(t.Context())
	if err != nil || h.Version != "v-next" {
		t.Errorf("%+v, %v", h, err)
	}
	next.until("u-0-1", muster.AllocRunning)
	if len(rt.box("u-0-1").stopGraces()) != 0 {
		t.Error("its sandbox was touched")
	}
	next.refused(wire.RefusedFence, wire.Desired{Fence: wire.Fence{Cluster: "c1", Epoch: 1, Term: 3, Index: 50}})
}

func TestAgentDoesNotBringBackItsDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	a, err := New(Config{Dir: dir, Node: "n1", Runtimes: []contract.Runtime{newPlayed()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("it was made")
	}
}

func TestInputCacheIsNotTrustedAfterAReboot(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	content := []byte("input")
	al := run("u-0-1", "exit", "0")
	al.Spec.Inputs = []wire.Input{{Path: "a", Digest: digestOf(content)}}
	r.must(set(al))
	r.until("u-0-1", muster.AllocStarting)
	if err := r.client.PutInput(t.Context(), digestOf(content), bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	r.until("u-0-1", muster.AllocEnded)
	r.stop()
	record, err := journal.ReadRecord(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	cached := func() int {
		files, err := os.ReadDir(filepath.Join(r.dir, journal.InputsName))
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	r = newRig(t, rt, r.dir)
	if cached() != 1 {
		t.Error("the cache was lost")
	}
	r.stop()
	record.Kernel = "another"
	b, _ := json.Marshal(record)
	if err := os.WriteFile(filepath.Join(r.dir, journal.RecordName), b, 0o600); err != nil {
		t.Fatal(err)
	}
	newRig(t, rt, r.dir)
	if cached() != 0 {
		t.Error("the cache was kept")
	}
}
