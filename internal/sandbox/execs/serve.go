package execs

import (
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/musterhq/muster/internal/sandbox/operation"
	"github.com/musterhq/muster/internal/sandbox/output"
	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// stdinLook is how often init looks whether a client is still there, while its program reads
// nothing.
const stdinLook = time.Second

// client is one operation on executions: a connection, and what it is about.
type client struct {
	*operation.Conn
	// x are the executions of the sandbox.
	x *Executions
}

// Serve serves one operation on executions to its end. Any number may go on at once.
func (x *Executions) Serve(conn *operation.Conn, kind initwire.Kind, fields []byte) {
	x.serving(1)
	defer x.serving(-1)
	o := &client{conn, x}
	switch kind {
	case initwire.KindExec:
		o.startExec(fields)
	case initwire.KindAttach:
		o.attachExec(fields)
	case initwire.KindExecSignal:
		o.signalExec(fields)
	case initwire.KindExecs:
		o.listExecs()
	default:
		o.Refuse("no operation of kind " + strconv.Itoa(int(kind)))
	}
}

// startExec starts an execution and stays with it until its end, or until the client leaves.
func (o *client) startExec(fields []byte) {
	want, err := initwire.ParseExec(fields)
	if err != nil {
		o.Refuse("exec: " + err.Error())
		return
	}
	e, failed := o.x.admit(want)
	if failed == nil {
		if failed = e.start(); failed != nil {
			o.x.forget(e)
		}
	}
	if failed != nil {
		o.Fail(failed)
		return
	}
	detached := want.Detached
	// A detached execution lives on its own, whatever becomes of this connection.
	if detached {
		go e.runDetached()
	}
	err = o.WriteFrame(initwire.KindExecStarted, (&initwire.ExecStarted{ID: e.id, At: e.started}).Fields())
	switch {
	case !detached:
		o.runAttached(e, err != nil)
	case err == nil:
		o.follow(e, [2]int64{}, want.Stdin)
	}
}

// runAttached passes on what an execution prints, until the execution is over. If the client
// leaves, the execution is ended.
func (o *client) runAttached(e *execution, hasLeft bool) {
	left := make(chan struct{})
	leave := sync.OnceFunc(func() { close(left) })
	if hasLeft {
		leave()
	}
	go func() {
		defer leave()
		o.hear(e, e.want.Stdin)
	}()
	e.supervise(left, func(i int, from *output.Source) {
		if o.pass(from, initwire.KindStdout+initwire.Kind(i)) != nil {
			leave()
		}
	})
	o.tellEnd(e)
}

// tellEnd tells how an execution ended.
func (o *client) tellEnd(e *execution) {
	_ = o.WriteFrame(initwire.KindExecEnded, e.end.Fields())
}

// pass hands on what a stream prints, as fast as the client takes it. It fails only when the client
// has left.
func (o *client) pass(from *output.Source, kind initwire.Kind) error {
	for {
		b, err := from.Read()
		if err != nil {
			return nil // the end of it
		}
		err = o.send(kind, b.Frame())
		from.Release(b)
		if err != nil {
			return err
		}
	}
}

// send sends a frame without a time limit: a slow client is to slow its program down.
func (o *client) send(kind initwire.Kind, frame []byte) error {
	_ = o.Endpoint.SetWriteDeadline(time.Time{})
	initwire.PutHead(frame, kind)
	_, err := o.Endpoint.Write(frame)
	return err
}

// hear does what the client of an execution says, until the client has left. stdin: it may write to
// the program.
func (o *client) hear(e *execution, stdin bool) {
	for {
		kind, payload, err := o.ReadFrame()
		if err != nil {
			return
		}
		switch kind {
		case initwire.KindStdin:
			if stdin && e.stdin != nil && !o.feed(e, payload) {
				return
			}
		case initwire.KindCloseStdin:
			if stdin {
				e.closeStdin()
			}
		case initwire.KindResize:
			if size, err := initwire.ParseSize(payload); err == nil && e.want.TTY {
				_ = resize(e.prints[0].Endpoint, size.Rows, size.Cols)
			}
		case initwire.KindExecSignal:
			if sig, err := initwire.ParseExecSignal(payload); err == nil && sig.Signal > 0 && sig.Signal <= 64 {
				_, _ = o.x.signal(e, sig.Signal)
			}
		case initwire.KindAttach:
			if a, err := initwire.ParseAttach(payload); err == nil {
				e.taken(a)
			}
		default:
			return // not one of ours
		}
	}
}

// feed writes input to the program, as fast as it reads. It answers false if the client has left
// meanwhile. Input that nobody reads any more is thrown away.
func (o *client) feed(e *execution, p []byte) bool {
	for len(p) > 0 {
		_ = e.stdin.SetWriteDeadline(time.Now().Add(stdinLook))
		n, err := e.stdin.Write(p)
		if n > 0 {
			e.midLine.Store(p[n-1] != '\n' && p[n-1] != '\r')
		}
		p = p[n:]
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			if hungUp(o.Endpoint) {
				return false
			}
		default:
			return true
		}
	}
	return true
}

// hungUp reports whether the other side has left, even if there is still something to read.
func hungUp(conn *system.Endpoint) (yes bool) {
	const pollRdHup = 0x2000
	const gone = pollRdHup | 0x10 | 0x08 // or HUP, or ERR
	err := conn.Control(func(fd uintptr) {
		look := []system.PollFD{{FD: int32(fd), Events: pollRdHup}}
		_, _ = system.Poll(look, 0)
		yes = look[0].Revents&gone != 0
	})
	return yes || err != nil
}

// attachExec follows a detached execution from the offsets that the client gives.
func (o *client) attachExec(fields []byte) {
	a, err := initwire.ParseAttach(fields)
	if err != nil {
		o.Refuse("attach: " + err.Error())
		return
	}
	e, failed := o.x.find(a.ID)
	if failed == nil && !e.want.Detached {
		failed = initwire.UserFault(initwire.ReasonSpec, "execution "+strconv.Quote(a.ID)+" is not detached: its output goes to the client that started it")
	}
	var from [2]int64
	if failed == nil {
		from, failed = e.offsets(a)
	}
	if failed != nil {
		o.Fail(failed)
		return
	}
	e.taken(a)
	started := initwire.ExecStarted{ID: e.id, At: e.started, Stdout: from[0], Stderr: from[1]}
	if o.WriteFrame(initwire.KindExecStarted, started.Fields()) == nil {
		o.follow(e, from, a.Stdin && e.want.Stdin)
	}
}

// offsets are where an attachment begins. It fails if that part of the output is not kept.
func (e *execution) offsets(a *initwire.Attach) (from [2]int64, failed *initwire.Failed) {
	for i, offset := range []int64{a.StdoutOffset, a.StderrOffset} {
		if i >= len(e.spools) {
			continue // a terminal has but one
		}
		first, end := e.spools[i].Bounds()
		if offset == initwire.FromKept {
			offset = first
		}
		if offset < first || offset > end {
			return from, initwire.UserFault(initwire.ReasonOutputGone, "execution "+strconv.Quote(e.id)+": byte "+strconv.FormatInt(offset, 10)+" of "+
				[]string{initwire.Stdout, initwire.Stderr}[i]+" is not to be had, but "+strconv.FormatInt(first, 10)+" to "+strconv.FormatInt(end, 10))
		}
		from[i] = offset
	}
	return from, nil
}

// taken lets go of output that a client has stored elsewhere.
func (e *execution) taken(a *initwire.Attach) {
	for i, offset := range []int64{a.StdoutOffset, a.StderrOffset} {
		if i < len(e.spools) {
			e.spools[i].Take(offset)
		}
	}
}

// follow sends what a detached execution prints, from these offsets on, and then how it ended. The
// execution goes on when the client leaves.
func (o *client) follow(e *execution, from [2]int64, stdin bool) {
	left := make(chan struct{})
	leave := sync.OnceFunc(func() { close(left) })
	go func() {
		defer leave()
		o.hear(e, stdin)
	}()
	var all sync.WaitGroup
	var broken sync.Once
	for i, p := range e.spools {
		all.Go(func() {
			// Each stream goes at its own pace. The end of one is not the end of the other.
			err := o.replay(p, from[i], initwire.KindStdout+initwire.Kind(i), left)
			if err == io.EOF {
				return
			}
			if err == output.ErrNotKept {
				broken.Do(func() {
					o.Refuse("execution " + strconv.Quote(e.id) + ": what follows was taken by another client, or is too old")
				})
			}
			leave()
		})
	}
	all.Wait()
	select {
	// The client has left, and nobody is to be told.
	case <-left:
	case <-e.over:
		o.tellEnd(e)
	}
}

// replay sends one stream from an offset on. Its error is io.EOF after the end of the stream.
func (o *client) replay(p *output.Spool, offset int64, kind initwire.Kind, left <-chan struct{}) error {
	r := p.Reader(offset)
	defer r.Close()
	for {
		if err := r.Wait(left); err != nil {
			return err
		}
		b := o.x.pool.Get()
		n, err := r.Read(b.Room())
		b.N = n
		if err == nil {
			err = o.send(kind, b.Frame())
		}
		o.x.pool.Put(b)
		if err != nil {
			return err
		}
	}
}

// signalExec sends a signal to an execution's process group.
func (o *client) signalExec(fields []byte) {
	want, err := initwire.ParseExecSignal(fields)
	if err != nil || want.Signal < 1 || want.Signal > 64 {
		o.Refuse("no signal has the number " + strconv.Itoa(int(want.Signal)))
		return
	}
	e, failed := o.x.find(want.ID)
	if failed != nil {
		o.Fail(failed)
		return
	}
	// A signal that comes too late is told, because the client may count on it.
	switch sent, err := o.x.signal(e, want.Signal); {
	case err != nil:
		o.Refuse("signal " + strconv.Itoa(int(want.Signal)) + ": " + err.Error())
	case !sent:
		o.Fail(initwire.UserFault(initwire.ReasonExecEnded, "execution "+strconv.Quote(e.id)+" has ended"))
	default:
		_ = o.Done()
	}
}

// listExecs sends what is known of all executions.
func (o *client) listExecs() {
	// So many, with the longest of ids and reasons, fit into a frame.
	const perFrame = 200 // of them, with the longest of ids and reasons, fit into one
	all := o.x.list()
	for some := range slices.Chunk(all, perFrame) {
		for i := range some {
			some[i].Ended.Why = shorten(some[i].Ended.Why)
		}
		if o.WriteFrame(initwire.KindExecList, some.Fields()) != nil {
			return
		}
	}
	_ = o.Done()
}

// shorten bounds a reason, so that a frame of them stays small.
func shorten(s string) string { return s[:min(len(s), 100)] }

// sortByStart puts the execution first that was started first.
func sortByStart(all initwire.ExecList) {
	slices.SortFunc(all, func(a, b initwire.ExecState) int { return int(a.Ended.Started - b.Ended.Started) })
}
