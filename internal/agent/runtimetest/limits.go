package runtimetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
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
		{"processes/a fork bomb is bounded", forkBomb},
		{"processes/a full sandbox answers requests", fullOfProcesses},
		{"processor/a quota holds", cpuQuota},
		{"disk/full inside", diskFull},
		{"disk/more than its memory", diskOverMemory},
		{"usage", usage},
	}
}

// forkBomb: however many processes a sandbox wants, it gets its number, and all of them end with it.
func forkBomb(r *rig) {
	r.needMemoryLimit() // where there are no cgroups nothing counts processes
	// Each shell leaves a sleeper behind before it goes on: those that cannot fork die, and the sandbox stays full, so that it is seen.
	// The first one forks no more, or it could come too late, and the sandbox would end with it.
	c := r.config(program{sh: `trap '' TERM; f() { sleep 1000 & f | f & }; (f) 2>/dev/null & exec sleep 1000`})
	c.Limits.Pids = 50
	c.Resources.Memory = 512 * muster.MiB // the number is to be the limit
	s := r.start(c)
	// It is counted where the process is that cannot fork: with some programs a cgroup below the one with the limit.
	hit := func() bool {
		for _, dir := range r.cgroupsNamed(string(c.ID)) {
			for _, at := range []string{".", "*"} {
				files, _ := filepath.Glob(filepath.Join(dir, at, "pids.events"))
				for _, file := range files {
					events, _ := os.ReadFile(file)
					if count, ok := strings.CutPrefix(strings.TrimSpace(string(events)), "max "); ok && count != "0" {
						return true
					}
				}
			}
		}
		return false
	}
	most, told := 0, 0
	r.until("the limit is reached", func() bool {
		most = max(most, len(r.processes(string(c.ID))))
		told = max(told, s.Usage().Pids) // shells that cannot fork may die soon after
		return hit() && told >= 10
	})
	if most > 50+16 { // with some room for init
		r.Errorf("%d processes", most)
	}
	if told > 50+16 {
		r.Errorf("usage says %d processes", told)
	}
	s.Stop(0)
	r.wait(s)
}

// fullOfProcesses: whatever the processes of a sandbox take, its init has the threads that it needs for requests.
func fullOfProcesses(r *rig) {
	r.needMemoryLimit()
	c := r.config(program{sh: "exec sleep 1000"})
	c.Limits.Pids = 16
	c.Resources.Memory = 512 * muster.MiB
	s := r.start(c)
	FillAndAsk(r, s)
	s.Stop(0)
	r.wait(s)
}

// cpuQuota: it gets no more than its quota where more is idle. By processor time against the clock, with much
// room: a loaded machine gives it less, never more. Not so an emulated one: when its own processor is not run for a while, the
// kernel in it takes that for time that was used. It is measured again there.
func cpuQuota(r *rig) {
	r.needMemoryLimit()
	c := r.config(program{sh: `while :; do :; done & while :; do :; done`})
	c.Limits.CPUMax = 200
	s := r.start(c)
	r.until("has begun", func() bool { return s.Usage().CPU > 0 })
	var all []string
	for range Slow() {
		before, began := s.Usage().CPU, time.Now()
		r.until("some periods are over", func() bool { return time.Since(began) > time.Second })
		used, took := s.Usage().CPU-before, time.Since(began)
		// A fifth of one, and what was saved up of a period at both ends.
		limit := took/5 + 100*time.Millisecond
		if used <= limit {
			all = nil
			break
		}
		all = append(all, fmt.Sprintf("used %s of processor time in %s, want at most %s", used, took, limit))
	}
	for _, said := range all {
		r.Error(said)
	}
	s.Stop(0)
	r.wait(s)
}

// diskOverMemory: what a sandbox writes into its own file system is on disk, whatever its limit of memory.
func diskOverMemory(r *rig) {
	if r.suite.Image == nil || r.suite.NoDiskLimit != "" {
		r.Skip("its file system is the node's: " + r.suite.NoDiskLimit)
	}
	const piece = 64 << 10
	size := int64(max(2000/Slow(), 600) * piece)
	c := r.config(program{sh: fmt.Sprintf(`dd if=/dev/zero of=/big bs=%d count=%d 2>/dev/null && sync && wc -c </big; echo written; while [ ! -e go ]; do sleep 0.02; done`, piece, size/piece)})
	c.Resources.Memory = 24 * muster.MiB
	s := r.start(c)
	r.untilPrinted(s, "written")
	if out := r.output(s, "stdout"); out != fmt.Sprintf("%d\nwritten\n", size) {
		r.Errorf("output %q", out)
	}
	if u := s.Usage(); u.Disk < muster.Bytes(size) || u.Disk > muster.Bytes(2*size) {
		r.Errorf("usage says %s of disk", u.Disk)
	}
	r.script(c, "go", "", 0o600)
	if result := r.wait(s); result.Failure != nil {
		r.Error(result.Failure)
	}
}

// diskFull: what a sandbox writes into its own file system is bounded, and the program is told so.
func diskFull(r *rig) {
	if r.suite.Image == nil || r.suite.NoDiskLimit != "" {
		r.Skip("its file system is the node's: " + r.suite.NoDiskLimit)
	}
	c := r.config(program{sh: `
		if dd if=/dev/zero of=/big bs=64k count=3000; then echo it fits; fi
		wc -c </big; rm /big; echo small >/small && cat /small`})
	c.Resources.Disk = 32 * muster.MiB
	s := r.start(c)
	result := r.wait(s)
	out := strings.Fields(r.output(s, "stdout"))
	if result.Failure != nil || len(out) != 2 || out[1] != "small" {
		r.Fatalf("result %v, output %q", result.Failure, out)
	}
	size, err := strconv.ParseInt(out[0], 10, 64)
	if err != nil || size < int64(16*muster.MiB) || size > int64(c.Resources.Disk) {
		r.Errorf("%s bytes were written, want nearly %d", out[0], c.Resources.Disk)
	}
	if says := r.output(s, "stderr"); !strings.Contains(says, "No space left") {
		r.Errorf("stderr %q", says)
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
	if u := s.Usage(); u.CPU < 50*time.Millisecond || u.CPU > patience() || u.Memory <= 0 {
		r.Errorf("after the end: %+v", u)
	}
}
