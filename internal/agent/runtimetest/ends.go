package runtimetest

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/musterhq/muster"
)

// endCases: a command ends, and how is known.
func endCases() []testCase {
	return []testCase{
		{"exit codes", exitCodes},
		{"signals", signals},
		{"times", times},
		{"time limit/the program obeys TERM", timeoutTerm},
		{"time limit/the program ignores TERM", timeoutKill},
		{"time limit/not reached", timeoutNotReached},
		{"an end takes everything with it", grandchildren},
		{"a grandchild holds the output open", heldPipe},
		{"many orphans are reaped", orphans},
		{"init is killed", initKilled},
	}
}

func exitCodes(r *rig) {
	for _, code := range []int{0, 1, 3, 137, 255} {
		_, result := r.run(program{sh: fmt.Sprintf("exit %d", code), fake: []string{"exit", fmt.Sprint(code)}})
		if result.ExitCode != code || result.Signal != "" || result.Stopped {
			r.Errorf("exit %d: %+v", code, result)
		}
		if code == 0 {
			if result.Failure != nil {
				r.Errorf("exit 0: %v", result.Failure)
			}
			continue
		}
		r.checkFailure(result.Failure, muster.FailureUser, muster.ReasonExit, fmt.Sprint(code))
	}
}

func signals(r *rig) {
	for _, name := range []string{"KILL", "SEGV", "TERM"} {
		_, result := r.run(program{sh: "kill -" + name + " $$", fake: []string{"signal", "SIG" + name}})
		if result.Signal != "SIG"+name {
			r.Errorf("%s: signal is %q", name, result.Signal)
		}
		r.checkFailure(result.Failure, muster.FailureUser, muster.ReasonSignal, "SIG"+name)
	}
}

func times(r *rig) {
	before := time.Now().Add(-time.Millisecond)
	s, result := r.run(program{sh: "sleep 0.2", fake: []string{"sleep", "200ms"}})
	after := time.Now().Add(time.Millisecond)
	if s.Started().Before(before) || result.Ended.After(after) || result.Ended.Sub(result.Started) < 200*time.Millisecond {
		r.Errorf("started %v, result %v to %v, within %v to %v", s.Started(), result.Started, result.Ended, before, after)
	}
	if !s.Started().Equal(result.Started) {
		r.Errorf("started is %v, the result says %v", s.Started(), result.Started)
	}
}

func timeoutTerm(r *rig) {
	c := r.config(program{
		sh:   `trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done`,
		fake: []string{"polite", "1h", "7"},
	})
	c.Timeout, c.KillGrace = 500*time.Millisecond, 20*time.Second
	began := time.Now()
	s := r.start(c)
	result := r.wait(s)
	r.checkFailure(result.Failure, muster.FailureUser, muster.ReasonTimeout, "500ms")
	if result.ExitCode != 7 || result.Stopped {
		r.Errorf("result %+v", result)
	}
	if d := time.Since(began); d < 500*time.Millisecond || d > 10*time.Second {
		r.Errorf("took %s", d)
	}
}

func timeoutKill(r *rig) {
	c := r.config(program{
		sh:   `trap '' TERM; while :; do sleep 0.05; done`,
		fake: []string{"deaf", "1h"},
	})
	c.Timeout, c.KillGrace = 300*time.Millisecond, 300*time.Millisecond
	began := time.Now()
	result := r.wait(r.start(c))
	r.checkFailure(result.Failure, muster.FailureUser, muster.ReasonTimeout, "300ms")
	if result.Signal != "SIGKILL" {
		r.Errorf("result %+v", result)
	}
	if d := time.Since(began); d < 600*time.Millisecond || d > 10*time.Second {
		r.Errorf("took %s", d)
	}
}

func timeoutNotReached(r *rig) {
	c := r.config(program{sh: "exit 0", fake: []string{"exit", "0"}})
	c.Timeout = time.Hour
	if result := r.wait(r.start(c)); result.Failure != nil {
		r.Errorf("failure %v", result.Failure)
	}
}

func grandchildren(r *rig) {
	c := r.config(program{sh: `
		sleep 100 &
		setsid sleep 101 &
		(setsid sh -c 'sleep 102 & sleep 103' >/dev/null 2>&1 &)
		(trap "" TERM HUP; sleep 104 & wait) &
		while [ "$(ls /proc/[0-9]*/cmdline 2>/dev/null | xargs cat 2>/dev/null | tr '\0' ' ' | grep -o "sleep 10[0-4]" | sort -u | wc -l)" -lt 5 ]; do sleep 0.01; done
		echo all there`})
	s := r.start(c)
	result := r.wait(s)
	if result.Failure != nil || r.output(s, "stdout") != "all there\n" {
		r.Errorf("result %v, output %q", result.Failure, r.output(s, "stdout"))
	}
	// Before Remove: an end alone ends everything.
	r.until("no process is left", func() bool { return len(r.processes(string(c.ID))) == 0 })
}

func heldPipe(r *rig) {
	began := time.Now()
	out := r.succeed(program{sh: `(sleep 200; echo late) & echo whole`})
	if out != "whole\n" {
		r.Errorf("output %q", out)
	}
	if d := time.Since(began); d > 10*time.Second {
		r.Errorf("took %s", d)
	}
}

func orphans(r *rig) {
	// Each inner shell leaves a child behind that ends a little later: a zombie if nobody reaps it. The command ends when init
	// has no child but the command itself.
	out := r.succeed(program{sh: `
		i=0; while [ $i -lt 100 ]; do (sleep 0.05 &) ; i=$((i+1)); done
		n=1; while [ $n -gt 0 ]; do
			n=0; for s in /proc/[0-9]*/stat; do
				read -r pid name state parent rest 2>/dev/null < $s && [ "$parent" = "$PPID" ] && [ "$pid" != "$$" ] && n=$((n+1))
			done
			echo children: $n
			sleep 0.02
		done`})
	if !strings.HasSuffix(out, "children: 0\n") {
		r.Errorf("output %q", out)
	}
}

func initKilled(r *rig) {
	if r.suite.Scripted {
		_, result := r.run(program{fake: []string{"die"}})
		r.checkFailure(result.Failure, muster.FailureNode, muster.ReasonSandboxDied)
		return
	}
	if r.suite.InitPid == nil {
		r.Skip("no init to kill")
	}
	c := r.config(program{sh: `echo one; setsid sleep 300 & (setsid sh -c 'sleep 301 & sleep 302' &); sleep 0.2; echo ready; sleep 303`})
	s := r.start(c)
	r.untilPrinted(s, "ready")
	if err := syscall.Kill(r.suite.InitPid(r.T, c.Dir), syscall.SIGKILL); err != nil {
		r.Fatal(err)
	}
	result := r.wait(s)
	r.checkFailure(result.Failure, muster.FailureNode, muster.ReasonSandboxDied)
	if result.Stopped {
		r.Error("says stopped")
	}
	r.until("no process is left", func() bool { return len(r.processes(string(c.ID))) == 0 })
	if out := r.output(s, "stdout"); out != "one\nready\n" {
		r.Errorf("output %q", out)
	}
}
