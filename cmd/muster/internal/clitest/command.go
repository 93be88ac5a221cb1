package clitest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/internal/testwait"
)

// Process is a muster that runs beside the test. Signals stand for those of the process.
type Process struct {
	// Out and Errs are what it has printed so far.
	Out, Errs Buffer
	Signals   chan os.Signal
	code      chan int
}

// Begin runs a command line beside the test. It returns before the command has done anything: Until
// waits for that.
func (s *Server) Begin(stdin io.Reader, args ...string) *Process {
	p := &Process{Signals: make(chan os.Signal, 4), code: make(chan int, 1)}
	a := &cli.App{Stdin: stdin, Stdout: &p.Out, Stderr: &p.Errs, Signals: p.Signals}
	go func() { p.code <- s.Execute(a, args...) }()
	return p
}

// Until waits for what a command prints. Now returns all that it has printed. The test ends if it
// never comes.
func Until(t *testing.T, what string, now func() string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() && !strings.Contains(now(), what) {
			t.Logf("%q never came: %q", what, now())
		}
	})
	testwait.Within(t, Patience, fmt.Sprintf("%q is printed", what), func() bool { return strings.Contains(now(), what) })
}

// End waits for the end of the command, and returns its exit code. The test ends if the command
// does not.
func (p *Process) End(t *testing.T) int {
	t.Helper()
	select {
	case code := <-p.code:
		return code
	case <-time.After(Patience):
		t.Fatalf("it does not end; stdout %q, stderr %q", p.Out.String(), p.Errs.String())
		return 0
	}
}

// Eventually waits until something is so on the server. It looks with the lock held.
func (s *Server) Eventually(t *testing.T, is func() bool) {
	t.Helper()
	testwait.Within(t, Patience, "what the test waits for", func() (ok bool) {
		s.Do(func() { ok = is() })
		return ok
	})
}

// Console is a terminal with muster on it. It notes how the terminal was before, and all that was
// shown on it.
type Console struct {
	*Process
	Master *os.File
	tty    *os.File
	was    unix.Termios
	Seen   Buffer
}

// Console runs a command line on a terminal of its own, of 33 rows and 99 columns. The test is
// skipped where there are no terminals.
func (s *Server) Console(t *testing.T, args ...string) *Console {
	t.Helper()
	// Some build machines have no terminals to give.
	master, tty, err := pty.Open()
	if err != nil {
		t.Skipf("no terminal is to be had here: %v", err)
	}
	t.Cleanup(func() { _, _ = master.Close(), tty.Close() })
	if err := pty.Setsize(master, &pty.Winsize{Rows: 33, Cols: 99}); err != nil {
		t.Fatal(err)
	}
	c := &Console{Process: &Process{Signals: make(chan os.Signal, 4), code: make(chan int, 1)}, Master: master, tty: tty}
	// Whatever the command does to the terminal, it must be undone at its end.
	c.was = c.state(t)
	// A terminal that nobody reads would block who writes to it.
	go func() { _, _ = io.Copy(&c.Seen, master) }()
	a := &cli.App{Stdin: tty, Stdout: tty, Stderr: tty, Signals: c.Signals}
	go func() { c.code <- s.Execute(a, args...) }()
	return c
}

// state is how the terminal is now.
func (c *Console) state(t *testing.T) unix.Termios {
	t.Helper()
	now, err := unix.IoctlGetTermios(int(c.tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *now
}

// End waits for the end of the command, and fails the test if the terminal is not as it was before.
func (c *Console) End(t *testing.T) int {
	t.Helper()
	code := c.Process.End(t)
	if now := c.state(t); now != c.was {
		t.Errorf("the terminal is %+v, and was %+v", now, c.was)
	}
	return code
}

// Raw reports whether the command has all keys of the terminal.
func (c *Console) Raw(t *testing.T) bool { return c.state(t).Lflag&unix.ICANON == 0 }

// Check fails the test if the command came to something else. The wanted stderr is a regular
// expression for all of it.
func (r Result) Check(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if r.Code != code || r.Stdout != stdout {
		t.Errorf("exit code %d, want %d; stdout %q, want %q", r.Code, code, r.Stdout, stdout)
	}
	// Stderr has addresses and paths, which differ.
	if ok, err := regexp.MatchString("^(?s:"+stderr+")$", r.Stderr); err != nil || !ok {
		t.Errorf("stderr %q, want %q (%v)", r.Stderr, stderr, err)
	}
}

// Patience is how long tests wait for what should come soon. It is long, because a machine may be
// busy.
const Patience = 60 * time.Second

// Result is what a command came to.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Muster runs a command line against the server to its end. Signals, if not nil, stand for those of
// the process; what is in the channel already counts as sent.
func (s *Server) Muster(signals chan os.Signal, args ...string) Result {
	return s.MusterWithInput(strings.NewReader(""), signals, args...)
}

// MusterWithInput is Muster with a stdin.
func (s *Server) MusterWithInput(stdin io.Reader, signals chan os.Signal, args ...string) Result {
	// Both may be written by several goroutines of the command.
	var out, errs Buffer
	a := &cli.App{Stdin: stdin, Stdout: &out, Stderr: &errs, Signals: signals}
	code := s.Execute(a, args...)
	return Result{code, out.String(), errs.String()}
}

// Execute runs a command line with an app that the test has made, and returns the exit code.
func (s *Server) Execute(a *cli.App, args ...string) int {
	// A command waits for signals even if the test sends none.
	if a.Signals == nil {
		a.Signals = make(chan os.Signal, 4)
	}
	return a.Execute(s.commands(a), append([]string{"--addr", s.url, "--token", "stub-token"}, args...))
}

// Buffer is a buffer that several goroutines may write and read.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *Buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String is all that was written.
func (l *Buffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
