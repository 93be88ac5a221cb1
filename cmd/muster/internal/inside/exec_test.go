package inside

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

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/clitest"
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
		s.Muster(nil, args...).Check(t, 7, "a\x00\xffb", "oops\n")
	}
	last := s.Inside.Requests[len(s.Inside.Requests)-1]
	if last.Env["A"] != "b c" || last.Workdir != "/x" || last.User != "nobody" || last.Timeout.Std() != 5*time.Second || last.Stdin || last.TTY {
		t.Errorf("%+v", last)
	}
	s.Muster(nil, "exec", "web", "--", "sh", "-c", "kill -KILL $$").Check(t, 137, "", "")
	s.Muster(nil, "exec", "web", "--", "no-such-program").Check(t, 127, "", "muster: no-such-program: no such program\n")
	s.Muster(nil, "exec", "web", "--", "ls -l /").Check(t, 127, "", "muster: ls -l /: no such program; it was given as one word: .*sh -c 'ls -l /'`\n")
	s.Muster(nil, "exec", "web", "--", "/etc/passwd").Check(t, 126, "", "muster: /etc/passwd.*\n")
	// Words arrive as they are.
	s.Muster(nil, "exec", "web", "--", "printf", "%s|", "a b", "$HOME", "'q'", "é\n", "--", "-x", "").Check(t, 0, "a b|$HOME|'q'|é\n|--|-x||", "")
}

func TestExecStdin(t *testing.T) {
	s := withJob(t, 1)
	b := make([]byte, 3<<20)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	got := s.MusterWithInput(bytes.NewReader(b), nil, "exec", "-i", "web", "--", "cat")
	if got.Code != 0 || got.Stdout != string(b) || got.Stderr != "" {
		t.Errorf("code %d, %d bytes, %q", got.Code, len(got.Stdout), got.Stderr)
	}
	// Without -i there is none, and a stdin that is not read is no hindrance.
	s.MusterWithInput(strings.NewReader("x"), nil, "exec", "web", "--", "cat").Check(t, 0, "", "")
	s.MusterWithInput(bytes.NewReader(b), nil, "exec", "-i", "web", "--", "sh", "-c", "exit 3").Check(t, 3, "", "")
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
		{"exec --attach nope web/0", 1, "muster: execution nope: not found; `muster exec --list web/0` shows list executions\n"},
	} {
		s.Muster(nil, strings.Fields(tt.args)...).Check(t, tt.code, "", tt.stderr)
	}
	s.End(0, 1, 3)
	s.Muster(nil, "exec", "web/0", "--", "ls").Check(t, 1, "", "muster: web/0 \\(allocation u-0-1\\) has ended .* ago: failed: exit code 3; `muster job logs web` shows what it printed\n")
	s.Muster(nil, "exec", "u-0-1", "--", "ls").Check(t, 1, "", "muster: allocation u-0-1 has ended .*\n")
	s.Do(func() { s.Allocs[1].Status, s.Allocs[1].Detail = "starting", "pulling python:3.13" })
	s.Muster(nil, "exec", "web/1", "--", "ls").Check(t, 1, "", "muster: web/1 .* has not started yet: it is starting: pulling python:3.13; .*\n")
	// A runner's own command is of no interest to who used it.
	s.Do(func() {
		al := s.Allocs[1]
		now := time.Now()
		al.Job, al.Status, al.Outcome, al.Signal, al.StopCause, al.Ended = "env:python", "ended", "stopped", "SIGTERM", "released", &now
	})
	s.Muster(nil, "exec", "u-1-1", "--", "ls").Check(t, 1, "", "muster: allocation u-1-1 has ended .* ago: stopped: released; `muster claim python` claims another runner\n")
	s.Do(func() { s.Allocs[1].Namespace = "codeocean" })
	s.Muster(nil, "exec", "u-1-1", "--", "ls").Check(t, 1, "", "muster: .*; `muster claim codeocean/python` claims another runner\n")
	// It ends between the look and the request.
	s.Inside.Refuse = &api.Problem{Status: 410, Title: "Gone", Detail: "it has ended", Code: api.CodeEnded}
	s.Muster(nil, "exec", "web/2", "--", "ls").Check(t, 1, "", "muster: it has ended\n")
	s.Inside.Refuse = &api.Problem{Status: 503, Title: "Unavailable", Detail: "node n1 cannot be reached" + strings.Repeat(" for so long", 200)}
	r := s.Muster(nil, "exec", "web/2", "--", "ls") // a long refusal is told whole
	r.Check(t, 1, "", "muster: node n1 cannot be reached.*\n")
	if len(r.Stderr) < 2000 {
		t.Error(r.Stderr)
	}
}

func TestExecDetached(t *testing.T) {
	s := withJob(t, 1)
	s.Muster(nil, "exec", "--detach", "web", "--", "make", "all").Check(t, 0, "e1\n", "")
	if !s.Inside.Requests[0].Detach {
		t.Error(s.Inside.Requests)
	}
	s.Muster(nil, "exec", "--list", "web").Check(t, 0, "", "muster: web \\(allocation u-0-1\\) has no executions\n")
	began := time.Now().Add(-time.Minute)
	s.Inside.Known = []api.Execution{{ID: "e1", Running: true, Detached: true, Started: &began}}
	s.Muster(nil, "exec", "--list", "web").Check(t, 0, "EXECUTION  STATUS   KIND      RAN  REASON\ne1         running  detached  1m\n", "")
	s.Muster(nil, "exec", "--attach", "e1", "--signal", "TERM", "web").Check(t, 0, "", "")
	if len(s.Inside.Signals) != 1 || s.Inside.Signals[0] != "TERM" {
		t.Error(s.Inside.Signals)
	}
	// Attached over two connections that break: nothing is lost and nothing comes twice.
	s.Inside.Spool, s.Inside.Cut = strings.Repeat("0123456789", 1000), 2
	s.Muster(nil, "exec", "--attach", "e1", "web").Check(t, 5, s.Inside.Spool, "(muster: connection lost; the execution keeps running; reconnecting\n){2}")
	var from []int64
	for _, at := range s.Inside.Attached {
		from = append(from, at.Stdout)
	}
	if len(from) != 3 || from[0] != -1 || from[1] != 5000 || from[2] != 7500 {
		t.Error(from)
	}
}

func TestExecJSON(t *testing.T) {
	s := withJob(t, 1)
	s.MusterWithInput(strings.NewReader("in"), nil, "exec", "--json", "-i", "web", "--", "sh", "-c", "cat; echo e >&2; exit 3").Check(t, 3, `{
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
	s.Muster(nil, "exec", "-e", "CUT=1", "web", "--", "true").Check(t, 3, "part", "muster: the connection was lost: .*; the command ends with the connection; one that is started with --detach goes on\n")
}

func TestExecSignals(t *testing.T) {
	s := withJob(t, 1)
	const script = `trap 'echo int; exit 9' INT; trap 'echo term' TERM; echo up; exec 2>/dev/null; while :; do sleep 0.02; done`
	p := s.Begin(nil, "exec", "web", "--", "sh", "-c", script)
	clitest.Until(t, "up", p.Out.String)
	p.Signals <- syscall.SIGINT
	if code := p.End(t); code != 9 || p.Out.String() != "up\nint\n" {
		t.Errorf("code %d, %q %q", code, p.Out.String(), p.Errs.String())
	}
	// Twice quickly leaves.
	p = s.Begin(nil, "exec", "web", "--", "sh", "-c", script)
	clitest.Until(t, "up", p.Out.String)
	p.Signals <- syscall.SIGTERM
	clitest.Until(t, "term", p.Out.String)
	p.Signals <- syscall.SIGTERM
	if code := p.End(t); code != 130 || p.Errs.String() != "muster: left; the command is ended\n" {
		t.Errorf("code %d, %q", code, p.Errs.String())
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
	p = s.Begin(r, "exec", "-i", "web", "--", "sh", "-c", "echo up; exec sleep 1000")
	clitest.Until(t, "up", p.Out.String)
	p.Signals <- syscall.SIGINT
	s.Eventually(t, func() bool { return len(s.Inside.Signals) > 0 && s.Inside.Signals[len(s.Inside.Signals)-1] == "INT" })
	p.Signals <- syscall.SIGHUP
	if code := p.End(t); code != 130 {
		t.Error(code)
	}
}

// Whoever reads our stdout may leave: quietly, and the command is ended.
// TestExecWaitsForTheStart: who submits detached and enters at once need not look in between.
func TestExecWaitsForTheStart(t *testing.T) {
	s := withJob(t, 1)
	s.Do(func() { s.Allocs[0].Status = "starting" })
	var out, errs clitest.Buffer
	ended := make(chan int)
	go func() {
		ended <- s.Execute(&cli.App{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, StartWait: time.Minute}, "exec", "web", "--", "true")
	}()
	s.Eventually(t, func() bool { return strings.Contains(errs.String(), "waiting for job web to start") })
	s.Do(func() { s.Allocs[0].Status = "running" })
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
	var errs clitest.Buffer
	code := s.Execute(&cli.App{Stdin: strings.NewReader(""), Stdout: w, Stderr: &errs}, "exec", "web", "--", "yes")
	if code != 141 || errs.String() != "" {
		t.Errorf("code %d, %q", code, errs.String())
	}
}

func TestExecTerminal(t *testing.T) {
	s := withJob(t, 1)
	c := s.Console(t, "exec", "-it", "web", "--", "sh", "-c", "stty size; read x; echo got $x; stty size; exit 4")
	clitest.Until(t, "33 99", c.Seen.String)
	if !c.Raw(t) {
		t.Error("the keys are not the command's")
	}
	if err := pty.Setsize(c.Master, &pty.Winsize{Rows: 44, Cols: 88}); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGWINCH) // the kernel tells only who has it as its controlling terminal
	s.Eventually(t, func() bool { return len(s.Inside.Sizes) > 0 })
	_, _ = c.Master.WriteString("me\r")
	clitest.Until(t, "got me\r\n44 88", c.Seen.String)
	if code := c.End(t); code != 4 {
		t.Error(code)
	}
	// Ctrl-C is a key as any other.
	c = s.Console(t, "exec", "-it", "web", "--", "sh", "-c", "trap 'exit 9' INT; echo up; while :; do sleep 0.02; done")
	clitest.Until(t, "up", c.Seen.String)
	_, _ = c.Master.WriteString("\x03")
	if code := c.End(t); code != 9 {
		t.Error(code)
	}
}

// However it ends, the terminal is what it was.
func TestExecTerminalIsRestored(t *testing.T) {
	s := withJob(t, 1)
	c := s.Console(t, "exec", "-it", "-e", "CUT=1", "web", "--", "true")
	if code := c.End(t); code != 3 {
		t.Error(code)
	}
	clitest.Until(t, "the connection was lost", c.Seen.String)
	c = s.Console(t, "exec", "-it", "web", "--", "sh", "-c", "echo up; exec sleep 1000")
	clitest.Until(t, "up", c.Seen.String)
	c.Signals <- syscall.SIGHUP
	if code := c.End(t); code != 130 {
		t.Error(code)
	}
	c = s.Console(t, "exec", "-it", "web", "--", "no-such-program")
	if code := c.End(t); code != 127 {
		t.Error(code)
	}
	// With -t alone the keys stay here.
	c = s.Console(t, "exec", "-t", "web", "--", "sh", "-c", "echo up; test -t 1; sleep 0.1; exit 6")
	clitest.Until(t, "up", c.Seen.String)
	if code := c.End(t); code != 6 {
		t.Error(code)
	}
}

// Two signals leave an execution that was joined. The first was passed on to it: nobody promises
// that it goes on.
func TestLeftAfterSignal(t *testing.T) {
	s := withJob(t, 1)
	began := time.Now()
	s.Inside.Known = []api.Execution{{ID: "e1", Running: true, Detached: true, Started: &began}}
	s.Inside.Endless, s.Inside.Spool = true, "up\n"
	p := s.Begin(nil, "exec", "--attach", "e1", "web")
	clitest.Until(t, "up", p.Out.String)
	p.Signals <- syscall.SIGTERM
	s.Eventually(t, func() bool { return len(s.Inside.Signals) == 1 })
	p.Signals <- syscall.SIGTERM
	if code := p.End(t); code != 130 || p.Errs.String() != "muster: left; TERM was sent to the execution, which may end: `muster exec --attach e1 web`\n" {
		t.Errorf("code %d, %q", code, p.Errs.String())
	}
}

// top ends with q and leaves the terminal as it was.
func TestTopEndsWithQ(t *testing.T) {
	s := withJob(t, 1)
	c := s.Console(t, "top")
	clitest.Until(t, "web/0", c.Seen.String)
	for _, key := range "xq" {
		if _, err := c.Master.Write([]byte{byte(key)}); err != nil {
			t.Fatal(err)
		}
	}
	if code := c.End(t); code != 0 {
		t.Errorf("exit code %d, %q", code, c.Seen.String())
	}
}

// A terminal that images know is passed on; others would only keep programs from drawing.
func TestExecTerminalKind(t *testing.T) {
	for _, tt := range []struct {
		kind string
		env  []string
		tty  bool
		want string
	}{
		{"xterm-256color", nil, true, "xterm-256color"},
		{"xterm-256color", []string{"TERM=vt100"}, true, "vt100"},
		{"xterm-256color", nil, false, ""},
		{"xterm-ghostty", nil, true, ""},
		{"", nil, true, ""},
	} {
		t.Setenv("TERM", tt.kind)
		req, err := (&Executor{TTY: tt.tty, Env: tt.env}).request([]string{"web/0", "sh"})
		if err != nil || req.Env["TERM"] != tt.want {
			t.Errorf("%+v: %q, %v", tt, req.Env["TERM"], err)
		}
	}
}
