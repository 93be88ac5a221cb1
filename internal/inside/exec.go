package inside

import (
	"context"
	"syscall"
	"time"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Executions are the commands that clients run in sandboxes, beside the allocation's own command.
// Init keeps the list of them; the server remembers only what it needs to explain how one ended.
type Executions struct {
	*entrance
	endings endings
}

// Ask is what is asked of init: to start an execution, or to join one that was started detached. It
// is encoded before a connection is opened, so that a request that cannot be encoded costs none.
type Ask struct {
	frame []byte
	how   manner
}

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

// AskAttach asks to join an execution that was started detached. An error is a problem with the
// field body.stdout.
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

// Connection is a connection to init through which nothing was asked yet. A transport opens one
// before its client has said what to run: if the sandbox cannot be reached, the client is told at
// once, in the answer to its request. A Connection is for one goroutine.
type Connection struct {
	x      *Executions
	al     *state.Alloc
	conn   Conn
	opened time.Time
}

// Connect opens a connection into an allocation's sandbox, which lasts until ctx ends. The caller
// must close it, also after Start.
func (x *Executions) Connect(ctx context.Context, id string) (*Connection, error) {
	// The time is taken before the way to the node: init's patience may begin before the answer
	// comes back.
	opened := time.Now()
	al, conn, err := x.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	return &Connection{x, al, conn, opened}, nil
}

// Close closes the connection if nothing was asked. An execution that was started owns its
// connection, and is not ended by this.
func (c *Connection) Close() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
}

// Start asks init, once. The execution's connection lasts until ctx ends.
func (c *Connection) Start(ctx context.Context, ask *Ask) (*Execution, error) {
	conn := c.conn
	c.conn = nil
	if time.Since(c.opened) > c.x.cfg.Fresh {
		// Init hangs up on a connection that asks nothing for a few seconds. A client that was slow
		// must not pay for that, so the request goes along with a new connection.
		_ = conn.Close()
		return c.x.start(ctx, c.al, ask)
	}
	// The error of this write does not count. If init closed the connection before it read the
	// request, init may have written why, and asked reads that.
	_, _ = conn.Write(ask.frame)
	return c.x.asked(ctx, c.al, conn, ask)
}

// Start starts an execution in an allocation's sandbox. Its connection lasts until ctx ends. The
// request travels with what opens the connection, so that there is one round trip to the node and
// not two.
func (x *Executions) Start(ctx context.Context, id string, ask *Ask) (*Execution, error) {
	al, err := x.find(id)
	if err != nil {
		return nil, err
	}
	return x.start(ctx, al, ask)
}

// start connects and asks in one round trip.
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
		return nil, x.problemOf(ctx, al, err)
	}
	return x.started(al, begun, conn, ask.how), nil
}

// List lists the executions of an allocation: those that run, and the last ones that have ended.
// How many of those are remembered is init's to decide.
func (x *Executions) List(ctx context.Context, id string) ([]api.Execution, error) {
	al, conn, err := x.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	bounded, cancel := soon(ctx)
	defer cancel()
	list, err := initwire.ListExecs(bounded, conn)
	if err != nil {
		return nil, x.problemOf(ctx, al, err)
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

// Get returns one execution of an allocation. Init has no question for a single one: the list is
// short, and this is asked rarely.
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
	return nil, problem.NotFound("allocation %s has no execution %s, or it ended too long ago", id, problem.Clip(execution))
}

// Signal sends a signal to an execution's command and that command's children. It has a connection
// of its own and so does not wait behind input that the command does not take.
func (x *Executions) Signal(ctx context.Context, id, execution string, sig syscall.Signal) error {
	al, conn, err := x.enter(ctx, id)
	if err != nil {
		return err
	}
	bounded, cancel := soon(ctx)
	defer cancel()
	return x.problemOf(ctx, al, initwire.SignalExec(bounded, conn, execution, sig))
}

// nanos converts a time of init's, in nanoseconds since 1970. It returns nil for "not yet", and for
// what is no time at all: init is not trusted.
func nanos(n int64) *time.Time {
	if n <= 0 {
		return nil
	}
	t := time.Unix(0, n).UTC()
	return &t
}
