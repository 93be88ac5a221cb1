package main

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/internal/testwait"
)

func TestExec(t *testing.T) {
	s := withJob(t, 1)
	const script = `printf 'a\000\377b'; echo oops >&2; exit 7`
	for _, args := range [][]string{
		{"exec", "web", "--", "sh", "-c", script},
		{"exec", "web", "sh", "-c", script}, // as with Docker
		{"exec", "default/web", "--", "sh", "-c", script},
		{"exec", "-n", "default", "web/0", "--", "sh", "-c", script},
		{"exec", "u-0-1", "--", "sh", "-c", script},
		{"exec", "--", "web", "sh", "-c", script},
		{"exec", "web", "-e", "A=b c", "-w", "/x", "-u", "nobody", "--timeout", "5s", "--", "sh", "-c", script},
	} {
		s.muster(nil, args...).check(t, 7, "a\x00\xffb", "oops\n")
	}
	last := s.inside.requests[len(s.inside.requests)-1]
	if last.Env["A"] != "b c" || last.Workdir != "/x" || last.User != "nobody" || last.Timeout.Std() != 5*time.Second || last.Stdin || last.TTY {
		t.Errorf("%+v", last)
	}
	s.muster(nil, "exec", "web", "--", "sh", "-c", "kill -KILL $$").check(t, 137, "", "")
	s.muster(nil, "exec", "web", "--", "no-such-program").check(t, 127, "", "muster: no-such-program: no such program\n")
	s.muster(nil, "exec", "web", "--", "ls -l /").check(t, 127, "", "muster: ls -l /: no such program; it was given as one word: .*sh -c 'ls -l /'`\n")
	s.muster(nil, "exec", "web", "--", "/etc/passwd").check(t, 126, "", "muster: /etc/passwd.*\n")
	// Words arrive as they are.
	s.muster(nil, "exec", "web", "--", "printf", "%s|", "a b", "$HOME", "'q'", "é\n", "--", "-x", "").check(t, 0, "a b|$HOME|'q'|é\n|--|-x||", "")
}

func TestExecStdin(t *testing.T) {
	s := withJob(t, 1)
	b := make([]byte, 3<<20)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	got := s.fed(bytes.NewReader(b), nil, "exec", "-i", "web", "--", "cat")
	if got.code != 0 || got.stdout != string(b) || got.stderr != "" {
		t.Errorf("code %d, %d bytes, %q", got.code, len(got.stdout), got.stderr)
	}
	// Without -i there is none, and a stdin that is not read is no hindrance.
	s.fed(strings.NewReader("x"), nil, "exec", "web", "--", "cat").check(t, 0, "", "")
	s.fed(bytes.NewReader(b), nil, "exec", "-i", "web", "--", "sh", "-c", "exit 3").check(t, 3, "", "")
}

func TestExecMistakes(t *testing.T) {
	s := withJob(t, 3)
	for _, tt := range []struct {
		args   string
		code   int
		stderr string
	}{
		{"exec", 2, "muster: which allocation\\? name it, or its job, as in `muster exec -it JOB -- sh`\n.*"},
		{"exec web/0", 2, "muster: there is no command; write it behind the allocation, as in `muster exec -it web/0 -- sh`\n.*"},
		{"exec web -- ls", 1, "muster: 3 members of job web run; name one: web/0, web/1, web/2\n"},
		{"exec web/7 -- ls", 1, "muster: job web has no member 7: it has 3, counted from 0\n"},
		{"exec wbe/0 -- ls", 1, "muster: there is no allocation or job wbe/0; .*\n"},
		{"exec wep -- ls", 1, "muster: there is no allocation or job wep; did you mean web\\?\n"},
		{"exec u-0-9 -- ls", 1, "muster: there is no allocation or job u-0-9; did you mean u-0-1\\?\n"},
		{"exec Wrong! -- ls", 1, "muster: there is no allocation or job \"Wrong!\"; .*\n"},
		{"exec -it web/0 -- sh", 2, "muster: -t needs a terminal, and stdin is none; leave -t out when stdin is redirected, as in `muster exec -i web/0 -- …`\n.*"},
		{"exec web/0 -z ls", 2, "muster: unknown shorthand flag: 'z' in -z; write -- before the command\n.*"},
		{"exec --signal TERM web/0 -- ls", 2, "muster: --signal needs --attach ID.*"},
		{"exec --attach e1 web/0 -- ls", 2, "muster: with --attach and --list there is no command; \"ls\" is one\n.*"},
		{"exec --attach nope web/0", 1, "muster: execution nope: not found; `muster exec --list web/0` shows those that are known\n"},
	} {
		s.muster(nil, strings.Fields(tt.args)...).check(t, tt.code, "", tt.stderr)
	}
	s.end(0, 1, 3)
	s.muster(nil, "exec", "web/0", "--", "ls").check(t, 1, "", "muster: web/0 \\(allocation u-0-1\\) has ended .* ago: failed: exit code 3; `muster job logs web` shows what it printed\n")
	s.muster(nil, "exec", "u-0-1", "--", "ls").check(t, 1, "", "muster: allocation u-0-1 has ended .*\n")
	s.do(func() { s.allocs[1].Status, s.allocs[1].Detail = "starting", "pulling python:3.13" })
	s.muster(nil, "exec", "web/1", "--", "ls").check(t, 1, "", "muster: web/1 .* has not started yet: it is starting: pulling python:3.13; .*\n")
	// A runner's own command is of no interest to who used it.
	s.do(func() {
		al := s.allocs[1]
		now := time.Now()
		al.Job, al.Status, al.Outcome, al.Signal, al.StopCause, al.Ended = "env:python", "ended", "stopped", "SIGTERM", "released", &now
	})
	s.muster(nil, "exec", "u-1-1", "--", "ls").check(t, 1, "", "muster: allocation u-1-1 has ended .* ago: stopped: released; `muster claim python` claims another runner\n")
	s.do(func() { s.allocs[1].Namespace = "codeocean" })
	s.muster(nil, "exec", "u-1-1", "--", "ls").check(t, 1, "", "muster: .*; `muster claim codeocean/python` claims another runner\n")
	// It ends between the look and the request.
	s.inside.refuse = &api.Problem{Status: 410, Title: "Gone", Detail: "it has ended", Code: api.CodeEnded}
	s.muster(nil, "exec", "web/2", "--", "ls").check(t, 1, "", "muster: it has ended\n")
	s.inside.refuse = &api.Problem{Status: 503, Title: "Unavailable", Detail: "node n1 cannot be reached" + strings.Repeat(" for so long", 200)}
	r := s.muster(nil, "exec", "web/2", "--", "ls") // a long refusal is told whole
	r.check(t, 1, "", "muster: node n1 cannot be reached.*\n")
	if len(r.stderr) < 2000 {
		t.Error(r.stderr)
	}
}

func TestExecDetached(t *testing.T) {
	s := withJob(t, 1)
	s.muster(nil, "exec", "--detach", "web", "--", "make", "all").check(t, 0, "e1\n", "")
	if !s.inside.requests[0].Detach {
		t.Error(s.inside.requests)
	}
	s.muster(nil, "exec", "--list", "web").check(t, 0, "", "muster: web \\(allocation u-0-1\\) has no executions\n")
	began := time.Now().Add(-time.Minute)
	s.inside.known = []api.Execution{{ID: "e1", Running: true, Detached: true, Started: &began}}
	s.muster(nil, "exec", "--list", "web").check(t, 0, "EXECUTION  STATUS   KIND      RAN  REASON\ne1         running  detached  1m\n", "")
	s.muster(nil, "exec", "--attach", "e1", "--signal", "TERM", "web").check(t, 0, "", "")
	if len(s.inside.signals) != 1 || s.inside.signals[0] != "TERM" {
		t.Error(s.inside.signals)
	}
	// Attached over two connections that break: nothing is lost and nothing comes twice.
	s.inside.spool, s.inside.cut = strings.Repeat("0123456789", 1000), 2
	s.muster(nil, "exec", "--attach", "e1", "web").check(t, 5, s.inside.spool, "(muster: the connection was lost; the execution goes on without it, and so does this when the server is back\n){2}")
	var from []int64
	for _, at := range s.inside.attached {
		from = append(from, at.Stdout)
	}
	if len(from) != 3 || from[0] != -1 || from[1] != 5000 || from[2] != 7500 {
		t.Error(from)
	}
}

func TestExecJSON(t *testing.T) {
	s := withJob(t, 1)
	s.fed(strings.NewReader("in"), nil, "exec", "--json", "-i", "web", "--", "sh", "-c", "cat; echo e >&2; exit 3").check(t, 3, `{
  "id": "e1",
  "exit_code": 3,
  "stdout": "in",
  "stderr": "e\n"
}
`, "")
}

// A connection that breaks is told, with an exit code of its own.
func TestExecLost(t *testing.T) {
	s := withJob(t, 1)
	s.muster(nil, "exec", "-e", "CUT=1", "web", "--", "true").check(t, 3, "part", "muster: the connection was lost: .*; the command ends with the connection; one that is started with --detach goes on\n")
}

// started is a muster that runs beside the test.
type started struct {
	out, errs lockedBuffer
	signals   chan os.Signal
	code      chan int
}

func (s *stub) begin(stdin io.Reader, args ...string) *started {
	p := &started{signals: make(chan os.Signal, 4), code: make(chan int, 1)}
	a := &cli.App{Stdin: stdin, Stdout: &p.out, Stderr: &p.errs, Signals: p.signals}
	go func() { p.code <- s.execute(a, args...) }()
	return p
}

// until waits for what a command prints.
func until(t *testing.T, what string, now func() string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(now(), what); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%q never came: %q", what, now())
		}
	}
}

func (p *started) end(t *testing.T) int {
	t.Helper()
	select {
	case code := <-p.code:
		return code
	case <-time.After(patience):
		t.Fatalf("it does not end; stdout %q, stderr %q", p.out.String(), p.errs.String())
		return 0
	}
}

func TestExecSignals(t *testing.T) {
	s := withJob(t, 1)
	const script = `trap 'echo int; exit 9' INT; trap 'echo term' TERM; echo up; exec 2>/dev/null; while :; do sleep 0.02; done`
	p := s.begin(nil, "exec", "web", "--", "sh", "-c", script)
	until(t, "up", p.out.String)
	p.signals <- syscall.SIGINT
	if code := p.end(t); code != 9 || p.out.String() != "up\nint\n" {
		t.Errorf("code %d, %q %q", code, p.out.String(), p.errs.String())
	}
	// Twice quickly leaves.
	p = s.begin(nil, "exec", "web", "--", "sh", "-c", script)
	until(t, "up", p.out.String)
	p.signals <- syscall.SIGTERM
	until(t, "term", p.out.String)
	p.signals <- syscall.SIGTERM
	if code := p.end(t); code != 130 || p.errs.String() != "muster: left; the command is ended\n" {
		t.Errorf("code %d, %q", code, p.errs.String())
	}
	// A command that does not read its stdin gets its signal none the less.
	r, w := io.Pipe()
	defer func() { _ = r.Close() }()
	go func() { // fills every buffer on the way
		for b := make([]byte, 1<<20); ; {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	}()
	p = s.begin(r, "exec", "-i", "web", "--", "sh", "-c", "echo up; exec sleep 1000")
	until(t, "up", p.out.String)
	p.signals <- syscall.SIGINT
	s.eventually(t, func() bool { return len(s.inside.signals) > 0 && s.inside.signals[len(s.inside.signals)-1] == "INT" })
	p.signals <- syscall.SIGHUP
	if code := p.end(t); code != 130 {
		t.Error(code)
	}
}

func (s *stub) eventually(t *testing.T, is func() bool) {
	t.Helper()
	testwait.Within(t, patience, "what the test waits for", func() (ok bool) {
		s.do(func() { ok = is() })
		return ok
	})
}

// Whoever reads our stdout may leave: quietly, and the command is ended.
// TestExecWaitsForTheStart: who submits detached and enters at once need not look in between.
func TestExecWaitsForTheStart(t *testing.T) {
	s := withJob(t, 1)
	s.do(func() { s.allocs[0].Status = "starting" })
	var out, errs lockedBuffer
	ended := make(chan int)
	go func() {
		ended <- s.execute(&cli.App{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, StartWait: time.Minute}, "exec", "web", "--", "true")
	}()
	s.eventually(t, func() bool { return strings.Contains(errs.String(), "waiting for job web to start") })
	s.do(func() { s.allocs[0].Status = "running" })
	if code := <-ended; code != 0 {
		t.Errorf("code %d, %q", code, errs.String())
	}
}

func TestExecBrokenPipe(t *testing.T) {
	s := withJob(t, 1)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	defer func() { _ = w.Close() }()
	var errs lockedBuffer
	code := s.execute(&cli.App{Stdin: strings.NewReader(""), Stdout: w, Stderr: &errs}, "exec", "web", "--", "yes")
	if code != 141 || errs.String() != "" {
		t.Errorf("code %d, %q", code, errs.String())
	}
}

// console is a terminal with muster on it.
type console struct {
	*started
	master *os.File
	tty    *os.File
	was    unix.Termios
	seen   lockedBuffer
}

func (s *stub) console(t *testing.T, args ...string) *console {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Skipf("no terminal is to be had here: %v", err)
	}
	t.Cleanup(func() { _, _ = master.Close(), tty.Close() })
	if err := pty.Setsize(master, &pty.Winsize{Rows: 33, Cols: 99}); err != nil {
		t.Fatal(err)
	}
	c := &console{started: &started{signals: make(chan os.Signal, 4), code: make(chan int, 1)}, master: master, tty: tty}
	c.was = c.state(t)
	go func() { _, _ = io.Copy(&c.seen, master) }()
	a := &cli.App{Stdin: tty, Stdout: tty, Stderr: tty, Signals: c.signals}
	go func() { c.code <- s.execute(a, args...) }()
	return c
}

func (c *console) state(t *testing.T) unix.Termios {
	t.Helper()
	now, err := unix.IoctlGetTermios(int(c.tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *now
}

func (c *console) end(t *testing.T) int {
	t.Helper()
	code := c.started.end(t)
	if now := c.state(t); now != c.was {
		t.Errorf("the terminal is %+v, and was %+v", now, c.was)
	}
	return code
}

func (c *console) raw(t *testing.T) bool { return c.state(t).Lflag&unix.ICANON == 0 }

func TestExecTerminal(t *testing.T) {
	s := withJob(t, 1)
	c := s.console(t, "exec", "-it", "web", "--", "sh", "-c", "stty size; read x; echo got $x; stty size; exit 4")
	until(t, "33 99", c.seen.String)
	if !c.raw(t) {
		t.Error("the keys are not the command's")
	}
	if err := pty.Setsize(c.master, &pty.Winsize{Rows: 44, Cols: 88}); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGWINCH) // the kernel tells only who has it as its controlling terminal
	s.eventually(t, func() bool { return len(s.inside.sizes) > 0 })
	_, _ = c.master.WriteString("me\r")
	until(t, "got me\r\n44 88", c.seen.String)
	if code := c.end(t); code != 4 {
		t.Error(code)
	}
	// Ctrl-C is a key as any other.
	c = s.console(t, "exec", "-it", "web", "--", "sh", "-c", "trap 'exit 9' INT; echo up; while :; do sleep 0.02; done")
	until(t, "up", c.seen.String)
	_, _ = c.master.WriteString("\x03")
	if code := c.end(t); code != 9 {
		t.Error(code)
	}
}

// However it ends, the terminal is what it was.
func TestExecTerminalIsRestored(t *testing.T) {
	s := withJob(t, 1)
	c := s.console(t, "exec", "-it", "-e", "CUT=1", "web", "--", "true")
	if code := c.end(t); code != 3 {
		t.Error(code)
	}
	until(t, "the connection was lost", c.seen.String)
	c = s.console(t, "exec", "-it", "web", "--", "sh", "-c", "echo up; exec sleep 1000")
	until(t, "up", c.seen.String)
	c.signals <- syscall.SIGHUP
	if code := c.end(t); code != 130 {
		t.Error(code)
	}
	c = s.console(t, "exec", "-it", "web", "--", "no-such-program")
	if code := c.end(t); code != 127 {
		t.Error(code)
	}
	// With -t alone the keys stay here.
	c = s.console(t, "exec", "-t", "web", "--", "sh", "-c", "echo up; test -t 1; sleep 0.1; exit 6")
	until(t, "up", c.seen.String)
	if code := c.end(t); code != 6 {
		t.Error(code)
	}
}

// Two signals leave an execution that was joined. The first was passed on to it: nobody promises that it goes on.
func TestLeftAfterSignal(t *testing.T) {
	s := withJob(t, 1)
	began := time.Now()
	s.inside.known = []api.Execution{{ID: "e1", Running: true, Detached: true, Started: &began}}
	s.inside.endless, s.inside.spool = true, "up\n"
	p := s.begin(nil, "exec", "--attach", "e1", "web")
	until(t, "up", p.out.String)
	p.signals <- syscall.SIGTERM
	s.eventually(t, func() bool { return len(s.inside.signals) == 1 })
	p.signals <- syscall.SIGTERM
	if code := p.end(t); code != 130 || p.errs.String() != "muster: left; TERM was sent to the execution, which may end: `muster exec --attach e1 web`\n" {
		t.Errorf("code %d, %q", code, p.errs.String())
	}
}
