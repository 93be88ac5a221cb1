// Package servertest runs a real `muster server` for tests: a process of its own, with a
// configuration of the test's, that can be killed and started again on the same data.
//
// Only tests import it. It must never wait for anything but a condition, and never for a fixed time.
package servertest

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/locate"
)

// Server is a server of one data directory.
type Server struct {
	// Client talks to the running server. Again replaces it, since each start has another port.
	Client *client.Client

	t               *testing.T
	program, config string
	args            []string
	listen          string
	dir             string
	// env is what its programs have in their environment beside this process's.
	env []string
	log *os.File

	// mu guards which process runs: Kill may be called from the handler of a request that this
	// process has made.
	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{}
}

// Start starts a server and returns when it is ready. Program is the path of muster; text is its
// configuration without data_dir and listen; env is added to the environment, as NAME=value. The server
// ends with the test, and a test that failed shows its log.
func Start(t *testing.T, program, text string, env ...string) *Server {
	t.Helper()
	return StartWith(t, program, Options{Text: text, Env: env})
}

// Options are how a server differs from one that Start starts.
type Options struct {
	// Text is its configuration without data_dir and listen.
	Text string
	// Listen is the address of its API; empty: a free port, another one at each start.
	Listen string
	// Args are further arguments of muster server.
	Args []string
	// Env is added to the environment, as NAME=value.
	Env []string
	// Prepare puts something into the data directory before the first start, as a backup that it restores.
	// Optional.
	Prepare func(*Server)
}

// StartWith is Start with options.
func StartWith(t *testing.T, program string, o Options) *Server {
	t.Helper()
	// Sockets of local instances are below the directory, and their paths must be short.
	dir, err := os.MkdirTemp("", "m")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, program: program, args: o.Args, env: o.Env, listen: o.Listen, dir: dir, config: filepath.Join(dir, "muster.yaml")}
	if s.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	s.write(o.Text)
	t.Cleanup(s.end)
	if o.Prepare != nil {
		o.Prepare(s)
	}
	s.Again()
	return s
}

// write writes the configuration.
func (s *Server) write(text string) {
	s.t.Helper()
	text = fmt.Sprintf("data_dir: %s\nlisten: %s\nlow_water: 1MiB\n%s", s.DataDir(), cmp.Or(s.listen, "127.0.0.1:0"), text)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// Reload gives the running server another configuration, without data_dir and listen. The server takes
// it over some time after Reload has returned.
func (s *Server) Reload(text string) {
	s.t.Helper()
	s.write(text)
	s.Signal(syscall.SIGHUP)
}

// DataDir is the server's data directory.
func (s *Server) DataDir() string { return filepath.Join(s.dir, "d") }

// Again starts the server that was killed, on the same data, and returns when it is ready.
func (s *Server) Again() {
	s.t.Helper()
	// Until the new server has written this file, it names the address of the one before.
	_ = os.Remove(filepath.Join(s.DataDir(), "server.json"))
	cmd := s.Command(append([]string{"server", "-c", s.config}, s.args...)...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	s.mu.Lock()
	s.cmd, s.ended = cmd, ended
	s.mu.Unlock()
	s.Until("the server is ready", func() bool {
		select {
		case <-ended:
			s.t.Fatalf("the server has ended: %v", cmd.ProcessState)
		default:
		}
		at, err := locate.Find(locate.Given{DataDir: s.DataDir()})
		if err != nil {
			return false
		}
		if s.Client, err = client.New(client.Config{Address: at.Address, Token: at.Token}); err != nil {
			s.t.Fatal(err)
		}
		return s.Client.Ready(s.t.Context()) == nil
	})
}

// Kill ends the server as a power cut does, and returns when its process is gone. It fails no test,
// so that any goroutine may call it. Safe to repeat.
func (s *Server) Kill() {
	cmd, ended := s.running()
	_ = cmd.Process.Kill()
	<-ended
}

// Signal sends a signal to the running server, as SIGHUP for a new configuration.
func (s *Server) Signal(sig os.Signal) {
	s.t.Helper()
	cmd, _ := s.running()
	if err := cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// PID is the process of the running server.
func (s *Server) PID() int {
	cmd, _ := s.running()
	return cmd.Process.Pid
}

func (s *Server) running() (*exec.Cmd, chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cmd, s.ended
}

// end stops the server in its own way, and deletes what it has.
func (s *Server) end() {
	if cmd, ended := s.running(); cmd != nil {
		_ = cmd.Process.Signal(os.Interrupt)
		<-ended
	}
	if s.t.Failed() {
		b, _ := os.ReadFile(s.log.Name())
		text, _ := os.ReadFile(s.config)
		s.t.Logf("%s\nthe server says:\n%s", text, b)
	}
	_ = s.log.Close()
	_ = os.RemoveAll(s.dir)
}

// Command is a command of the CLI that finds this server. It is not started.
func (s *Server) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(s.program, args...)
	cmd.Env = append(append(os.Environ(), "XDG_CONFIG_HOME="+s.dir, "HOME="+s.dir, "MUSTER_DATA_DIR="+s.DataDir()), s.env...)
	return cmd
}

// Run runs a command of the CLI and returns what it printed and how it ended.
func (s *Server) Run(args ...string) (output string, status int) {
	s.t.Helper()
	cmd := s.Command(args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	// A command that hangs fails this test by name, and not all tests of the program.
	if deadline, ok := s.t.Deadline(); ok {
		hung := time.AfterFunc(time.Until(deadline)-10*time.Second, func() { _ = cmd.Process.Kill() })
		defer hung.Stop()
	}
	_ = cmd.Wait() // how it ended is in its state
	return out.String(), cmd.ProcessState.ExitCode()
}

// Until waits for a condition, for as long as the test may run. It looks seldom: each look is
// requests to a server or programs that are started.
func (s *Server) Until(what string, holds func() bool) {
	s.t.Helper()
	deadline, _ := s.t.Deadline()
	for began := time.Now(); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Until(deadline) < 10*time.Second {
			s.t.Fatalf("never, after %s: %s", time.Since(began).Round(time.Second), what)
		}
	}
}

// FreeAddress is an address of loopback that nobody listens on, for a server whose address others have to know
// before it is started.
func FreeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}
