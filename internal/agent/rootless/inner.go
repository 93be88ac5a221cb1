package rootless

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
)

// Inner is the agent's side: it has done outside what must not be done in the user namespace. It is
// a process.Outside.
type Inner struct {
	control *net.UnixConn
	// gone is closed when the outer process has ended.
	gone chan struct{}
}

// Join takes the connection that the outer process has left as this descriptor.
func Join(fd int) (*Inner, error) {
	// The outer process is waited for by whoever started it: the agent must not outlive it.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl", err)
	}
	f := os.NewFile(uintptr(fd), "outer")
	control, err := connOf(f)
	_ = f.Close()
	if err != nil {
		return nil, fmt.Errorf("--inside %d: %w", fd, err)
	}
	i := &Inner{control: control, gone: make(chan struct{})}
	go func() {
		defer close(i.gone)
		_, _ = control.Read(make([]byte, 1)) // it never sends anything
	}()
	return i, nil
}

// Gone is closed when the outer process has ended.
func (i *Inner) Gone() <-chan struct{} { return i.gone }

// ask makes a call that gets no descriptor.
func (i *Inner) ask(ctx context.Context, r request) (answer, error) {
	var a answer
	files, err := call(ctx, i.control, r, nil, &a)
	closeAll(files)
	if err != nil {
		return a, fmt.Errorf("the process outside of the user namespace: %w", err)
	}
	return a, a.error()
}

// Spawn starts the init of a sandbox. See process.Outside.
func (i *Inner) Spawn(path string, argv, env []string, descriptors []int, cgroup int, cores []int) (pid, pidfd int, err error) {
	r := request{Op: opSpawn, Path: path, Argv: argv, Env: env, Cores: cores, InGroup: cgroup >= 0}
	if r.InGroup {
		descriptors = append(descriptors[:len(descriptors):len(descriptors)], cgroup)
	}
	var a answer
	files, err := call(context.Background(), i.control, r, descriptors, &a)
	if err == nil {
		err = a.error()
	}
	if err == nil && len(files) != 1 {
		err = errors.New("it came without a descriptor of its process")
	}
	if err != nil {
		closeAll(files)
		return 0, -1, err
	}
	return a.Pid, files[0], nil
}

// Destroy ends and deletes a sandbox. See process.Outside.
func (i *Inner) Destroy(ctx context.Context, dir string) error {
	_, err := i.ask(ctx, request{Op: opDestroy, Dir: dir})
	return err
}

// EndForgotten ends sandboxes that are not known. See process.Outside.
func (i *Inner) EndForgotten(ctx context.Context, sandboxes string, known []muster.AllocID) (int, error) {
	a, err := i.ask(ctx, request{Op: opForgotten, Dir: sandboxes, Known: known})
	return a.Count, err
}

// Shell runs a command for sh as the user, and returns what it printed.
func (i *Inner) Shell(ctx context.Context, command string) (string, error) {
	a, err := i.ask(ctx, request{Op: opShell, Shell: command})
	return a.Output, err
}

// Detach starts a program as the user that outlives both processes.
func (i *Inner) Detach(ctx context.Context, argv ...string) error {
	_, err := i.ask(ctx, request{Op: opDetach, Path: argv[0], Argv: argv})
	return err
}
