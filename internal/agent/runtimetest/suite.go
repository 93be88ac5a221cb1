package runtimetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/testwait"
)

// patience bounds every wait for something that should happen soon.
func patience() time.Duration { return time.Duration(Slow()) * time.Minute }

// Suite says how to try a runtime.
type Suite struct {
	// New makes a runtime value on the same node each time: a second one is an
	// agent that was restarted.
	New func(t *testing.T) contract.Runtime
	// Hasty makes one that soon kills a sandbox that does not end when it is stopped; nil: the case of an init that does not answer
	// takes as long as the runtime allows for an end.
	Hasty func(t *testing.T) contract.Runtime
	// Scripted: commands are the fake's words. Cases that need programs are skipped.
	Scripted bool
	// Bubble runs each case in a synctest bubble. Only for runtimes without processes.
	Bubble bool
	// Image that sandboxes run in, as Busybox makes one; nil: a process of the node.
	Image *contract.Image
	// InitPid finds the process that must not die: killing it is a case. Nil skips that.
	InitPid func(t *testing.T, dir string) int
	// NoMemoryLimit is why this node cannot limit memory; empty if it can.
	NoMemoryLimit string
	// NoFreezer is why this node cannot freeze sandboxes; empty if it can.
	NoFreezer string
	// NoDiskLimit is why this node cannot limit disk; empty if it can.
	NoDiskLimit string
	// ShortLines is how many lines the case of many short lines prints; 0: a million. Suites whose sandboxes have the same
	// muster-init, which alone reads them, need not all print so many.
	ShortLines int
	// Leftovers looks for what else a runtime might have left behind of a case's sandboxes, by a mark in their names; nil: nothing.
	Leftovers func(mark string) []string
}

// program is what a case runs: in a shell, and by the fake. An empty one of them cannot.
type program struct {
	sh   string
	fake []string
	// argv is run as it is instead of sh.
	argv []string
}

type testCase struct {
	name string
	run  func(*rig)
}

// Run tries everything.
func Run(t *testing.T, s Suite) {
	if n := Slow(); n > 1 {
		t.Logf("MUSTER_TEST_SLOW: this machine is taken to be %d times slower than others", n)
	}
	var all []testCase
	all = append(all, endCases()...)
	all = append(all, startCases()...)
	all = append(all, outputCases()...)
	all = append(all, stopCases()...)
	all = append(all, lifeCases()...)
	all = append(all, freezeCases()...)
	all = append(all, limitCases()...)
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			if !s.Bubble {
				t.Parallel() // most cases wait; each has sandboxes and directories of its own
				c.run(newRig(t, s))
				return
			}
			synctest.Test(t, func(t *testing.T) { c.run(newRig(t, s)) })
		})
	}
}

// rig is one case at work.
type rig struct {
	*testing.T
	suite   Suite
	runtime contract.Runtime
	root    string
	uid     string
	next    atomic.Int64
}

func newRig(t *testing.T, s Suite) *rig {
	r := &rig{T: t, suite: s, runtime: s.New(t), root: t.TempDir(), uid: "t" + strconv.FormatUint(rand.Uint64(), 36)}
	t.Cleanup(r.checkNothingLeft)
	return r
}

// config is a sandbox's configuration with directories of its own.
func (r *rig) config(p program) contract.SandboxConfig {
	r.Helper()
	id := muster.NewAllocID(muster.JobUID(r.uid), int(r.next.Add(1)), 1)
	c := contract.SandboxConfig{
		ID: id, Dir: filepath.Join(r.root, string(id)), Work: filepath.Join(r.root, string(id), "work"),
		Env:       []string{"PATH=/usr/local/bin:/usr/bin:/bin", "MUSTER_ALLOC=" + string(id)},
		KillGrace: 5 * time.Second, OutputLimit: 64 << 20,
		Resources: muster.Resources{CPU: 500, Memory: 256 * muster.MiB},
	}
	switch {
	case r.suite.Scripted && p.fake == nil:
		r.Skip("needs real programs")
	case r.suite.Scripted:
		c.Command = p.fake
	case p.argv != nil:
		c.Command = p.argv
	default:
		c.Command = []string{"sh", "-c", p.sh}
	}
	if err := os.MkdirAll(c.Work, 0o700); err != nil {
		r.Fatal(err)
	}
	if r.suite.Image != nil {
		// At its own place, so that what a case writes there is found inside.
		c.Container = &contract.Container{Image: r.suite.Image, Shared: c.Work, SharedAt: c.Work, Network: &contract.Network{}}
		c.Env = append(c.Env, "HOME=/root")
	}
	return c
}

// start begins a sandbox that is removed when the case is over.
func (r *rig) start(c contract.SandboxConfig) contract.Sandbox {
	r.Helper()
	s, err := r.runtime.Start(r.Context(), c)
	if err != nil {
		r.Fatalf("start %q: %v", c.Command, err)
	}
	r.Cleanup(func() { _ = s.Close() })
	r.removeLater(c.Dir)
	return s
}

func (r *rig) removeLater(dir string) {
	r.Cleanup(func() {
		if err := r.runtime.Remove(context.Background(), dir); err != nil {
			r.Errorf("remove: %v", err)
		}
	})
}

// refuse starts what cannot start, and checks the failure.
func (r *rig) refuse(c contract.SandboxConfig, class muster.FailureClass, reason muster.Reason, says ...string) {
	r.Helper()
	s, err := r.runtime.Start(r.Context(), c)
	if err == nil {
		r.Cleanup(func() { _ = s.Close() })
		r.removeLater(c.Dir)
		r.Fatalf("start %q: it did start", c.Command)
	}
	var failure *muster.Failure
	if !errors.As(err, &failure) {
		r.Fatalf("start %q: error %v is not a failure", c.Command, err)
	}
	r.checkFailure(failure, class, reason, says...)
	if _, err := r.runtime.Attach(r.Context(), c.Dir); !errors.Is(err, contract.ErrNoSandbox) {
		r.Errorf("attach after a start that failed: %v, want ErrNoSandbox", err)
	}
}

func (r *rig) checkFailure(f *muster.Failure, class muster.FailureClass, reason muster.Reason, says ...string) {
	r.Helper()
	if f == nil {
		r.Fatalf("no failure, want %s %s", class, reason)
	}
	if f.Class != class || f.Reason != reason {
		r.Errorf("failure is %s %s (%s), want %s %s", f.Class, f.Reason, f.Message, class, reason)
	}
	for _, text := range says {
		if !strings.Contains(f.Message, text) {
			r.Errorf("the sentence %q does not name %q", f.Message, text)
		}
	}
}

// wait is the result of a sandbox that should end soon.
func (r *rig) wait(s contract.Sandbox) contract.Result {
	r.Helper()
	select {
	case <-s.Done():
	case <-time.After(patience()):
		r.Fatalf("the sandbox did not end within %s", patience())
	}
	return s.Result()
}

// run starts and waits.
func (r *rig) run(p program) (contract.Sandbox, contract.Result) {
	r.Helper()
	s := r.start(r.config(p))
	return s, r.wait(s)
}

// succeed runs what should exit with 0 and returns its output.
func (r *rig) succeed(p program) string {
	r.Helper()
	s, result := r.run(p)
	if result.Failure != nil {
		r.Fatalf("%s: %v, stderr: %s", p.sh, result.Failure, r.output(s, "stderr"))
	}
	return r.output(s, "stdout")
}

// output reads all that is kept of a stream.
func (r *rig) output(s contract.Sandbox, stream string) string {
	r.Helper()
	log := s.Output(stream)
	start, end, err := log.Bounds()
	if err != nil {
		r.Fatalf("bounds of %s: %v", stream, err)
	}
	var all bytes.Buffer
	buf := make([]byte, 1<<20)
	for at := start; ; {
		n, err := log.ReadAt(buf, at)
		all.Write(buf[:n])
		at += int64(n)
		if err == io.EOF {
			if at < end {
				r.Errorf("%s ends at %d, bounds say %d", stream, at, end)
			}
			return all.String()
		}
		if err != nil {
			r.Fatalf("read %s at %d: %v", stream, at, err)
		}
	}
}

// until waits for a condition.
func (r *rig) until(what string, ok func() bool) {
	r.Helper()
	testwait.Within(r, patience(), what, ok)
}

// untilPrinted waits until a running sandbox has printed a text: it has come that far.
func (r *rig) untilPrinted(s contract.Sandbox, text string) {
	r.Helper()
	r.until("printed "+text, func() bool { return strings.Contains(r.output(s, "stdout"), text) })
}
