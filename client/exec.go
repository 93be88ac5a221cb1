package client

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/coder/websocket"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Execution is a command in an allocation's sandbox, over one connection. One
// goroutine calls Next or Wait; the others may be called by any. As long as
// nobody calls Next, the command waits when its output has filled the way here.
type Execution struct {
	client *caller
	alloc  muster.AllocID
	s      *socket
	id     string
	offset [3]int64 // by stream byte: of the next one

	fed atomic.Bool // stdin has been sent, behind which other messages wait
	end *api.ExecEnd
}

func allocPath(id muster.AllocID, more ...string) string {
	return path(append([]string{"v1", "allocations", string(id)}, more...)...)
}

// Exec starts a command in the sandbox of a running allocation. The connection,
// and with it a command that is not detached, lives until ctx is over or Close is called. It is
// not repeated once it may have been started.
func (c SandboxAPI) Exec(ctx context.Context, id muster.AllocID, req api.ExecRequest) (*Execution, error) {
	return c.execution(ctx, id, req, &Execution{client: c.caller, alloc: id})
}

// Attach joins an execution that was started detached, from the offsets in req; -1 is
// the oldest byte that is kept. Bytes that are not kept any more are refused with 410: see IsGone.
//
// Joining changes nothing, so that it is repeated as a whole for as long as the client is patient: a server that is
// being killed may still take the connection and then say nothing.
func (c SandboxAPI) Attach(ctx context.Context, id muster.AllocID, req api.ExecAttach) (e *Execution, err error) {
	once := SandboxAPI{c.patient(-1)}
	err = c.retry(ctx, request{}, func() error {
		e, err = once.execution(ctx, id, req, &Execution{client: c.caller, alloc: id})
		return err
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (c SandboxAPI) execution(ctx context.Context, id muster.AllocID, first any, e *Execution) (*Execution, error) {
	b, err := json.Marshal(first)
	if err != nil {
		return nil, err
	}
	var along string
	if base64.RawURLEncoding.EncodedLen(len(b)) <= api.ExecMaxFirst {
		along = base64.RawURLEncoding.EncodeToString(b)
	}
	s, err := c.socket(ctx, allocPath(id, "exec"), along)
	if err != nil {
		return nil, err
	}
	e.s = s
	if !s.taken {
		if err := s.text(first); err != nil {
			s.close()
			return nil, err
		}
	}
	kind, answer, err := s.read()
	if err != nil {
		err = s.lost(err)
		s.close()
		return nil, err
	}
	ev, err := execEvent(kind, answer)
	if err == nil && ev.Type == api.ExecEventError {
		err = ev.Problem
	} else if err == nil && ev.Type != api.ExecEventStarted {
		err = fmt.Errorf("the server began an execution with %q", ev.Type)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	e.id = ev.ID
	e.offset[api.ExecStdout], e.offset[api.ExecStderr] = ev.Stdout, ev.Stderr
	return e, nil
}

// execEvent reads a text message of the server.
func execEvent(kind websocket.MessageType, b []byte) (*api.ExecEvent, error) {
	ev := &api.ExecEvent{}
	if kind != websocket.MessageText {
		return nil, errors.New("the server sent output before it said that the execution has started")
	}
	if err := json.Unmarshal(b, ev); err != nil {
		return nil, fmt.Errorf("the server's message is not of the API: %w", err)
	}
	if ev.Type == api.ExecEventError && ev.Problem == nil {
		ev.Problem = &api.Problem{Title: "the execution went wrong, and the server does not say how"}
	}
	return ev, nil
}

// ID is the execution's.
func (e *Execution) ID() string { return e.id }

// Offset is that of the next byte of a stream in all that was ever written: where Attach goes on.
func (e *Execution) Offset(stream string) int64 {
	if stream == Stderr {
		return e.offset[api.ExecStderr]
	}
	return e.offset[api.ExecStdout]
}

// Next is the next piece of output, Stdout or Stderr; it is valid until Next is
// called again. io.EOF says that the command has ended: see End. *Unreachable says
// that the connection was lost; an execution that is detached may be attached again.
func (e *Execution) Next() (stream string, data []byte, err error) {
	if e.end != nil {
		return "", nil, io.EOF
	}
	for {
		kind, b, err := e.s.read()
		if err != nil {
			return "", nil, e.s.lost(err)
		}
		if kind == websocket.MessageBinary {
			if len(b) == 0 || b[0] != api.ExecStdout && b[0] != api.ExecStderr {
				return "", nil, errors.New("the server sent output of no known stream")
			}
			e.offset[b[0]] += int64(len(b) - 1)
			if b[0] == api.ExecStderr {
				return Stderr, b[1:], nil
			}
			return Stdout, b[1:], nil
		}
		ev, err := execEvent(kind, b)
		if err != nil {
			return "", nil, err
		}
		switch ev.Type {
		case api.ExecEventEnded:
			if e.end = ev.ExecEnd; e.end == nil {
				e.end = &api.ExecEnd{}
			}
			return "", nil, io.EOF
		case api.ExecEventError:
			return "", nil, ev.Problem
		}
		// What a newer server says besides is not for us.
	}
}

// End is how the command ended, once Next has said io.EOF; nil before.
func (e *Execution) End() *api.ExecEnd { return e.end }

// OutputError says that what was received could not be written where it was to go.
type OutputError struct {
	Stream string
	Err    error
}

func (o *OutputError) Error() string { return o.Stream + ": " + o.Err.Error() }

func (o *OutputError) Unwrap() error { return o.Err }

// Wait writes the output as it comes, and tells how the command ended.
func (e *Execution) Wait(stdout, stderr io.Writer) (*api.ExecEnd, error) {
	for {
		stream, data, err := e.Next()
		if errors.Is(err, io.EOF) {
			return e.end, nil
		}
		if err != nil {
			return nil, err
		}
		w := stdout
		if stream == Stderr {
			w = stderr
		}
		if _, err := w.Write(data); err != nil {
			return nil, &OutputError{stream, err}
		}
	}
}

// Write gives bytes to the command's stdin. It waits while the command does not read.
func (e *Execution) Write(p []byte) (int, error) {
	e.fed.Store(true)
	return e.s.binary(p)
}

// CloseStdin ends the command's stdin.
func (e *Execution) CloseStdin() error { return e.s.text(api.ExecControl{Type: api.ExecCloseStdin}) }

// Resize says how large the terminal is. It may wait behind stdin that the command does not read.
func (e *Execution) Resize(rows, cols int) error {
	return e.s.text(api.ExecControl{Type: api.ExecResize, Rows: rows, Cols: cols})
}

// Signal sends a signal to the command, as INT.
func (e *Execution) Signal(ctx context.Context, signal string) error {
	if !e.fed.Load() {
		return e.s.text(api.ExecControl{Type: api.ExecSignal, Signal: signal})
	}
	// In the connection it would wait behind stdin, which a command that hangs does not read.
	return SandboxAPI{e.client}.SignalExecution(ctx, e.alloc, e.id, signal)
}

// Close ends the connection, and with it a command that is not detached.
func (e *Execution) Close() error {
	e.s.close()
	return nil
}

// RunExec runs a command to its end and has its output, up to api.ExecMaxOutput of each stream.
func (c SandboxAPI) RunExec(ctx context.Context, id muster.AllocID, req api.ExecRequest) (*api.ExecResult, error) {
	req.Detach = false
	out := &api.ExecResult{}
	return out, c.post(ctx, allocPath(id, "exec"), req, true, out)
}

// StartExec starts a detached execution and tells its id. One with an id of the
// caller's may be asked for again: then the server says that it is there.
func (c SandboxAPI) StartExec(ctx context.Context, id muster.AllocID, req api.ExecRequest) (*api.ExecStarted, error) {
	req.Detach = true
	out := &api.ExecStarted{}
	return out, c.post(ctx, allocPath(id, "exec"), req, false, out)
}

// post makes a request that is not repeated.
func (c SandboxAPI) post(ctx context.Context, path string, body any, slow bool, out any) error {
	r, err := jsonBody(request{method: http.MethodPost, path: path, once: true, slow: slow}, body)
	if err != nil {
		return err
	}
	err = c.call(ctx, r, out)
	return err
}

// Executions lists the executions of an allocation that are known: those that run, and the last that have ended.
func (c SandboxAPI) Executions(ctx context.Context, id muster.AllocID) (*api.ExecutionList, error) {
	return fetch[api.ExecutionList](ctx, c.caller, request{method: http.MethodGet, path: allocPath(id, "executions")})
}

// Execution is one of them.
func (c SandboxAPI) Execution(ctx context.Context, id muster.AllocID, execution string) (*api.Execution, error) {
	return fetch[api.Execution](ctx, c.caller, request{method: http.MethodGet, path: allocPath(id, "executions", execution)})
}

// SignalExecution sends a signal to an execution, as TERM.
func (c SandboxAPI) SignalExecution(ctx context.Context, id muster.AllocID, execution, signal string) error {
	return c.post(ctx, allocPath(id, "executions", execution, "signal"), api.ExecutionSignal{Signal: signal}, false, nil)
}
