package runtimetest

import (
	"os"
	"path/filepath"
	"time"

	"github.com/musterhq/muster"
)

// stopCases: ended because somebody asked.
func stopCases() []testCase {
	return []testCase{
		{"stop/the program obeys", stopObeyed},
		{"stop/the program exits with 0", stopExitZero},
		{"stop/the program ignores TERM", stopIgnored},
		{"stop/at once", stopAtOnce},
		{"stop/a shorter grace counts", stopShorter},
		{"stop/a longer grace does not", stopLonger},
		{"stop/reaches the whole group", stopGroup},
		{"stop/a stopped program", stopStopped},
		{"stop/after the end", stopAfterEnd},
		{"stop/init does not answer", stopHungInit},
	}
}

const long = "1000"

func stopObeyed(r *rig) {
	s := r.start(r.config(program{sh: "echo ready; exec sleep " + long, fake: []string{"stdout", "ready", ";", "sleep", "1h"}}))
	r.untilPrinted(s, "ready")
	began := time.Now()
	s.Stop(30 * time.Second)
	result := r.wait(s)
	if !result.Stopped || result.Signal != "SIGTERM" {
		r.Errorf("result %+v", result)
	}
	r.checkFailure(result.Failure, muster.FailureUser, muster.ReasonStopped)
	if d := time.Since(began); d > 10*time.Second {
		r.Errorf("took %s", d)
	}
}

func stopExitZero(r *rig) {
	s := r.start(r.config(program{
		sh:   `trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done`,
		fake: []string{"stdout", "ready", ";", "polite", "1h", "0"},
	}))
	r.untilPrinted(s, "ready")
	s.Stop(30 * time.Second)
	result := r.wait(s)
	if !result.Stopped || result.ExitCode != 0 || result.Signal != "" || result.Failure != nil {
		r.Errorf("result %+v", result)
	}
}

// deaf ignores TERM, and so do its children.
func deaf() program {
	return program{
		sh:   `trap '' TERM; echo ready; while :; do sleep 0.05; done`,
		fake: []string{"stdout", "ready", ";", "deaf", "1h"},
	}
}

func stopIgnored(r *rig) {
	s := r.start(r.config(deaf()))
	r.untilPrinted(s, "ready")
	began := time.Now()
	s.Stop(500 * time.Millisecond)
	result := r.wait(s)
	if !result.Stopped || result.Signal != "SIGKILL" {
		r.Errorf("result %+v", result)
	}
	r.checkFailure(result.Failure, muster.FailureUser, muster.ReasonStopped)
	if d := time.Since(began); d < 500*time.Millisecond || d > 10*time.Second {
		r.Errorf("took %s", d)
	}
}

func stopAtOnce(r *rig) {
	s := r.start(r.config(deaf()))
	r.untilPrinted(s, "ready")
	s.Stop(0)
	if result := r.wait(s); !result.Stopped || result.Signal != "SIGKILL" {
		r.Errorf("result %+v", result)
	}
}

func stopShorter(r *rig) {
	s := r.start(r.config(deaf()))
	r.untilPrinted(s, "ready")
	began := time.Now()
	s.Stop(time.Hour)
	s.Stop(200 * time.Millisecond)
	if result := r.wait(s); !result.Stopped || result.Signal != "SIGKILL" {
		r.Errorf("result %+v", result)
	}
	if d := time.Since(began); d > 20*time.Second {
		r.Errorf("took %s", d)
	}
}

func stopLonger(r *rig) {
	s := r.start(r.config(deaf()))
	r.untilPrinted(s, "ready")
	began := time.Now()
	s.Stop(500 * time.Millisecond)
	s.Stop(time.Hour)
	if result := r.wait(s); !result.Stopped || result.Signal != "SIGKILL" {
		r.Errorf("result %+v", result)
	}
	if d := time.Since(began); d > 20*time.Second {
		r.Errorf("took %s", d)
	}
}

func stopGroup(r *rig) {
	// The parent's trap stands before the child says that it is ready.
	s := r.start(r.config(program{sh: `
		trap 'wait; exit 0' TERM
		sh -c 'trap "echo child got it; exit" TERM; echo child ready; while :; do sleep 0.02; done' &
		wait`}))
	r.untilPrinted(s, "child ready")
	s.Stop(30 * time.Second)
	if result := r.wait(s); result.Failure != nil {
		r.Errorf("result %v", result.Failure)
	}
	if out := r.output(s, "stdout"); out != "child ready\nchild got it\n" {
		r.Errorf("output %q", out)
	}
}

func stopStopped(r *rig) {
	s := r.start(r.config(program{sh: `trap 'exit 0' TERM; echo ready; kill -STOP $$; echo went on`}))
	r.untilPrinted(s, "ready")
	s.Stop(20 * time.Second)
	if result := r.wait(s); !result.Stopped {
		r.Errorf("result %+v", result)
	}
}

func stopAfterEnd(r *rig) {
	s, before := r.run(program{sh: "exit 4", fake: []string{"exit", "4"}})
	s.Stop(0)
	if after := s.Result(); after.Stopped || after.ExitCode != 4 || after.Ended != before.Ended {
		r.Errorf("result %+v, then %+v", before, after)
	}
}

func stopHungInit(r *rig) {
	if r.suite.Hasty != nil {
		r.runtime = r.suite.Hasty(r.T)
	}
	// Its output goes nowhere while init stands still, so it tells by a file.
	c := r.config(program{sh: `echo ready; while [ ! -e go ]; do sleep 0.02; done; kill -STOP $PPID; : >tried; sleep ` + long})
	s := r.start(c)
	r.untilPrinted(s, "ready")
	r.script(c, "go", "", 0o600)
	r.until("tried to stop init", func() bool {
		_, err := os.Stat(filepath.Join(c.Work, "tried"))
		return err == nil
	})
	s.Stop(0)
	result := r.wait(s)
	if !result.Stopped || result.Signal != "SIGKILL" {
		r.Errorf("result %+v", result)
	}
	r.checkFailure(result.Failure, muster.FailureUser, muster.ReasonStopped)
}
