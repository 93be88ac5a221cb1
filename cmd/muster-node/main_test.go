package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/agent/runtimetest"
	"github.com/musterhq/muster/internal/programtest"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Programs under test, built once: the second muster-node calls itself v-next.
var nodeProgram, nextProgram string

func TestMain(m *testing.M) {
	if path := os.Getenv("MUSTER_TEST_LOG"); path != "" {
		fillLog(path)
		return
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir := os.Getenv("MUSTER_TEST_KEEP") // where a profiler can read the programs afterwards
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "muster-node-test-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
	}
	var keep []string
	if os.Getenv("MUSTER_TEST_KEEP") != "" {
		keep = []string{"-s=0", "-w=0"}
	}
	next := filepath.Join(dir, "next")
	err := os.MkdirAll(next, 0o755)
	if err == nil {
		nodeProgram, err = programtest.Node(dir, keep...)
	}
	if err == nil {
		nextProgram, err = programtest.Node(next, append(keep, programtest.Release("v-next"))...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// node is an agent directory with agents that come and go.
type node struct {
	t      testing.TB
	dir    string
	cmd    *exec.Cmd
	stderr *bytes.Buffer
	client *wire.Client
	index  atomic.Uint64
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir()}
	n.client = wire.NewClient(journal.Dialer(n.dir))
	t.Cleanup(func() {
		n.client.Close()
		n.kill()
		dirs, err := journal.SandboxDirs(n.dir)
		if err != nil {
			t.Error(err)
		}
		for _, dir := range dirs {
			if err := initbox.Destroy(context.Background(), dir); err != nil {
				t.Error(err)
			}
		}
		if os.Geteuid() == 0 {
			if err := cgroup.RemoveParent(n.cgroup()); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			if b, err := os.ReadFile(filepath.Join(n.dir, logName)); err == nil {
				t.Logf("agent.log:\n%s", b)
			}
		}
	})
	return n
}

func (n *node) cgroup() string { return "muster-test-" + strconv.Itoa(os.Getpid()) + "/node" }

// start starts an agent and waits until it answers.
func (n *node) start(program string, args ...string) {
	n.t.Helper()
	n.launch(program, args...)
	pid := n.cmd.Process.Pid
	n.eventually("the agent answers", func() bool {
		h, err := n.client.Hello(n.t.Context())
		return err == nil && h.Pid == pid
	})
}

func (n *node) launch(program string, args ...string) {
	n.t.Helper()
	n.cmd = exec.Command(program, append([]string{"agent", "--dir", n.dir, "--node", "n1", "--cpu", "2.5", "--memory", "1GiB", "--attr", "zone=a", "--cgroup", n.cgroup(), "--detached"}, args...)...)
	n.stderr = &bytes.Buffer{}
	n.cmd.Stderr = n.stderr
	n.cmd.WaitDelay = time.Second
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
}

// kill is kill -9 of the agent alone.
func (n *node) kill() {
	if n.cmd != nil && n.cmd.ProcessState == nil {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait()
	}
}

func (n *node) eventually(what string, ok func() bool) {
	n.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			b, _ := os.ReadFile(filepath.Join(n.dir, logName))
			n.t.Fatalf("not in time: %s\n%s\n%s", what, n.stderr, b)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (n *node) send(d wire.Desired) {
	n.t.Helper()
	d.Fence = wire.Fence{Cluster: "c1", Epoch: 1, Term: 1, Index: n.index.Add(1)}
	if _, err := n.client.SendDesired(n.t.Context(), d); err != nil {
		n.t.Fatal(err)
	}
}

func shell(id muster.AllocID, script string) wire.DesiredAlloc {
	return wire.DesiredAlloc{ID: id, Desired: muster.AllocRun, Spec: &wire.AllocSpec{
		Namespace: "default", Job: "j", JobUID: "u", Version: 1, Count: 1, Attempt: 1,
		Template: api.Template{Command: []string{"/bin/sh", "-c", script}}, KillGraceMillis: 2000, OutputLimit: 1 << 20}}
}

// until waits for an allocation's status.
func (n *node) until(id muster.AllocID, status muster.AllocStatus) wire.AllocReport {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 20*time.Second)
	defer cancel()
	for report, err := range n.client.Reports(ctx) {
		if err != nil {
			n.t.Fatalf("waiting for %s to be %s: %v", id, status, err)
		}
		for _, al := range report.Allocs {
			if al.ID == id && al.Status == status {
				return al
			}
		}
	}
	return wire.AllocReport{}
}

func (n *node) output(id muster.AllocID, stream string) string {
	n.t.Helper()
	r, err := n.client.Stream(n.t.Context(), id, stream, 0, true)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	b, err := io.ReadAll(r)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(b)
}

// Case N15.
func TestKilledAgentLosesNothing(t *testing.T) {
	n := newNode(t)
	n.start(nodeProgram)
	gate := filepath.Join(t.TempDir(), "gate")
	wait := "while ! [ -e " + gate + " ]; do sleep 0.02; done; "
	script := `echo "one $MUSTER_INDEX"; echo err >&2; ` + wait + `echo two; exit 3`
	n.send(wire.Desired{Allocs: []wire.DesiredAlloc{shell("u-0-1", script), shell("u-1-1", script)}})
	n.until("u-0-1", muster.AllocRunning)
	n.until("u-1-1", muster.AllocRunning)
	h, err := n.client.Hello(t.Context())
	if err != nil || h.Capacity != (muster.Resources{CPU: 2500, Memory: muster.GiB}) || h.Attributes["zone"] != "a" || h.Runtimes[0] != "process" {
		t.Errorf("%+v %v", h, err)
	}
	n.kill()
	// The one ends while there is no agent, the other while there is.
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.eventually("the sandboxes end by themselves", func() bool {
		for _, id := range []string{"u-0-1", "u-1-1"} {
			m, err := initbox.Members(filepath.Join(n.dir, "sandboxes", id))
			if err != nil {
				t.Fatal(err)
			}
			if len(m) > 0 {
				return false
			}
		}
		return true
	})
	if err := os.Remove(gate); err != nil {
		t.Fatal(err)
	}
	n.start(nodeProgram)
	n.send(wire.Desired{Allocs: []wire.DesiredAlloc{shell("u-0-1", script), shell("u-2-1", script)}})
	n.until("u-2-1", muster.AllocRunning)
	n.kill()
	n.start(nodeProgram)
	if got := n.until("u-2-1", muster.AllocRunning); got.Started == 0 {
		t.Errorf("%+v", got)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []muster.AllocID{"u-0-1", "u-1-1", "u-2-1"} {
		got := n.until(id, muster.AllocEnded)
		if got.Outcome != muster.OutcomeFailed || got.ExitCode != 3 || got.Failure.Reason != muster.ReasonExit || got.Failure.Class != muster.FailureUser {
			t.Errorf("%s: %+v %+v", id, got, got.Failure)
		}
		if string(got.Stdout.Inline) != "one 0\ntwo\n" || string(got.Stderr.Inline) != "err\n" {
			t.Errorf("%s inline: %q %q", id, got.Stdout.Inline, got.Stderr.Inline)
		}
		if out, errs := n.output(id, wire.Stdout), n.output(id, wire.Stderr); out != "one 0\ntwo\n" || errs != "err\n" {
			t.Errorf("%s: %q %q", id, out, errs)
		}
	}
}

func TestAgentIsReplacedUnderRunningSandboxes(t *testing.T) {
	n := newNode(t)
	n.start(nodeProgram)
	n.send(wire.Desired{Allocs: []wire.DesiredAlloc{shell("u-0-1", "echo $$; trap 'echo bye; exit 0' TERM; while :; do sleep 0.02; done")}})
	n.until("u-0-1", muster.AllocRunning)
	members, err := initbox.Members(filepath.Join(n.dir, "sandboxes", "u-0-1"))
	if err != nil {
		t.Fatal(err)
	}
	first := n.cmd
	n.launch(nodeProgram)
	if err := n.cmd.Wait(); err == nil || !strings.Contains(logOf(t, n), "--replace") && !strings.Contains(n.stderr.String(), "--replace") {
		t.Errorf("a second agent without --replace: %v, %s", err, n.stderr)
	}
	n.start(nextProgram, "--replace")
	if err := first.Wait(); err != nil {
		t.Errorf("the replaced agent: %v", err)
	}
	if h, err := n.client.Hello(t.Context()); err != nil || h.Version != "v-next" {
		t.Errorf("%+v %v", h, err)
	}
	after, err := initbox.Members(filepath.Join(n.dir, "sandboxes", "u-0-1"))
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.Outlived(t, members, after)
	n.send(wire.Desired{Allocs: []wire.DesiredAlloc{{ID: "u-0-1", Desired: muster.AllocStop}}})
	if got := n.until("u-0-1", muster.AllocEnded); got.Outcome != muster.OutcomeStopped || !strings.HasSuffix(n.output("u-0-1", wire.Stdout), "bye\n") {
		t.Errorf("%+v", got)
	}
}

func logOf(t *testing.T, n *node) string {
	b, err := os.ReadFile(filepath.Join(n.dir, logName))
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

// F-L2: when an agent's directory has been deleted, the next agent ends what still runs before it answers anybody.
func TestDeletedDirectory(t *testing.T) {
	n := newNode(t)
	n.start(nodeProgram)
	n.send(wire.Desired{Allocs: []wire.DesiredAlloc{shell("u-0-1", "(setsid sleep 1000 &) ; sleep 1000")}})
	n.until("u-0-1", muster.AllocRunning)
	ran, err := initbox.Members(filepath.Join(n.dir, "sandboxes", "u-0-1"))
	if err != nil || len(ran) < 2 {
		t.Fatalf("members %v, %v", ran, err)
	}
	n.kill()
	entries, err := os.ReadDir(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(n.dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	n.start(nodeProgram)
	for _, m := range ran {
		if initbox.Living(m.Process) {
			t.Errorf("%s %d lives", m.Role, m.Pid)
		}
	}
	if r, err := n.client.Hello(t.Context()); err != nil || r.Allocs != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestHungAgentIsReplaced(t *testing.T) {
	n := newNode(t)
	n.start(nodeProgram)
	n.send(wire.Desired{Allocs: []wire.DesiredAlloc{shell("u-0-1", "sleep 0.2; echo done")}})
	n.until("u-0-1", muster.AllocRunning)
	hung := n.cmd
	if err := hung.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	n.client.Close()
	n.launch(nextProgram, "--replace")
	if err := hung.Wait(); err == nil { // it can only be killed
		t.Error("a stopped process ended by itself")
	}
	n.eventually("the new one answers", func() bool {
		h, err := n.client.Hello(t.Context())
		return err == nil && h.Version == "v-next"
	})
	if got := n.until("u-0-1", muster.AllocEnded); got.Outcome != muster.OutcomeSucceeded || string(got.Stdout.Inline) != "done\n" {
		t.Errorf("%+v", got)
	}
}

func TestTermLeavesSandboxesAlone(t *testing.T) {
	n := newNode(t)
	n.start(nodeProgram)
	n.send(wire.Desired{Allocs: []wire.DesiredAlloc{shell("u-0-1", "sleep 60")}})
	n.until("u-0-1", muster.AllocRunning)
	if err := n.cmd.Process.Signal(syscall.SIGHUP); err != nil { // not an end
		t.Fatal(err)
	}
	if _, err := n.client.Hello(t.Context()); err != nil {
		t.Error(err)
	}
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Wait(); err != nil {
		t.Error(err)
	}
	if m, err := initbox.Members(filepath.Join(n.dir, "sandboxes", "u-0-1")); err != nil || len(m) < 2 {
		t.Errorf("%v %v", m, err)
	}
	if _, err := os.Stat(filepath.Join(n.dir, wire.SocketName)); !errors.Is(err, os.ErrNotExist) {
		t.Error("the socket is left")
	}
}

// Cases N16 and L7: TERM, grace, KILL.
func TestStopOfWorkThatIgnoresTerm(t *testing.T) {
	n := newNode(t)
	n.start(nodeProgram)
	al := shell("u-0-1", "trap '' TERM; echo ready; while :; do sleep 0.02; done")
	al.Spec.KillGraceMillis = 200
	n.send(wire.Desired{Allocs: []wire.DesiredAlloc{al}})
	n.until("u-0-1", muster.AllocRunning)
	n.eventually("it ignores TERM", func() bool {
		// Through the agent: where init keeps output is its own affair.
		r, err := n.client.Stream(t.Context(), "u-0-1", "stdout", 0, false)
		if err != nil {
			return false
		}
		defer func() { _ = r.Close() }()
		b, err := io.ReadAll(r)
		return err == nil && len(b) > 0
	})
	began := time.Now()
	stop := wire.Desired{Allocs: []wire.DesiredAlloc{{ID: "u-0-1", Desired: muster.AllocStop}}}
	n.send(stop)
	n.send(stop) // twice is once
	got := n.until("u-0-1", muster.AllocEnded)
	if took := time.Since(began); got.Outcome != muster.OutcomeStopped || got.Signal != "SIGKILL" || took < 200*time.Millisecond {
		t.Errorf("%+v after %v", got, took)
	}
	if m, err := initbox.Members(filepath.Join(n.dir, "sandboxes", "u-0-1")); err != nil || len(m) > 0 {
		t.Errorf("%v %v", m, err)
	}
}

func TestFailuresAreNamed(t *testing.T) {
	n := newNode(t)
	n.start(nodeProgram, "--oci-runtime", "none")
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	cases := map[muster.AllocID]struct {
		change func(*wire.AllocSpec)
		reason muster.Reason
		class  muster.FailureClass
		says   string
	}{
		"u-0-1": {func(s *wire.AllocSpec) { s.Command = []string{"no-such-program"} }, muster.ReasonCommandNotFound, muster.FailureUser, "no-such-program"},
		"u-1-1": {func(s *wire.AllocSpec) { s.Command = []string{plain} }, muster.ReasonNotExecutable, muster.FailureUser, plain},
		"u-2-1": {func(s *wire.AllocSpec) { s.Workdir = "/no/such/dir" }, muster.ReasonNoWorkdir, muster.FailureUser, "/no/such/dir"},
		"u-3-1": {func(s *wire.AllocSpec) { s.Image = "debian:12" }, muster.ReasonNoRuntime, muster.FailureNode, "debian:12"},
		"u-4-1": {func(s *wire.AllocSpec) { s.Command = []string{"sleep", "60"}; s.TimeoutMillis = 50 }, muster.ReasonTimeout, muster.FailureUser, ""},
		"u-5-1": {func(s *wire.AllocSpec) { s.Command = []string{"sh", "-c", "kill -9 $$"} }, muster.ReasonSignal, muster.FailureUser, "KILL"},
	}
	var d wire.Desired
	for id, c := range cases {
		al := shell(id, "")
		c.change(al.Spec)
		d.Allocs = append(d.Allocs, al)
	}
	n.send(d)
	for id, c := range cases {
		f := n.until(id, muster.AllocEnded).Failure
		if f == nil || f.Reason != c.reason || f.Class != c.class || !strings.Contains(f.Message, c.says) {
			t.Errorf("%s: %+v, want %s, %s, with %q", id, f, c.reason, c.class, c.says)
		}
	}
}

func TestOutputsOfRealCommand(t *testing.T) {
	n := newNode(t)
	n.start(nodeProgram)
	al := shell("u-0-1", "mkdir res && tr a-z A-Z < in > res/out && ln -s /etc/passwd res/link")
	al.Spec.Inputs = []wire.Input{{Path: "in", Content: []byte("hello")}}
	al.Spec.Outputs = []wire.Output{{Path: "res"}}
	n.send(wire.Desired{Allocs: []wire.DesiredAlloc{al}})
	got := n.until("u-0-1", muster.AllocEnded)
	if got.Outcome != muster.OutcomeSucceeded || len(got.Outputs) != 1 {
		t.Fatalf("%+v %+v", got, got.Failure)
	}
	body, err := n.client.CollectedOutput(t.Context(), "u-0-1", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = body.Close() }()
	b, err := io.ReadAll(body)
	if err != nil || !bytes.Contains(b, []byte("HELLO")) || bytes.Contains(b, []byte("root:")) || int64(len(b)) != got.Outputs[0].Size {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	dir := filepath.Join(n.dir, "sandboxes", "u-0-1")
	n.send(wire.Desired{Forget: []muster.AllocID{"u-0-1"}})
	n.eventually("its directory is gone", func() bool {
		_, err := os.Stat(dir)
		return errors.Is(err, os.ErrNotExist)
	})
}

func TestBootDelay(t *testing.T) {
	n := newNode(t)
	began := time.Now()
	n.start(nodeProgram, "--boot-delay", "300ms")
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("answered after %v", took)
	}
}

func TestWrongFlags(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"agent"}, "dir"},
		{[]string{"agent", "--dir", dir, "--node", "n", "--cpu", "many"}, "--cpu"},
		{[]string{"agent", "--dir", dir, "--node", "n", "--memory", "1 apple"}, "--memory"},
		{[]string{"agent", "--dir", dir, "--node", "n", "--attr", "zone"}, "--attr"},
		{[]string{"agent", "--dir", filepath.Join(dir, "none"), "--node", "n"}, "none"},
		{[]string{"agent", "--dir", dir, "--node", "n", "surplus"}, "surplus"},
		{[]string{"agnet"}, "agnet"},
	} {
		out, err := exec.Command(nodeProgram, c.args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.says) || strings.Count(string(out), "\n") > 3 {
			t.Errorf("%v: %v: %s", c.args, err, out)
		}
	}
	if out, err := exec.Command(nextProgram, "version").Output(); err != nil || string(out) != "v-next\n" {
		t.Errorf("%q %v", out, err)
	}
}

// fillLog runs in a process of its own, because the log becomes its standard error.
func fillLog(path string) {
	l, err := openLog(path)
	if err != nil {
		panic(err)
	}
	line := []byte(strings.Repeat("x", 99) + "\n")
	for range 3 * logLimit / len(line) {
		if _, err := l.Write(line); err != nil {
			panic(err)
		}
	}
	fmt.Fprintln(os.Stderr, "last words")
}

func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), logName)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "MUSTER_TEST_LOG="+path)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) != 0 {
		t.Fatalf("%v: %s", err, out)
	}
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) != 2 {
		t.Fatalf("%v %v", files, err)
	}
	for _, f := range files {
		if info, _ := f.Info(); info.Size() > logLimit+100 {
			t.Errorf("%s has %d bytes", f.Name(), info.Size())
		}
	}
	if b, _ := os.ReadFile(path); !bytes.HasSuffix(b, []byte("last words\n")) {
		t.Error("standard error is not in the log")
	}
}
