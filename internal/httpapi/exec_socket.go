package httpapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/socket"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// openExec runs a command and carries its input and output over a WebSocket. docs/exec.md has the
// protocol.
//
// The order of the steps matters: connect to the node, upgrade, carry. A failure before the upgrade
// is answered with a status like that of any other request. After it, an error can only be the last
// message.
func (a execHandlers) openExec(ctx context.Context, in *AllocPath) (*huma.StreamResponse, error) {
	if _, err := in.find(a.cfg.State.Latest()); err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		if !socket.Upgradable(w, r) {
			return
		}
		inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		defer cancel(nil)
		defer context.AfterFunc(a.cfg.Stopping, func() { cancel(problem.ErrStopping) })()
		// Connecting comes before the upgrade, so that an obstacle is answered as for every other
		// request.
		e := &execSocket{a: a.API, inner: inner, cancel: cancel}
		err := e.enter(in, w, r.Header.Get(api.ExecFirst))
		if err != nil {
			a.fail(ctx, "open-execution", err).Write(w)
			return
		}
		defer e.leave()
		if e.s, err = socket.Accept(w, r, a.patience); err == nil {
			e.run(in.ID)
		}
	}}, nil
}

// execSocket is an execution and its client.
//
// Two goroutines carry bytes: receive from the client to init, and forward (in that of the request)
// from init to the client. Neither keeps more than one buffer, so a slow side slows the other side
// down. Fields are set before receive starts; after that stdin and closed belong to receive, and
// the rest is only read.
type execSocket struct {
	a *API
	s *socket.Socket
	// inner ends the connection to init, with the reason.
	inner  context.Context
	cancel context.CancelCauseFunc

	// conn is an open connection that has asked for nothing yet. It is no longer used once x is
	// set.
	conn *inside.Connection
	x    *inside.Execution
	// stdin says that the command takes input; closed that the client has closed it. Only receive
	// uses them.
	stdin, closed bool
	// detached says that the execution outlives its client, which may join it again.
	detached bool
}

// enter connects to init. If the first message came with the request, as a header, enter also
// starts the execution: that saves one round trip.
func (e *execSocket) enter(in *AllocPath, w http.ResponseWriter, first string) (err error) {
	executions := e.a.cfg.Inside.Executions
	if first == "" {
		e.conn, err = executions.Connect(e.inner, in.ID)
		return err
	}
	raw, err := base64.RawURLEncoding.DecodeString(first)
	if err != nil || len(first) > api.ExecMaxFirst {
		return problem.Invalid("header."+api.ExecFirst, "is not base64 for URLs without padding, of at most %d bytes", api.ExecMaxFirst)
	}
	ask, err := e.request(in.ID, raw)
	if err != nil {
		return err
	}
	w.Header().Set(api.ExecFirst, api.ExecFirstTaken)
	e.x, err = executions.Start(e.inner, in.ID, ask)
	return err
}

func (e *execSocket) leave() {
	e.cancel(problem.ErrClientGone)
	if e.conn != nil {
		e.conn.Close()
	}
	if e.x != nil {
		_ = e.x.Close()
	}
}

func (e *execSocket) run(id string) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer e.s.Abort()
	defer e.leave()
	e.s.SetReadLimit(api.ExecMaxText + 1)
	if e.x == nil {
		if err := e.begin(id); err != nil {
			e.finish(e.failed(err))
			return
		}
	}
	e.s.SetReadLimit(api.ExecMaxMessage)
	started := e.x.Started
	if e.s.SendJSON(api.ExecEvent{Type: api.ExecEventStarted, ID: started.ID, Stdout: started.Stdout, Stderr: started.Stderr}) != nil {
		return
	}
	wg.Go(func() { e.cancel(e.receive()) })
	wg.Go(func() { e.s.KeepAwake(func() { e.cancel(problem.ErrClientGone) }) })
	e.finish(e.forward())
}

// begin reads the first message and starts or joins the execution that it asks for.
func (e *execSocket) begin(id string) error {
	ctx, cancel := context.WithTimeout(e.s.Ctx, e.a.patience.First)
	defer cancel()
	// The server does not wait at its end for a client that sends nothing.
	defer context.AfterFunc(e.inner, cancel)()
	kind, r, err := e.s.Reader(ctx)
	if err != nil {
		return problem.ErrClientGone
	}
	raw, err := socket.Text(kind, r, api.ExecMaxText)
	if err != nil {
		return err
	}
	ask, err := e.request(id, raw)
	if err != nil {
		return err
	}
	e.x, err = e.conn.Start(e.inner, ask)
	return err
}

// request turns the client's first message into a request to init: to start a command, or to join
// one. The field attach tells the two apart.
func (e *execSocket) request(id string, raw []byte) (*inside.Ask, error) {
	var which struct {
		Attach *string `json:"attach"`
	}
	if json.Unmarshal(raw, &which) == nil && which.Attach != nil {
		return e.attach(raw)
	}
	var want api.ExecRequest
	if p := door.Decode(raw, &want); p != nil {
		return nil, p
	}
	if want.Input != "" || len(want.InputBase64) > 0 {
		return nil, problem.Invalid("body.input", "is for POST; here the input comes as binary messages")
	}
	exec, err := inside.ParseExecRequest(&want)
	if err != nil {
		return nil, err
	}
	if err := e.a.cfg.Inside.MayActAs(id, "body.user", want.User); err != nil {
		return nil, err
	}
	e.stdin, e.detached = want.Stdin, want.Detach
	return inside.AskStart(exec)
}

func (e *execSocket) attach(raw []byte) (*inside.Ask, error) {
	var want api.ExecAttach
	if p := door.Decode(raw, &want); p != nil {
		return nil, p
	}
	e.stdin, e.detached = want.Stdin, true
	return inside.AskAttach(&want)
}

// finish sends the last message, if there is a client to send it to, and closes the socket.
func (e *execSocket) finish(last *api.ExecEvent) {
	stopping := errors.Is(context.Cause(e.inner), problem.ErrStopping)
	e.cancel(problem.ErrClientGone) // ends a receive that waits for the command to take its input
	if last == nil {
		return
	}
	if stopping {
		defer time.AfterFunc(e.a.patience.Last, e.s.Abort).Stop()
	}
	if e.s.SendJSON(last) == nil {
		e.s.End(websocket.StatusNormalClosure, "")
	}
}

// failed is the last message after an error; nil if the client has left. The end of the server
// comes before other errors, which follow from it.
func (e *execSocket) failed(err error) *api.ExecEvent {
	if errors.Is(context.Cause(e.inner), problem.ErrStopping) {
		err = problem.ErrStopping
	}
	if errors.Is(err, problem.ErrClientGone) {
		return nil
	}
	return &api.ExecEvent{Type: api.ExecEventError, Problem: &e.a.fail(e.s.Ctx, "open-execution", err).Problem}
}

// A detached execution has a spool of its output on the node, for a client that joins again. ackLag
// is how many bytes before the last one sent stay in the spool; ackStep is how many bytes are sent
// between two acknowledgements.
const ackLag, ackStep = 32 << 20, 4 << 20

// forward carries the command's output to the client until either ends. It returns the last
// message, nil if the client has left.
func (e *execSocket) forward() *api.ExecEvent {
	buf := make([]byte, 0, 1+initwire.MaxBytes)
	spool := spooled{x: e.x.Execution, sent: [2]int64{e.x.Started.Stdout, e.x.Started.Stderr}}
	defer spool.wait()
	// Runs before spool.wait: the acknowledgement that wait waits for may be stuck until the
	// connection ends.
	defer e.cancel(problem.ErrClientGone)
	for said := false; ; {
		kind, data, ended, err := e.x.Next()
		if !said && err == nil && ended == nil {
			said = true
			e.x.PutOut()
		}
		switch {
		case err != nil:
			err = e.x.Broken(e.inner, err)
			if cause := context.Cause(e.inner); cause != nil {
				err = cause
			}
			return e.failed(err)
		case ended != nil:
			end, _ := e.x.End(e.inner, ended)
			return &api.ExecEvent{Type: api.ExecEventEnded, ExecEnd: &end}
		}
		stream := api.ExecStdout
		if kind == initwire.KindStderr {
			stream = api.ExecStderr
		}
		buf = append(append(buf[:0], stream), data...)
		if e.s.Send(websocket.MessageBinary, buf) != nil {
			return nil
		}
		if e.detached {
			spool.add(stream, len(data))
		}
	}
}

// spooled acknowledges the output of a detached execution to its spool, so that the spool can drop
// it.
type spooled struct {
	x    *initwire.Execution
	sent [2]int64
	told int64
	// telling is closed when the last acknowledgement was sent. An acknowledgement may wait behind
	// input that the command does not take. The output must not wait for it: the command might not
	// take input before its output is read, and neither side would ever go on.
	telling chan struct{}
}

func (s *spooled) add(stream byte, n int) {
	s.sent[stream-api.ExecStdout] += int64(n)
	if all := s.sent[0] + s.sent[1]; all-s.told >= ackStep && s.idle() {
		s.told = all
		done := make(chan struct{})
		s.telling = done
		out, errs := max(s.sent[0]-ackLag, 0), max(s.sent[1]-ackLag, 0)
		go func() {
			defer close(done)
			_ = s.x.Taken(out, errs)
		}()
	}
}

func (s *spooled) idle() bool {
	if s.telling == nil {
		return true
	}
	select {
	case <-s.telling:
		return true
	default:
		return false
	}
}

func (s *spooled) wait() {
	if s.telling != nil {
		<-s.telling
	}
}

// receive carries the client's messages to init. It returns problem.ErrClientGone when the client
// has left, or a problem with a message that breaks the protocol. run passes the error to cancel,
// which ends forward.
func (e *execSocket) receive() error {
	for {
		kind, r, err := e.s.Reader(e.s.Ctx)
		if err != nil {
			return problem.ErrClientGone
		}
		if kind == websocket.MessageBinary {
			err = e.takeStdin(r)
		} else {
			err = e.control(kind, r)
		}
		if err != nil {
			return err
		}
	}
}

// takeStdin passes a message on piece by piece. Input that the command does not take any more is
// dropped: a command may end before its input does, as head does.
func (e *execSocket) takeStdin(r io.Reader) error {
	buf := door.Buffers.Get().(*[32 << 10]byte)
	defer door.Buffers.Put(buf)
	for {
		n, err := r.Read(buf[:])
		if n > 0 {
			if !e.stdin || e.closed {
				return problem.Invalid("message", "is input, and the execution has none: ask for it with stdin, and do not close it before")
			}
			if e.inner.Err() == nil {
				_ = e.x.WriteStdin(buf[:n])
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return problem.ErrClientGone
		}
	}
}

func (e *execSocket) control(kind websocket.MessageType, r io.Reader) error {
	raw, err := socket.Text(kind, r, socket.MaxControl)
	if err != nil {
		return err
	}
	var c api.ExecControl
	dec := json.NewDecoder(bytes.NewReader(raw))
	if err := dec.Decode(&c); err != nil {
		return problem.Invalid("message", "cannot be read: %s", problem.Clip(err.Error()))
	}
	switch c.Type {
	case api.ExecCloseStdin:
		e.closed = true
		_ = e.x.CloseStdin()
	case api.ExecResize:
		if !inside.TerminalSize(c.Rows, c.Cols) {
			return problem.Invalid("message.rows", "and cols are %d and %d; a terminal has at most 65535 of each", c.Rows, c.Cols)
		}
		_ = e.x.Resize(initwire.Size{Rows: c.Rows, Cols: c.Cols})
	case api.ExecSignal:
		sig, ok := inside.ParseSignal(c.Signal)
		if !ok {
			return problem.Invalid("message.signal", "is %q; give a name or a number, as INT or 2", problem.Clip(c.Signal))
		}
		_ = e.x.Signal(sig)
	default:
		return problem.Invalid("message.type", "is %q; it is one of %s, %s, %s", problem.Clip(c.Type), api.ExecCloseStdin, api.ExecResize, api.ExecSignal)
	}
	return nil
}
