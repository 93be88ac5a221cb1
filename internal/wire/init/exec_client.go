package initwire

import (
	"context"
	"errors"
	"io"
	"strconv"
	"syscall"
)

// Error makes an answer an error of whoever asked.
func (f *Failed) Error() string { return f.Message }

// Execution is the client's end of an execution, on a connection to init's
// socket, however that was reached: a tunnel will do.
//
// Next is for one goroutine. The others may be called meanwhile from anywhere, as far as the
// connection's Write and Close may be, as those of package net may.
type Execution struct {
	// Started is what init answered.
	Started ExecStarted

	conn io.ReadWriteCloser
	// in[from:] has come and is not yet given out.
	in   []byte
	from int
}

// StartExec starts an execution. It closes conn if that fails: with a *Failed, if init said why, else
// with an error that wraps ErrRefused or one of the connection. ctx bounds only the start.
func StartExec(ctx context.Context, conn io.ReadWriteCloser, e *Exec) (*Execution, error) {
	return converse(ctx, conn, KindExec, e.Fields())
}

// AttachExec takes up a detached execution. See StartExec for errors.
func AttachExec(ctx context.Context, conn io.ReadWriteCloser, a *Attach) (*Execution, error) {
	return converse(ctx, conn, KindAttach, a.Fields())
}

// Asked is an execution on a connection that has carried the request already: the bytes of Frame. See StartExec for the rest.
func Asked(ctx context.Context, conn io.ReadWriteCloser) (*Execution, error) {
	x := &Execution{conn: conn}
	return x.started(x.answer(ctx, nil, KindExecStarted))
}

func converse(ctx context.Context, conn io.ReadWriteCloser, kind Kind, fields []byte) (*Execution, error) {
	x := &Execution{conn: conn}
	return x.started(x.begin(ctx, kind, fields, KindExecStarted))
}

// started takes the first answer. It closes the connection if that is none.
func (x *Execution) started(answer []byte, err error) (*Execution, error) {
	if err == nil {
		var started *ExecStarted
		if started, err = ParseExecStarted(answer); err == nil {
			x.Started = *started
			return x, nil
		}
	}
	_ = x.conn.Close()
	return nil, err
}

// begin asks, and reads the first answer.
func (x *Execution) begin(ctx context.Context, kind Kind, fields []byte, want Kind) ([]byte, error) {
	return x.answer(ctx, func() error { return WriteFrame(x.conn, kind, fields) }, want)
}

// answer asks, unless that was done, and reads the first answer.
func (x *Execution) answer(ctx context.Context, ask func() error, want Kind) ([]byte, error) {
	stop := context.AfterFunc(ctx, func() { _ = x.conn.Close() })
	var werr error
	if ask != nil {
		// Who closed before reading the request may have said why: that is still to be read.
		werr = ask()
	}
	got, answer, err := x.read()
	if !stop() {
		return nil, context.Cause(ctx)
	}
	if err != nil && werr != nil {
		err = werr
	}
	if err != nil {
		return nil, err
	}
	if got != want {
		return nil, otherThan(got, answer)
	}
	return answer, nil
}

// otherThan is the error that a frame is which was not asked for.
func otherThan(kind Kind, fields []byte) error {
	switch kind {
	case KindFailed:
		f, err := ParseFailed(fields)
		if err != nil {
			return err
		}
		return f
	case KindRefused:
		text, _ := ParseText(fields)
		return &refusal{text}
	}
	return errors.New("init answered with a frame of kind " + strconv.Itoa(int(kind)))
}

// Next waits for what comes next: KindStdout or KindStderr with bytes, which
// the following call overwrites, or KindExecEnded with how it ended, after which nothing comes. An
// error means that the connection broke, or that init sent what it must not.
func (x *Execution) Next() (kind Kind, data []byte, ended *ExecEnded, err error) {
	kind, body, err := x.read()
	if err != nil {
		return 0, nil, nil, err
	}
	switch kind {
	case KindStdout, KindStderr:
		return kind, body, nil, nil
	case KindExecEnded:
		ended, err := ParseExecEnded(body)
		return kind, nil, ended, err
	}
	return 0, nil, nil, otherThan(kind, body)
}

// read is the next frame, by few and large reads. It is overwritten by the next call.
func (x *Execution) read() (Kind, []byte, error) {
	for {
		kind, body, whole, err := CutFrame(x.in[x.from:], MaxFrame)
		if err != nil {
			return 0, nil, err
		}
		if whole {
			x.from += HeadSize + len(body)
			return kind, body, nil
		}
		left := copy(x.in[:cap(x.in)], x.in[x.from:])
		x.in, x.from = x.in[:left], 0
		if left == cap(x.in) {
			grown := make([]byte, left, min(max(1024, 8*left), MaxFrame+HeadSize))
			copy(grown, x.in)
			x.in = grown
		}
		n, err := x.conn.Read(x.in[left:cap(x.in)])
		x.in = x.in[:left+n]
		if n > 0 {
			continue
		}
		if err == io.EOF && left > 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, nil, err
		}
	}
}

// WriteStdin sends bytes, and waits while the program does not take them.
func (x *Execution) WriteStdin(p []byte) error {
	var frame []byte
	for len(p) > 0 {
		n := min(len(p), MaxBytes)
		frame = append(append(frame[:0], make([]byte, HeadSize)...), p[:n]...)
		PutHead(frame, KindStdin)
		if _, err := x.conn.Write(frame); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// CloseStdin ends what the program reads.
func (x *Execution) CloseStdin() error { return WriteFrame(x.conn, KindCloseStdin, nil) }

// Resize tells the size of the terminal.
func (x *Execution) Resize(size Size) error {
	return WriteFrame(x.conn, KindResize, size.Fields())
}

// Signal sends a signal to the process group. It comes after the input that was sent before, so it
// waits behind a program that does not read; SignalExec does not.
func (x *Execution) Signal(signal syscall.Signal) error {
	return WriteFrame(x.conn, KindExecSignal, (&ExecSignal{Signal: signal}).Fields())
}

// Taken says that all of a detached execution's output before these offsets is safe elsewhere.
func (x *Execution) Taken(stdout, stderr int64) error {
	return WriteFrame(x.conn, KindAttach, (&Attach{StdoutOffset: stdout, StderrOffset: stderr}).Fields())
}

// Close leaves: it ends an attached execution, and means nothing to a detached one.
func (x *Execution) Close() error { return x.conn.Close() }

// SignalExec sends a signal to the process group of an execution, on a connection of its own, which it closes.
func SignalExec(ctx context.Context, conn io.ReadWriteCloser, id string, signal syscall.Signal) error {
	defer func() { _ = conn.Close() }()
	x := &Execution{conn: conn}
	_, err := x.begin(ctx, KindExecSignal, (&ExecSignal{ID: id, Signal: signal}).Fields(), KindDone)
	return err
}

// maxListed is how many executions ListExecs takes: those that ended, and many times as many that run. A
// frame holds thousands of the shortest, so that a bound of frames alone is none of memory.
const maxListed = 16 * MaxExecs

var errTooMany = errors.New("init lists too many executions")

// ListExecs lists the executions that are known, oldest first, on a connection of its own, which it closes.
func ListExecs(ctx context.Context, conn io.ReadWriteCloser) (ExecList, error) {
	defer func() { _ = conn.Close() }()
	x := &Execution{conn: conn}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := WriteFrame(conn, KindExecs, nil); err != nil {
		return nil, err
	}
	var all ExecList
	// More frames than the largest list needs are a lie.
	for range MaxExecs {
		kind, body, err := x.read()
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			return nil, err
		case kind == KindDone:
			return all, nil
		case kind != KindExecList:
			return nil, otherThan(kind, body)
		}
		some, err := ParseExecList(body)
		if err != nil {
			return nil, err
		}
		if len(all)+len(some) > maxListed {
			return nil, errTooMany
		}
		all = append(all, some...)
	}
	return nil, errTooMany
}
