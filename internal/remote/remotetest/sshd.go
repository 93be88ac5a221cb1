// Package remotetest starts OpenSSH servers for tests of what is above package
// remote: one on a loopback port, with keys and a configuration of its own.
//
// Tests call it. It must never use the machine's own keys or configuration, and nothing of it stays.
package remotetest

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/remote"
)

// program is where OpenSSH's server is.
const program = "/usr/sbin/sshd"

// Host is a running sshd.
type Host struct {
	Address string
	User    string
	// KeyFile is the path of the private key that it lets in; HostKey the line of its own.
	KeyFile, HostKey string
	// Dir is for the test's use.
	Dir string

	cmd *exec.Cmd
}

// SSHD starts one, with further lines of configuration. The test is skipped where it is not installed.
func SSHD(t testing.TB, lines ...string) *Host {
	t.Helper()
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
	h := &Host{User: me.Username, Dir: t.TempDir()}
	private, public := key(t)
	h.KeyFile = h.write(t, "key", private)
	hostPrivate, hostPublic := key(t)
	h.HostKey = hostPublic
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.Address = l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(h.Address)
	config := strings.Join(append(lines,
		"ListenAddress 127.0.0.1", "Port "+port, "HostKey "+h.write(t, "host_key", hostPrivate), "AuthorizedKeysFile "+h.write(t, "authorized_keys", public+"\n"),
		"PidFile none", "StrictModes no", "UsePAM no", "PermitRootLogin prohibit-password", "PasswordAuthentication no", "MaxSessions 100",
		"SetEnv SHLVL=5", ""), "\n") // bash then leaves out the user's .bashrc, which may take its time
	h.cmd = exec.Command(program, "-D", "-e", "-f", h.write(t, "sshd_config", config))
	said := &output{}
	h.cmd.Stdout, h.cmd.Stderr = said, said
	h.cmd.WaitDelay = time.Second
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = h.cmd.Process.Kill()
		_ = h.cmd.Wait()
		if t.Failed() {
			t.Logf("sshd says:\n%s", said.String())
		}
	})
	listening(t, h.Address)
	return h
}

// listening waits until somebody does, for as long as the test may run.
func listening(t testing.TB, address string) {
	t.Helper()
	retry := time.NewTicker(10 * time.Millisecond)
	defer retry.Stop()
	for {
		c, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", address)
		if err == nil {
			_ = c.Close()
			return
		}
		<-retry.C
	}
}

func key(t testing.TB) (private, public string) {
	t.Helper()
	secret, public, err := remote.NewKey("test")
	if err != nil {
		t.Fatal(err)
	}
	return secret.Reveal(), public
}

func (h *Host) write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(h.Dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// output is what the program says.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Stop ends the server, so that it takes no new connections. Those that it has go on.
func (h *Host) Stop() { _ = h.cmd.Process.Kill() }
