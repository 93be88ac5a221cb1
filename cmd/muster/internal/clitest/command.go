package clitest

import (
	"bytes"
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

// Process is a muster that runs beside the test.
type Process struct {
	Out, Errs Buffer
	Signals   chan os.Signal
	code      chan int
}

func (s *Server) Begin(stdin io.Reader, args ...string) *Process {
	p := &Process{Signals: make(chan os.Signal, 4), code: make(chan int, 1)}
	a := &cli.App{Stdin: stdin, Stdout: &p.Out, Stderr: &p.Errs, Signals: p.Signals}
	go func() { p.code <- s.Execute(a, args...) }()
	return p
}

// Until waits for what a command prints.
func Until(t *testing.T, what string, now func() string) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !strings.Contains(now(), what); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%q never came: %q", what, now())
		}
	}
}

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

func (s *Server) Eventually(t *testing.T, is func() bool) {
	t.Helper()
	testwait.Within(t, Patience, "what the test waits for", func() (ok bool) {
		s.Do(func() { ok = is() })
		return ok
	})
}

// Console is a terminal with muster on it.
type Console struct {
	*Process
	Master *os.File
	tty    *os.File
	was    unix.Termios
	Seen   Buffer
}

func (s *Server) Console(t *testing.T, args ...string) *Console {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Skipf("no terminal is to be had here: %v", err)
	}
	t.Cleanup(func() { _, _ = master.Close(), tty.Close() })
	if err := pty.Setsize(master, &pty.Winsize{Rows: 33, Cols: 99}); err != nil {
		t.Fatal(err)
	}
	c := &Console{Process: &Process{Signals: make(chan os.Signal, 4), code: make(chan int, 1)}, Master: master, tty: tty}
	c.was = c.state(t)
	go func() { _, _ = io.Copy(&c.Seen, master) }()
	a := &cli.App{Stdin: tty, Stdout: tty, Stderr: tty, Signals: c.Signals}
	go func() { c.code <- s.Execute(a, args...) }()
	return c
}

func (c *Console) state(t *testing.T) unix.Termios {
	t.Helper()
	now, err := unix.IoctlGetTermios(int(c.tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *now
}

func (c *Console) End(t *testing.T) int {
	t.Helper()
	code := c.Process.End(t)
	if now := c.state(t); now != c.was {
		t.Errorf("the terminal is %+v, and was %+v", now, c.was)
	}
	return code
}

func (c *Console) Raw(t *testing.T) bool { return c.state(t).Lflag&unix.ICANON == 0 }

func (r Result) Check(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if r.Code != code || r.Stdout != stdout {
		t.Errorf("exit code %d, want %d; stdout %q, want %q", r.Code, code, r.Stdout, stdout)
	}
	if ok, err := regexp.MatchString("^(?s:"+stderr+")$", r.Stderr); err != nil || !ok {
		t.Errorf("stderr %q, want %q (%v)", r.Stderr, stderr, err)
	}
}

// Patience is how long scripts wait for what should come soon.
const Patience = 60 * time.Second

// Result is what a command came to.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Muster runs a command line against the stub. Signals, if not nil, stand for the process's.
func (s *Server) Muster(signals chan os.Signal, args ...string) Result {
	return s.MusterWithInput(strings.NewReader(""), signals, args...)
}

// MusterWithInput is muster with a stdin.
func (s *Server) MusterWithInput(stdin io.Reader, signals chan os.Signal, args ...string) Result {
	var out, errs Buffer
	a := &cli.App{Stdin: stdin, Stdout: &out, Stderr: &errs, Signals: signals}
	code := s.Execute(a, args...)
	return Result{code, out.String(), errs.String()}
}

// Execute runs a command line of an app that the test has made.
func (s *Server) Execute(a *cli.App, args ...string) int {
	if a.Signals == nil {
		a.Signals = make(chan os.Signal, 4)
	}
	return a.Execute(s.commands(a), append([]string{"--addr", s.url, "--token", "stub-token"}, args...))
}

// Buffer is a buffer for writers that are several.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *Buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Buffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
