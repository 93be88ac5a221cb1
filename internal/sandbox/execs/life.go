package execs

import (
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/output"
	"github.com/musterhq/muster/internal/sandbox/program"
	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// printTime is how long the output of an execution may stay open after the end of its leader: only
// processes that outlived it still hold it.
const printTime = 2 * time.Second

// start makes the streams of an execution and launches its command.
func (e *execution) start() *initwire.Failed {
	e.x.cfg.Gates.Launches.Enter()
	defer e.x.cfg.Gates.Launches.Leave()
	want := e.want
	p := &program.Program{Command: want.Command, Env: program.Environment(e.x.cfg.Env, want), Work: want.Work, User: want.User, Beside: true, Account: want.Account, Own: want.Env}
	if p.Work == "" {
		p.Work = e.x.cfg.Work
	}
	if p.User == "" {
		p.User = e.x.cfg.User
	} else if !e.x.cfg.Contained {
		return initwire.UserFault(initwire.ReasonSpec, "user "+strconv.Quote(p.User)+": only in a container can one be chosen")
	}
	// The program has its own descriptors of its ends once it runs.
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
	e.x.forked()
	pid, pidfd, failed := e.x.cfg.Launcher.Launch(p)
	e.x.ran(e, pid, pidfd)
	if failed != nil {
		e.disconnect()
		return failed
	}
	want.Command, want.Env = nil, nil
	return nil
}

// connect makes the streams. theirs are the program's ends, which the caller closes in any case.
func (e *execution) connect(p *program.Program) (theirs []int, err error) {
	if e.want.TTY {
		master, slave, err := openTerminal(e.want.Rows, e.want.Cols)
		if err != nil {
			return nil, err
		}
		p.Files, p.Terminal = [3]int{slave, slave, slave}, true
		theirs = []int{slave}
		screen, err := output.NewSource(master, "terminal of "+e.id, &e.x.pool, e.x.cfg.Gates.Brief)
		if err != nil {
			return theirs, err
		}
		e.prints = []*output.Source{screen}
		if e.want.Stdin {
			e.stdin = screen.Endpoint
		}
		// What it prints to stderr does not go through the terminal then.
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
			// The other way round than with output: the program's end waits, init's end does not.
			_ = syscall.SetNonblock(r, false)
			_ = syscall.SetNonblock(w, true)
			p.Files[0] = r
			if e.stdin, err = system.NewEndpoint(w, "stdin of "+e.id, e.x.cfg.Gates.Brief); err != nil {
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
			p := output.NewSpool(&e.x.spooled, e.x.cfg.Dir, "exec-"+e.id+"."+[]string{initwire.Stdout, initwire.Stderr}[i])
			p.Disk, p.MakeRoom = e.x.cfg.Gates.Disk, e.x.makeRoom
			e.spools = append(e.spools, p)
		}
	}
	return theirs, nil
}

// output makes a pipe that the program prints to, and adds it to prints. w is the program's end.
func (e *execution) output() (w int, err error) {
	r, w, err := system.Pipe()
	if err != nil {
		return -1, err
	}
	from, err := output.NewSource(r, "output of "+e.id, &e.x.pool, e.x.cfg.Gates.Brief)
	if err != nil {
		_ = syscall.Close(w)
		return -1, err
	}
	e.prints = append(e.prints, from)
	return w, nil
}

// disconnect closes init's ends of all streams.
func (e *execution) disconnect() {
	if e.stdin != nil {
		_ = e.stdin.Close()
	}
	for _, from := range e.prints {
		_ = from.Endpoint.Close()
	}
}

// runDetached is the life of a detached execution: it keeps what the program prints.
func (e *execution) runDetached() {
	e.supervise(nil, func(i int, from *output.Source) { e.spools[i].Keep(from) })
}

// supervise is the life of an execution after its start. It ends the execution when its time limit
// is over or left is closed, which means that its client has left. It waits for the end and for the
// rest of the output, and retires the execution. take reads one stream to its end.
func (e *execution) supervise(left <-chan struct{}, take func(i int, from *output.Source)) {
	x := e.x
	var all sync.WaitGroup
	for i, from := range e.prints {
		all.Go(func() { take(i, from) })
	}
	printed := make(chan struct{})
	go func() {
		all.Wait()
		close(printed)
	}()

	// A channel that is nil never fires: there is no limit, and nothing to kill yet.
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
		// A negative grace means none at all.
		if grace < 0 {
			signals = []syscall.Signal{syscall.SIGKILL}
		}
		// A stopped process sees no signal before it goes on.
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
	// A terminal is closed later, as it has output too.
	if e.stdin != nil && !e.want.TTY {
		_ = e.stdin.Close()
	}
	// What it has left in its pipes is read to the end, unless something else holds them open.
	rest := time.NewTimer(printTime)
	defer rest.Stop()
	select {
	case <-printed:
	case <-rest.C:
	}
	x.killLeftovers(e)
	for _, from := range e.prints {
		from.CutOff()
	}
	<-printed
	e.disconnect()
	x.retire(e)
}

// closeStdin tells the program that no more input will come.
func (e *execution) closeStdin() {
	switch {
	case e.stdin == nil:
	case e.want.TTY:
		endOfInput(e.stdin, e.midLine.Load())
	default:
		_ = e.stdin.Close()
	}
}
