package initbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Plan is how a runtime starts one sandbox.
type Plan struct {
	// Groups makes Cgroups, which go into the record before any of them exists. Nil: there are none.
	Groups  *cgroup.Groups
	Cgroups []string
	// Start is what init is told.
	Start *initwire.Start
	// StartLimit bounds the start, beside the caller's context.
	StartLimit time.Duration
	// Owner is who init is on this node, for what it writes: the uid and gid that root has in its user namespace. 0: root.
	Owner int
	// Spawn brings init to life with these descriptors as its own 0 and up, and returns its pid and a pidfd, or -1 for that.
	// On an error nothing of it may be left but what is in the cgroups or below Box.
	Spawn func(ctx context.Context, descriptors []int) (pid, pidfd int, err error)
	// Late says whose failure it is that init has not answered in time; ctx may be over. Nil: the node's.
	Late func(ctx context.Context, err error) error
}

// starting is what a start holds until init has answered.
type starting struct {
	k      *Keeper
	c      *contract.SandboxConfig
	plan   *Plan
	record *initwire.Sandbox
	// file is the record, open for appending; inits is init's: the same unless it is walled.
	file, inits int
	// output is the directory of the output.
	output int
	// control is our end.
	control *os.File
	pidfd   int
	init    initwire.Process
}

// Start makes a sandbox. c has passed Validate. Its errors are *muster.Failure.
func (k *Keeper) Start(ctx context.Context, c *contract.SandboxConfig, plan *Plan) (contract.Sandbox, error) {
	st := &starting{k: k, c: c, plan: plan, pidfd: -1, file: -1, inits: -1, output: -1}
	ctx, cancel := context.WithTimeout(ctx, plan.StartLimit)
	defer cancel()
	s, err := st.run(ctx)
	if err == nil {
		return s, nil
	}
	if st.record != nil {
		// The start is bounded by ctx, cleaning up after it is not.
		if err := errors.Join(Destroy(context.WithoutCancel(ctx), c.Dir), forget(c.Dir)); err != nil {
			k.log.Error("a start that went wrong could not be cleaned up", "alloc", c.ID, "error", err)
		}
	}
	var failure *muster.Failure
	if !errors.As(err, &failure) {
		failure = NodeFault("start the sandbox: %v", err)
	}
	return nil, failure
}

// Validate says what is wrong with a configuration for any runtime.
func Validate(c *contract.SandboxConfig) error {
	switch {
	case len(c.Command) == 0 || c.Command[0] == "":
		return UserFault(muster.ReasonSpec, "the command is empty")
	case !filepath.IsAbs(c.Dir):
		return NodeFault("directory of the sandbox %q is not absolute", c.Dir)
	case !filepath.IsAbs(c.Work):
		return UserFault(muster.ReasonSpec, "work directory %q is not absolute", c.Work)
	}
	for _, v := range c.Command {
		if strings.IndexByte(v, 0) >= 0 {
			return UserFault(muster.ReasonSpec, "command: argument %q holds a zero byte", v)
		}
	}
	for _, kv := range c.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.IndexByte(kv, 0) >= 0 {
			return UserFault(muster.ReasonSpec, "environment: %q is not of the form NAME=value without zero bytes", kv)
		}
	}
	if c.OutputLimit <= 0 {
		c.OutputLimit = DefaultOutputLimit
	}
	return nil
}

func (st *starting) run(ctx context.Context) (contract.Sandbox, error) {
	if err := st.claim(); err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(st.file) }()
	if err := st.spawn(ctx); err != nil {
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
	s := newSandbox(st.k, st.c.Dir, st.record, st.init)
	s.started = s.within(started.At)
	if err := s.hold(st.pidfd); err != nil {
		return nil, err
	}
	go s.watch()
	return s, nil
}

// claim writes the record, the directories of the cgroups in it, before any of it exists.
func (st *starting) claim() error {
	cgroups := st.plan.Cgroups
	if len(cgroups) > 0 {
		if f := st.plan.Groups.Freezer(filepath.Base(cgroups[0])); f != "" && !slices.Contains(cgroups, f) {
			cgroups = append(slices.Clip(cgroups), f)
		}
	}
	record := &initwire.Sandbox{
		Alloc: string(st.c.ID), Runtime: st.k.config.Runtime, Boot: st.k.boot, At: time.Now().UnixNano(),
		Memory: int64(st.c.Resources.Memory), Timeout: st.c.Timeout, KillGrace: st.c.KillGrace,
		OutputLimit: st.c.OutputLimit, Owner: st.plan.Owner, Cgroups: cgroups,
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
		if err := st.k.discard(st.c.Dir); err != nil {
			return err
		}
		file, err = create()
	}
	if err != nil {
		return err
	}
	if err := st.plan.Groups.Vacate(record.Cgroups); err != nil {
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

// spawn has init started with what it inherits, in its cgroup.
func (st *starting) spawn(ctx context.Context) (err error) {
	dir := st.c.Dir
	var files fds
	defer files.close()
	// For a process of this node. A runtime that contains puts a device of the sandbox's own in its place.
	null := files.open(os.DevNull, unix.O_RDWR)
	if walled(st.record) {
		files.wall(st)
	} else {
		st.inits, st.output = st.file, files.open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	}
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
	pid, pidfd, err := st.plan.Spawn(ctx, []int{null, null, st.inits, theirs, listener, st.inits, st.output})
	if err != nil {
		return err
	}
	st.init.Pid, st.pidfd = pid, pidfd
	if err := st.identify(); err != nil {
		st.abandon()
		return err
	}
	return nil
}

// abandon ends an init that is not yet written down, so that nobody else would.
func (st *starting) abandon() {
	if st.pidfd >= 0 {
		_ = unix.PidfdSendSignal(st.pidfd, unix.SIGKILL, nil, 0)
		_ = unix.Waitid(unix.P_PIDFD, st.pidfd, nil, unix.WEXITED, nil) // ours to reap, or ECHILD
		_ = unix.Close(st.pidfd)
		return
	}
	// Without a pidfd it is our child and not reaped: the pid is its own.
	if pid, _ := unix.Wait4(st.init.Pid, nil, unix.WNOHANG, nil); pid == 0 {
		_ = unix.Kill(st.init.Pid, unix.SIGKILL)
		_, _ = unix.Wait4(st.init.Pid, nil, 0, nil)
	}
}

// identify learns init's start time and gets hold of it. Whoever spawned it holds it by
// a pidfd, or it is our child and not reaped: its pid cannot mean anything else.
func (st *starting) identify() error {
	if st.pidfd < 0 {
		fd, err := unix.PidfdOpen(st.init.Pid, unix.PIDFD_NONBLOCK)
		if err != nil {
			return fmt.Errorf("pidfd_open: %w", err)
		}
		st.pidfd = fd
	}
	born, ok := ReadStat(st.init.Pid)
	if !ok {
		return fmt.Errorf("/proc/%d/stat of the new init cannot be read", st.init.Pid)
	}
	st.init.Start = born.Start
	return unix.SetNonblock(st.pidfd, true)
}

// Sleepy lets children that this thread starts before the returned function is
// called sleep longer than they ask for. It saves a twelfth of init's start: the monitor of the Go runtime would wake up
// every 20 µs all through it. Init takes it back for the command.
func Sleepy() (awake func()) {
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

// converse sends the start and hears the answer.
func (st *starting) converse(ctx context.Context) (*initwire.Started, error) {
	defer context.AfterFunc(ctx, func() { _ = st.control.SetDeadline(time.Unix(1, 0)) })()
	err := initwire.WriteFrame(st.control, initwire.KindStart, st.plan.Start.Fields())
	var kind initwire.Kind
	var fields []byte
	if err == nil {
		kind, fields, err = initwire.ReadFrame(st.control, initwire.MaxFrame)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err := fmt.Errorf("init did not answer in time: %w", cause)
			// One that is not wanted any more, as its job was stopped, is judged by nobody.
			if st.plan.Late != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				err = st.plan.Late(ctx, err)
			}
			return nil, err
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
	words, rerr := Read(st.c.Dir)
	if rerr == nil && words.Command != nil {
		return words.Command, nil
	}
	if kills, own := cgroup.OutOfMemory(st.record.Cgroups); kills > 0 && own {
		return nil, UserFault(muster.ReasonOutOfMemory, "over its memory limit of %s before it began", muster.Bytes(st.record.Memory))
	}
	text := ""
	if rerr == nil && words.Rest != "" {
		text = ": " + firstLine(words.Rest)
	}
	return nil, fmt.Errorf("init ended without an answer (%w)%s", err, text)
}
