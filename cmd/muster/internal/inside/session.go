package inside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// twice is within what time a second Ctrl-C means that the user wants to leave.
const twice = 2 * time.Second

// session is the time that a user spends with an execution: what goes between the two, in both
// directions, until one of them ends.
type session struct {
	// x is what the flags say, target the allocation, screen where things are said beside the
	// output.
	x      *Executor
	target *cli.Target
	screen *term.Screen
	// terminal is the user's; nil if stdin is none.
	terminal *term.Terminal
	// tty says that the terminal's keys are the command's.
	tty bool
	// detached says that to leave does not end the command.
	detached bool
	// again joins the execution once more after the connection was lost; nil if that cannot be
	// done.
	again func(ctx context.Context, e *client.Execution) (*client.Execution, error)

	// sent is the last signal that was passed on, "" for none. Only signals writes it. It may be
	// read when the context has ended by ErrInterrupted: nothing is written after that.
	sent string

	// mu guards e, the present connection.
	mu sync.Mutex
	e  *client.Execution // the present connection
}

// newSession returns a session of x with the app's streams. Its fields may be changed before run.
func newSession(x *Executor, t *cli.Target) *session {
	s := &session{x: x, target: t, screen: term.NewScreen(x.App.Stdout, x.App.Stderr), terminal: term.TerminalOf(x.App.Stdin)}
	s.tty = x.TTY && x.Stdin
	return s
}

// execution is the present connection.
func (s *session) execution() *client.Execution {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.e
}

// setExecution takes a connection that was made again.
func (s *session) setExecution(e *client.Execution) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.e = e
}

// begin starts a goroutine of the session. If it panics, the terminal is restored first: a raw one
// would show the trace as stairs, and stay raw.
func (s *session) begin(f func()) {
	go func() {
		defer func() {
			if what := recover(); what != nil {
				s.terminal.Restore()
				panic(what)
			}
		}()
		f()
	}()
}

// run passes bytes and signals between the user and the execution, to its end. The error has its
// exit code.
func (s *session) run(ctx context.Context, e *client.Execution) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.setExecution(e)
	defer func() { _ = s.execution().Close() }()
	// A pipe that was closed is reported by the error of a write. As a signal it would end the
	// process and leave the terminal raw.
	signal.Ignore(syscall.SIGPIPE)
	// Whatever comes after this session is ended by a closed pipe, as usual.
	defer signal.Reset(syscall.SIGPIPE)
	if s.tty {
		if err := s.terminal.Raw(); err != nil {
			return err
		}
		defer s.terminal.Restore()
	}
	// The size is followed even if the keys are not the command's: what it draws has to fit.
	if s.tty || s.x.TTY && s.terminal != nil {
		resized := make(chan os.Signal, 1)
		signal.Notify(resized, syscall.SIGWINCH)
		defer signal.Stop(resized)
		// It has had a terminal of another size, or none.
		if s.detached {
			resized <- syscall.SIGWINCH
		}
		s.begin(func() { s.resize(ctx, resized) })
	}
	// Ctrl-\ on a terminal that is not raw is meant for the command.
	quits := make(chan os.Signal, 1)
	signal.Notify(quits, syscall.SIGQUIT)
	defer signal.Stop(quits)
	s.begin(func() { s.signals(ctx, cancel, quits) })
	if s.x.Stdin {
		s.begin(func() { s.feed(ctx) })
	}
	// Everything but this runs beside it and ends with the context.
	end, err := s.receive(ctx)
	s.terminal.Restore()
	return s.over(ctx, end, err)
}

// receive prints what comes, to the end of the execution, over as many connections as that takes.
func (s *session) receive(ctx context.Context) (*api.ExecEnd, error) {
	// What a terminal's command prints is for the terminal alone: no bar has to be kept out of its
	// way.
	stdout, stderr := s.x.App.Stdout, s.x.App.Stderr
	for {
		e := s.execution()
		// Wait reads without a context, so a closed connection is what ends it.
		stop := context.AfterFunc(ctx, func() { _ = e.Close() })
		end, err := e.Wait(stdout, stderr)
		stop()
		if err == nil || ctx.Err() != nil || s.again == nil || !client.IsUnreachable(err) {
			return end, err
		}
		_ = e.Close()
		s.say("connection lost; the execution keeps running; reconnecting")
		// It waits for the server by itself, as long as the user's patience lasts.
		next, err := s.again(ctx, e)
		if err != nil {
			return nil, err
		}
		s.setExecution(next)
	}
}

// say tells the user something. On a raw terminal a line break alone does not go back to the first
// column.
func (s *session) say(format string, args ...any) {
	if s.tty {
		fmt.Fprintf(s.x.App.Stderr, "\r\nmuster: %s\r\n", term.Clean(fmt.Sprintf(format, args...)))
		return
	}
	s.screen.Say(format, args...)
}

// over makes an error of how the session ended: the command's end, the user who left, a reader of
// our output who left, or a connection that was lost. It says what becomes of the command.
func (s *session) over(ctx context.Context, end *api.ExecEnd, err error) error {
	if end != nil {
		return s.x.ended(end)
	}
	// The user has left, which is said: what becomes of the command differs.
	if errors.Is(context.Cause(ctx), cli.ErrInterrupted) {
		s.screen.Say("%s", s.x.leftText(s.detached, s.target.Name, s.sent))
		return cli.ErrInterrupted
	}
	var out *client.OutputError
	if errors.As(err, &out) {
		if errors.Is(err, syscall.EPIPE) {
			return errPipe
		}
		return fmt.Errorf("writing to %w", out)
	}
	if client.IsUnreachable(err) {
		// The hint is what the user can do now: with a detached execution, join it again.
		what := "the command ends with the connection; one that is started with --detach goes on"
		if s.detached {
			what = fmt.Sprintf("the execution keeps running: `muster exec --attach %s %s`", s.x.attach, s.target.Name)
		}
		return cli.WithHint(fmt.Errorf("the connection was lost: %w", err), what)
	}
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// feed gives stdin to the command. When the connection is lost, it is not known how much of what
// was on its way has arrived. So only an execution that is joined again goes on.
func (s *session) feed(ctx context.Context) {
	// A stdin that never ends blocks here, also after the session: the process ends anyway.
	b := make([]byte, 32<<10)
	for {
		n, err := s.x.App.Stdin.Read(b)
		// A part may be sent over one connection and the rest over the next.
		for sent := 0; sent < n; {
			e := s.execution()
			m, werr := e.Write(b[sent:n])
			sent += m
			if werr == nil {
				continue
			}
			// Lost: what was on its way is not known. Only one that is joined again goes on.
			if ctx.Err() != nil || s.again == nil || !s.reconnected(ctx, e) {
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && ctx.Err() == nil {
				s.say("stdin: %v", err)
			}
			_ = s.execution().CloseStdin() // if the connection is lost, whoever reads says so
			return
		}
	}
}

// reconnected waits until the connection is another one than was. It returns false when the session is over.
func (s *session) reconnected(ctx context.Context, was *client.Execution) bool {
	// The connection is made by the goroutine that reads, and this one only looks.
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for s.execution() == was {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// resize tells the command how large the terminal is, whenever that changes. An error is none of
// its own: if the connection is lost, whoever reads says so.
func (s *session) resize(ctx context.Context, resized <-chan os.Signal) {
	for {
		select {
		case <-resized:
			if rows, cols := s.terminal.Size(); rows > 0 && cols > 0 {
				_ = s.execution().Resize(rows, cols) // if the connection is lost, whoever reads says so
			}
		case <-ctx.Done():
			return
		}
	}
}

// signals passes on to the command what was meant for it. HUP leaves, and so does a second Ctrl-C
// soon after the first: leave is called then. QUIT never leaves, because some commands print their
// state for it.
func (s *session) signals(ctx context.Context, leave context.CancelCauseFunc, quits <-chan os.Signal) {
	var last time.Time
	for {
		var sig os.Signal
		select {
		case sig = <-s.x.App.Signals:
		case sig = <-quits:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		if sig == syscall.SIGHUP || sig != syscall.SIGQUIT && !last.IsZero() && now.Sub(last) < twice {
			leave(cli.ErrInterrupted)
			return
		}
		last = now
		// Ctrl-C and every signal that is not one of the two below.
		name := "INT"
		switch sig {
		case syscall.SIGTERM:
			name = "TERM"
		case syscall.SIGQUIT:
			name = "QUIT"
		}
		// What was sent last decides what is said when the user leaves.
		s.sent = name
		e := s.execution()
		// Each signal is sent by a goroutine of its own: to send may take long, and the next one
		// must not wait.
		s.begin(func() {
			one, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			if err := e.Signal(one, name); err != nil && ctx.Err() == nil && !client.IsUnreachable(err) && !client.IsGone(err) && !client.IsNotFound(err) {
				s.say("%s could not be sent to the command: %v; once more leaves", name, err)
			}
		})
	}
}
