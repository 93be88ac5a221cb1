package sandbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/sandbox/sandboxtest"
	"github.com/musterhq/muster/internal/testwait"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// TestExecEnds: exit codes, signals, streams apart, nothing to read unless asked for.
func TestExecEnds(t *testing.T) {
	b := plain(t)
	for _, c := range []struct {
		script       string
		out, err     string
		exit, signal int
	}{
		{"echo hi", "hi\n", "", 0, 0},
		{"exit 7", "", "", 7, 0},
		{"echo no >&2; exit 255", "", "no\n", 255, 0},
		{"kill -9 $$", "", "", 0, 9},
		{"kill $$", "", "", 0, 15},
		{`printf 'a\000b\377\n'; printf '\001' >&2`, "a\x00b\xff\n", "\x01", 0, 0},
		{"cat; echo end", "end\n", "", 0, 0},
		{"pwd; echo $KEPT", "/\na b\n", "", 0, 0},
	} {
		h := b.all(sh(c.script))
		if h.stdout != c.out || h.stderr != c.err || h.ended.Exit != c.exit || h.ended.Signal != c.signal {
			t.Errorf("%s: %q, %q, %+v", c.script, h.stdout, h.stderr, h.ended)
		}
		if h.ended.TimedOut || h.ended.Why != "" || h.ended.Started == 0 || h.ended.Ended < h.ended.Started {
			t.Errorf("%s: %+v", c.script, h.ended)
		}
	}
	if st, err := (initwire.Client{Dir: b.dir}).Status(t.Context()); err != nil || !st.Running {
		t.Errorf("the command of the sandbox: %+v, %v", st, err)
	}
}

// TestExecExactly: arguments and environment arrive as they are given, and the execution's own environment goes before the sandbox's.
func TestExecExactly(t *testing.T) {
	b := plain(t)
	odd := []string{"", "a b", `"'$HOME'"`, "line\nbreak", "Grüße, 世界", `back\slash`, "*", "-n", "\t", "\x01\xfe"}
	h := b.all(&initwire.Exec{Command: append([]string{"/usr/bin/printf", `%s\0`}, odd...)})
	if got := strings.Split(strings.TrimSuffix(h.stdout, "\x00"), "\x00"); !slices.Equal(got, odd) {
		t.Errorf("arguments: %q, want %q", got, odd)
	}
	h = b.all(&initwire.Exec{Command: []string{"env", "-0"}, Env: []string{"KEPT=new\n value", "MORE=", "MORE=1=2"}})
	got := strings.Split(strings.TrimSuffix(h.stdout, "\x00"), "\x00")
	want := []string{"PATH=/usr/bin:/bin", "KEPT=new\n value", "ALSO=x", "MORE=1=2"}
	if !slices.Equal(got, want) {
		t.Errorf("environment %q, want %q", got, want)
	}
	h = b.all(&initwire.Exec{Command: []string{"env"}, CleanEnv: true, Env: []string{"ONLY=1"}, Work: "/usr"})
	if h.stdout != "ONLY=1\n" {
		t.Errorf("clean environment %q", h.stdout)
	}
	h = b.all(&initwire.Exec{Command: []string{"env"}, HideEnv: "KE", Env: []string{"KEPT2=own"}})
	if h.stdout != "PATH=/usr/bin:/bin\nALSO=x\nKEPT2=own\n" {
		t.Errorf("environment without what is hidden %q", h.stdout)
	}
	if h = b.all(&initwire.Exec{Command: []string{"pwd"}, Work: "/usr"}); h.stdout != "/usr\n" {
		t.Errorf("work directory %q", h.stdout)
	}
}

// TestExecRefused: what cannot be started says why, and leaves no id in use.
func TestExecRefused(t *testing.T) {
	b := plain(t)
	for _, c := range []struct {
		e            *initwire.Exec
		reason, says string
	}{
		{&initwire.Exec{Command: []string{"no-such"}}, initwire.ReasonCommandNotFound, "no-such"},
		{&initwire.Exec{Command: []string{"/etc/passwd"}}, initwire.ReasonNotExecutable, "/etc/passwd"},
		{&initwire.Exec{}, initwire.ReasonSpec, "empty"},
		{&initwire.Exec{Command: []string{"sh"}, Work: "/no/such"}, initwire.ReasonNoWorkdir, "/no/such"},
		{&initwire.Exec{Command: []string{"sh"}, User: "nobody"}, initwire.ReasonSpec, "nobody"},
		{&initwire.Exec{Command: []string{"sh"}, ID: "../x"}, initwire.ReasonSpec, "../x"},
		{&initwire.Exec{Command: []string{"sh"}, ID: strings.Repeat("x", 65)}, initwire.ReasonSpec, "64"},
		{&initwire.Exec{Command: []string{"sh\x00x"}}, initwire.ReasonCommandNotFound, "sh"},
	} {
		for _, tty := range []bool{false, true} {
			c.e.TTY = tty
			c.e.Detached = tty
			_, err := b.tryExec(c.e)
			var failed *initwire.Failed
			if !errors.As(err, &failed) || failed.Class != initwire.ClassUser || failed.Reason != c.reason || !strings.Contains(failed.Message, c.says) {
				t.Errorf("%+v: %v", c.e, err)
			}
		}
	}
	e := &initwire.Exec{ID: "one", Command: []string{"no-such"}}
	if _, err := b.tryExec(e); err == nil {
		t.Fatal("started")
	}
	e.Command = []string{"true"}
	b.all(e)
	_, err := b.tryExec(e)
	var failed *initwire.Failed
	if !errors.As(err, &failed) || failed.Reason != initwire.ReasonExecExists {
		t.Errorf("an id used twice: %v", err)
	}
	conn := b.dial()
	_ = conn.SetDeadline(time.Now().Add(sandboxtest.Patience))
	must(t, initwire.WriteFrame(conn, initwire.Kind(47), nil))
	if kind, _, err := initwire.ReadFrame(conn, initwire.MaxFrame); err != nil || kind != initwire.KindRefused {
		t.Errorf("unknown operation: %v, %v", kind, err)
	}
	_ = conn.Close()
	if err := initwire.SignalExec(t.Context(), b.dial(), "none", 1); !errors.As(err, &failed) || failed.Reason != initwire.ReasonNoExec {
		t.Errorf("signal to none: %v", err)
	}
	if err := initwire.SignalExec(t.Context(), b.dial(), "one", 1); !errors.As(err, &failed) || failed.Reason != initwire.ReasonExecEnded {
		t.Errorf("signal to one that ended: %v", err)
	}
	if _, err := initwire.AttachExec(t.Context(), b.dial(), &initwire.Attach{ID: "one"}); !errors.As(err, &failed) || failed.Reason != initwire.ReasonSpec {
		t.Errorf("attach to one that is not detached: %v", err)
	}
}

// TestExecLarge: 100 MB through a program, in and out, without a changed byte.
func TestExecLarge(t *testing.T) {
	size := 100 << 20
	if testing.Short() {
		size = 10 << 20
	}
	b := plain(t)
	x := b.exec(&initwire.Exec{Command: []string{"sh", "-c", "tee /dev/stderr"}, Stdin: true})
	sent := sha256.New()
	go func() {
		random := rand.New(rand.NewSource(1))
		block := make([]byte, 100_003)
		for left := size; left > 0; left -= len(block) {
			block = block[:min(left, len(block))]
			_, _ = random.Read(block)
			sent.Write(block)
			if x.WriteStdin(block) != nil {
				return
			}
		}
		_ = x.CloseStdin()
	}()
	out, errs := sha256.New(), sha256.New()
	for {
		kind, data, ended, err := x.Next()
		must(t, err)
		if ended != nil {
			if ended.Exit != 0 {
				t.Errorf("%+v", ended)
			}
			break
		}
		if kind == initwire.KindStdout {
			out.Write(data)
		} else {
			errs.Write(data)
		}
	}
	if want := sent.Sum(nil); !bytes.Equal(out.Sum(nil), want) || !bytes.Equal(errs.Sum(nil), want) {
		t.Error("what came back is not what was sent")
	}
}

// TestExecSlowReader: who does not read slows the program down and nothing else, and loses nothing.
func TestExecSlowReader(t *testing.T) {
	b := plain(t)
	count := filepath.Join(b.dir, "count")
	x := b.exec(sh("i=0; while [ $i -lt 3000 ]; do printf '%01000d' $i; i=$((i+1)); echo $i >" + count + "; done"))
	written := func() int {
		text, _ := os.ReadFile(count)
		n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return n
	}
	last := -1
	testwait.Within(t, sandboxtest.Patience, "the program goes on although nobody reads", func() bool {
		before := written()
		time.Sleep(100 * time.Millisecond)
		last = written()
		return last > 0 && last == before
	})
	if last >= 2000 {
		t.Errorf("%d kB were printed unread", last)
	}
	if h := b.all(sh("echo other")); h.stdout != "other\n" {
		t.Errorf("another one: %+v", h)
	}
	h, err := listen(x)
	must(t, err)
	if len(h.stdout) != 3_000_000 || !strings.HasSuffix(h.stdout, "2999") || h.ended.Exit != 0 {
		t.Errorf("%d bytes, %+v", len(h.stdout), h.ended)
	}
}

// TestExecFullStdin: a program that does not read holds up only its own connection, and can be signalled on another.
func TestExecFullStdin(t *testing.T) {
	b := plain(t)
	x := b.exec(&initwire.Exec{ID: "deaf", Command: []string{"sleep", "100000"}, Stdin: true})
	sent := make(chan error, 1)
	go func() { sent <- x.WriteStdin(make([]byte, 10<<20)) }()
	must(t, initwire.SignalExec(t.Context(), b.dial(), "deaf", syscall.SIGTERM))
	h, err := listen(x)
	must(t, err)
	if h.ended.Signal != int(syscall.SIGTERM) {
		t.Errorf("%+v", h.ended)
	}
	<-sent
	// The same, but the client leaves, unseen behind all that it sent.
	x = b.exec(&initwire.Exec{ID: "deaf2", Command: []string{"sleep", "100000"}, Stdin: true})
	go func() { sent <- x.WriteStdin(make([]byte, 10<<20)) }()
	testwait.Within(t, sandboxtest.Patience, "it runs", func() bool { return b.running("deaf2") })
	time.Sleep(50 * time.Millisecond)
	must(t, x.Close())
	testwait.Within(t, sandboxtest.Patience, "it goes on without its client", func() bool { return !b.running("deaf2") })
}

func (b *box) running(id string) bool {
	e, ok := b.listed(id)
	return ok && e.Running
}

func (b *box) listed(id string) (initwire.ExecState, bool) {
	all, err := initwire.ListExecs(context.Background(), b.dial())
	if err != nil {
		b.t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(e initwire.ExecState) bool { return e.ID == id })
	if i < 0 {
		return initwire.ExecState{}, false
	}
	return all[i], true
}

// TestExecLeft: a client that goes away ends its execution, gently first.
func TestExecLeft(t *testing.T) {
	b := plain(t)
	said := filepath.Join(b.dir, "said")
	x := b.exec(&initwire.Exec{ID: "left", KillGrace: time.Hour, Command: []string{
		"sh", "-c", "trap 'echo hup >>" + said + "' HUP; trap 'echo term >>" + said + "; exit 3' TERM; echo ready; while :; do sleep 0.01; done"}})
	if _, data, _, err := x.Next(); err != nil || string(data) != "ready\n" {
		t.Fatal(string(data), err)
	}
	must(t, x.Close())
	testwait.Within(t, sandboxtest.Patience, "it goes on", func() bool { return !b.running("left") })
	text, _ := os.ReadFile(said)
	if !strings.Contains(string(text), "term") {
		t.Errorf("it was told %q", text)
	}
	if e, _ := b.listed("left"); e.Ended.Exit != 3 || e.Ended.Why == "" {
		t.Errorf("%+v", e)
	}
	// One that will not hear of it.
	x = b.exec(&initwire.Exec{ID: "stubborn", KillGrace: 50 * time.Millisecond, Command: []string{
		"sh", "-c", "trap '' HUP TERM; echo ready; while :; do sleep 0.01; done"}})
	if _, data, _, err := x.Next(); err != nil || string(data) != "ready\n" {
		t.Fatal(string(data), err)
	}
	must(t, x.Close())
	testwait.Within(t, sandboxtest.Patience, "it goes on", func() bool { return !b.running("stubborn") })
	if e, _ := b.listed("stubborn"); e.Ended.Signal != 9 {
		t.Errorf("%+v", e)
	}
}

// TestExecTimeout: TERM at the limit, KILL to the whole group after the grace, and the sandbox stays usable.
func TestExecTimeout(t *testing.T) {
	b := plain(t)
	h := b.all(&initwire.Exec{Command: []string{"sleep", "100000"}, Timeout: 50 * time.Millisecond})
	if !h.ended.TimedOut || h.ended.Signal != int(syscall.SIGTERM) || !strings.Contains(h.ended.Why, "50ms") {
		t.Errorf("%+v", h.ended)
	}
	h = b.all(&initwire.Exec{
		Command: []string{"sh", "-c", "trap '' TERM; (trap '' TERM; echo $$; sleep 100000) & echo $!; wait; sleep 100000"},
		Timeout: 1500 * time.Millisecond, KillGrace: 50 * time.Millisecond,
	})
	if !h.ended.TimedOut || h.ended.Signal != 9 {
		t.Errorf("%+v", h.ended)
	}
	for _, word := range strings.Fields(h.stdout) {
		pid, _ := strconv.Atoi(word)
		testwait.Within(t, sandboxtest.Patience, "a process of the group lives on", func() bool { return !alive(pid) })
	}
	h = b.all(&initwire.Exec{Command: []string{"sh", "-c", "sleep 100000"}, Timeout: 50 * time.Millisecond, KillGrace: -1})
	if !h.ended.TimedOut || h.ended.Signal != 9 {
		t.Errorf("%+v", h.ended)
	}
	if h := b.all(sh("echo still")); h.stdout != "still\n" {
		t.Errorf("%+v", h)
	}
}

// TestExecLeftovers: what outlives its leader may still print, is not waited for for long, and is killed.
func TestExecLeftovers(t *testing.T) {
	b := plain(t)
	// Like process substitution: the reader at the end of the pipe finishes after the shell.
	h := b.all(sh("(sleep 0.2; echo late) & echo early"))
	if h.stdout != "early\nlate\n" {
		t.Errorf("%q", h.stdout)
	}
	for _, script := range []string{
		"sleep 100000 & echo $!",                               // holds the output
		"sleep 100000 >/dev/null 2>&1 & echo $!",               // does not
		"(sh -c 'sleep 100000 & echo $!; wait' & wait) & wait", // deeper, killed from outside below
	} {
		e := sh(script)
		if strings.HasPrefix(script, "(") {
			e.Timeout, e.KillGrace = 1500*time.Millisecond, -1
		}
		h := b.all(e)
		pid, err := strconv.Atoi(strings.TrimSpace(h.stdout))
		must(t, err)
		testwait.Within(t, sandboxtest.Patience, script+": it lives on", func() bool { return !alive(pid) })
	}
	// One that left the group is nobody's: it is told from the output and lives on.
	h = b.all(sh("setsid sleep 100000 & sleep 0.1; echo done"))
	if h.stdout != "done\n" || h.ended.Exit != 0 {
		t.Errorf("%+v", h)
	}
}

// TestExecStdin: what is sent is read, until it is closed.
func TestExecStdin(t *testing.T) {
	b := plain(t)
	x := b.exec(&initwire.Exec{Command: []string{"sh", "-c", "read a; echo $a; cat; echo end"}, Stdin: true})
	must(t, x.WriteStdin([]byte("first\n")))
	if _, data, _, err := x.Next(); err != nil || string(data) != "first\n" {
		t.Fatal(string(data), err)
	}
	must(t, x.WriteStdin([]byte("more\n")))
	must(t, x.CloseStdin())
	h, err := listen(x)
	must(t, err)
	if h.stdout != "more\nend\n" {
		t.Errorf("%q", h.stdout)
	}
	// One that stops reading early is not disturbed, nor is its client.
	x = b.exec(&initwire.Exec{Command: []string{"sh", "-c", "read a; exec 0<&-; echo $a; sleep 0.2; exit 4"}, Stdin: true})
	go func() { _ = x.WriteStdin(append([]byte("one\n"), make([]byte, 1<<20)...)) }()
	if h, err := listen(x); err != nil || h.stdout != "one\n" || h.ended.Exit != 4 {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestExecSignal: to the process group, in the connection and beside it.
func TestExecSignal(t *testing.T) {
	b := plain(t)
	x := b.exec(&initwire.Exec{ID: "sig", Command: []string{"sh", "-c", "exec 2>/dev/null; trap 'echo usr1' USR1; trap 'exit 9' USR2; echo ready; while :; do sleep 0.01; done"}})
	next := func(want string) {
		t.Helper()
		if _, data, _, err := x.Next(); err != nil || string(data) != want {
			t.Fatalf("%q, %v", data, err)
		}
	}
	next("ready\n")
	must(t, x.Signal(syscall.SIGUSR1))
	next("usr1\n")
	must(t, initwire.SignalExec(t.Context(), b.dial(), "sig", syscall.SIGUSR1))
	next("usr1\n")
	must(t, x.Signal(syscall.SIGUSR2))
	h, err := listen(x)
	must(t, err)
	if h.ended.Exit != 9 {
		t.Errorf("%+v", h.ended)
	}
}

// TestExecTerminal: a session of its own with a terminal of the right size, whose end of input is a key.
func TestExecTerminal(t *testing.T) {
	b := plain(t)
	x := b.exec(&initwire.Exec{
		Command: []string{"sh", "-c", "trap 'stty size; won=1' WINCH; stty -echo -onlcr; test -t 0 && test -t 1 && test -t 2 && tty; echo $TERM; stty size; echo ready >&2; " +
			"while [ -z \"$won\" ]; do sleep 0.01; done; trap - WINCH; while read a; do echo \"got $a\"; done; echo rest \"$a\"; exit 5"},
		TTY: true, Rows: 33, Cols: 111, Stdin: true,
	})
	var seen strings.Builder
	until := func(want string) {
		t.Helper()
		for !strings.Contains(seen.String(), want) {
			kind, data, _, err := x.Next()
			if err != nil || kind != initwire.KindStdout {
				t.Fatalf("%v %v after %q", kind, err, seen.String())
			}
			seen.Write(data)
		}
	}
	until("ready\n")
	if got := seen.String(); !strings.HasPrefix(got, "/dev/pts/") || !strings.HasSuffix(got, "\nxterm\n33 111\nready\n") {
		t.Errorf("%q", got)
	}
	must(t, x.Resize(initwire.Size{Rows: 10, Cols: 20}))
	until("10 20\n")
	must(t, x.WriteStdin([]byte("a line\n")))
	until("got a line\n")
	must(t, x.WriteStdin([]byte("half")))
	must(t, x.CloseStdin())
	h, err := listen(x)
	must(t, err)
	if !strings.Contains(h.stdout, "rest half\n") || h.ended.Exit != 5 {
		t.Errorf("%+v", h)
	}
	// The interrupt key reaches the foreground; and who leaves hangs up.
	x = b.exec(&initwire.Exec{Command: []string{"cat"}, TTY: true, Stdin: true})
	must(t, x.WriteStdin([]byte{3}))
	if h, err := listen(x); err != nil || h.ended.Signal != int(syscall.SIGINT) {
		t.Errorf("%+v, %v", h, err)
	}
	x = b.exec(&initwire.Exec{ID: "hangup", Command: []string{"cat"}, TTY: true, Stdin: true})
	must(t, x.Close())
	testwait.Within(t, sandboxtest.Patience, "it goes on without its terminal", func() bool { return !b.running("hangup") })
}

// TestExecTerminalWithoutStderr: what goes to stderr is no part of the terminal, detached or not.
func TestExecTerminalWithoutStderr(t *testing.T) {
	b := plain(t)
	script := "test -t 0 && test -t 1 && ! test -t 2 && echo out && echo err >&2; exit 4"
	h := b.all(&initwire.Exec{Command: []string{"sh", "-c", script}, TTY: true, OwnStderr: true})
	if h.stdout != "out\r\n" || h.stderr != "err\n" || h.ended.Exit != 4 {
		t.Errorf("%q, %q, %+v", h.stdout, h.stderr, h.ended)
	}
	h = b.all(&initwire.Exec{Command: []string{"sh", "-c", script}, TTY: true, OwnStderr: true, Detached: true})
	if h.stdout != "out\r\n" || h.stderr != "err\n" || h.ended.Exit != 4 {
		t.Errorf("detached: %q, %q, %+v", h.stdout, h.stderr, h.ended)
	}
	// Without a terminal they are apart anyway.
	if h = b.all(&initwire.Exec{Command: []string{"sh", "-c", "echo a; echo b >&2"}, OwnStderr: true}); h.stdout != "a\n" || h.stderr != "b\n" {
		t.Errorf("%q, %q", h.stdout, h.stderr)
	}
}

// TestExecMany: several hundred at once, each with its own output and exit code.
func TestExecMany(t *testing.T) {
	const n = 200
	b := plain(t)
	gate := filepath.Join(b.dir, "gate")
	must(t, syscall.Mkfifo(gate, 0o600))
	var all sync.WaitGroup
	ready := make(chan struct{}, n)
	for i := range n {
		all.Go(func() {
			e := sh(fmt.Sprintf("echo up; read x <%s; echo out %d; echo err %d >&2; exit %d", gate, i, i, i%200))
			e.ID = "many-" + strconv.Itoa(i)
			x, err := b.tryExec(e)
			if err == nil {
				_, _, _, err = x.Next()
			}
			ready <- struct{}{}
			if err != nil {
				t.Errorf("%d: %v", i, err)
				return
			}
			h, err := listen(x)
			if err != nil || h.stdout != fmt.Sprintf("out %d\n", i) || h.stderr != fmt.Sprintf("err %d\n", i) || h.ended.Exit != i%200 {
				t.Errorf("%d: %+v, %v", i, h, err)
			}
		})
	}
	for range n {
		<-ready
	}
	list, err := initwire.ListExecs(t.Context(), b.dial())
	must(t, err)
	if running := slices.IndexFunc(list, func(e initwire.ExecState) bool { return !e.Running }); len(list) != n || running >= 0 {
		t.Errorf("%d executions, not running: %d", len(list), running)
	}
	w, err := os.OpenFile(gate, os.O_WRONLY, 0)
	must(t, err)
	_, err = w.WriteString(strings.Repeat("\n", n))
	must(t, err)
	all.Wait()
	must(t, w.Close())
}

// TestExecStatuses: ends are never mixed up or lost, however quick they are, among orphans that die as well.
func TestExecStatuses(t *testing.T) {
	b := plain(t)
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := range 40 {
				code := (w*40 + i) % 256
				e := sh(fmt.Sprintf("(setsid true &) ; exit %d", code))
				if i%2 == 0 {
					e = &initwire.Exec{Command: []string{"sh", "-c", fmt.Sprintf("exit %d", code)}}
				}
				x, err := b.tryExec(e)
				if err != nil {
					t.Error(err)
					return
				}
				if h, err := listen(x); err != nil || h.ended.Exit != code || h.ended.Signal != 0 {
					t.Errorf("exit %d: %+v, %v", code, h.ended, err)
				}
			}
		})
	}
	all.Wait()
	testwait.Within(t, sandboxtest.Patience, "dead orphans are not reaped", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", b.cmd.Process.Pid, b.cmd.Process.Pid))
		return err == nil && len(strings.Fields(string(text))) == 1
	})
}

// TestExecSandboxEnds: with the command all executions end, are told so, and the sandbox's result waits for none of them.
func TestExecSandboxEnds(t *testing.T) {
	b := plain(t)
	attached := b.exec(&initwire.Exec{ID: "a", Command: []string{"sh", "-c", "trap '' TERM HUP; sleep 100000"}})
	b.exec(&initwire.Exec{ID: "d", Command: []string{"sleep", "100000"}, Detached: true})
	follower := b.attach(&initwire.Attach{ID: "d"})
	unread := b.exec(sh("yes"))
	st, err := (initwire.Client{Dir: b.dir}).Status(t.Context())
	must(t, err)
	must(t, syscall.Kill(st.Command.Pid, syscall.SIGKILL))
	for _, x := range []*initwire.Execution{attached, follower} {
		h, err := listen(x)
		if err != nil || h.ended.Signal != 9 || !strings.Contains(h.ended.Why, "command of the sandbox") {
			t.Errorf("%+v, %v", h.ended, err)
		}
	}
	<-b.ended
	_ = unread.Close()
	stopped := plain(t)
	x := stopped.exec(&initwire.Exec{Command: []string{"sleep", "100000"}})
	must(t, initwire.Client{Dir: stopped.dir}.Stop(t.Context(), sandboxtest.Patience))
	if h, err := listen(x); err != nil || h.ended.Why != "the sandbox was stopped" {
		t.Errorf("%+v, %v", h.ended, err)
	}
	if r := b.record(); r.Result == nil || r.Result.Signal != 9 || r.Result.Leftovers {
		t.Errorf("%+v", r.Result)
	}
}

// TestExecBounds: more operations than are served at once are refused with a sentence, and the rest goes on.
func TestExecBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("starts 512 programs")
	}
	b := plain(t)
	var held []io.Closer
	refused := ""
	for range maxOperations + 1 {
		x, err := b.tryExec(&initwire.Exec{Command: []string{"sleep", "100000"}})
		if err != nil {
			if !errors.Is(err, initwire.ErrRefused) {
				t.Fatal(err)
			}
			refused = err.Error()
			continue
		}
		held = append(held, x)
	}
	if len(held) != maxOperations || !strings.Contains(refused, strconv.Itoa(maxOperations)) {
		t.Errorf("%d are served, then %q", len(held), refused)
	}
	for _, x := range held {
		_ = x.Close()
	}
	testwait.Within(t, sandboxtest.Patience, "no room after all have left", func() bool {
		x, err := b.tryExec(&initwire.Exec{Command: []string{"true"}})
		if err != nil {
			return false
		}
		_, err = listen(x)
		return err == nil
	})
	// The oldest that have ended are forgotten.
	testwait.Within(t, sandboxtest.Patience, "more are remembered than said", func() bool {
		list, err := initwire.ListExecs(t.Context(), b.dial())
		must(t, err)
		return len(list) <= initwire.MaxExecs+1
	})
}
