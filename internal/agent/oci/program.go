package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/initbox"
)

// probeTime bounds the question for a program's version.
const probeTime = 10 * time.Second

// maxWords bounds what is shown of a program's words.
const maxWords = 2 << 10

// program is an OCI runtime program on this node.
type program struct {
	path, name, version string
}

// crun leaves cgroups alone if told so; the others make their own.
func (p *program) leavesCgroups() bool { return p.name == "crun" }

// usual: one of the two programs that make containers of the node's own kernel.
func (p *program) usual() bool { return p.name == "crun" || p.name == "runc" }

func (p *program) String() string { return strings.TrimSpace(p.name + " " + p.version) }

// findProgram finds the program that was asked for, or the best that there is.
func findProgram(ctx context.Context, want string) (*program, error) {
	names := []string{want}
	if want == "" {
		names = []string{"crun", "runc"}
	}
	var errs []error
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p := &program{path: path, name: filepath.Base(path)}
		if p.version, err = p.ask(ctx); err == nil {
			return p, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// ask asks for the version: "crun version 1.8.1" and more lines.
func (p *program) ask(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.path, "--version")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", p.path, err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	name, version, ok := strings.Cut(first, " version ")
	if !ok {
		return plain(first), nil
	}
	// The name that it gives itself tells what it is, whatever its file is called.
	if name = plain(strings.TrimSpace(name)); name == "crun" || name == "runc" {
		p.name = name
	}
	return plain(version), nil
}

// plain makes somebody else's words fit for one line of ours.
func plain(s string) string {
	if len(s) > maxWords {
		s = s[:maxWords] + "…"
	}
	s = strings.Map(func(c rune) rune {
		if c == '\n' || c == '\t' {
			return ' '
		}
		if !unicode.IsPrint(c) {
			return -1
		}
		return c
	}, strings.ToValidUTF8(s, "?"))
	return strings.TrimSpace(s)
}

// Names in the box of a sandbox.
const (
	stateName   = "state"
	logName     = "log"
	pidName     = "pid"
	specName    = "config.json"
	scratchName = "scratch"
)

// run starts the container of this box and waits until the program has done so. It is called on the locked thread
// whose namespace is the container's stage.
func (p *program) run(ctx context.Context, s *stage, descriptors []int) error {
	argv := []string{p.path, "--root", filepath.Join(s.box, stateName), "--log", filepath.Join(s.box, logName)}
	dirs := s.dirs
	if p.leavesCgroups() {
		argv = append(argv, "--cgroup-manager=disabled")
	} else {
		dirs = s.r.groups.Starter(dirs)
	}
	argv = append(argv, "run")
	if s.r.rootless() {
		// The kernel counts keyrings by user, and an ordinary one may have 200. Nothing inside can use keys: see the filter.
		argv = append(argv, "--no-new-keyring")
	}
	argv = append(argv, "--detach", "--bundle", s.bundle(), "--pid-file", filepath.Join(s.box, pidName),
		"--preserve-fds", fmt.Sprint(len(descriptors)-3), s.name)
	pidfd := -1
	attr := &syscall.ProcAttr{
		Dir: "/", Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	}
	for _, fd := range descriptors {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	var pid int
	_, err := s.r.groups.ThreadInside(dirs, attr.Sys, func() (int, error) {
		defer initbox.Sleepy()()
		var err error
		pid, _, err = syscall.StartProcess(p.path, argv, attr)
		return pid, err
	})
	if pid <= 0 {
		return fmt.Errorf("start %s: %w", p.path, err)
	}
	defer func() { _ = unix.Close(pidfd) }()
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	// It is our child, and reaped only below.
	stop := context.AfterFunc(ctx, func() { _ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0) })
	var status unix.WaitStatus
	for {
		_, werr := unix.Wait4(pid, &status, 0, nil)
		if werr == unix.EINTR {
			continue
		}
		if werr != nil {
			err = errors.Join(err, os.NewSyscallError("wait4", werr))
		}
		break
	}
	if !stop() && err == nil {
		// An image can bring that about, and so can a busy node: see blame.
		err = &programError{fmt.Errorf("%s took too long: %w", p, context.Cause(ctx))}
	}
	if err == nil && (!status.Exited() || status.ExitStatus() != 0) {
		err = p.explain(s, status)
		if status.Exited() {
			err = &programError{err} // it refused; who killed it says nothing of the image
		}
	}
	return err
}

// causeFirst is a program's log with the lines of errors first: runc writes warnings of its cleanup, as of a cgroup that it could not
// remove, before the reason why it cleaned up.
func causeFirst(log string) string {
	var causes, others strings.Builder
	for line := range strings.Lines(log) {
		to := &others
		if strings.Contains(line, " level=error ") || strings.Contains(line, " level=fatal ") {
			to = &causes
		}
		to.WriteString(strings.TrimSuffix(line, "\n") + "\n")
	}
	return causes.String() + others.String()
}

// explain says what the program said when it could not.
func (p *program) explain(s *stage, status unix.WaitStatus) error {
	how := fmt.Sprintf("exited with code %d", status.ExitStatus())
	if status.Signaled() {
		how = "was ended by " + unix.SignalName(status.Signal())
	}
	words := ""
	if text, ok := cgroup.ReadSmall(filepath.Join(s.box, logName)); ok {
		words = plain(causeFirst(text))
	}
	if words == "" {
		return fmt.Errorf("%s %s without a word", p, how)
	}
	return fmt.Errorf("%s %s: %s", p, how, words)
}

// born finds the container's first process after the program has ended, and holds it.
func (p *program) born(ctx context.Context, s *stage) (pid, pidfd int, err error) {
	text, ok := cgroup.ReadSmall(filepath.Join(s.box, pidName))
	if !ok {
		return 0, -1, fmt.Errorf("%s did not write down the pid of the container", p)
	}
	if _, err := fmt.Sscan(string(bytes.TrimSpace([]byte(text))), &pid); err != nil || pid <= 1 {
		return 0, -1, fmt.Errorf("%s wrote %q as the pid of the container", p, plain(text))
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return 0, -1, fmt.Errorf("hold the container's init: %w", err)
	}
	// Looked at after it is held: a number that is in our cgroup now is ours.
	if len(s.dirs) == 0 {
		err = firstInside(pid)
	} else if pids, _ := cgroup.Pids(s.dirs); !contains(pids, pid) {
		err = fmt.Errorf("process %d, which %s calls the container's init, is not in the sandbox's cgroup", pid, p)
	}
	if err != nil {
		_ = unix.Close(fd)
		return 0, -1, err
	}
	if err = filtered(ctx, s, pid); err == nil {
		err = forbidDevices(pid)
	}
	if err != nil {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		_ = unix.Close(fd)
		return 0, -1, fmt.Errorf("%s: %w", p, err)
	}
	return pid, fd, nil
}

// firstInside makes sure, where there are no cgroups, that a process is of this user namespace and the first of a process
// namespace of its own: all of the sandbox ends with it.
func firstInside(pid int) error {
	proc := "/proc/" + strconv.Itoa(pid)
	theirs, err1 := os.Readlink(proc + "/ns/user")
	ours, err2 := os.Readlink("/proc/self/ns/user")
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	text, _ := cgroup.ReadSmall(proc + "/status")
	for line := range strings.Lines(text) {
		if numbers, ok := strings.CutPrefix(line, "NSpid:"); ok {
			if f := strings.Fields(numbers); theirs == ours && len(f) > 1 && f[len(f)-1] == "1" {
				return nil
			}
		}
	}
	return fmt.Errorf("process %d, which shall be the container's init, is not the first process of a container", pid)
}

// filtered makes sure that the container has the filter of system calls that it shall have: a program that
// does not know what we ask for would leave it out without a word. The program may end a moment before the container's
// process has it, and is init: that is waited for, which holds nothing up.
func filtered(ctx context.Context, s *stage, pid int) error {
	if s.r.seccomp == nil {
		return nil
	}
	for ctx.Err() == nil {
		text, ok := cgroup.ReadSmall("/proc/" + strconv.Itoa(pid) + "/status")
		name, mode := "", ""
		for raw := range strings.Lines(text) {
			key, value, _ := strings.Cut(raw, ":")
			switch key {
			case "Name":
				name = strings.TrimSpace(value)
			case "Seccomp":
				mode = strings.TrimSpace(value)
			}
		}
		switch {
		case mode == "2":
			return nil
		case !ok || mode == "":
			return errors.New("the container's process ended before it was init")
		case name == path.Base(initAt):
			return errors.New("the container has no filter of system calls")
		}
		time.Sleep(50 * time.Microsecond)
	}
	return context.Cause(ctx)
}

func contains(pids []int, pid int) bool {
	for _, p := range pids {
		if p == pid {
			return true
		}
	}
	return false
}
