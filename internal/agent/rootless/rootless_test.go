package rootless

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
)

// ends are the two ends of the connection between two processes.
func ends(t *testing.T) (ours, theirs *net.UnixConn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns []*net.UnixConn
	for _, fd := range pair {
		f := os.NewFile(uintptr(fd), "end")
		c, err := connOf(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		conns = append(conns, c)
	}
	return conns[0], conns[1]
}

// outside is an agent's side of an outer process that is this one.
func outside(t *testing.T) *Inner {
	t.Helper()
	ours, theirs := ends(t)
	o := &Outer{ended: map[int]chan unix.WaitStatus{}}
	t.Cleanup(o.reap())
	go func() { _ = serve(theirs, o.handle) }()
	return &Inner{control: ours}
}

// A program is started with the descriptors that it was given, and held by a pidfd.
func TestSpawn(t *testing.T) {
	i := outside(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), null.Close() }()
	pid, pidfd, err := i.Spawn("/bin/sh", []string{"sh", "-c", `echo "$0 $A" >&3`, "name"}, []string{"A=b"},
		[]int{int(null.Fd()), int(null.Fd()), int(null.Fd()), int(w.Fd())}, -1, nil)
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pidfd) }()
	if text, err := io.ReadAll(r); string(text) != "name b\n" || err != nil {
		t.Errorf("it printed %q, %v", text, err)
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 60_000); n != 1 || err != nil {
		t.Errorf("the end of process %d does not show: %d, %v", pid, n, err)
	}
	if _, _, err := i.Spawn("/nonexistent", []string{"x"}, nil, nil, -1, nil); err == nil {
		t.Error("a program that does not exist was started")
	}
}

func TestShell(t *testing.T) {
	i := outside(t)
	if out, err := i.Shell(t.Context(), "echo said"); out != "said" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := i.Shell(t.Context(), "echo said >&2; exit 3"); out != "said" || err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("%q, %v", out, err)
	}
	if err := i.Destroy(t.Context(), t.TempDir()); err != nil {
		t.Errorf("a directory without a sandbox: %v", err)
	}
	if _, err := i.ask(t.Context(), request{Op: "other"}); err == nil || !strings.Contains(err.Error(), "other") {
		t.Errorf("an unknown operation: %v", err)
	}
}

// networks are made up.
type networks struct{ released []muster.AllocID }

func (n *networks) Check(context.Context) ([]string, error) { return []string{"weak"}, nil }
func (n *networks) Take(_ context.Context, id muster.AllocID, _ contract.NetworkSpec) (*contract.Network, error) {
	if id == "bad" {
		return nil, &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonSpec, Message: "bad"}
	}
	return &contract.Network{Address: string(id)}, nil
}
func (n *networks) Release(_ context.Context, id muster.AllocID) error {
	n.released = append(n.released, id)
	return errors.New("busy")
}
func (n *networks) Restore(context.Context, []muster.AllocID) error { return nil }
func (n *networks) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// What networks are asked and answer crosses to the process that makes them, failures with their class.
func TestNetworks(t *testing.T) {
	ours, theirs := ends(t)
	fake := &networks{}
	go func() {
		_ = serve(theirs, func(c *net.UnixConn) { handleNetworks(t.Context(), c, fake) })
	}()
	n := &Networks{control: ours}
	if problems, err := n.Check(t.Context()); len(problems) != 1 || err != nil {
		t.Errorf("check %q, %v", problems, err)
	}
	if got, err := n.Take(t.Context(), "a", contract.NetworkSpec{}); err != nil || got.Address != "a" {
		t.Errorf("take %+v, %v", got, err)
	}
	var failure *muster.Failure
	if _, err := n.Take(t.Context(), "bad", contract.NetworkSpec{}); !errors.As(err, &failure) || failure.Class != muster.FailureUser {
		t.Errorf("take %v", err)
	}
	if err := n.Release(t.Context(), "a"); err == nil || len(fake.released) != 1 {
		t.Errorf("release %v, %q", err, fake.released)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.Run(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("run %v", err)
	}
	without := &Networks{Why: "there is none"}
	if _, err := without.Check(t.Context()); err == nil || without.Release(t.Context(), "a") != nil || without.Restore(t.Context(), nil) != nil {
		t.Errorf("without a way out: %v", err)
	}
}
