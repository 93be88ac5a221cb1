package userns

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/boot"
	"github.com/musterhq/muster/internal/atomicfile"
)

// Names in the directory of an agent.
const (
	recordName = "userns.json"
	lockName   = "userns.lock"
)

// HoldCommand is the command of muster-node that is the holder.
const HoldCommand = "hold"

// endTime bounds the end of a holder.
const endTime = 10 * time.Second

// process is a process that is told from a later one of the same number.
type process struct {
	Pid   int    `json:"pid"`
	Start uint64 `json:"start"`
}

func identify(pid int) process {
	start, _ := boot.ProcessStart(pid)
	return process{pid, start}
}

func (p process) alive() bool {
	start, ok := boot.ProcessStart(p.Pid)
	return ok && p.Pid > 1 && start == p.Start
}

// Holder is the process that keeps the namespaces of an agent from one agent to the next: its user
// namespace, and the network namespace that stands for the node in the networks of sandboxes.
type Holder struct {
	process
	Boot string `json:"boot"`
	IDs  IDs    `json:"ids"`
	// Uplink is what carries packets from the network namespace to the host's network.
	Uplink Uplink `json:"uplink"`
	// Cgroup is where the cgroups of sandboxes are, if one was delegated.
	Cgroup string `json:"cgroup,omitempty"`
	// Lost says that the holder before had died, with the networks of its sandboxes.
	Lost bool `json:"-"`
}

// read is the holder that an agent's directory names; nil: none that lives.
func read(dir string) (h *Holder, known bool) {
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return nil, false
	}
	h = &Holder{}
	if json.Unmarshal(b, h) != nil || h.Boot != boot.ID() {
		return nil, false
	}
	if !h.alive() {
		_ = h.Uplink.end()
		return nil, true
	}
	return h, true
}

func (h *Holder) write(dir string) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return atomicfile.Replace(filepath.Join(dir, recordName), append(b, '\n'))
}

// Open finds the holder of an agent's directory, or starts one: program is muster-node. A new holder
// outlives this process.
func Open(ctx context.Context, dir, program, cgroup string) (*Holder, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, err
	}
	h, known := read(dir)
	if h == nil {
		if h, err = start(ctx, dir, program); err != nil {
			return nil, err
		}
		h.Lost = known
	}
	h.Cgroup = cgroup
	if !h.Uplink.alive() {
		h.Uplink = startUplink(ctx, dir, h.Pid)
	}
	if err := h.write(dir); err != nil {
		return nil, err
	}
	return h, nil
}

// start starts a holder. It keeps the end of a pipe, so that others see when it ends.
func start(ctx context.Context, dir, program string) (*Holder, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = r.Close(), w.Close() }()
	cmd, ids, err := create(ctx, func() (*exec.Cmd, error) {
		cmd := exec.Command(program, HoldCommand, dir) // whose it is, for those who list processes
		cmd.Dir, cmd.Env, cmd.ExtraFiles = "/", []string{"GOMAXPROCS=1"}, []*os.File{w}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET}
		return cmd, cmd.Start()
	})
	if err != nil {
		return nil, fmt.Errorf("user namespace: %w", err)
	}
	h := &Holder{process: identify(cmd.Process.Pid), Boot: boot.ID(), IDs: ids}
	return h, cmd.Process.Release()
}

// Namespace is the path of one of the holder's namespaces, "user" or "net".
func (h *Holder) Namespace(kind string) string {
	return "/proc/" + strconv.Itoa(h.Pid) + "/ns/" + kind
}

// End ends the holder of an agent's directory, if there is one, and what belongs to it. The sandboxes
// must have ended.
func End(dir string) error {
	h, _ := read(dir)
	if h == nil {
		return nil
	}
	return errors.Join(h.Uplink.end(), h.end())
}

// end ends a process, if it is still there, and returns when it is gone.
func (p process) end() error {
	fd, err := p.hold()
	if err != nil || fd < 0 {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return os.NewSyscallError("pidfd_send_signal", err)
	}
	if ended, err := await([]int{fd}, endTime); err != nil || ended < 0 {
		return fmt.Errorf("process %d does not end: %w", p.Pid, cmp.Or(err, context.DeadlineExceeded))
	}
	return nil
}

// hold opens a descriptor of a process; -1: it has ended.
func (p process) hold() (fd int, err error) {
	if p.Pid == 0 {
		return -1, nil // there never was one
	}
	fd, err = unix.PidfdOpen(p.Pid, 0)
	switch {
	case err == unix.ESRCH:
		return -1, nil
	case err != nil:
		return -1, os.NewSyscallError("pidfd_open", err)
	case !p.alive():
		_ = unix.Close(fd)
		return -1, nil
	}
	unix.CloseOnExec(fd)
	return fd, nil
}

// await waits until one of these processes ends, and returns which; -1: none in this time. 0 is for
// ever.
func await(fds []int, limit time.Duration) (int, error) {
	polled := make([]unix.PollFd, len(fds))
	for i, fd := range fds {
		polled[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	wait := int(limit.Milliseconds())
	if limit == 0 {
		wait = -1
	}
	for {
		n, err := unix.Poll(polled, wait)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return -1, os.NewSyscallError("poll", err)
		}
		for i := range polled {
			if polled[i].Revents != 0 {
				return i, nil
			}
		}
	}
}

// Await waits until the holder or its uplink ends, and says which. It blocks a thread for as long.
func (h *Holder) Await() error {
	all := []struct {
		process
		what string
	}{{h.process, "the process that holds its user namespace"}, {h.Uplink.process, h.Uplink.Program + ", which carries the packets of its containers,"}}
	if h.Uplink.Program == "" {
		all = all[:1]
	}
	var fds []int
	for _, p := range all {
		fd, err := p.hold()
		if err != nil {
			return err
		}
		if fd < 0 {
			return fmt.Errorf("%s has ended", p.what)
		}
		defer func() { _ = unix.Close(fd) }()
		fds = append(fds, fd)
	}
	i, err := await(fds, 0)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s has ended", all[i].what)
}

// Cgroup is where the sandboxes of an agent's directory have their cgroups; "" if none was delegated.
func Cgroup(dir string) string {
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	h := &Holder{}
	if err != nil || json.Unmarshal(b, h) != nil {
		return ""
	}
	return h.Cgroup
}

// Current is the holder of an agent's directory, which lives.
func Current(dir string) (*Holder, error) {
	h, _ := read(dir)
	if h == nil {
		return nil, fmt.Errorf("%s: no process holds a user namespace of this directory", filepath.Join(dir, recordName))
	}
	return h, nil
}
