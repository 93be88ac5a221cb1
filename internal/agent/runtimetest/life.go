package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
)

// lifeCases: a sandbox outlives the agent, and goes when it is removed.
func lifeCases() []testCase {
	return []testCase{
		{"attach/nothing there", attachNothing},
		{"attach/running", attachRunning},
		{"attach/stop", attachStop},
		{"attach/ended while nobody looked", attachEnded},
		{"attach/init died while nobody looked", attachDied},
		{"remove/never started", removeNever},
		{"remove/running", removeRunning},
		{"remove/ended, twice", removeEnded},
		{"many at once", many},
		{"many starts at once", burst},
		{"check", check},
	}
}

func attachNothing(r *rig) {
	if _, err := r.runtime.Attach(r.Context(), r.TempDir()); !errors.Is(err, contract.ErrNoSandbox) {
		r.Errorf("attach: %v, want ErrNoSandbox", err)
	}
	if _, err := r.runtime.Attach(r.Context(), filepath.Join(r.TempDir(), "no-such-directory")); !errors.Is(err, contract.ErrNoSandbox) {
		r.Errorf("attach: %v, want ErrNoSandbox", err)
	}
}

// reattach is what a restarted agent sees.
func (r *rig) reattach(dir string) contract.Sandbox {
	r.Helper()
	s, err := r.suite.New(r.T).Attach(r.Context(), dir)
	if err != nil {
		r.Fatalf("attach: %v", err)
	}
	r.Cleanup(func() { _ = s.Close() })
	return s
}

func waitsForGo() program {
	return program{
		sh:   "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; exit 5",
		fake: []string{"stdout", "one\n", ";", "until", "go", ";", "stdout", "two\n", ";", "exit", "5"},
	}
}

func attachRunning(r *rig) {
	c := r.config(waitsForGo())
	first := r.start(c)
	r.untilPrinted(first, "one\n")
	if err := first.Close(); err != nil {
		r.Error(err)
	}
	second := r.reattach(c.Dir)
	if !second.Started().Equal(first.Started()) {
		r.Errorf("started %v, attached says %v", first.Started(), second.Started())
	}
	select {
	case <-second.Done():
		r.Fatalf("ended when it was attached: %+v", second.Result())
	default:
	}
	third := r.reattach(c.Dir) // two at once do no harm
	r.script(c, "go", "", 0o600)
	for _, s := range []contract.Sandbox{second, third} {
		result := r.wait(s)
		if result.ExitCode != 5 {
			r.Errorf("result %+v", result)
		}
		r.checkFailure(result.Failure, muster.FailureUser, muster.ReasonExit, "5")
		if out := r.output(s, "stdout"); out != "one\ntwo\n" {
			r.Errorf("output %q", out)
		}
	}
	select {
	case <-first.Done():
		r.Error("a closed sandbox still tells")
	default:
	}
}

func attachStop(r *rig) {
	c := r.config(deaf())
	s := r.start(c)
	r.untilPrinted(s, "ready")
	_ = s.Close()
	s = r.reattach(c.Dir)
	s.Stop(100 * time.Millisecond)
	if result := r.wait(s); !result.Stopped || result.Signal != "SIGKILL" {
		r.Errorf("result %+v", result)
	}
}

func attachEnded(r *rig) {
	c := r.config(waitsForGo())
	first := r.start(c)
	r.untilPrinted(first, "one\n")
	watcher := r.reattach(c.Dir)
	_ = first.Close()
	r.script(c, "go", "", 0o600)
	want := r.wait(watcher)
	s := r.reattach(c.Dir)
	got := r.wait(s)
	if got.ExitCode != 5 || !got.Started.Equal(want.Started) || !got.Ended.Equal(want.Ended) || got.Failure == nil || *got.Failure != *want.Failure {
		r.Errorf("result %+v, want %+v", got, want)
	}
	if out := r.output(s, "stdout"); out != "one\ntwo\n" {
		r.Errorf("output %q", out)
	}
}

func attachDied(r *rig) {
	if r.suite.InitPid == nil {
		r.Skip("no init to kill")
	}
	c := r.config(program{sh: "echo ready; setsid sleep 601 & sleep 600"})
	s := r.start(c)
	r.untilPrinted(s, "ready")
	pid := r.suite.InitPid(r.T, c.Dir)
	_ = s.Close()
	kill(r, pid)
	s = r.reattach(c.Dir)
	r.checkFailure(r.wait(s).Failure, muster.FailureNode, muster.ReasonSandboxDied)
	r.until("no process is left", func() bool { return len(r.processes(string(c.ID))) == 0 })
}

func removeNever(r *rig) {
	if err := r.runtime.Remove(r.Context(), r.TempDir()); err != nil {
		r.Errorf("remove: %v", err)
	}
	if err := r.runtime.Remove(r.Context(), filepath.Join(r.TempDir(), "no-such-directory")); err != nil {
		r.Errorf("remove: %v", err)
	}
}

func removeRunning(r *rig) {
	c := r.config(program{
		sh:   `trap '' TERM; setsid sleep 700 & (setsid sh -c 'sleep 701 & sleep 702' &); echo ready; sleep 703`,
		fake: []string{"stdout", "ready", ";", "deaf", "1h"},
	})
	s := r.start(c)
	r.untilPrinted(s, "ready")
	if err := r.runtime.Remove(r.Context(), c.Dir); err != nil {
		r.Fatalf("remove: %v", err)
	}
	if left := r.processes(string(c.ID)); !r.suite.Scripted && len(left) > 0 {
		r.Errorf("remove returned and left %q", left)
	}
	r.wait(s)
	if err := r.runtime.Remove(r.Context(), c.Dir); err != nil {
		r.Errorf("remove again: %v", err)
	}
}

func removeEnded(r *rig) {
	s, _ := r.run(program{sh: "echo kept; exit 6", fake: []string{"stdout", "kept\n", ";", "exit", "6"}})
	c := filepath.Join(r.root, r.uid+"-1-1")
	for range 2 {
		if err := r.runtime.Remove(r.Context(), c); err != nil {
			r.Errorf("remove: %v", err)
		}
	}
	// What it printed and how it ended can be told as long as its directory exists.
	again := r.reattach(c)
	if result := r.wait(again); result.ExitCode != 6 {
		r.Errorf("result %+v", result)
	}
	if out := r.output(again, "stdout") + r.output(s, "stdout"); out != "kept\nkept\n" {
		r.Errorf("output %q", out)
	}
}

func many(r *rig) {
	n := 200
	if testing.Short() {
		n = 20
	}
	n = max(n/Slow(), 10)
	configs := make([]contract.SandboxConfig, n)
	for i := range configs {
		configs[i] = r.config(program{
			sh:   fmt.Sprintf("ls /proc/self/fd | tr '\\n' ' '; echo; echo %d >&2; exit %d", i, i%7),
			fake: []string{"stdout", "0 1 2 3 \n", ";", "stderr", fmt.Sprintln(i), ";", "exit", fmt.Sprint(i % 7)},
		})
	}
	errs := make(chan error, n)
	var all sync.WaitGroup
	for i, c := range configs {
		all.Go(func() {
			if err := r.one(c, i); err != nil {
				errs <- fmt.Errorf("sandbox %d: %w", i, err)
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		r.Error(err)
	}
}

// burst: all are started in one moment and run beside each other.
func burst(r *rig) {
	n := max(50/Slow(), 10)
	configs := make([]contract.SandboxConfig, n)
	for i := range configs {
		configs[i] = r.config(program{
			sh: "echo ready; exec sleep " + long, fake: []string{"stdout", "ready", ";", "sleep", "1h"},
		})
		r.removeLater(configs[i].Dir)
	}
	all := make([]contract.Sandbox, n)
	var wg sync.WaitGroup
	for i, c := range configs {
		wg.Go(func() {
			s, err := r.runtime.Start(r.Context(), c)
			if err != nil {
				r.Errorf("start: %v", err)
				return
			}
			all[i] = s
		})
	}
	wg.Wait()
	for _, s := range all {
		if s != nil {
			r.untilPrinted(s, "ready")
			s.Stop(0)
		}
	}
	for _, s := range all {
		if s != nil {
			if result := r.wait(s); !result.Stopped {
				r.Errorf("result %+v", result)
			}
			_ = s.Close()
		}
	}
}

// one is the whole life of a sandbox among many.
func (r *rig) one(c contract.SandboxConfig, i int) error {
	ctx := context.Background()
	s, err := r.runtime.Start(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	<-s.Done()
	if got := s.Result(); got.ExitCode != i%7 || got.Signal != "" || got.Stopped {
		return fmt.Errorf("result %+v", got)
	}
	buf := make([]byte, 100)
	n, _ := s.Output("stderr").ReadAt(buf, 0)
	if got, want := string(buf[:n]), fmt.Sprintln(i); got != want {
		return fmt.Errorf("stderr %q, want %q", got, want)
	}
	n, _ = s.Output("stdout").ReadAt(buf, 0)
	// A descriptor more would be one that leaked from a neighbour's start.
	if got := strings.TrimSpace(string(buf[:n])); got != "0 1 2 3" {
		return fmt.Errorf("descriptors %q", got)
	}
	return r.runtime.Remove(ctx, c.Dir)
}

func check(r *rig) {
	if err := r.runtime.Check(r.Context()); err != nil {
		r.Error(err)
	}
	if r.runtime.Name() == "" {
		r.Error("no name")
	}
}
