package remote

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/testwait"
)

// sshd starts a real one on a loopback port, with a configuration of its own.
func sshd(t testing.TB, options ...string) Config {
	t.Helper()
	program := "/usr/sbin/sshd"
	if _, err := os.Stat(program); err != nil {
		t.Skip("OpenSSH's sshd is not installed")
	}
	if os.Geteuid() == 0 {
		// Its privilege separation wants this directory, as packages and boot scripts make it.
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Skip("sshd needs /run/sshd: ", err)
		}
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	hostPrivate, hostPublic, err := NewKey("host")
	if err != nil {
		t.Fatal(err)
	}
	hostKey, err := ParseHostKey(hostPublic)
	if err != nil {
		t.Fatal(err)
	}
	ours := newKey(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(address)
	keyOptions, options := splitOptions(options)
	text := strings.Join(append(options,
		"ListenAddress 127.0.0.1", "Port "+port, "HostKey "+write("host_key", hostPrivate.Reveal()),
		"AuthorizedKeysFile "+write("authorized_keys", keyOptions+string(ssh.MarshalAuthorizedKey(ours.PublicKey()))),
		"PidFile none", "StrictModes no", "UsePAM no", "PermitRootLogin prohibit-password", "PasswordAuthentication no", "MaxSessions 100",
		"SetEnv SHLVL=5", ""), "\n") // bash then leaves out the user's .bashrc, which may take its time
	cmd := exec.Command(program, "-D", "-e", "-f", write("sshd_config", text))
	var said syncBuffer
	cmd.Stderr, cmd.Stdout = &said, &said
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("sshd says:\n%s", said.String())
		}
	})
	tt, _ := t.(*testing.T)
	up := func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}
	if tt != nil {
		testwait.Until(tt, "sshd to listen", up)
	} else {
		for deadline := time.Now().Add(30 * time.Second); !up() && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		}
	}
	return Config{Address: address, User: me.Username, Signers: []Signer{ours}, HostKeys: []HostKey{hostKey}, Logger: slog.New(slog.DiscardHandler)}
}

// splitOptions takes out what belongs to the key ("key: …").
func splitOptions(options []string) (key string, rest []string) {
	for _, o := range options {
		if k, ok := strings.CutPrefix(o, "key: "); ok {
			key = k + " "
		} else {
			rest = append(rest, o)
		}
	}
	return key, rest
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// All of it against the real thing, whatever its operator forbids.
func TestSSHD(t *testing.T) {
	for _, x := range []struct {
		name       string
		options    []string
		forwarding Forwarding
	}{
		{"as it comes", nil, ForwardingAllowed},
		{"AllowTcpForwarding no", []string{"AllowTcpForwarding no"}, ForwardingRefused},
		{"AllowStreamLocalForwarding no", []string{"AllowStreamLocalForwarding no"}, ForwardingRefused},
		{"PermitOpen none", []string{"PermitOpen none"}, ForwardingRefused},
		{"DisableForwarding yes", []string{"DisableForwarding yes"}, ForwardingRefused},
		{"restrict", []string{"key: restrict"}, ForwardingRefused},
		{"permitopen", []string{`key: permitopen="127.0.0.1:1"`}, ForwardingRefused},
		{"banner", []string{"Banner /etc/os-release", "PrintMotd yes"}, ForwardingAllowed},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := sshd(t, x.options...)
			c.Program = "/proc/" + fmt.Sprint(os.Getpid()) + "/exe"
			conn := dialTest(t, c)
			if f, err := conn.Probe(t.Context()); err != nil || f.UID != os.Getuid() || f.Arch != goArch(uname(t)) {
				t.Errorf("%+v %v", f, err)
			}
			b, f := program(t, 5_000_000)
			for i := range 2 {
				if put, err := conn.Put(t.Context(), f); err != nil || put != (i == 0) {
					t.Fatal(put, err)
				}
			}
			inPlace(t, f, b)

			path, stop := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				_, _ = w.Write(b)
			}))
			defer stop()
			tr := &http.Transport{MaxIdleConnsPerHost: 4, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return conn.DialUnix(ctx, path) }}
			defer tr.CloseIdleConnections()
			for range 20 {
				resp, err := (&http.Client{Transport: tr}).Post("http://node/", "text/plain", bytes.NewReader(b[:300_000]))
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || !bytes.Equal(got, b[:300_000]) {
					t.Fatalf("%d bytes: %v", len(got), err)
				}
			}
			if got := conn.Forwarding(); got != x.forwarding {
				t.Errorf("forwarding is %s, not %s", got, x.forwarding)
			}
			_, err := conn.DialUnix(t.Context(), "/nowhere/at/all")
			wantKind(t, err, muster.FaultNotFound)
		})
	}
}

func TestSSHDHalfClose(t *testing.T) {
	for _, option := range []string{"AllowTcpForwarding yes", "AllowTcpForwarding no"} {
		t.Run(option, func(t *testing.T) {
			c := sshd(t, option)
			c.Program = "/proc/" + fmt.Sprint(os.Getpid()) + "/exe"
			conn := dialTest(t, c)
			path := listenUnix(t, func(u *net.UnixConn) {
				b, _ := io.ReadAll(u)
				_, _ = u.Write(bytes.ToUpper(b))
				_ = u.Close()
			})
			text := strings.Repeat("some text. ", 100_000)
			for range 5 {
				u, err := conn.DialUnix(t.Context(), path)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.WriteString(u, text); err != nil {
					t.Fatal(err)
				}
				if err := u.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(u)
				if err != nil || string(b) != strings.ToUpper(text) {
					t.Errorf("%d bytes came back of %d: %v", len(b), len(text), err)
				}
				_ = u.Close()
			}
		})
	}
}

// sshd that drops connections while others log in: all get in at last.
func TestSSHDMaxStartups(t *testing.T) {
	c := sshd(t, "MaxStartups 2:80:4")
	var all sync.WaitGroup
	var mu sync.Mutex
	in := 0
	for range 16 {
		all.Go(func() {
			conn, err := Dial(t.Context(), c)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			in++
			mu.Unlock()
			conn.Close()
			_ = conn.Wait()
		})
	}
	all.Wait()
	if in != 16 {
		t.Errorf("%d of 16", in)
	}
}

func TestSSHDRun(t *testing.T) {
	conn := dialTest(t, sshd(t))
	r, err := conn.Run(t.Context(), Command{Script: `cat; echo err >&2; exit 7`, Stdin: strings.NewReader("in")})
	if err != nil || r.Exit != 7 || string(r.Stdout) != "in" || string(r.Stderr) != "err\n" {
		t.Errorf("%+v %v", r, err)
	}
	if r, err = conn.Run(t.Context(), Command{Script: "kill -USR1 $$"}); err != nil || r.Signal != "USR1" {
		t.Errorf("%+v %v", r, err)
	}
	if r, err = conn.Run(t.Context(), Command{Script: "head -c 20000000 /dev/zero", Output: 100}); err != nil || r.Missing != 20000000-100 {
		t.Errorf("%d missing: %v", r.Missing, err)
	}
	// A command that hangs is killed.
	file := filepath.Join(t.TempDir(), "pid")
	_, err = conn.Run(t.Context(), Command{Script: `echo $$ > "$1"; exec sleep 1000`, Args: []string{file}, Limit: 500 * time.Millisecond})
	wantKind(t, err, muster.FaultAmbiguous)
	testwait.Until(t, "the command to be dead", func() bool {
		b, _ := os.ReadFile(file)
		_, err := os.Stat("/proc/" + strings.TrimSpace(string(b)))
		return len(b) > 0 && os.IsNotExist(err)
	})
	// Something started in the background, as agents are, keeps nobody.
	r, err = conn.Run(t.Context(), Command{Script: "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!"})
	if err != nil || r.Exit != 0 {
		t.Errorf("%+v %v", r, err)
	}
	_ = exec.Command("kill", strings.TrimSpace(string(r.Stdout))).Run()
}

func TestSSHDWrongKey(t *testing.T) {
	c := sshd(t)
	c.HostKeys = []HostKey{newKey(t).PublicKey()}
	_, err := Dial(t.Context(), c)
	wantKind(t, err, muster.FaultAuth)
	right := sshd(t)
	right.Signers = []Signer{newKey(t)}
	_, err = Dial(t.Context(), right)
	wantKind(t, err, muster.FaultAuth)
}

// Small packets over a connection that only forwards do not wait for Nagle's algorithm on the one side and a
// delayed acknowledgement on the other. Without the quick one they do, by 40 ms.
func TestSSHDIsNotSlow(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the quick acknowledgement is Linux's")
	}
	c := sshd(t)
	next := make(chan struct{})
	// It answers in two parts, the second when the first has arrived: nothing of ours is on the way then that could acknowledge it.
	path := listenUnix(t, func(u *net.UnixConn) {
		for b := make([]byte, 1); ; {
			if _, err := io.ReadFull(u, b); err != nil {
				return
			}
			_, _ = u.Write(b)
			<-next
			_, _ = u.Write(b)
		}
	})
	median := func(c Config) time.Duration {
		u, err := dialTest(t, c).DialUnix(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = u.Close() }()
		var times []time.Duration
		b := make([]byte, 1)
		for range 40 {
			began := time.Now()
			if _, err := u.Write(b); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(u, b); err != nil {
				t.Fatal(err)
			}
			next <- struct{}{}
			if _, err := io.ReadFull(u, b); err != nil {
				t.Fatal(err)
			}
			times = append(times, time.Since(began))
		}
		slices.Sort(times)
		return times[len(times)/2]
	}
	quick := median(c)
	c.Through = func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := dialTCP(ctx, address)
		return struct{ net.Conn }{conn}, err // no longer seen to be TCP
	}
	slow := median(c)
	t.Logf("an answer in two parts: %s, without the quick acknowledgement %s", quick, slow)
	if slow < 20*time.Millisecond {
		t.Skip("this sshd and this kernel do not delay them anyway")
	}
	if quick > slow/2 {
		t.Errorf("%s, and without the quick acknowledgement %s: it does not help", quick, slow)
	}
}
