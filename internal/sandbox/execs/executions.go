package execs

import (
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/output"
	"github.com/musterhq/muster/internal/sandbox/program"
	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// keptSpools is how much output of ended executions is kept in all; the oldest goes first.
const keptSpools = 1 << 30

// Config is what executions have to know of their sandbox.
type Config struct {
	// Work and User are those of the sandbox's command, for executions that name none.
	Work, User string
	// Contained and ShieldOOM are as in Start.
	Contained, ShieldOOM bool
	// Launcher starts them.
	Launcher program.Launcher
	// Env is the environment of the sandbox's command, its variables parted by zero bytes.
	Env string
	// Dir is a descriptor of the directory of their output.
	Dir   int
	Gates system.Gates
}

// Executions are all that are known. The zero value has none and takes none, see open.
//
// Who reaps: only the loop (reap), under mu. A leader is in byPid before its end can
// be lost, because no child that is not there is reaped while forking counts; and once it is reaped it is not
// there any more, so that under mu every pid in byPid is a process of ours, and may be signalled.
type Executions struct {
	// deaths is an epoll descriptor with the pidfd of every leader: the loop waits for it.
	deaths int
	cfg    Config
	// pool has buffers for all output.
	pool output.Pool
	// spooled is how many bytes all spools have on disk.
	spooled atomic.Int64

	mu sync.Mutex
	// forking is how many launches are under way.
	forking int
	byID    map[string]*execution
	byPid   map[int]*execution
	// ended are those of byID that are over, oldest first.
	ended []*execution
	// closed says why no more are started; empty: they are.
	closed string
	// made is how many ids were made here.
	made int
	// served is how many operations go on; idle is closed when there are none after closed, or for the first time then.
	served int
	idle   chan struct{}
	idled  bool
}

// execution is one command that runs beside the sandbox's own, or did.
type execution struct {
	x  *Executions
	id string
	// want is what was asked for, without command and environment once it runs.
	want    *initwire.Exec
	started int64
	// pid of its leader, whose session and group have the same number.
	pid int
	// stdin is our end of what it reads, nil if it has none; of a terminal the same as prints[0].
	stdin *system.Endpoint
	// prints are what comes out: stdout and stderr, or a terminal.
	prints []*output.Source
	// midLine: the last that was fed to its terminal was no end of a line.
	midLine atomic.Bool
	// timedOut is supervise's own.
	timedOut bool
	// spools keep what a detached one prints, one for each of prints.
	spools []*output.Spool

	// pidfd of the leader, -1 once reaped, and why we ended it: under executions.mu.
	pidfd int
	why   string

	// dead is closed when the leader was reaped, status and died are set then.
	dead   chan struct{}
	status syscall.WaitStatus
	died   int64
	// over is closed when all is over, end is set then.
	over chan struct{}
	end  initwire.ExecEnded
}

// Open begins to take executions. For the loop, before the first operation.
func (x *Executions) Open(cfg Config) {
	x.cfg, x.deaths = cfg, -1
	x.byID, x.byPid = make(map[string]*execution), make(map[int]*execution)
	x.idle = make(chan struct{})
	// Without it deaths are seen a little later.
	if fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err == nil {
		x.deaths = fd
	}
}

// Deaths is readable when a leader has died; -1 if there is no such descriptor.
func (x *Executions) Deaths() int {
	if x.byID == nil {
		return -1
	}
	return x.deaths
}

// Close ends all executions, and takes no more.
func (x *Executions) Close(why string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed != "" {
		return
	}
	x.closed = why
	for _, e := range x.byPid {
		x.endLocked(e, why, syscall.SIGKILL)
	}
	x.idleLocked()
}

func (x *Executions) idleLocked() {
	if x.idle != nil && !x.idled && x.served == 0 && x.closed != "" {
		x.idled = true
		close(x.idle)
	}
}

// Conclude gives those who are connected some time to learn of the end.
func (x *Executions) Conclude(atMost time.Duration) {
	if x.idle == nil {
		return
	}
	select {
	case <-x.idle:
	case <-time.After(atMost):
	}
}

func (x *Executions) serving(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.served += n
	x.idleLocked()
}

// Reap reaps every child that has died, but for the command: a pid that is not yet reaped is nobody else's, so that no signal
// of init's can hit a stranger. Nothing else in this program reaps but the loop, for the command, whose pid this is as long
// as it is not reaped; then it is 0. It reports whether there was something, or may be soon.
func (x *Executions) Reap(command int) (some bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	some = x.reapLeadersLocked()
	// A child that is not known may be the leader of an execution that is just being started.
	if x.forking > 0 {
		return true
	}
	for {
		pid, _ := system.DeadChild()
		if pid <= 0 || pid == command {
			return some
		}
		if !x.reapLocked(pid) {
			return some
		}
		some = true
	}
}

// reapLeadersLocked reaps the leaders that have died.
func (x *Executions) reapLeadersLocked() (some bool) {
	if len(x.byPid) == 0 || x.deaths < 0 {
		return false
	}
	var events [64]syscall.EpollEvent
	n, _ := syscall.EpollWait(x.deaths, events[:], 0)
	for i := range max(n, 0) {
		if pid := int(events[i].Fd); x.byPid[pid] != nil && x.reapLocked(pid) {
			some = true
		}
	}
	return some
}

// reapLocked reaps a child, if it is dead.
func (x *Executions) reapLocked(pid int) bool {
	var status syscall.WaitStatus
	for {
		got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if got != pid {
			return false
		}
		break
	}
	if e := x.byPid[pid]; e != nil {
		delete(x.byPid, pid)
		// Closing alone is not enough: a child between its fork and its exec has it open as well.
		_ = syscall.EpollCtl(x.deaths, syscall.EPOLL_CTL_DEL, e.pidfd, nil)
		_ = syscall.Close(e.pidfd)
		e.pidfd, e.status, e.died = -1, status, time.Now().UnixNano()
		close(e.dead)
	}
	return true
}

// endLocked signals an execution that still runs. The first reason is the one that is told.
func (x *Executions) endLocked(e *execution, why string, signals ...syscall.Signal) {
	if x.byPid[e.pid] != e {
		return
	}
	if e.why == "" {
		e.why = why
	}
	for _, sig := range signals {
		_ = syscall.Kill(-e.pid, sig)
	}
}

// admit takes an id.
func (x *Executions) admit(want *initwire.Exec) (*execution, *initwire.Failed) {
	if want.ID != "" && !initwire.ExecID(want.ID) {
		return nil, initwire.UserFault(initwire.ReasonSpec, "execution "+strconv.Quote(want.ID)+": an id is 1 to "+strconv.Itoa(initwire.MaxExecID)+" of a-z, A-Z, 0-9, dot, dash and underscore")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed != "" {
		return nil, initwire.UserFault(initwire.ReasonEnding, x.closed)
	}
	for want.ID == "" || x.byID[want.ID] != nil {
		if want.ID != "" {
			return nil, initwire.UserFault(initwire.ReasonExecExists, "execution "+strconv.Quote(want.ID)+" exists already")
		}
		x.made++
		if id := "exec-" + strconv.Itoa(x.made); x.byID[id] == nil {
			want.ID = id
			break
		}
	}
	e := &execution{x: x, id: want.ID, want: want, pidfd: -1, dead: make(chan struct{}), over: make(chan struct{})}
	x.byID[e.id] = e
	return e, nil
}

// forget gives up one that did not start.
func (x *Executions) forget(e *execution) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.byID, e.id)
}

// find is the execution of an id that runs or ran.
func (x *Executions) find(id string) (*execution, *initwire.Failed) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.byID[id]; e != nil && e.pid != 0 {
		return e, nil
	}
	return nil, initwire.UserFault(initwire.ReasonNoExec, "no execution "+strconv.Quote(id)+" is known")
}

// forked is told before a launch begins, and ran or failed after it.
func (x *Executions) forked() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forking++
}

// ran takes in what was launched; without a pid, nothing was.
func (x *Executions) ran(e *execution, pid, pidfd int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forking--
	if pid <= 0 {
		return
	}
	e.pid, e.pidfd = pid, pidfd
	x.byPid[pid] = e
	if x.cfg.ShieldOOM {
		system.SetOOMScore(strconv.Itoa(pid), "0") // it inherits the shield that init has by now
	}
	if x.deaths >= 0 {
		// If it fails, the loop sees the death when it looks for orphans.
		_ = syscall.EpollCtl(x.deaths, syscall.EPOLL_CTL_ADD, pidfd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(pid)})
	}
	if x.closed != "" {
		x.endLocked(e, x.closed, syscall.SIGKILL)
	}
}

// signal sends a signal to an execution's process group; false if it has ended.
func (x *Executions) signal(e *execution, sig syscall.Signal) (sent bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byPid[e.pid] != e {
		return false, nil
	}
	return true, syscall.Kill(-e.pid, sig)
}

// finish ends an execution, why being told if nothing was before.
func (x *Executions) finish(e *execution, why string, signals ...syscall.Signal) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.endLocked(e, why, signals...)
}

// killLeftovers kills what is left of the group of a leader that was reaped.
func (x *Executions) killLeftovers(e *execution) {
	x.mu.Lock()
	defer x.mu.Unlock()
	// A number cannot be used again as long as there is a group of it. A child in that group proves that there
	// is one, as nobody reaps meanwhile; and a child of that very number, that it is another's.
	if system.HasChild(system.ByPid, e.pid) || !system.HasChild(system.ByGroup, e.pid) {
		return
	}
	_ = syscall.Kill(-e.pid, syscall.SIGKILL)
}

// retire writes down how an execution ended, and lets go of the oldest.
func (x *Executions) retire(e *execution) {
	out := x.retired(e)
	for _, old := range out {
		for _, p := range old.spools {
			p.Remove()
		}
	}
}

func (x *Executions) retired(e *execution) (out []*execution) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e.end = initwire.ExecEnded{Started: e.started, Ended: e.died, TimedOut: e.timedOut, Why: e.why}
	if e.status.Signaled() {
		e.end.Signal = int(e.status.Signal())
	} else {
		e.end.Exit = e.status.ExitStatus()
	}
	for _, p := range e.spools {
		e.end.Lost += p.Lost()
	}
	close(e.over)
	x.ended = append(x.ended, e)
	var size int64
	keep := len(x.ended)
	for keep > 0 && len(x.ended)-keep < initwire.MaxExecs {
		for _, p := range x.ended[keep-1].spools {
			size += p.Size()
		}
		if size > keptSpools {
			break
		}
		keep--
	}
	out = append(out, x.ended[:keep]...)
	x.ended = append(x.ended[:0], x.ended[keep:]...)
	for _, old := range out {
		delete(x.byID, old.id)
	}
	return out
}

// list is what is known of all.
func (x *Executions) list() (all initwire.ExecList) {
	x.mu.Lock()
	defer x.mu.Unlock()
	one := func(e *execution, running bool) {
		state := initwire.ExecState{ID: e.id, Running: running, Detached: e.want.Detached, TTY: e.want.TTY, Ended: e.end}
		state.Ended.Started = e.started
		all = append(all, state)
	}
	for _, e := range x.ended {
		one(e, false)
	}
	at := len(all)
	for _, e := range x.byID {
		if e.pid != 0 && !e.isOver() {
			one(e, true)
		}
	}
	sortByStart(all[at:])
	return all
}

func (e *execution) isOver() bool {
	select {
	case <-e.over:
		return true
	default:
		return false
	}
}

// makeRoom drops the output of the executions that ended first, while spools
// hold all that they may. How those ended stays known.
func (x *Executions) makeRoom() {
	unlink := x.untieEnded(func() bool { return x.spooled.Load() >= initwire.SpoolsLimit })
	for _, f := range unlink {
		f()
	}
}

// untieEnded answers what deletes the files, which takes its time. All who wait for room come at once:
// as the bytes count no more when mu is free again, each drops only what those before it left full.
func (x *Executions) untieEnded(full func() bool) (unlink []func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.ended {
		if !full() {
			break
		}
		for _, p := range e.spools {
			unlink = append(unlink, p.Abandon())
		}
	}
	return unlink
}
