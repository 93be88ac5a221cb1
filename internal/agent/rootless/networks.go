package rootless

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
)

// NetworksCommand is the command of muster-node that makes networks.
const NetworksCommand = "networks"

// Operations of the process that makes networks.
const (
	opCheck   = "check"
	opTake    = "take"
	opRelease = "release"
	opRestore = "restore"
	opRun     = "run"
)

type networkRequest struct {
	Op   string
	ID   muster.AllocID       `json:",omitempty"`
	Spec contract.NetworkSpec `json:",omitzero"`
	Keep []muster.AllocID     `json:",omitempty"`
}

type networkAnswer struct {
	Problems []string          `json:",omitempty"`
	Network  *contract.Network `json:",omitempty"`
	Failure  *muster.Failure   `json:",omitempty"`
	Err      string            `json:",omitempty"`
}

func (a networkAnswer) error() error {
	switch {
	case a.Failure != nil:
		return a.Failure
	case a.Err != "":
		return errors.New(a.Err)
	}
	return nil
}

// ServeNetworks answers an agent, whose connection is this descriptor, until it is gone.
func ServeNetworks(ctx context.Context, fd int, n contract.Networks) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	f := os.NewFile(uintptr(fd), "agent")
	control, err := connOf(f)
	_ = f.Close()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = control.Close() })()
	err = serve(control, func(c *net.UnixConn) { handleNetworks(ctx, c, n) })
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// handleNetworks answers one call.
func handleNetworks(ctx context.Context, c *net.UnixConn, n contract.Networks) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var r networkRequest
	if files, err := receive(c, &r); err != nil {
		closeAll(files)
		return
	}
	// Who does not wait any more closes the connection.
	go func() {
		_, _ = c.Read(make([]byte, 1))
		cancel()
	}()
	_ = send(c, answerNetworks(ctx, n, r), nil)
}

func answerNetworks(ctx context.Context, n contract.Networks, r networkRequest) (a networkAnswer) {
	var err error
	switch r.Op {
	case opCheck:
		a.Problems, err = n.Check(ctx)
	case opTake:
		a.Network, err = n.Take(ctx, r.ID, r.Spec)
	case opRelease:
		err = n.Release(ctx, r.ID)
	case opRestore:
		err = n.Restore(ctx, r.Keep)
	case opRun:
		err = n.Run(ctx)
	default:
		err = fmt.Errorf("no such operation: %s", r.Op)
	}
	if err != nil && !errors.As(err, &a.Failure) {
		a.Err = err.Error()
	}
	return a
}

// Networks makes the networks of sandboxes in the holder's network namespace, by a process there. It
// is a contract.Networks.
type Networks struct {
	// Program and Args are those of that process, which gets its connection as descriptor 3.
	Program string
	Args    []string
	// Namespace is the path of the network namespace; Why says why there is none that leads out.
	Namespace, Why string

	mu      sync.Mutex
	control *net.UnixConn
}

var _ contract.Networks = (*Networks)(nil)

// connect starts the process when it is needed for the first time.
func (n *Networks) connect() (*net.UnixConn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.control != nil {
		return n.control, nil
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "networks"), os.NewFile(uintptr(pair[1]), "agent")
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	cmd := exec.Command(n.Program, n.Args...)
	cmd.Dir, cmd.Stderr, cmd.ExtraFiles = "/", os.Stderr, []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	started := make(chan error)
	go func() {
		// The thread does not come back from the namespace. It must not end before the process, which
		// would be killed then: it waits for it.
		runtime.LockOSThread()
		err := enterNetwork(n.Namespace)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("the process that makes networks: %w", err)
	}
	n.control, err = connOf(ours)
	return n.control, err
}

func enterNetwork(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return &os.PathError{Op: "enter network namespace", Path: path, Err: err}
	}
	return nil
}

func (n *Networks) ask(ctx context.Context, r networkRequest) (a networkAnswer, err error) {
	control, err := n.connect()
	if err != nil {
		return a, err
	}
	files, err := call(ctx, control, r, nil, &a)
	closeAll(files)
	if err != nil {
		return a, fmt.Errorf("the process that makes networks: %w", err)
	}
	return a, a.error()
}

// Check says whether networks can be made here. See contract.Networks.
func (n *Networks) Check(ctx context.Context) ([]string, error) {
	if n.Why != "" {
		return nil, errors.New(n.Why)
	}
	a, err := n.ask(ctx, networkRequest{Op: opCheck})
	return a.Problems, err
}

// Take makes the network of a sandbox.
func (n *Networks) Take(ctx context.Context, id muster.AllocID, spec contract.NetworkSpec) (*contract.Network, error) {
	a, err := n.ask(ctx, networkRequest{Op: opTake, ID: id, Spec: spec})
	return a.Network, err
}

// Release deletes it.
func (n *Networks) Release(ctx context.Context, id muster.AllocID) error {
	if n.Why != "" {
		return nil // none was made
	}
	_, err := n.ask(ctx, networkRequest{Op: opRelease, ID: id})
	return err
}

// Restore keeps those networks and deletes all others.
func (n *Networks) Restore(ctx context.Context, keep []muster.AllocID) error {
	if n.Why != "" {
		return nil
	}
	_, err := n.ask(ctx, networkRequest{Op: opRestore, Keep: keep})
	return err
}

// Run keeps some networks ready until ctx ends.
func (n *Networks) Run(ctx context.Context) error {
	if n.Why != "" {
		return nil
	}
	_, err := n.ask(ctx, networkRequest{Op: opRun})
	if ctx.Err() != nil {
		return nil
	}
	return err
}
