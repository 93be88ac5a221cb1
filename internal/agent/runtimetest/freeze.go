package runtimetest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/musterhq/muster/internal/agent/contract"
)

// freezeCases: a sandbox that stands still, and goes on.
func freezeCases() []testCase {
	return []testCase{
		{"freeze/stands and goes on", freezeThaw},
		{"freeze/twice, and thaw of what is not frozen", freezeTwice},
		{"freeze/stop", freezeStop},
		{"freeze/kill", freezeKill},
		{"freeze/remove", freezeRemove},
		{"freeze/found by another agent", freezeAttach},
		{"freeze/many processes", freezeMany},
		{"freeze/after the end", freezeEnded},
	}
}

// busyProgram says in its output how far it is, all the time.
var busyProgram = program{
	sh:   `echo begun; while :; do echo .; sleep 0.01; done`,
	fake: []string{"stdout", "begun\n", ";", "busy", "1h"},
}

func (r *rig) freeze(s contract.Sandbox) {
	r.Helper()
	if r.suite.NoFreezer != "" {
		if err := contract.Freeze(r.Context(), s); !errors.Is(err, contract.ErrNoFreezer) {
			r.Errorf("freeze: %v, want ErrNoFreezer", err)
		}
		r.Skip(r.suite.NoFreezer)
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience())
	defer cancel()
	if err := contract.Freeze(ctx, s); err != nil {
		r.Fatalf("freeze: %v", err)
	}
	if !contract.Frozen(s) {
		r.Error("it does not say that it is frozen")
	}
}

func (r *rig) thaw(s contract.Sandbox) {
	r.Helper()
	if err := contract.Thaw(s); err != nil {
		r.Fatalf("thaw: %v", err)
	}
	if contract.Frozen(s) {
		r.Error("it says that it is frozen")
	}
}

// progress is what shows that a sandbox does something.
func (r *rig) progress(s contract.Sandbox) int {
	return len(r.output(s, "stdout")) + int(s.Usage().CPU/time.Millisecond)
}

func (r *rig) stands(s contract.Sandbox) {
	r.Helper()
	before := len(r.output(s, "stdout"))
	cpu := s.Usage().CPU
	time.Sleep(200 * time.Millisecond)
	if after := len(r.output(s, "stdout")); after != before {
		r.Errorf("it printed %d bytes while it was frozen", after-before)
	}
	if used := s.Usage().CPU - cpu; used > 20*time.Millisecond {
		r.Errorf("it used %s of processor time while it was frozen", used)
	}
}

func freezeThaw(r *rig) {
	s := r.start(r.config(busyProgram))
	r.untilPrinted(s, "begun")
	r.freeze(s)
	r.stands(s)
	if u := s.Usage(); u.Memory <= 0 {
		r.Errorf("usage while it is frozen: %+v", u)
	}
	before := r.progress(s)
	var all []time.Duration
	for range 20 {
		began := time.Now()
		r.thaw(s)
		all = append(all, time.Since(began))
		r.freeze(s)
	}
	r.Logf("thaw: %s", all)
	r.thaw(s)
	r.until("it goes on", func() bool { return r.progress(s) > before+3 })
	s.Stop(0)
	r.wait(s)
}

func freezeTwice(r *rig) {
	s := r.start(r.config(busyProgram))
	r.untilPrinted(s, "begun")
	r.freeze(s)
	r.freeze(s)
	r.stands(s)
	r.thaw(s)
	r.thaw(s)
	before := r.progress(s)
	r.until("it goes on", func() bool { return r.progress(s) > before+3 })
	s.Stop(0)
	r.wait(s)
}

// freezeStop: it is asked as any other, and may do its last work.
func freezeStop(r *rig) {
	s := r.start(r.config(program{
		sh: `trap 'echo bye; exit 3' TERM; echo begun; while :; do sleep 0.01; done`, fake: []string{"stdout", "begun\n", ";", "polite", "1h", "3"},
	}))
	r.untilPrinted(s, "begun")
	r.freeze(s)
	s.Stop(30 * time.Second)
	result := r.wait(s)
	if !result.Stopped || result.ExitCode != 3 {
		r.Errorf("result %+v", result)
	}
	if !r.suite.Scripted && !strings.Contains(r.output(s, "stdout"), "bye") {
		r.Errorf("output %q", r.output(s, "stdout"))
	}
}

// freezeKill: what ignores TERM, and whose init is stopped with it.
func freezeKill(r *rig) {
	s := r.start(r.config(program{
		sh: `trap '' TERM; echo begun; while :; do sleep 0.01; done`, fake: []string{"stdout", "begun\n", ";", "deaf", "1h"},
	}))
	r.untilPrinted(s, "begun")
	r.freeze(s)
	s.Stop(0)
	if result := r.wait(s); !result.Stopped || result.Signal != "SIGKILL" {
		r.Errorf("result %+v", result)
	}
}

// freezeRemove: a frozen sandbox goes as any other; checkNothingLeft looks.
func freezeRemove(r *rig) {
	c := r.config(busyProgram)
	s := r.start(c)
	r.untilPrinted(s, "begun")
	r.freeze(s)
	if err := r.runtime.Remove(r.Context(), c.Dir); err != nil {
		r.Fatal(err)
	}
	r.wait(s)
}

// freezeAttach: another agent finds it as it stands, and lets it go on.
func freezeAttach(r *rig) {
	c := r.config(busyProgram)
	s := r.start(c)
	r.untilPrinted(s, "begun")
	r.freeze(s)
	_ = s.Close()
	again, err := r.suite.New(r.T).Attach(r.Context(), c.Dir)
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	if !contract.Frozen(again) {
		r.Error("it does not say that it is frozen")
	}
	r.stands(again)
	before := r.progress(again)
	r.thaw(again)
	r.until("it goes on", func() bool { return r.progress(again) > before+3 })
	again.Stop(0)
	r.wait(again)
}

// freezeMany: all of what forks without end stands, wherever it is forked.
func freezeMany(r *rig) {
	s := r.start(r.config(program{sh: `
		i=0; while [ $i -lt 8 ]; do (while :; do (:); echo .; sleep 0.005; done) & i=$((i+1)); done; echo begun; wait`}))
	r.untilPrinted(s, "begun")
	for range 5 {
		r.freeze(s)
		r.stands(s)
		r.thaw(s)
	}
	before := r.progress(s)
	r.until("it goes on", func() bool { return r.progress(s) > before+3 })
	s.Stop(0)
	r.wait(s)
}

func freezeEnded(r *rig) {
	s, _ := r.run(program{sh: "true", fake: []string{"exit", "0"}})
	if err := contract.Freeze(r.Context(), s); !errors.Is(err, contract.ErrNoSandbox) && !errors.Is(err, contract.ErrNoFreezer) {
		r.Errorf("freeze: %v, want ErrNoSandbox", err)
	}
	if err := contract.Thaw(s); err != nil && !errors.Is(err, contract.ErrNoFreezer) {
		r.Errorf("thaw: %v", err)
	}
}
