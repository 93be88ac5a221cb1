package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/remote/bridge"
)

// asServer makes this program a server for the benchmark of many links.
const asServer = "MUSTER_REMOTE_TEST_SERVER"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == bridge.Verb {
		// This program stands in for muster-node.
		signal.Ignore(syscall.SIGPIPE)
		err := bridge.Run(context.Background(), os.Args[2], os.Stdin, os.Stdout, os.Stderr)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(bridge.Exit(err))
	}
	if os.Getenv(asServer) != "" {
		serveMany()
		return
	}
	goleak.VerifyTestMain(m)
}

// sshServer is one in this process.
type sshServer struct {
	mu     sync.Mutex
	manner manner
	conns  map[net.Conn]*ssh.ServerConn
	logins int // attempts
	opened []string
	lines  []string
	all    sync.WaitGroup
}

// manner is how a server behaves.
type manner struct {
	hostKeys []ssh.Signer
	user     ssh.PublicKey // the only key that it lets in
	forbid   bool          // no forwarding
	silent   bool          // answers no global request, so no keep-alive
	env      []string
	deaf     string                                         // "open": answers no channel; "exec": accepts sessions and answers nothing there
	command  func(ch ssh.Channel, line string) (status int) // instead of sh
}

// be changes how the server behaves from now on.
func (s *sshServer) be(change func(*manner)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.manner)
}

func (s *sshServer) now() manner {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.manner
}

func newKey(t testing.TB) Signer {
	t.Helper()
	private, _, err := NewKey("")
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseKey(private, muster.Secret{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newServer makes a server and a configuration that reaches it, in memory or by TCP.
func newServer(t testing.TB, inMemory bool) (*sshServer, Config) {
	t.Helper()
	hostKey, userKey := newKey(t), newKey(t)
	s := &sshServer{manner: manner{hostKeys: []ssh.Signer{hostKey}, user: userKey.PublicKey()}, conns: map[net.Conn]*ssh.ServerConn{}}
	c := Config{
		Address: "host.test", Signers: []Signer{userKey}, HostKeys: []HostKey{hostKey.PublicKey()},
		Logger: slog.New(slog.DiscardHandler),
	}
	if inMemory {
		c.Through = func(context.Context, string) (net.Conn, error) {
			here, there := memPair()
			s.start(there)
			return here, nil
		}
	} else {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		c.Address = l.Addr().String()
		s.all.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				s.start(conn)
			}
		})
		t.Cleanup(func() { _ = l.Close(); s.stop() })
		return s, c
	}
	t.Cleanup(s.stop)
	return s, c
}

func (s *sshServer) start(conn net.Conn) {
	s.mu.Lock()
	s.conns[conn] = nil
	s.mu.Unlock()
	s.all.Go(func() { s.serve(conn) })
}

// stop cuts all connections and waits for what served them.
func (s *sshServer) stop() {
	s.cut()
	s.all.Wait()
}

func (s *sshServer) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close()
	}
}

func (s *sshServer) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, conn)
	}()
	m := s.now()
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.logins++
		if !bytes.Equal(key.Marshal(), m.user.Marshal()) {
			return nil, errors.New("not this one")
		}
		return nil, nil
	}}
	for _, k := range m.hostKeys {
		config.AddHostKey(k)
	}
	sc, chans, reqs, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.conns[conn] = sc
	s.mu.Unlock()
	if m.silent {
		s.all.Go(func() {
			for r := range reqs { // nothing is answered
				_ = r
			}
		})
	} else {
		s.all.Go(func() { ssh.DiscardRequests(reqs) })
	}
	for n := range chans {
		s.mu.Lock()
		s.opened = append(s.opened, n.ChannelType())
		s.mu.Unlock()
		s.all.Go(func() { s.channel(n) })
	}
}

func (s *sshServer) channel(n ssh.NewChannel) {
	network, to := "", ""
	switch s.now().deaf {
	case "open":
		return
	case "exec":
		if _, reqs, err := n.Accept(); err == nil {
			for r := range reqs { // nothing is answered
				_ = r
			}
		}
		return
	}
	switch n.ChannelType() {
	case "session":
		ch, reqs, err := n.Accept()
		if err == nil {
			s.session(ch, reqs)
		}
		return
	case "direct-streamlocal@openssh.com":
		var p struct {
			Path, Reserved string
			Reserved2      uint32
		}
		_ = ssh.Unmarshal(n.ExtraData(), &p)
		network, to = "unix", p.Path
	case "direct-tcpip":
		var p struct {
			Host       string
			Port       uint32
			Origin     string
			OriginPort uint32
		}
		_ = ssh.Unmarshal(n.ExtraData(), &p)
		network, to = "tcp", net.JoinHostPort(p.Host, fmt.Sprint(p.Port))
	}
	if s.now().forbid {
		_ = n.Reject(ssh.ConnectionFailed, "open failed")
		return
	}
	conn, err := net.Dial(network, to)
	if err != nil {
		_ = n.Reject(ssh.ConnectionFailed, "open failed")
		return
	}
	ch, reqs, err := n.Accept()
	if err != nil {
		_ = conn.Close()
		return
	}
	var both sync.WaitGroup
	both.Go(func() {
		ssh.DiscardRequests(reqs)
		_ = conn.(interface{ CloseRead() error }).CloseRead()
	})
	var in sync.WaitGroup
	in.Go(func() {
		_, _ = io.Copy(conn, ch)
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	})
	_, _ = io.Copy(ch, conn)
	_ = ch.CloseWrite()
	in.Wait() // what came is delivered
	_ = ch.Close()
	both.Wait()
	_ = conn.Close()
}

func (s *sshServer) session(ch ssh.Channel, reqs <-chan *ssh.Request) {
	defer func() { _ = ch.Close() }()
	m := s.now()
	var cmd *exec.Cmd
	ended, gone, started := make(chan struct{}), make(chan struct{}), make(chan struct{})
	for r := range reqs {
		switch {
		case r.Type == "exec" && cmd == nil:
			var p struct{ Line string }
			_ = ssh.Unmarshal(r.Payload, &p)
			s.mu.Lock()
			s.lines = append(s.lines, p.Line)
			s.mu.Unlock()
			_ = r.Reply(true, nil)
			if m.command != nil {
				s.all.Go(func() {
					if status := m.command(ch, p.Line); status >= 0 {
						sendStatus(ch, status)
					}
					_ = ch.CloseWrite()
					_ = ch.Close()
				})
				continue
			}
			cmd = exec.Command("/bin/sh", "-c", p.Line)
			cmd.Env = append(os.Environ(), m.env...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			s.all.Go(func() {
				defer close(ended)
				defer func() { _ = ch.Close() }()
				s.run(cmd, ch, started, gone)
			})
		case r.Type == "signal" && cmd != nil:
			<-started
			if cmd.Process != nil {
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			}
		default:
			_ = r.Reply(false, nil)
		}
	}
	close(gone)
	if cmd != nil {
		<-ended
	}
}

func (s *sshServer) run(cmd *exec.Cmd, ch ssh.Channel, started chan<- struct{}, gone <-chan struct{}) {
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	complaints, _ := cmd.StderrPipe()
	err := cmd.Start()
	close(started)
	if err != nil {
		sendStatus(ch, 127)
		return
	}
	go func() {
		_, _ = io.Copy(in, ch)
		_ = in.Close()
	}()
	// As sshd does it: the end of both outputs is told before the command has ended, and output that something
	// has left open keeps nothing up but the channel.
	var outputs sync.WaitGroup
	outputs.Go(func() { _, _ = io.Copy(ch, out) })
	outputs.Go(func() { _, _ = io.Copy(ch.Stderr(), complaints) })
	told := make(chan struct{})
	go func() {
		outputs.Wait()
		_ = ch.CloseWrite()
		close(told)
	}()
	// And when the channel goes, so do the command's outputs.
	over := make(chan struct{})
	shut := func() { _, _ = out.Close(), complaints.Close() }
	go func() {
		select {
		case <-gone:
			shut()
		case <-told:
		}
		close(over)
	}()
	state, _ := cmd.Process.Wait()
	s.report(ch, state)
	<-over
	shut()
	_ = in.Close()
	<-told
}

func (s *sshServer) report(ch ssh.Channel, state *os.ProcessState) {
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		_, _ = ch.SendRequest("exit-signal", false, ssh.Marshal(&struct {
			Name       string
			CoreDumped bool
			Message    string
			Language   string
		}{Name: strings.TrimPrefix(unix.SignalName(w.Signal()), "SIG")}))
		return
	}
	sendStatus(ch, state.ExitCode())
}

func sendStatus(ch ssh.Channel, status int) {
	_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(&struct{ Status uint32 }{uint32(status)}))
}

func (s *sshServer) attempts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logins
}

func (s *sshServer) channels(kind string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.opened {
		if o == kind {
			n++
		}
	}
	return n
}

// dialTest dials, and closes at the end of the test.
func dialTest(t testing.TB, c Config) *Conn {
	t.Helper()
	conn, err := Dial(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); _ = conn.Wait() })
	return conn
}

// listenUnix gives each connection to serve.
func listenUnix(t testing.TB, serve func(*net.UnixConn)) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") // short: a socket's path has at most 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[c] = true
			mu.Unlock()
			all.Go(func() { serve(c.(*net.UnixConn)) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		all.Wait()
		_ = os.RemoveAll(dir)
	})
	return path
}

// echo sends back what comes until the other side has ended.
func echo(c *net.UnixConn) {
	_, _ = io.Copy(c, c)
	_ = c.CloseWrite()
}

func wantKind(t testing.TB, err error, kind muster.FaultKind) {
	t.Helper()
	if err == nil || muster.KindOf(err) != kind {
		t.Fatalf("the error is of kind %s, not %s: %v", muster.KindOf(err), kind, err)
	}
}
