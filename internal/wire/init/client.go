package initwire

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/wait"
)

// ErrRefused wraps the sentence of an init that would not do what was asked.
var ErrRefused = errors.New("refused")

// opTime bounds an operation that is answered at once, connection included.
const opTime = 5 * time.Second

// Client asks the init of one sandbox. All methods may be called at once. What
// comes back is init's word: bounded in size and time, not to be trusted beyond its own sandbox.
type Client struct {
	// Dir is the sandbox's directory.
	Dir string
}

// Status asks how the command does.
func (c Client) Status(ctx context.Context) (*State, error) {
	return c.state(ctx, KindStatus, opTime)
}

// Wait answers when the command has ended and its output is whole.
func (c Client) Wait(ctx context.Context) (*State, error) {
	return c.state(ctx, KindWait, 0)
}

// Stop asks the command to end: TERM now, KILL after grace.
func (c Client) Stop(ctx context.Context, grace time.Duration) error {
	_, err := c.ask(ctx, KindStop, NumberFields(int64(grace)), KindDone, opTime)
	return err
}

// Signal sends a signal to the command's process group.
func (c Client) Signal(ctx context.Context, signal syscall.Signal) error {
	_, err := c.ask(ctx, KindSignal, NumberFields(int64(signal)), KindDone, opTime)
	return err
}

func (c Client) state(ctx context.Context, kind Kind, limit time.Duration) (*State, error) {
	fields, err := c.ask(ctx, kind, nil, KindState, limit)
	if err != nil {
		return nil, err
	}
	return ParseState(fields)
}

func (c Client) ask(ctx context.Context, kind Kind, fields []byte, want Kind, limit time.Duration) ([]byte, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	conn, err := dial(ctx, filepath.Join(c.Dir, Socket))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	// Who closed before reading the request may have said why: that is still to be read.
	if err := WriteFrame(conn, kind, fields); err != nil && !errors.Is(err, syscall.EPIPE) {
		return nil, c.because(ctx, err)
	}
	got, answer, err := ReadFrame(conn, MaxFrame)
	switch {
	case err == io.EOF:
		return nil, errors.New("init of " + c.Dir + ": closed the connection without an answer")
	case err != nil:
		return nil, c.because(ctx, err)
	case got == KindRefused:
		text, _ := ParseText(answer)
		return nil, &refusal{text}
	case got != want:
		return nil, errors.New("init of " + c.Dir + ": answer of kind " + strconv.Itoa(int(got)) + " to a request of kind " + strconv.Itoa(int(kind)))
	}
	return answer, nil
}

func (c Client) because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return &os.PathError{Op: "ask", Path: filepath.Join(c.Dir, Socket), Err: err}
}

type refusal struct{ text string }

func (r *refusal) Error() string { return "init refused: " + r.text }
func (r *refusal) Unwrap() error { return ErrRefused }

// dial connects without package net, which would cost init a tenth of its start.
func dial(ctx context.Context, path string) (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	address, done, err := SocketAddress(path)
	if err != nil {
		_ = syscall.Close(fd)
		return nil, err
	}
	defer done()
	for {
		err := syscall.Connect(fd, address)
		if err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		// EAGAIN: the backlog is full. There is no event for its end.
		if err != syscall.EAGAIN && err != syscall.EINTR {
			_ = syscall.Close(fd)
			return nil, &os.PathError{Op: "connect", Path: path, Err: err}
		}
		if !wait.For(ctx, 5*time.Millisecond) {
			_ = syscall.Close(fd)
			return nil, &os.PathError{Op: "connect", Path: path, Err: context.Cause(ctx)}
		}
	}
}

// SocketAddress is the address of a unix socket whose path may be longer than the
// 107 bytes that an address holds: then it goes by a descriptor of its directory. Call done after use.
func SocketAddress(path string) (address *syscall.SockaddrUnix, done func(), err error) {
	if len(path) <= 107 {
		return &syscall.SockaddrUnix{Name: path}, func() {}, nil
	}
	const oPath = 0x200000
	dir, err := syscall.Open(filepath.Dir(path), oPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	short := "/proc/self/fd/" + strconv.Itoa(dir) + "/" + filepath.Base(path)
	return &syscall.SockaddrUnix{Name: short}, func() { _ = syscall.Close(dir) }, nil
}
