package sandbox

import (
	"io"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/program"
	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// lastRead bounds what is read of a stream when nobody waits for it any more: a pipe is not larger.
const lastRead = 1 << 20

// chunk is a buffer for a frame of output: room for the head, then n bytes.
type chunk struct {
	b [initwire.HeadSize + initwire.MaxBytes]byte
	n int
}

func (b *chunk) room() []byte  { return b.b[initwire.HeadSize:] }
func (b *chunk) frame() []byte { return b.b[:initwire.HeadSize+b.n] }

func (s *sandbox) chunk() *chunk {
	if b, ok := s.pool.Get().(*chunk); ok {
		return b
	}
	return new(chunk)
}

func (s *sandbox) release(b *chunk) { s.pool.Put(b) }

// source is our end of one stream that an execution prints to.
type source struct {
	s   *sandbox
	end *system.Endpoint
	// cut is closed when reading goes no further than what is there.
	cut chan struct{}
	// last is what may still be read then.
	last int
}

func (s *sandbox) source(fd int, name string) (*source, error) {
	l, err := system.NewEndpoint(fd, name, s.gates.Brief)
	if err != nil {
		return nil, err
	}
	return &source{s: s, end: l, cut: make(chan struct{}), last: lastRead}, nil
}

// read waits for what comes next; any error is the end. Release what it returns. There is a buffer only while
// there is something in it: hundreds may wait.
func (r *source) read() (*chunk, error) {
	var b *chunk
	var n int
	var err error
	try := func(fd uintptr) bool {
		if b == nil {
			b = r.s.chunk()
		}
		if n, err = system.RawRead(fd, b.room()); err == syscall.EAGAIN {
			r.s.release(b)
			b = nil
			return false
		}
		return true
	}
	if waited := r.end.WhenReadable(try); waited != nil {
		if !isClosedChan(r.cut) || r.last <= 0 {
			return nil, waited
		}
		err = syscall.EAGAIN
		if wrong := r.end.Control(func(fd uintptr) { try(fd) }); wrong != nil {
			return nil, wrong
		}
		r.last -= max(n, 0)
	}
	if err == nil && n > 0 {
		b.n = n
		return b, nil
	}
	if b != nil {
		r.s.release(b)
	}
	if err == nil {
		err = io.EOF
	}
	return nil, err
}

func (r *source) release(b *chunk) { r.s.release(b) }

// cutOff ends the waiting. Called once.
func (r *source) cutOff() {
	close(r.cut)
	_ = r.end.SetReadDeadline(time.Unix(1, 0))
}

// start makes what it reads from and prints to, and launches it.
func (e *execution) start() *initwire.Failed {
	e.s.gates.Launches.Enter()
	defer e.s.gates.Launches.Leave()
	want := e.want
	p := &program.Program{Command: want.Command, Env: program.Environment(e.s.env, want), Work: want.Work, User: want.User, Beside: true, Account: want.Account, Own: want.Env}
	if p.Work == "" {
		p.Work = e.s.start.Work
	}
	if p.User == "" {
		p.User = e.s.start.User
	} else if !e.s.start.Contained {
		return initwire.UserFault(initwire.ReasonSpec, "user "+strconv.Quote(p.User)+": only in a container can one be chosen")
	}
	theirs, err := e.connect(p)
	defer func() {
		for _, fd := range theirs {
			_ = syscall.Close(fd)
		}
	}()
	if err != nil {
		e.disconnect()
		return initwire.NodeFault("make the streams of the execution: " + err.Error())
	}
	e.started = time.Now().UnixNano()
	e.s.execs.forked()
	pid, pidfd, failed := e.s.launcher().Launch(p)
	e.s.execs.ran(e, pid, pidfd)
	if failed != nil {
		e.disconnect()
		return failed
	}
	want.Command, want.Env = nil, nil
	return nil
}

// connect makes the streams. theirs are the ends that are the program's.
func (e *execution) connect(p *program.Program) (theirs []int, err error) {
	if e.want.TTY {
		master, slave, err := openTerminal(e.want.Rows, e.want.Cols)
		if err != nil {
			return nil, err
		}
		p.Files, p.Terminal = [3]int{slave, slave, slave}, true
		theirs = []int{slave}
		screen, err := e.s.source(master, "terminal of "+e.id)
		if err != nil {
			return theirs, err
		}
		e.prints = []*source{screen}
		if e.want.Stdin {
			e.stdin = screen.end
		}
		if e.want.OwnStderr {
			w, err := e.output()
			if err != nil {
				return theirs, err
			}
			theirs = append(theirs, w)
			p.Files[2] = w
		}
	} else {
		if e.want.Stdin {
			r, w, err := system.Pipe()
			if err != nil {
				return theirs, err
			}
			theirs = append(theirs, r)
			// The other way round than output: the program's end waits, ours does not.
			_ = syscall.SetNonblock(r, false)
			_ = syscall.SetNonblock(w, true)
			p.Files[0] = r
			if e.stdin, err = system.NewEndpoint(w, "stdin of "+e.id, e.s.gates.Brief); err != nil {
				return theirs, err
			}
		}
		for i := range 2 {
			w, err := e.output()
			if err != nil {
				return theirs, err
			}
			theirs = append(theirs, w)
			p.Files[1+i] = w
		}
	}
	if e.want.Detached {
		for i := range e.prints {
			p := newSpool(&e.s.spooled, initwire.FDOutput, "exec-"+e.id+"."+[]string{initwire.Stdout, initwire.Stderr}[i])
			p.disk = e.s.gates.Disk
			e.spools = append(e.spools, p)
		}
	}
	return theirs, nil
}

// output makes a pipe that is read for output. w is the program's end.
func (e *execution) output() (w int, err error) {
	r, w, err := system.Pipe()
	if err != nil {
		return -1, err
	}
	from, err := e.s.source(r, "output of "+e.id)
	if err != nil {
		_ = syscall.Close(w)
		return -1, err
	}
	e.prints = append(e.prints, from)
	return w, nil
}

func (e *execution) disconnect() {
	if e.stdin != nil {
		_ = e.stdin.Close()
	}
	for _, from := range e.prints {
		_ = from.end.Close()
	}
}

// runDetached keeps what it prints until it is over.
func (e *execution) runDetached() {
	e.supervise(nil, func(i int, from *source) { e.spools[i].keep(from) })
}

// supervise is the life of an execution after its start: it ends it when its time
// is over or its client has left, waits for its end and for the rest of what it printed, which take reads, and retires it.
func (e *execution) supervise(left <-chan struct{}, take func(i int, from *source)) {
	x := &e.s.execs
	var all sync.WaitGroup
	for i, from := range e.prints {
		all.Go(func() { take(i, from) })
	}
	printed := make(chan struct{})
	go func() {
		all.Wait()
		close(printed)
	}()

	var limit, kill <-chan time.Time
	if e.want.Timeout > 0 {
		timer := time.NewTimer(time.Until(time.Unix(0, e.started).Add(e.want.Timeout)))
		defer timer.Stop()
		limit = timer.C
	}
	end := func(why string, signals ...syscall.Signal) {
		grace := e.want.KillGrace
		if grace == 0 {
			grace = initwire.DefaultExecGrace
		}
		if grace < 0 {
			signals = []syscall.Signal{syscall.SIGKILL}
		}
		// A stopped process does not see them before it goes on.
		x.finish(e, why, append(signals, syscall.SIGCONT)...)
		if kill == nil && grace > 0 {
			kill = time.After(grace)
		}
	}
	for alive := true; alive; {
		select {
		case <-e.dead:
			alive = false
		case <-limit:
			limit = nil
			e.timedOut = true
			end("its time limit of "+e.want.Timeout.String()+" is over", syscall.SIGTERM)
		case <-left:
			left = nil
			end("its client has left", syscall.SIGHUP, syscall.SIGTERM)
		case <-kill:
			x.finish(e, "", syscall.SIGKILL)
		}
	}
	if e.stdin != nil && !e.want.TTY {
		_ = e.stdin.Close()
	}
	rest := time.NewTimer(drainTime)
	defer rest.Stop()
	select {
	case <-printed:
	case <-rest.C:
	}
	x.killLeftovers(e)
	for _, from := range e.prints {
		from.cutOff()
	}
	<-printed
	e.disconnect()
	x.retire(e)
}

// closeStdin tells the program that nothing more will come.
func (e *execution) closeStdin() {
	switch {
	case e.stdin == nil:
	case e.want.TTY:
		endOfInput(e.stdin, e.midLine.Load())
	default:
		_ = e.stdin.Close()
	}
}
