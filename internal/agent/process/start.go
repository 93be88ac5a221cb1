package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// initEnv is init's own environment, of which the command sees nothing: one
// processor is enough for it, its heap stays at a megabyte, and nobody profiles it.
var initEnv = []string{"GOMAXPROCS=1", "GOGC=25", "GODEBUG=memprofilerate=0"}

// initDescriptors are those that init begins with, see package initwire.
const initDescriptors = 7

// starting is what a start holds until init has answered.
type starting struct {
	r      *Runtime
	c      agent.SandboxConfig
	record *initwire.Sandbox
	// file is the record, open for appending: for our second line, and for init.
	file int
	// control is our end.
	control *os.File
	pidfd   int
	init    initwire.Process
}

// Start makes a sandbox. See agent.Runtime.
func (r *Runtime) Start(ctx context.Context, c agent.SandboxConfig) (agent.Sandbox, error) {
	if err := validate(&c); err != nil {
		return nil, err
	}
	r.ready()
	st := &starting{r: r, c: c, pidfd: -1}
	s, err := st.run(ctx)
	if err == nil {
		return s, nil
	}
	if st.record != nil {
		// The start is bounded by ctx, cleaning up after it is not.
		if err := errors.Join(Destroy(context.WithoutCancel(ctx), c.Dir), forget(c.Dir)); err != nil {
			r.log.Error("a start that went wrong could not be cleaned up", "alloc", c.ID, "error", err)
		}
	}
	var failure *muster.Failure
	if !errors.As(err, &failure) {
		failure = nodeFault("start the sandbox: %v", err)
	}
	return nil, failure
}

func validate(c *agent.SandboxConfig) error {
	switch {
	case c.Container != nil:
		return userFault(muster.ReasonNoRuntime, "image %q: the runtime %q has no images, a container runtime is needed", c.Container.Image.Ref, Name)
	case len(c.Command) == 0 || c.Command[0] == "":
		return userFault(muster.ReasonSpec, "the command is empty")
	case !filepath.IsAbs(c.Dir):
		return nodeFault("directory of the sandbox %q is not absolute", c.Dir)
	case !filepath.IsAbs(c.Work):
		return userFault(muster.ReasonSpec, "work directory %q is not absolute", c.Work)
	}
	for _, v := range c.Command {
		if strings.IndexByte(v, 0) >= 0 {
			return userFault(muster.ReasonSpec, "command: argument %q holds a zero byte", v)
		}
	}
	for _, kv := range c.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.IndexByte(kv, 0) >= 0 {
			return userFault(muster.ReasonSpec, "environment: %q is not of the form NAME=value without zero bytes", kv)
		}
	}
	if c.OutputLimit <= 0 {
		c.OutputLimit = DefaultOutputLimit
	}
	return nil
}

func (st *starting) run(ctx context.Context) (agent.Sandbox, error) {
	if err := st.claim(); err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(st.file) }()
	if err := st.spawn(); err != nil {
		return nil, err
	}
	defer func() { _ = st.control.Close() }()
	// Written before the start is sent: whatever dies from here on, the next agent finds init.
	if err := appendLine(st.file, initwire.ProcessLine("init", st.init, time.Now().UnixNano())); err != nil {
		st.abandon()
		return nil, err
	}
	started, err := st.converse(ctx)
	if err != nil {
		_ = unix.Close(st.pidfd)
		return nil, err
	}
	s := newSandbox(st.r, st.c.Dir, st.record, st.init)
	s.started = time.Unix(0, started.At)
	if err := s.hold(st.pidfd); err != nil {
		return nil, err
	}
	go s.watch()
	return s, nil
}

// claim writes the record, the directories of the cgroups in it, before any of it exists.
func (st *starting) claim() error {
	record := &initwire.Sandbox{
		Alloc: string(st.c.ID), Runtime: Name, Boot: st.r.boot, At: time.Now().UnixNano(),
		Memory: int64(st.c.Resources.Memory), Timeout: st.c.Timeout, KillGrace: st.c.KillGrace,
		Cgroups: st.r.groups.dirs(cgroupName(st.c.ID, st.c.Dir)),
	}
	path := filepath.Join(st.c.Dir, initwire.SandboxRecord)
	create := func() (int, error) {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_APPEND|unix.O_CLOEXEC, 0o600)
		if err != nil {
			err = &os.PathError{Op: "create", Path: path, Err: err}
		}
		return fd, err
	}
	file, err := create()
	if errors.Is(err, os.ErrExist) {
		// Either a start that an agent did not live to send, or a sandbox.
		if old, rerr := initwire.ReadRecord(path); rerr != nil || old.Init != nil {
			return fmt.Errorf("a sandbox was started in %s before", st.c.Dir)
		}
		if err := st.r.discard(st.c.Dir); err != nil {
			return err
		}
		file, err = create()
	}
	if err != nil {
		return err
	}
	if err := st.r.groups.vacate(record.Cgroups); err != nil {
		_ = unix.Close(file)
		return errors.Join(err, removeFile(path))
	}
	st.record, st.file = record, file
	if err := appendLine(file, record.Line()); err != nil {
		_ = unix.Close(file)
		return err
	}
	return nil
}

// appendLine adds a line to a record, whole or as an error: a full disk takes part of it.
func appendLine(fd int, line string) error {
	n, err := unix.Write(fd, []byte(line))
	if err == nil && n < len(line) {
		err = unix.ENOSPC
	}
	if err != nil {
		return fmt.Errorf("write the record of the sandbox: %w", err)
	}
	return nil
}

// spawn starts init with what it inherits, in its cgroup.
func (st *starting) spawn() (err error) {
	dir := st.c.Dir
	var files fds
	defer files.close()
	null := files.open(os.DevNull, unix.O_RDWR)
	out := files.open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	listener := files.listen(filepath.Join(dir, initwire.Socket))
	ours, theirs := files.pair()
	if files.err != nil {
		return files.err
	}
	st.control = os.NewFile(uintptr(ours), "control of "+dir)
	defer func() {
		if err != nil {
			_ = st.control.Close()
		}
	}()
	if err := st.r.groups.create(st.record.Cgroups, st.c.Resources, st.r.config.PidsLimit); err != nil {
		return err
	}
	argv := []string{"muster-init", string(st.c.ID)}
	attr := &syscall.ProcAttr{
		Dir: "/", Env: initEnv,
		Files: []uintptr{uintptr(null), uintptr(null), uintptr(st.file), uintptr(theirs), uintptr(listener), uintptr(st.file), uintptr(out)},
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &st.pidfd},
	}
	var pid int
	err = st.r.groups.inside(st.record.Cgroups, attr.Sys, func() (int, error) {
		defer sleepy()()
		var err error
		pid, _, err = syscall.StartProcess(st.r.config.InitPath, argv, attr)
		return pid, err
	})
	if pid <= 0 {
		return fmt.Errorf("start %s: %w", st.r.config.InitPath, err)
	}
	st.init.Pid = pid
	noMoreDescriptors(pid)
	if err == nil {
		err = st.identify()
	}
	if err != nil {
		st.abandon()
	}
	return err
}

// sleepy lets children that this thread starts before the returned function is
// called sleep longer than they ask for. It saves a twelfth of init's start: the monitor of the Go runtime would wake up
// every 20 µs all through it. Init takes it back for the command.
func sleepy() (awake func()) {
	const slack = 10 * time.Millisecond
	runtime.LockOSThread()
	before, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0)
	}
	return func() {
		if err == nil {
			_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before), 0, 0, 0)
		}
		runtime.UnlockOSThread()
	}
}

// noMoreDescriptors keeps a new init from opening files until it knows the limit
// of its command, which comes with the start that is only sent after this. The Go runtime would read its cgroup and all
// of the host's mounts to find out how many processors it may use, which init is told: a tenth of its start, more
// where there are many mounts. If init was quicker, it just takes that long.
func noMoreDescriptors(pid int) {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = min(limit.Max, initDescriptors)
		_ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil)
	}
}

// abandon ends an init that is not yet written down, so that nobody else would. It
// is our child and not reaped: the pid is its own.
func (st *starting) abandon() {
	_ = unix.Kill(st.init.Pid, unix.SIGKILL)
	_, _ = unix.Wait4(st.init.Pid, nil, 0, nil)
	if st.pidfd >= 0 {
		_ = unix.Close(st.pidfd)
	}
}

// identify learns init's start time and gets hold of it. It is our child and
// not reaped, so its pid cannot mean anything else.
func (st *starting) identify() error {
	born, ok := readStat(st.init.Pid)
	if !ok {
		return fmt.Errorf("/proc/%d/stat of the new init cannot be read", st.init.Pid)
	}
	st.init.Start = born.Start
	if st.pidfd < 0 {
		fd, err := unix.PidfdOpen(st.init.Pid, unix.PIDFD_NONBLOCK)
		if err != nil {
			return fmt.Errorf("pidfd_open: %w", err)
		}
		st.pidfd = fd
		return nil
	}
	return unix.SetNonblock(st.pidfd, true)
}

// converse sends the start and hears the answer.
func (st *starting) converse(ctx context.Context) (*initwire.Started, error) {
	ctx, cancel := context.WithTimeout(ctx, st.r.config.StartLimit)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = st.control.SetDeadline(time.Unix(1, 0)) })()
	start := &initwire.Start{
		Work: st.c.Work, Command: st.c.Command, Env: st.c.Env,
		Timeout: st.c.Timeout, KillGrace: st.c.KillGrace, OutputLimit: st.c.OutputLimit,
		OpenFiles: defaultOpenFiles, ResetOOM: st.r.shielded, ShieldOOM: os.Geteuid() == 0,
	}
	err := initwire.WriteFrame(st.control, initwire.KindStart, start.Fields())
	var kind initwire.Kind
	var fields []byte
	if err == nil {
		kind, fields, err = initwire.ReadFrame(st.control, initwire.MaxFrame)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, fmt.Errorf("init did not answer in time: %w", cause)
		}
		return st.silent(err)
	}
	switch kind {
	case initwire.KindStarted:
		return initwire.ParseStarted(fields)
	case initwire.KindFailed:
		failed, err := initwire.ParseFailed(fields)
		if err != nil {
			return nil, fmt.Errorf("answer of init: %w", err)
		}
		return nil, startFailure(failed)
	}
	return nil, fmt.Errorf("answer of init: unknown kind %d", kind)
}

// silent is about an init that ended without an answer. If the command is
// written down it did run, and what came of it is told like any end. Else the
// likeliest cause that is not the node's is a memory limit in which not even its start has room.
func (st *starting) silent(err error) (*initwire.Started, error) {
	words, rerr := initwire.ReadRecord(filepath.Join(st.c.Dir, initwire.SandboxRecord))
	if rerr == nil && words.Command != nil {
		return words.Command, nil
	}
	if kills, own := outOfMemory(st.record.Cgroups); kills > 0 && own {
		return nil, userFault(muster.ReasonOutOfMemory, "over its memory limit of %s before it began", muster.Bytes(st.record.Memory))
	}
	text := ""
	if rerr == nil && words.Rest != "" {
		text = ": " + firstLine(words.Rest)
	}
	return nil, fmt.Errorf("init ended without an answer (%w)%s", err, text)
}

// discard clears away a start that never was sent, so that the directory can be used again.
func (r *Runtime) discard(dir string) error {
	if err := errors.Join(Destroy(context.Background(), dir), forget(dir)); err != nil {
		return nodeFault("clear away an interrupted start: %v", err)
	}
	return nil
}

// forget deletes our files in the directory: no sandbox was ever started in it.
func forget(dir string) error {
	errs := []error{removeFile(filepath.Join(dir, initwire.Socket))}
	for _, stream := range []string{initwire.Stdout, initwire.Stderr} {
		segments, err := (&outputLog{dir: dir, stream: stream}).segments()
		errs = append(errs, err)
		for _, s := range segments {
			errs = append(errs, removeFile(filepath.Join(dir, s.name)))
		}
	}
	// Last: as long as it exists, the rest is known to be ours.
	return errors.Join(append(errs, removeFile(filepath.Join(dir, initwire.SandboxRecord)))...)
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// fds are descriptors on their way to init. The first error sticks.
type fds struct {
	all []int
	err error
}

func (f *fds) add(fd int, what string, err error) int {
	if err != nil {
		f.err = errors.Join(f.err, &os.PathError{Op: "open", Path: what, Err: err})
		return -1
	}
	f.all = append(f.all, fd)
	return fd
}

func (f *fds) close() {
	for _, fd := range f.all {
		_ = unix.Close(fd)
	}
}

func (f *fds) open(path string, flags int) int {
	if f.err != nil {
		return -1
	}
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
		if err != unix.EINTR {
			return f.add(fd, path, err)
		}
	}
}

// listen makes the socket. Its directory is 0700: nobody else reaches it.
func (f *fds) listen(path string) int {
	if f.err != nil {
		return -1
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if f.add(fd, path, err); err != nil {
		return -1
	}
	address, done, err := initwire.SocketAddress(path)
	if err == nil {
		err = syscall.Bind(fd, address)
		done()
	}
	if err == nil {
		err = unix.Listen(fd, initwire.MaxConns)
	}
	if err != nil {
		f.err = errors.Join(f.err, &os.PathError{Op: "listen", Path: path, Err: err})
	}
	return fd
}

// pair makes the control connection. Ours does not block and is not closed by close.
func (f *fds) pair() (ours, theirs int) {
	if f.err != nil {
		return -1, -1
	}
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		if err = unix.SetNonblock(p[0], true); err != nil {
			_ = unix.Close(p[0])
			_ = unix.Close(p[1])
		}
	}
	if err != nil {
		f.err = errors.Join(f.err, os.NewSyscallError("socketpair", err))
		return -1, -1
	}
	f.all = append(f.all, p[1])
	return p[0], p[1]
}
