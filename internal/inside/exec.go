package inside

import (
	"context"
	"syscall"
	"time"

	initwire "github.com/musterhq/muster/internal/wire/init"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// Executions are the commands that clients run in sandboxes, beside the allocation's own.
type Executions struct {
	*entrance
	endings endings
}

// Ask is what is asked of init: to start an execution, or to join one that was started detached.
type Ask struct {
	frame []byte
	how   manner
}

// Detached reports whether the execution lives on without the client that asks.
func (a *Ask) Detached() bool { return a.how != execAttached }

// AskStart asks for an execution. An error is a problem with the field body.command.
func AskStart(e *initwire.Exec) (*Ask, error) {
	request, err := initwire.Frame(initwire.KindExec, e.Fields())
	if err != nil {
		return nil, problem.Invalid("body.command", "%v", err)
	}
	how := execAttached
	if e.Detached {
		how = execDetached
	}
	return &Ask{request, how}, nil
}

// AskAttach asks to join an execution that was started detached. An error is a problem with the field body.stdout.
func AskAttach(want *api.ExecAttach) (*Ask, error) {
	if want.Stdout < initwire.FromKept || want.Stderr < initwire.FromKept {
		return nil, problem.Invalid("body.stdout", "and stderr are offsets; -1 is the oldest byte that is kept")
	}
	a := &initwire.Attach{ID: want.Attach, StdoutOffset: want.Stdout, StderrOffset: want.Stderr, Stdin: want.Stdin}
	request, err := initwire.Frame(initwire.KindAttach, a.Fields())
	if err != nil {
		return nil, err
	}
	return &Ask{request, execJoined}, nil
}

// Door is a connection into a sandbox through which nothing was asked yet. Whoever opens one first learns at once that nothing
// can be done there, before he says what he wants. It is for one goroutine.
type Door struct {
	x      *Executions
	al     *state.Alloc
	conn   Conn
	opened time.Time
}

// Open opens a door into an allocation's sandbox, until ctx ends. It must be closed, also after Start.
func (x *Executions) Open(ctx context.Context, id string) (*Door, error) {
	opened := time.Now()
	al, conn, err := x.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	return &Door{x, al, conn, opened}, nil
}

// Close closes the door. An execution that was started through it is not ended by that.
func (d *Door) Close() {
	if d.conn != nil {
		_ = d.conn.Close()
	}
}

// Start does what is asked, once. The execution's connection lasts until ctx ends.
func (d *Door) Start(ctx context.Context, ask *Ask) (*Execution, error) {
	conn := d.conn
	d.conn = nil
	if time.Since(d.opened) > d.x.cfg.Fresh {
		_ = conn.Close() // init does not wait long for a request
		return d.x.start(ctx, d.al, ask)
	}
	// Who closed before reading it may have said why: that is read.
	_, _ = conn.Write(ask.frame)
	return d.x.asked(ctx, d.al, conn, ask)
}

// Start starts an execution in an allocation's sandbox; its connection lasts until ctx ends. There is one way to the node, as the
// request goes along with what opens the connection.
func (x *Executions) Start(ctx context.Context, id string, ask *Ask) (*Execution, error) {
	al, err := x.find(id)
	if err != nil {
		return nil, err
	}
	return x.start(ctx, al, ask)
}

func (x *Executions) start(ctx context.Context, al *state.Alloc, ask *Ask) (*Execution, error) {
	conn, err := x.tunnel(ctx, al, ask.frame)
	if err != nil {
		return nil, err
	}
	return x.asked(ctx, al, conn, ask)
}

// asked waits for init's answer to what it was asked.
func (x *Executions) asked(ctx context.Context, al *state.Alloc, conn Conn, ask *Ask) (*Execution, error) {
	bounded, cancel := soon(ctx)
	defer cancel()
	begun, err := initwire.Asked(bounded, conn)
	if err != nil {
		return nil, x.broke(ctx, al, err)
	}
	return x.begun(al, begun, conn, ask.how), nil
}

// List lists the executions of an allocation: those that run, and the last ones that have ended.
func (x *Executions) List(ctx context.Context, id string) ([]api.Execution, error) {
	al, conn, err := x.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	bounded, cancel := soon(ctx)
	defer cancel()
	list, err := initwire.ListExecs(bounded, conn)
	if err != nil {
		return nil, x.broke(ctx, al, err)
	}
	out := make([]api.Execution, 0, len(list))
	for i := range list {
		e := &list[i]
		one := api.Execution{ID: problem.Printable(e.ID), Running: e.Running, Detached: e.Detached, TTY: e.TTY, Started: nanos(e.Ended.Started)}
		if !e.Running {
			end := endOf(&e.Ended)
			one.Ended, one.ExitCode = nanos(e.Ended.Ended), &end.ExitCode
			one.Signal, one.TimedOut, one.Reason = end.Signal, end.TimedOut, end.Reason
		}
		out = append(out, one)
	}
	return out, nil
}

// Get is one execution of an allocation.
func (x *Executions) Get(ctx context.Context, id, execution string) (*api.Execution, error) {
	list, err := x.List(ctx, id)
	if err != nil {
		return nil, err
	}
	for i := range list {
		if list[i].ID == execution {
			return &list[i], nil
		}
	}
	return nil, problem.NotFound("allocation %s has no execution %s, or does not remember it any more", id, problem.Clip(execution))
}

// Signal sends a signal to an execution's command and that command's children.
func (x *Executions) Signal(ctx context.Context, id, execution string, sig syscall.Signal) error {
	al, conn, err := x.enter(ctx, id)
	if err != nil {
		return err
	}
	bounded, cancel := soon(ctx)
	defer cancel()
	return x.broke(ctx, al, initwire.SignalExec(bounded, conn, execution, sig))
}

// nanos is a time that init told; nil for one that JSON cannot show.
func nanos(n int64) *time.Time {
	if n <= 0 {
		return nil
	}
	t := time.Unix(0, n).UTC()
	return &t
}
