package runtimetest

import (
	"strings"
	"syscall"
	"time"

	"github.com/musterhq/muster"
)

// limitCases: what a sandbox uses, and may use.
func limitCases() []testCase {
	return []testCase{
		{"memory/over the limit", memoryHog},
		{"memory/over the limit, seen by a shell", memoryHogBelowShell},
		{"memory/files in memory", memoryFiles},
		{"memory/its own KILL is no lack of memory", ownKill},
		{"memory/neighbours are unharmed", memoryNeighbour},
		{"usage", usage},
	}
}

// hogSh needs no program but a shell, and much memory quickly.
const hogSh = `x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done`

// needMemoryLimit is for programs that would eat the whole node if their limit did not hold.
func (r *rig) needMemoryLimit() {
	r.Helper()
	if r.suite.NoMemoryLimit != "" {
		r.Skip(r.suite.NoMemoryLimit)
	}
}

func memoryHog(r *rig) {
	r.needMemoryLimit()
	c := r.config(program{sh: hogSh, fake: []string{"hog"}})
	c.Resources.Memory = 48 * muster.MiB
	result := r.wait(r.start(c))
	r.checkFailure(result.Failure, muster.FailureUser, muster.ReasonOutOfMemory, "48MiB")
	if result.Signal != "SIGKILL" || result.Stopped {
		r.Errorf("result %+v", result)
	}
}

func memoryHogBelowShell(r *rig) {
	r.needMemoryLimit()
	c := r.config(program{sh: `sh -c '` + hogSh + `'; exit $?`})
	c.Resources.Memory = 48 * muster.MiB
	result := r.wait(r.start(c))
	r.checkFailure(result.Failure, muster.FailureUser, muster.ReasonOutOfMemory, "48MiB")

	// The shell lives on and ends for a reason of its own: that is the reason, and the rest is told.
	c = r.config(program{sh: `sh -c '` + hogSh + `'; exit 3`})
	c.Resources.Memory = 48 * muster.MiB
	result = r.wait(r.start(c))
	r.checkFailure(result.Failure, muster.FailureUser, muster.ReasonExit, "code 3", "48MiB")

	c = r.config(program{sh: `sh -c '` + hogSh + `'; exit 0`})
	c.Resources.Memory = 48 * muster.MiB
	if result = r.wait(r.start(c)); result.Failure != nil {
		r.Errorf("exit 0 is %v", result.Failure)
	}
}

func memoryFiles(r *rig) {
	r.needMemoryLimit()
	c := r.config(program{sh: `f=/dev/shm/$MUSTER_ALLOC; trap 'rm -f $f' EXIT; head -c 200000000 /dev/zero >$f; r=$?; rm -f $f; exit $r`})
	c.Resources.Memory = 48 * muster.MiB
	s := r.start(c)
	r.Cleanup(func() { _ = syscall.Unlink("/dev/shm/" + string(c.ID)) })
	// Whoever the kernel chose: it is out of memory, or the shell says that its child was killed.
	f := r.wait(s).Failure
	if f == nil || f.Class != muster.FailureUser || !strings.Contains(f.Message, "48MiB") {
		r.Errorf("failure %v", f)
	}
}

func ownKill(r *rig) {
	c := r.config(program{sh: "sh -c 'kill -9 $$'; kill -9 $$", fake: []string{"signal", "SIGKILL"}})
	c.Resources.Memory = 48 * muster.MiB
	r.checkFailure(r.wait(r.start(c)).Failure, muster.FailureUser, muster.ReasonSignal, "SIGKILL")
}

func memoryNeighbour(r *rig) {
	r.needMemoryLimit()
	neighbour := r.config(program{sh: "echo ready; while [ ! -e go ]; do sleep 0.02; done; echo fine"})
	s := r.start(neighbour)
	r.untilPrinted(s, "ready")
	c := r.config(program{sh: hogSh})
	c.Resources.Memory = 32 * muster.MiB
	r.checkFailure(r.wait(r.start(c)).Failure, muster.FailureUser, muster.ReasonOutOfMemory, "32MiB")
	r.script(neighbour, "go", "", 0o600)
	if result := r.wait(s); result.Failure != nil {
		r.Errorf("the neighbour: %v", result.Failure)
	}
}

func usage(r *rig) {
	s := r.start(r.config(program{sh: `sh -c 'while :; do :; done'`, fake: []string{"busy", "1h"}}))
	r.until("has used 100 ms of processor time, and memory", func() bool {
		u := s.Usage()
		return u.CPU > 100*time.Millisecond && u.Memory > 0
	})
	s.Stop(0)
	r.wait(s)
	// Half of it: it may be counted by another clock now, in ticks.
	if u := s.Usage(); u.CPU < 50*time.Millisecond || u.CPU > patience || u.Memory <= 0 {
		r.Errorf("after the end: %+v", u)
	}
}
