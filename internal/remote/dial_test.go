package remote

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/musterhq/muster"
)

func TestDialAndRun(t *testing.T) {
	_, c := newServer(t, false)
	conn := dialTest(t, c)
	r, err := conn.Run(t.Context(), Command{Args: []string{"echo", "it's $HOME"}})
	if err != nil || string(r.Stdout) != "it's $HOME\n" || r.Exit != 0 {
		t.Fatalf("%q %v %v", r.Stdout, r, err)
	}
	conn.Close()
	if err := conn.Wait(); !errors.Is(err, errClosed) {
		t.Errorf("it ended with %v", err)
	}
	if _, err := conn.Run(t.Context(), Command{Args: []string{"true"}}); err == nil {
		t.Error("a command ran over a closed connection")
	}
}

// Nothing but the handshake happens with a host that has another key: no login is tried.
func TestHostKeyPinned(t *testing.T) {
	s, c := newServer(t, false)
	right := c.HostKeys[0]
	other := newKey(t).PublicKey()
	c.HostKeys = []HostKey{other}
	_, err := Dial(t.Context(), c)
	wantKind(t, err, muster.FaultAuth)
	var wrong *HostKeyError
	if !errors.As(err, &wrong) || wrong.Seen != fingerprint(right) || len(wrong.Expected) != 1 || wrong.Expected[0] != fingerprint(other) {
		t.Errorf("%+v", wrong)
	}
	for _, part := range []string{c.Address, ssh.FingerprintSHA256(right), ssh.FingerprintSHA256(other)} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %s", err, part)
		}
	}
	if n := s.attempts(); n != 0 {
		t.Errorf("%d logins were tried", n)
	}
	c.HostKeys = []HostKey{other, right}
	dialTest(t, c)
}

// A host with keys of several types shows the one that is expected.
func TestHostKeyOfSeveral(t *testing.T) {
	s, c := newServer(t, false)
	first, second := rsaKey(t), newKey(t)
	s.be(func(m *manner) { m.hostKeys = []ssh.Signer{first, second} })
	for _, k := range s.now().hostKeys {
		c.HostKeys = []HostKey{k.PublicKey()}
		dialTest(t, c)
	}
}

func TestKnownHosts(t *testing.T) {
	s, c := newServer(t, false)
	right, other := c.HostKeys[0], newKey(t).PublicKey()
	c.HostKeys = nil
	file := filepath.Join(t.TempDir(), "known_hosts")
	write := func(lines ...string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ca := newKey(t)
	cert := &ssh.Certificate{Key: s.now().hostKeys[0].PublicKey(), CertType: ssh.HostCert, ValidPrincipals: []string{"127.0.0.1"}, ValidBefore: ssh.CertTimeInfinity}
	if err := cert.SignCert(rand.Reader, ca); err != nil {
		t.Fatal(err)
	}
	certified, err := ssh.NewCertSigner(cert, s.now().hostKeys[0])
	if err != nil {
		t.Fatal(err)
	}
	plain := s.now().hostKeys
	name := knownhosts.Normalize(c.Address)
	line := func(k HostKey) string { return knownhosts.Line([]string{c.Address}, k) }
	for _, x := range []struct {
		what  string
		lines []string
		keys  []ssh.Signer
		ok    bool
		say   string
	}{
		{"right", []string{line(right)}, plain, true, ""},
		{"hashed", []string{knownhosts.HashHostname(name) + " " + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(right)))}, plain, true, ""},
		{"nobody", []string{"# none"}, plain, false, "has no key for this host"},
		{"another host's", []string{knownhosts.Line([]string{"127.0.0.1:1"}, right)}, plain, false, "has no key for this host"},
		{"wrong", []string{line(other)}, plain, false, "expected " + fingerprint(other)},
		{"revoked", []string{line(right), "@revoked * " + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(right)))}, plain, false, "revoked"},
		{"authority", []string{"@cert-authority " + name + " " + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(ca.PublicKey())))}, []ssh.Signer{certified}, true, ""},
		{"another authority", []string{"@cert-authority " + name + " " + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(other)))}, []ssh.Signer{certified}, false, "nothing was sent"},
	} {
		t.Run(x.what, func(t *testing.T) {
			write(x.lines...)
			s.be(func(m *manner) { m.hostKeys = x.keys })
			before := s.attempts()
			k, err := OpenKnownHosts(file)
			if err != nil {
				t.Fatal(err)
			}
			c.KnownHosts = k
			conn, err := Dial(t.Context(), c)
			if conn != nil {
				conn.Close()
				_ = conn.Wait()
			}
			if x.ok {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wantKind(t, err, muster.FaultAuth)
			if !strings.Contains(err.Error(), x.say) || !strings.Contains(err.Error(), "SHA256:") || s.attempts() != before {
				t.Errorf("%v (%d logins)", err, s.attempts()-before)
			}
		})
	}
	t.Run("changed", func(t *testing.T) {
		s.be(func(m *manner) { m.hostKeys = plain })
		write(line(other))
		k, err := OpenKnownHosts(file)
		if err != nil {
			t.Fatal(err)
		}
		c.KnownHosts = k
		_, err = Dial(t.Context(), c)
		wantKind(t, err, muster.FaultAuth)
		write(line(other), line(right)) // of another size: a time stamp could be the same
		dialTest(t, c)
	})
}

func TestConfigNeedsAHostKey(t *testing.T) {
	_, c := newServer(t, false)
	for _, change := range []func(*Config){
		func(c *Config) { c.HostKeys = nil },
		func(c *Config) { c.KnownHosts = &KnownHosts{} },
		func(c *Config) { c.Signers = nil },
		func(c *Config) { c.Address = "" },
		func(c *Config) { c.Address = ":22" },
	} {
		bad := c
		change(&bad)
		_, err := Dial(t.Context(), bad)
		wantKind(t, err, muster.FaultInvalid)
	}
	for from, to := range map[string]string{"h": "h:22", "h:2222": "h:2222", "::1": "[::1]:22", "[::1]": "[::1]:22", "[::1]:23": "[::1]:23"} {
		c.Address = from
		got, err := c.ready()
		if err != nil || got.Address != to {
			t.Errorf("%s became %s, not %s: %v", from, got.Address, to, err)
		}
	}
}

func TestLoginRefused(t *testing.T) {
	_, c := newServer(t, false)
	stranger := newKey(t)
	c.Signers = []Signer{stranger}
	c.User = "ada"
	_, err := Dial(t.Context(), c)
	wantKind(t, err, muster.FaultAuth)
	if !strings.Contains(err.Error(), "ada") || !strings.Contains(err.Error(), ssh.FingerprintSHA256(stranger.PublicKey())) {
		t.Error(err)
	}
}

func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	_, c := newServer(t, false)
	c.Address = l.Addr().String()
	_, err = Dial(t.Context(), c)
	wantKind(t, err, muster.FaultUnavailable)
}

// sshd drops connections while too many have not logged in yet.
func TestDroppedConnectionsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := newServer(t, true)
		tries, through := 0, c.Through
		c.Through = func(ctx context.Context, address string) (net.Conn, error) {
			if tries++; tries < 5 {
				here, there := memPair()
				if tries%2 == 0 {
					there.out.put([]byte("Exceeded MaxStartups\r\n"))
				}
				_ = there.Close()
				return here, nil
			}
			return through(ctx, address)
		}
		dialTest(t, c)
		if tries != 5 {
			t.Errorf("%d tries", tries)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		_, c := newServer(t, true)
		tries := 0
		c.Through = func(context.Context, string) (net.Conn, error) {
			tries++
			here, there := memPair()
			_ = there.Close()
			return here, nil
		}
		_, err := Dial(t.Context(), c)
		wantKind(t, err, muster.FaultUnavailable)
		if tries != dialAttempts || !strings.Contains(err.Error(), "MaxStartups") {
			t.Errorf("%d tries: %v", tries, err)
		}
	})
}

// A host that stops, or ends the connection, after any number of bytes of its handshake is given up in time. Whatever it
// was, no error is taken for a refused key or a wrong host.
func TestHandshakeCutAnywhere(t *testing.T) {
	for _, closes := range []bool{false, true} {
		t.Run(fmt.Sprintf("closes=%v", closes), func(t *testing.T) {
			longest := 0
			for n := 0; ; n += 67 {
				done := false
				synctest.Test(t, func(t *testing.T) {
					s, c := newServer(t, true)
					reached := atomic.Bool{}
					c.Through = func(context.Context, string) (net.Conn, error) {
						here, there := memPair()
						there.out.limit = n
						there.out.atEnd = func() {
							reached.Store(true)
							if closes {
								there.out.end()
							}
						}
						s.start(there)
						return here, nil
					}
					began := time.Now()
					conn, err := Dial(t.Context(), c)
					took := time.Since(began)
					if !reached.Load() && err == nil {
						conn.Close()
						_ = conn.Wait()
						done = true
						return
					}
					if err == nil { // its last bytes were enough
						conn.Close()
						_ = conn.Wait()
						return
					}
					longest = n
					wantKind(t, err, muster.FaultUnavailable)
					if took > defaultDialLimit {
						t.Errorf("cut after %d bytes: given up after %s", n, took)
					}
					if !closes && took > defaultSilence {
						t.Errorf("stopped after %d bytes: given up after %s", n, took)
					}
				})
				if done {
					break
				}
			}
			if longest < 1000 {
				t.Errorf("the longest handshake that was cut had %d bytes: nothing was tested", longest)
			}
		})
	}
}

// A host that never ends its handshake but always says something.
func TestHandshakeOfDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := newServer(t, true)
		c.Through = func(context.Context, string) (net.Conn, error) {
			here, there := memPair()
			go func() {
				for tick := time.NewTicker(time.Second); ; {
					if _, err := there.Write([]byte(".")); err != nil {
						tick.Stop()
						return
					}
					select {
					case <-tick.C:
					case <-here.closed:
					}
				}
			}()
			return here, nil
		}
		began := time.Now()
		_, err := Dial(t.Context(), c)
		wantKind(t, err, muster.FaultUnavailable)
		if took := time.Since(began); took > defaultSilence+2*time.Second {
			t.Errorf("given up after %s", took)
		}
	})
}

func TestDialEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := newServer(t, true)
		c.Through = func(context.Context, string) (net.Conn, error) {
			here, _ := memPair()
			return here, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		_, err := Dial(ctx, c)
		if !errors.Is(err, context.Canceled) || time.Since(began) != time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

// A host behind another one.
func TestThrough(t *testing.T) {
	_, front := newServer(t, false)
	_, behind := newServer(t, false)
	behind.Through = dialTest(t, front).DialTCP
	conn := dialTest(t, behind)
	if r, err := conn.Run(t.Context(), Command{Args: []string{"echo", "behind"}}); err != nil || string(r.Stdout) != "behind\n" {
		t.Fatalf("%q %v", r.Stdout, err)
	}
	behind.Address = "127.0.0.1:1"
	_, err := Dial(t.Context(), behind)
	wantKind(t, err, muster.FaultUnavailable)
}

func TestKeys(t *testing.T) {
	private, public, err := NewKey("muster host 1")
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseKey(private, muster.Secret{})
	if err != nil {
		t.Fatal(err)
	}
	k, err := ParseHostKey(public)
	if err != nil || fingerprint(k) != fingerprint(s.PublicKey()) || !strings.HasSuffix(public, " muster host 1") {
		t.Errorf("%s: %v", public, err)
	}
	_, err = ParseKey(muster.NewSecret("no key"), muster.Secret{})
	wantKind(t, err, muster.FaultInvalid)
	_, err = ParseHostKey("no key")
	wantKind(t, err, muster.FaultInvalid)
}

func rsaKey(t *testing.T) Signer {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
