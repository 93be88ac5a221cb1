package rootless

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/userns"
)

// Operations of the outer process.
const (
	opSpawn     = "spawn"
	opDestroy   = "destroy"
	opForgotten = "forgotten"
	opShell     = "shell"
	opDetach    = "detach"
)

// request is what the inner process asks for.
type request struct {
	Op string
	// Of spawn and detach. Of spawn: descriptors come with it, the last of which is the cgroup's if InGroup is set.
	Path    string   `json:",omitempty"`
	Argv    []string `json:",omitempty"`
	Env     []string `json:",omitempty"`
	InGroup bool     `json:",omitempty"`
	Cores   []int    `json:",omitempty"`
	// Dir is of destroy and forgotten, Known of the latter.
	Dir   string           `json:",omitempty"`
	Known []muster.AllocID `json:",omitempty"`
	// Shell is a command for sh.
	Shell string `json:",omitempty"`
}

// answer is what came of it. A pidfd comes with that to spawn.
type answer struct {
	Pid, Count int
	Output     string `json:",omitempty"`
	Err        string `json:",omitempty"`
}

func (a answer) error() error {
	if a.Err == "" {
		return nil
	}
	return errors.New(a.Err)
}

// Outer is the process that stays outside.
type Outer struct {
	// Program and Args are those of the inner process. It gets its connection to this one as
	// descriptor 3.
	Program string
	Args    []string
	Holder  *userns.Holder

	mu sync.Mutex
	// ended are the children whose end somebody waits for.
	ended map[int]chan unix.WaitStatus
}

// Run starts the inner process and serves it until it ends. When ctx ends it is asked to end.
func (o *Outer) Run(ctx context.Context) (code int, err error) {
	// The inner process is killed when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 1, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "inner"), os.NewFile(uintptr(pair[1]), "outer")
	control, err := connOf(ours)
	_ = ours.Close()
	if err != nil {
		return 1, err
	}
	defer func() { _ = control.Close() }()
	o.ended = map[int]chan unix.WaitStatus{}
	stop := o.reap()
	defer stop()
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return 1, err
	}
	argv := append([]string{"nsenter", "--user=" + o.Holder.Namespace("user"), "--preserve-credentials", "--",
		"unshare", "--mount", "--propagation", "private", "--", o.Program}, o.Args...)
	pid, done, err := o.child(nsenter, argv, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{0, 1, 2, theirs.Fd()}, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	_ = theirs.Close()
	if err != nil {
		return 1, fmt.Errorf("start the agent in its user namespace: %w", err)
	}
	go func() { _ = serve(control, o.handle) }()
	broken := make(chan error, 1)
	go func() { broken <- o.Holder.Await() }()
	asked := ctx.Done()
	var why error
	for {
		select {
		case why = <-broken:
			// The next agent makes what is missing.
			_ = unix.Kill(pid, unix.SIGTERM)
		case <-asked:
			_ = unix.Kill(pid, unix.SIGTERM) // not reaped before done
			asked = nil
		case status := <-done:
			if status.Signaled() {
				return 1, fmt.Errorf("the agent in its user namespace was ended by %s", unix.SignalName(status.Signal()))
			}
			if why != nil {
				return 1, fmt.Errorf("the agent ends: %w", why)
			}
			return status.ExitStatus(), nil
		}
	}
}

// reap takes the ends of all children: they are sandboxes, of whose end the inner process learns by
// itself.
func (o *Outer) reap() (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCHLD)
	go func() {
		for range signals {
			for {
				var status unix.WaitStatus
				o.mu.Lock()
				pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
				done := o.ended[pid]
				delete(o.ended, pid)
				o.mu.Unlock()
				if err == unix.EINTR {
					continue
				}
				if err != nil || pid <= 0 {
					break
				}
				if done != nil {
					done <- status
				}
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}

// child starts a process and returns where its end is told.
func (o *Outer) child(path string, argv []string, attr *syscall.ProcAttr) (pid int, done chan unix.WaitStatus, err error) {
	done = make(chan unix.WaitStatus, 1)
	// No child is reaped between its start and this entry.
	o.mu.Lock()
	defer o.mu.Unlock()
	if pid, _, err = syscall.StartProcess(path, argv, attr); err == nil {
		o.ended[pid] = done
	}
	return pid, done, err
}

// handle answers one call.
func (o *Outer) handle(c *net.UnixConn) {
	var r request
	files, err := receive(c, &r)
	if err != nil {
		return
	}
	defer closeAll(files)
	var a answer
	passed := []int(nil)
	switch r.Op {
	case opSpawn:
		pidfd := -1
		if a.Pid, pidfd, err = spawn(r, files); pidfd >= 0 {
			passed = []int{pidfd}
			defer func() { _ = unix.Close(pidfd) }()
		}
	case opDestroy:
		err = initbox.Destroy(context.Background(), r.Dir)
	case opForgotten:
		a.Count, err = initbox.EndForgotten(context.Background(), nil, r.Dir, r.Known)
	case opDetach:
		err = detach(r.Path, r.Argv)
	case opShell:
		a.Output, err = o.shell(r.Shell)
	default:
		err = fmt.Errorf("no such operation: %s", r.Op)
	}
	if err != nil {
		a.Err = err.Error()
	}
	_ = send(c, a, passed)
}

// spawn starts the init of a sandbox.
func spawn(r request, files []int) (pid, pidfd int, err error) {
	pidfd = -1
	attr := &syscall.ProcAttr{Dir: "/", Env: r.Env, Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}}
	if r.InGroup && len(files) > 0 {
		last := len(files) - 1
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, files[last]
		files = files[:last]
	}
	for _, fd := range files {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	defer initbox.Sleepy()()
	defer initbox.OnCores(r.Cores)()
	pid, _, err = syscall.StartProcess(r.Path, r.Argv, attr)
	return pid, pidfd, err
}

// shell runs a command to its end.
func (o *Outer) shell(command string) (string, error) {
	out, err := os.CreateTemp("", "shell-")
	if err != nil {
		return "", err
	}
	defer func() { _, _ = out.Close(), os.Remove(out.Name()) }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return "", err
	}
	defer func() { _ = null.Close() }()
	_, done, err := o.child("/bin/sh", []string{"sh", "-c", command}, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{null.Fd(), out.Fd(), out.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return "", err
	}
	status := <-done
	said := make([]byte, 2<<10)
	n, _ := out.ReadAt(said, 0)
	text := strings.TrimSpace(string(said[:n]))
	if status.ExitStatus() != 0 {
		return text, fmt.Errorf("exit status %d", status.ExitStatus())
	}
	return text, nil
}

// detach starts a program that outlives this one.
func detach(path string, argv []string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	_, _, err = syscall.StartProcess(path, argv, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{null.Fd(), 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	return err
}
