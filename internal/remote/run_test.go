package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/testwait"
)

func TestRun(t *testing.T) {
	_, c := newServer(t, false)
	conn := dialTest(t, c)
	for _, x := range []struct {
		name           string
		cmd            Command
		exit           int
		signal         string
		stdout, stderr string
	}{
		{"status", Command{Script: "echo out; echo err >&2; exit 7"}, 7, "", "out\n", "err\n"},
		{"stdin", Command{Args: []string{"cat"}, Stdin: strings.NewReader("what comes in")}, 0, "", "what comes in", ""},
		{"no stdin", Command{Args: []string{"cat"}}, 0, "", "", ""},
		{"much stdin that is not read", Command{Args: []string{"true"}, Stdin: bytes.NewReader(make([]byte, 8<<20))}, 0, "", "", ""},
		{"arguments", Command{Script: `printf "%s," "$@"`, Args: []string{"a b", "", "it's", "*", "$x"}}, 0, "", "a b,,it's,*,$x,", ""},
		{"signal", Command{Script: "kill -TERM $$"}, -1, "TERM", "", ""},
		{"no such program", Command{Args: []string{"/nowhere/at/all"}}, 127, "", "", ""},
		{"something left behind", Command{Script: "sleep 1000 & echo started; echo $! >&2"}, 0, "", "started\n", ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			r, err := conn.Run(t.Context(), x.cmd)
			if x.name == "something left behind" {
				defer func() { _ = exec.Command("kill", strings.TrimSpace(string(r.Stderr))).Run() }()
				r.Stderr, x.stderr = bytes.TrimSpace(r.Stderr), strings.TrimSpace(string(r.Stderr))
			}
			if x.exit == 127 {
				x.stderr = string(r.Stderr)
			}
			if err != nil || r.Exit != x.exit || r.Signal != x.signal || string(r.Stdout) != x.stdout || string(r.Stderr) != x.stderr {
				t.Errorf("exit %d %s, stdout %q, stderr %q, %v", r.Exit, r.Signal, r.Stdout, r.Stderr, err)
			}
		})
	}
	_, err := conn.Run(t.Context(), Command{})
	wantKind(t, err, muster.FaultInvalid)
}

func TestFailureInWords(t *testing.T) {
	for want, r := range map[string]Result{
		"":                            {},
		"exit status 3":               {Exit: 3},
		"exit status 3: no such file": {Exit: 3, Stderr: []byte("trying\nno such file\n")},
		"killed by SIGKILL":           {Exit: -1, Signal: "KILL"},
	} {
		if got := r.Failure(); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

// A command that hangs is given up in time, and killed.
func TestRunLimit(t *testing.T) {
	_, c := newServer(t, false)
	conn := dialTest(t, c)
	file := filepath.Join(t.TempDir(), "pid")
	_, err := conn.Run(t.Context(), Command{Script: `echo $$ > "$1"; exec sleep 1000`, Args: []string{file}, Limit: 300 * time.Millisecond})
	wantKind(t, err, muster.FaultAmbiguous)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), c.Address) {
		t.Error(err)
	}
	testwait.Until(t, "the command to be dead", func() bool {
		b, err := os.ReadFile(file)
		if err != nil || len(b) == 0 {
			return false
		}
		_, err = os.Stat("/proc/" + strings.TrimSpace(string(b)))
		return errors.Is(err, os.ErrNotExist)
	})
}

// When the connection goes, nobody knows what became of the command.
func TestRunCutOff(t *testing.T) {
	s, c := newServer(t, false)
	conn := dialTest(t, c)
	file := filepath.Join(t.TempDir(), "began")
	go func() {
		testwait.Until(t, "the command to begin", func() bool { _, err := os.Stat(file); return err == nil })
		s.cut()
	}()
	_, err := conn.Run(t.Context(), Command{Script: `: > "$1"; cat`, Args: []string{file}, Stdin: forever{t.Context()}})
	wantKind(t, err, muster.FaultAmbiguous)
}

// forever is a reader that says nothing until its context ends.
type forever struct{ ctx context.Context }

func (f forever) Read([]byte) (int, error) { <-f.ctx.Done(); return 0, io.EOF }

// A host that says more than anybody wants costs no memory; its beginning and its end are kept.
func TestFlood(t *testing.T) {
	_, c := newServer(t, false)
	conn := dialTest(t, c)
	r, err := conn.Run(t.Context(), Command{Script: "echo begin; head -c 20000000 /dev/zero; echo end; head -c 3000000 /dev/zero >&2", Output: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(r.Stdout, []byte("begin\n")) || !bytes.HasSuffix(r.Stdout, []byte("end\n")) || !strings.Contains(string(r.Stdout), "left out") || len(r.Stdout) > 1100 {
		t.Errorf("%d bytes: %q", len(r.Stdout), r.Stdout)
	}
	if want := int64(20000000 + 10 - 1000 + 3000000 - 1000); r.Missing != want {
		t.Errorf("%d missing, not %d", r.Missing, want)
	}
}

// Hosts that do not keep to the protocol.
func TestRunOnHostileHosts(t *testing.T) {
	for name, command := range map[string]func(ch ssh.Channel, line string) int{
		"no status": func(ssh.Channel, string) int { return -1 },
		"bad status": func(ch ssh.Channel, _ string) int {
			_, _ = ch.SendRequest("exit-status", false, []byte("x"))
			return -1
		},
		"statuses": func(ch ssh.Channel, _ string) int {
			for i := range 100 {
				_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(&struct{ S uint32 }{uint32(i + 1)}))
			}
			return 0
		},
		"requests": func(ch ssh.Channel, _ string) int {
			for range 1000 {
				_, _ = ch.SendRequest("window-change", false, nil)
			}
			return 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := newServer(t, false)
			s.be(func(m *manner) { m.command = command })
			conn := dialTest(t, c)
			r, err := conn.Run(t.Context(), Command{Args: []string{"x"}})
			switch name {
			case "statuses", "requests":
				if err != nil || r.Exit != 1 {
					t.Errorf("exit %d, %v: the first is the one", r.Exit, err)
				}
			default:
				wantKind(t, err, muster.FaultAmbiguous)
			}
		})
	}
}

// A host that answers keep-alives and nothing else: each call ends in its time, and what was left behind ends with the connection.
func TestDeafHosts(t *testing.T) {
	for deaf, kind := range map[string]muster.FaultKind{"open": muster.FaultUnavailable, "exec": muster.FaultAmbiguous} {
		t.Run(deaf, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, c := newServer(t, true)
				s.be(func(m *manner) { m.deaf = deaf })
				c.Program = "/muster-node"
				conn := dialTest(t, c)
				began := time.Now()
				_, err := conn.Run(t.Context(), Command{Args: []string{"true"}, Limit: time.Second})
				wantKind(t, err, kind)
				if took := time.Since(began); took != time.Second {
					t.Errorf("given up after %s", took)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				u, err := conn.DialUnix(ctx, "/s")
				if deaf == "open" {
					wantKind(t, err, muster.FaultUnavailable)
				} else if err != nil { // it was opened, and says nothing
					t.Error(err)
				} else {
					if err := u.SetDeadline(time.Now().Add(time.Second)); err != nil {
						t.Error(err)
					}
					if _, err := u.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Error(err)
					}
					_ = u.Close()
				}
				_, f := program(t, 10)
				ctx, cancel = context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err = conn.Put(ctx, f)
				wantKind(t, err, muster.FaultUnavailable)
				if err := conn.Err(); err != nil {
					t.Errorf("the connection has ended: %v", err)
				}
			})
		})
	}
}

// onPath makes programs that hosts find before all others; with alone they find nothing else.
func onPath(t *testing.T, s *sshServer, scripts map[string]string, alone ...string) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := dir + ":" + os.Getenv("PATH")
	if len(alone) > 0 {
		path = dir
	}
	for _, name := range alone {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(program, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s.be(func(m *manner) { m.env = append(m.env, "PATH="+path) })
}

const goodSudo = `[ "$1" = -n ] || exit 9; shift; [ "$1" != -- ] || shift; AS_ROOT=yes exec "$@"`

func TestSudo(t *testing.T) {
	asRoot := Command{Script: `echo "$AS_ROOT"; exit "$1"`, Args: []string{"1"}, Root: true}
	t.Run("allowed", func(t *testing.T) {
		s, c := newServer(t, false)
		c.User = "ada"
		onPath(t, s, map[string]string{"sudo": goodSudo})
		conn := dialTest(t, c)
		for range 2 {
			r, err := conn.Run(t.Context(), asRoot)
			if err != nil || r.Exit != 1 || string(r.Stdout) != "yes\n" {
				t.Errorf("exit %d %q %v", r.Exit, r.Stdout, err)
			}
		}
		if n := s.channels("session"); n != 3 { // sudo itself is asked once
			t.Errorf("%d sessions", n)
		}
		if f, err := conn.Probe(t.Context()); err != nil || !f.Root {
			t.Errorf("%+v %v", f, err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		s, c := newServer(t, false)
		c.User = "ada"
		onPath(t, s, map[string]string{"sudo": "echo 'sudo: ein Passwort ist notwendig' >&2; exit 1"})
		conn := dialTest(t, c)
		_, err := conn.Run(t.Context(), asRoot)
		wantKind(t, err, muster.FaultAuth)
		for _, part := range []string{"ada", c.Address, "NOPASSWD", "ein Passwort ist notwendig"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %s", err, part)
			}
		}
	})
	t.Run("not there", func(t *testing.T) {
		s, c := newServer(t, false)
		c.User = "ada"
		onPath(t, s, nil, "sh")
		_, err := dialTest(t, c).Run(t.Context(), asRoot)
		wantKind(t, err, muster.FaultAuth)
	})
	t.Run("root needs none", func(t *testing.T) {
		s, c := newServer(t, false)
		onPath(t, s, map[string]string{"sudo": "exit 1"})
		if r, err := dialTest(t, c).Run(t.Context(), asRoot); err != nil || string(r.Stdout) != "\n" {
			t.Errorf("%q %v", r.Stdout, err)
		}
	})
}

// A socket that is root's is reached through sudo, once the user was found not to be let in.
func TestSocketOfRoot(t *testing.T) {
	s, c := newServer(t, false)
	s.be(func(m *manner) { m.forbid = true }) // sshd, as the user, may not connect
	c.User = "ada"
	dir := t.TempDir()
	c.Program = filepath.Join(dir, "node")
	if err := os.WriteFile(c.Program, []byte("#!/bin/sh\n[ -n \"$AS_ROOT\" ] || { echo 'connect: permission denied' >&2; exit 77; }\nexec /proc/"+fmt.Sprint(os.Getpid())+"/exe \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	onPath(t, s, map[string]string{"sudo": goodSudo})
	path := listenUnix(t, echo)
	conn := dialTest(t, c)
	for range 2 {
		u, err := conn.DialUnix(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := u.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(u, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		_ = u.Close()
	}
	if n := s.channels("session"); n != 3 {
		t.Errorf("%d sessions: what was found out is forgotten", n)
	}

	s, c2 := newServer(t, false)
	s.be(func(m *manner) { m.forbid = true })
	c2.User, c2.Program = "ada", c.Program
	onPath(t, s, map[string]string{"sudo": "echo no >&2; exit 1"})
	_, err := dialTest(t, c2).DialUnix(t.Context(), path)
	wantKind(t, err, muster.FaultAuth)
	if !strings.Contains(err.Error(), "NOPASSWD") {
		t.Error(err)
	}
}

func TestProbe(t *testing.T) {
	s, c := newServer(t, false)
	want := strings.TrimSpace(goArch(uname(t)))
	f, err := dialTest(t, c).Probe(t.Context())
	if err != nil || f.Arch != want || f.UID != os.Getuid() {
		t.Errorf("%+v %v", f, err)
	}
	for machine, arch := range map[string]string{"aarch64": "arm64", "armv7l": "arm", "i686": "386", "loongarch64": "loong64", "riscv64": "riscv64"} {
		onPath(t, s, map[string]string{"uname": "[ $1 = -s ] && echo Linux || echo " + machine})
		if got, err := dialTest(t, c).Arch(t.Context()); err != nil || got != arch {
			t.Errorf("%s is %q: %v", machine, got, err)
		}
	}
	for _, script := range []string{"[ $1 = -s ] && echo OpenBSD || echo amd64", "[ $1 = -s ] && echo Linux || echo vax"} {
		onPath(t, s, map[string]string{"uname": script})
		_, err := dialTest(t, c).Arch(t.Context())
		wantKind(t, err, muster.FaultInvalid)
	}
	s.be(func(m *manner) {
		m.command = func(ch ssh.Channel, _ string) int {
			_, _ = io.WriteString(ch.Stderr(), "This account is currently not available.\n")
			return 1
		}
	})
	_, err = dialTest(t, c).Probe(t.Context())
	wantKind(t, err, muster.FaultInvalid)
	if !strings.Contains(err.Error(), "not available") {
		t.Error(err)
	}
}

func uname(t *testing.T) string {
	t.Helper()
	b, err := exec.Command("uname", "-m").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// A real shell reads back what was quoted.
func TestQuote(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringOf(rapid.RuneFrom([]rune("ab'\"\\ $`*?!~#&;|<>(){}[]=%\n\tä-./"))), 1, 5).Draw(t, "words")
		b, err := exec.Command("/bin/sh", "-c", "printf '%s\\0' "+Quote(words...)).Output()
		if want := strings.Join(words, "\x00") + "\x00"; err != nil || string(b) != want {
			t.Fatalf("%s became %q: %v", Quote(words...), b, err)
		}
	})
}

// An excerpt is what somebody would keep who has all of it.
func TestExcerpt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(0, 20).Draw(t, "limit")
		e := &excerpt{limit: limit}
		var all []byte
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 15), 0, 12).Draw(t, "writes") {
			part := make([]byte, n)
			for i := range part {
				part[i] = byte('a' + (len(all)+i)%26)
			}
			all = append(all, part...)
			if got, err := e.Write(part); got != n || err != nil {
				t.Fatalf("%d written of %d: %v", got, n, err)
			}
		}
		head, tail, missing := e.kept()
		first := min(len(all), limit-limit/2)
		rest := all[first:]
		last := rest[max(len(rest)-limit/2, 0):]
		if !bytes.Equal(head, all[:first]) || !bytes.Equal(tail, last) || missing != int64(len(rest)-len(last)) {
			t.Fatalf("of %q: %q … %q, %d missing", all, head, tail, missing)
		}
	})
}
