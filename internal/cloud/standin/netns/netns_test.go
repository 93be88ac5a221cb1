package netns

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/musterhq/muster"
	agent "github.com/musterhq/muster/internal/agent/metadata"
	"github.com/musterhq/muster/internal/cloud/boot"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// document is what the server writes for an instance, and the key that may log in.
func document(t *testing.T, extra string) (text, hostKey string, login ssh.Signer) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if login, err = ssh.NewSignerFromKey(private); err != nil {
		t.Fatal(err)
	}
	b, err := boot.For(boot.Config{Secret: muster.NewSecret(strings.Repeat("s", boot.MinSecret)), UserData: extra,
		AuthorizedKey: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(login.PublicKey())))}, "t1")
	if err != nil {
		t.Fatal(err)
	}
	return b.UserData.Reveal(), b.HostKey, login
}

func TestUserData(t *testing.T) {
	for _, extra := range []string{"", "#!/bin/sh\ntrue\n", "#cloud-config\nssh_authorized_keys: [other]\n"} {
		text, hostKey, _ := document(t, extra)
		d, err := readUserData([]byte(text), 0)
		if err != nil || d.HostKeys.Public != hostKey || len(d.Authorized) == 0 {
			t.Errorf("%q: %v %+v", extra, err, d)
		}
	}
	for _, wrong := range []string{"", "#!/bin/sh\n", "#cloud-config\n", "#cloud-config\nssh_keys: [", "Content-Type: text/plain\n\nx"} {
		if _, err := readUserData([]byte(wrong), 0); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}

// Instances of one launch share a template, of which each reads its own case.
func TestUserDataOfALaunch(t *testing.T) {
	const keys = "ssh_authorized_keys: [all]\n"
	one := func(key string) string {
		return "ssh_keys:\n  ed25519_private: " + key + "\n  ed25519_public: " + key + "\n"
	}
	text := jinja + "#cloud-config\n" + keys + "{% if ds.meta_data.ami_launch_index|int == 0 %}\n" + one("zero") +
		"{% elif ds.meta_data.ami_launch_index|int == 1 %}\n" + one("one") + "{% endif %}\nruncmd: []\n"
	for index, want := range []string{"zero", "one"} {
		d, err := readUserData([]byte(text), index)
		if err != nil || d.HostKeys.Private != want || len(d.Authorized) != 1 {
			t.Errorf("%d: %+v %v", index, d, err)
		}
	}
	// No case is for this one, so it has no key.
	if d, err := readUserData([]byte(text), 2); err == nil {
		t.Errorf("%+v", d)
	}
	if _, err := readUserData([]byte(jinja+"#cloud-config\n{% for x in y %}\n"), 0); err == nil || !strings.Contains(err.Error(), "for x") {
		t.Error(err)
	}
}

func TestMachine(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for _, program := range []string{"ip", "unshare", "/usr/sbin/sshd"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	// Containers may have root and no right to make namespaces.
	probe := fmt.Sprintf("probe-%d", os.Getpid())
	if err := ip("netns", "add", probe); err != nil {
		t.Skip(err)
	}
	if err := ip("netns", "delete", probe); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(2 * time.Minute)
	network, release, err := FreeNet()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	since := at.Add(-time.Hour)
	m := New(Config{Dir: t.TempDir(), Net: network, Notice: func(string) (time.Time, bool) { return at, true },
		Rebalance: func(string) (time.Time, bool) { return since, true }, User: "azureuser"})
	defer m.Close()
	text, hostKey, login := document(t, "")
	id := fmt.Sprintf("i-%d", os.Getpid())
	address, err := m.Start(id, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want, _, _, _, err := ssh.ParseAuthorizedKey([]byte(hostKey))
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, net.JoinHostPort(address, "22"), &ssh.ClientConfig{User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(login)},
		HostKeyCallback: ssh.FixedHostKey(want), HostKeyAlgorithms: []string{ssh.KeyAlgoED25519}})
	defer func() { _ = c.Close() }()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.Output(`t=$(curl -s -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" http://169.254.169.254/latest/api/token)
curl -s -H "X-aws-ec2-metadata-token: $t" http://169.254.169.254/latest/meta-data/spot/instance-action
curl -s -H "X-aws-ec2-metadata-token: $t" http://169.254.169.254/latest/meta-data/events/recommendations/rebalance
curl -s -o /dev/null -w '%{http_code}' http://169.254.169.254/latest/meta-data/spot/instance-action`)
	if err != nil || !strings.Contains(string(out), `"time":"`+at.UTC().Format(time.RFC3339)) ||
		!strings.Contains(string(out), `"noticeTime":"`+since.UTC().Format(time.RFC3339)) || !strings.HasSuffix(string(out), "401") {
		t.Errorf("%v %s", err, out)
	}
	if !m.State(id) {
		t.Error("it does not run")
	}
	// Its own login user may do what root may.
	own := connect(t, net.JoinHostPort(address, "22"), &ssh.ClientConfig{User: "azureuser", Auth: []ssh.AuthMethod{ssh.PublicKeys(login)},
		HostKeyCallback: ssh.FixedHostKey(want)})
	defer func() { _ = own.Close() }()
	if s, err = own.NewSession(); err != nil {
		t.Fatal(err)
	}
	if out, err := s.CombinedOutput("sudo -n -- sh -c 'id -u; echo $0 $1' a b"); err != nil || string(out) != "0\na b\n" {
		t.Errorf("%v %q", err, out)
	}
	// Off the network it runs on, and nobody reaches it.
	if err := m.Cut(id, true); err != nil {
		t.Fatal(err)
	}
	if _, err := net.DialTimeout("tcp", net.JoinHostPort(address, "22"), 200*time.Millisecond); err == nil || !m.State(id) {
		t.Errorf("cut off: %v, runs: %v", err, m.State(id))
	}
	if err := m.Cut(id, false); err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", net.JoinHostPort(address, "22")); err != nil {
		t.Error(err)
	} else {
		_ = c.Close()
	}
	m.Stop(id)
	m.Stop(id)
	if m.State(id) || len(m.Running()) > 0 {
		t.Error("it runs on")
	}
}

// connect dials until the SSH server listens.
func connect(t *testing.T, address string, cfg *ssh.ClientConfig) *ssh.Client {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		c, err := ssh.Dial("tcp", address, cfg)
		if err == nil {
			return c
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// Two tests of one host never have the same network.
func TestFreeNet(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	one, release, err := FreeNet()
	if err != nil {
		t.Fatal(err)
	}
	two, releaseTwo, err := FreeNet()
	if err != nil {
		t.Fatal(err)
	}
	defer releaseTwo()
	if one == two {
		t.Errorf("%s twice", one)
	}
	release()
	three, releaseThree, err := FreeNet()
	if err != nil {
		t.Fatal(err)
	}
	defer releaseThree()
	if three == two {
		t.Errorf("%s is used and given again", two)
	}
}

// What agents read of each service is the notice, and strangers read nothing.
func TestServices(t *testing.T) {
	for _, service := range []Service{"", EC2, GCE, Azure} {
		t.Run(string(service), func(t *testing.T) {
			at := time.Now().Add(20 * time.Second).Truncate(time.Second)
			s := httptest.NewServer(newMetadata(Config{Service: service, Notice: func(string) (time.Time, bool) { return at, true }}, "M-1"))
			defer s.Close()
			kind := string(cmp.Or(service, EC2))
			got := make(chan wire.Notice, 1)
			var log lockedBuffer
			w, err := agent.New(agent.Config{Kind: kind, Address: s.URL, Tell: func(n wire.Notice) { got <- n }, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- w.Run(ctx) }()
			n := <-got
			cancel()
			<-ended
			// GCE says no time: agents count from when they see it.
			if n.Kind != wire.NoticeTaken || kind != "gce" && !n.At.Std().Equal(at) {
				t.Errorf("%+v, want the end at %s", n, at)
			}
			if text := log.String(); text != "" {
				t.Errorf("the agent complains: %s", text)
			}
			// Without what each service wants of a request, there is no answer.
			for path, want := range map[string]int{"/latest/meta-data/spot/instance-action": http.StatusUnauthorized,
				"/computeMetadata/v1/instance/preempted": http.StatusForbidden, "/metadata/scheduledevents": http.StatusBadRequest} {
				answer, err := http.Get(s.URL + path)
				if err != nil {
					t.Fatal(err)
				}
				_ = answer.Body.Close()
				if own := map[string]string{"ec2": "/latest/", "gce": "/computeMetadata/", "azure": "/metadata/"}[kind]; strings.HasPrefix(path, own) && answer.StatusCode != want {
					t.Errorf("%s: %s", path, answer.Status)
				}
			}
		})
	}
}

// lockedBuffer is a buffer that a goroutine writes while another one reads.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
