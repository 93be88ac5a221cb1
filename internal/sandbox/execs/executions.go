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

// keptSpools is how many bytes of output of ended executions are kept in all. The oldest goes
// first.
const keptSpools = 1 << 30

// Config is what executions have to know of their sandbox.
type Config struct {
	// Work and User are those of the sandbox's command, for executions that name none.
	Work, User string
	// Contained and ShieldOOM are as in Start.
	Contained, ShieldOOM bool
	// Launcher starts the commands of executions.
	Launcher program.Launcher
	// Env is the environment of the sandbox's command, its variables parted by zero bytes.
	Env string
	// Dir is a descriptor of the directory that keeps the output of detached executions.
	Dir int
	// Gates are those of the sandbox: executions use all but that for files.
	Gates system.Gates
}

// Executions are all executions that a sandbox knows: those that run, and as many that have ended
// as the bounds allow. The zero value knows none and starts none, see Open.
//
// Only the loop reaps, by Reap, under mu. A leader is in byPid before its end can be lost, because
// Reap leaves unknown children alone while forking counts a launch. Once a leader is reaped it is
// not in byPid any more. So, under mu, every pid in byPid is a process of this sandbox and may be
// signalled.
type Executions struct {
	// deaths is an epoll descriptor with the pidfd of every leader. The loop waits for it.
	deaths int
	cfg    Config
	// pool has buffers for all output.
	pool output.Pool
	// spooled is how many bytes all spools have on disk.
	spooled atomic.Int64

	mu sync.Mutex
	// forking is how many launches are under way.
	forking int
	// byID has all that are known, byPid the leaders that are not reaped.
	byID  map[string]*execution
	byPid map[int]*execution
	// ended are those of byID that are over, the oldest first.
	ended []*execution
	// closed says why no more executions are started; empty: they are.
	closed string
	// made is how many ids were made here, for clients that gave none.
	made int
	// served is how many operations go on. idle is closed when there are none after the end of the
	// sandbox, and idled says that it was.
	served int
	idle   chan struct{}
	idled  bool
}

// execution is one command that runs beside the sandbox's own, or did.
type execution struct {
	x  *Executions
	id string
	// want is what the client asked for. Once it runs, command and environment are dropped, because
	// they may be large.
	want    *initwire.Exec
	started int64
	// pid is that of its leader. Its session and its process group have the same number.
	pid int
	// stdin is init's end of what it reads; nil if it reads nothing. Of a terminal it is the same
	// as prints[0].
	stdin *system.Endpoint
	// prints are the streams that it prints to: stdout and stderr, or a terminal.
	prints []*output.Source
	// midLine: what was last written to its terminal did not end a line.
	midLine atomic.Bool
	// timedOut: its time limit is over. Only supervise uses it before the end.
	timedOut bool
	// spools keep what a detached execution prints, one for each of prints.
	spools []*output.Spool

	// pidfd is that of the leader, -1 once it is reaped. why is why init ended it. Both are guarded
	// by Executions.mu.
	pidfd int
	why   string

	// dead is closed when the leader was reaped. status and died are set before that.
	dead   chan struct{}
	status syscall.WaitStatus
	died   int64
	// over is closed when nothing more happens. end is set before that.
	over chan struct{}
	end  initwire.ExecEnded
}

// Open begins to take executions. The loop calls it once, before the first operation.
func (x *Executions) Open(cfg Config) {
	x.cfg, x.deaths = cfg, -1
	x.byID, x.byPid = make(map[string]*execution), make(map[int]*execution)
	x.idle = make(chan struct{})
	// Without the descriptor, deaths are seen a little later.
	if fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err == nil {
		x.deaths = fd
	}
}

// Deaths is a descriptor that is readable when a leader has died; -1 if there is none.
func (x *Executions) Deaths() int {
	if x.byID == nil {
		return -1
	}
	return x.deaths
}

// Close ends all executions and starts no more. why is told to the clients of both. Only the first
// call counts.
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

// idleLocked closes idle when the sandbox ends and no operation is left.
func (x *Executions) idleLocked() {
	if x.idle != nil && !x.idled && x.served == 0 && x.closed != "" {
		x.idled = true
		close(x.idle)
	}
}

// Conclude waits until the clients that are connected have learned of the end, but not longer than
// atMost.
func (x *Executions) Conclude(atMost time.Duration) {
	if x.idle == nil {
		return
	}
	select {
	// All clients have been told.
	case <-x.idle:
	case <-time.After(atMost):
	}
}

// serving counts operations: 1 begins, -1 ends one.
func (x *Executions) serving(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.served += n
	x.idleLocked()
}

// Reap reaps every child that has died, but for the sandbox's command. command is that command's
// pid as long as it is not reaped, then 0: the loop reaps it itself. Nothing else in this program
// reaps, and a pid that is not reaped is nobody else's, so that no signal of init's can hit a
// stranger.
//
// It reports whether there was something to reap, or may be soon.
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

// reapLeadersLocked reaps the leaders that have died, and reports whether there were any.
func (x *Executions) reapLeadersLocked() (some bool) {
	if len(x.byPid) == 0 || x.deaths < 0 {
		return false
	}
	// More leaders than fit here are seen at the next turn.
	var events [64]syscall.EpollEvent
	n, _ := syscall.EpollWait(x.deaths, events[:], 0)
	for i := range max(n, 0) {
		if pid := int(events[i].Fd); x.byPid[pid] != nil && x.reapLocked(pid) {
			some = true
		}
	}
	return some
}

// reapLocked reaps a child, if it is dead, and reports whether it was.
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

// endLocked sends signals to an execution that still runs. The first reason that anybody gave is
// the one that is told.
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

// admit takes the id that a client wants, or makes one. It fails when the id is in use, and when
// the sandbox ends.
func (x *Executions) admit(want *initwire.Exec) (*execution, *initwire.Failed) {
	if want.ID != "" && !initwire.ExecID(want.ID) {
		return nil, initwire.UserFault(initwire.ReasonSpec, "execution "+strconv.Quote(want.ID)+": an id is 1 to "+strconv.Itoa(initwire.MaxExecID)+" of a-z, A-Z, 0-9, dot, dash and underscore")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed != "" {
		return nil, initwire.UserFault(initwire.ReasonEnding, x.closed)
	}
	// An id that init makes may be one that a client has taken.
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

// forget gives up the id of an execution that did not start.
func (x *Executions) forget(e *execution) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.byID, e.id)
}

// find is the execution of an id, whether it runs or has ended.
func (x *Executions) find(id string) (*execution, *initwire.Failed) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.byID[id]; e != nil && e.pid != 0 {
		return e, nil
	}
	return nil, initwire.UserFault(initwire.ReasonNoExec, "no execution "+strconv.Quote(id)+" is known")
}

// forked must be called before a launch begins, and ran after it, also when it failed.
func (x *Executions) forked() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forking++
}

// ran takes over a process that was launched. Without a pid, nothing was.
func (x *Executions) ran(e *execution, pid, pidfd int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forking--
	if pid <= 0 {
		return
	}
	e.pid, e.pidfd = pid, pidfd
	// From here on the loop reaps it as the leader of this execution.
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

// signal sends a signal to an execution's process group. It answers false if the execution has
// ended.
func (x *Executions) signal(e *execution, sig syscall.Signal) (sent bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byPid[e.pid] != e {
		return false, nil
	}
	return true, syscall.Kill(-e.pid, sig)
}

// finish sends signals to end an execution. why is told to its client, unless there was a reason
// before.
func (x *Executions) finish(e *execution, why string, signals ...syscall.Signal) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.endLocked(e, why, signals...)
}

// killLeftovers kills what is left of the process group of a leader that was reaped.
func (x *Executions) killLeftovers(e *execution) {
	x.mu.Lock()
	defer x.mu.Unlock()
	// The kernel does not use a number again as long as a group has it. A child in the group proves
	// that there is one, because nobody reaps meanwhile. A child with that very pid proves that the
	// group is another's.
	if system.HasChild(system.ByPid, e.pid) || !system.HasChild(system.ByGroup, e.pid) {
		return
	}
	_ = syscall.Kill(-e.pid, syscall.SIGKILL)
}

// retire writes down how an execution ended, and deletes the output of those that it displaces.
func (x *Executions) retire(e *execution) {
	out := x.retired(e)
	for _, old := range out {
		for _, p := range old.spools {
			p.Remove()
		}
	}
}

// retired does what retire does under mu. It answers the executions that are forgotten, because
// deleting their output may block.
func (x *Executions) retired(e *execution) (out []*execution) {
	x.mu.Lock()
	defer x.mu.Unlock()
	// The end is whole before anybody is told of it.
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
	// From the newest on: as many as the bounds allow are kept.
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

// list is what is known of all: those that have ended, then those that run, both the oldest first.
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

// isOver reports whether nothing more happens to it.
func (e *execution) isOver() bool {
	select {
	case <-e.over:
		return true
	default:
		return false
	}
}

// makeRoom drops the output of the executions that ended first, as long as spools hold all that
// they may. How those executions ended stays known.
func (x *Executions) makeRoom() {
	unlink := x.untieEnded(func() bool { return x.spooled.Load() >= initwire.SpoolsLimit })
	for _, f := range unlink {
		f()
	}
}

// untieEnded is makeRoom without deleting the files, which the answers do, because that may block.
// All writers that wait for room come at once. The bytes no longer count when mu is free again, so
// that each drops only what those before it left full.
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
