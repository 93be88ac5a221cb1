package peers

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/musterhq/muster"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func authority(t testing.TB) *Authority {
	t.Helper()
	a, err := Found(noon)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func identity(t testing.TB, a *Authority, server string) *Identity {
	t.Helper()
	i, err := NewIdentity(a, server, noon)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func at(now time.Time) func() time.Time { return func() time.Time { return now } }

// start runs a node on the loopback address until the test ends.
func start(t testing.TB, c Config) *Node {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.Listener, c.Address = ln, ln.Addr().String()
	if c.Clock == nil {
		c.Clock = at(noon)
	}
	n := New(c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the node ended: %v", err)
		}
	})
	return n
}

// hello sends a line over the log's protocol and reads the answer: with TLS 1.3 only an answer shows that
// the other side has accepted the certificate.
func hello(from, to *Node) error {
	c, err := from.Log().Dial(raft.ServerAddress(to.cfg.Address), 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return err
	}
	b := make([]byte, 6)
	_, err = io.ReadFull(c, b)
	if err == nil && string(b) != "hello\n" {
		err = errors.New("wrong echo")
	}
	return err
}

// echo answers on the log's protocol.
func echo(t testing.TB, n *Node) {
	go func() {
		for {
			c, err := n.Log().Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

func TestServersProveThemselves(t *testing.T) {
	ours := authority(t)
	ids := map[string]string{} // address to id; the addresses are known only when the nodes listen
	expected := func(a string) string { return ids[a] }
	refused := map[string]bool{"s-removed": true}
	target := start(t, Config{Identity: identity(t, ours, "s-one"), Expected: expected, Refuse: func(s string) error {
		if refused[s] {
			return errors.New("it was removed")
		}
		return nil
	}})
	echo(t, target)
	from := func(i *Identity, clock time.Time) *Node {
		return start(t, Config{Identity: i, Expected: expected, Clock: at(clock)})
	}
	two := from(identity(t, ours, "s-two"), noon)

	if err := hello(two, target); err != nil {
		t.Errorf("a server of the cluster, when the log does not have the address: %v", err)
	}
	ids[target.cfg.Address] = "s-one"
	if err := hello(two, target); err != nil {
		t.Errorf("a server of the cluster: %v", err)
	}
	ids[target.cfg.Address] = "s-three"
	if err := hello(two, target); !errors.Is(err, ErrOtherServer) {
		t.Errorf("the address of another server: %v", err)
	}
	ids[target.cfg.Address] = "s-one"
	if err := hello(from(identity(t, authority(t), "s-two"), noon), target); !errors.Is(err, ErrOtherCluster) {
		t.Errorf("a server of another cluster: %v", err)
	}
	// What only the other side refuses shows when the answer is read.
	if err := hello(from(identity(t, ours, "s-removed"), noon), target); err == nil {
		t.Error("a removed server is let in")
	}
	stale, err := NewIdentity(ours, "s-two", noon.Add(-serverLife-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := hello(from(stale, noon), target); err == nil {
		t.Error("a server with an expired certificate is let in")
	}
	if err := hello(from(identity(t, ours, "s-two"), noon.Add(2*serverLife)), target); err == nil || !strings.Contains(err.Error(), "compare the clocks") {
		t.Errorf("a clock that is years ahead: %v", err)
	}
	if err := hello(from(identity(t, ours, "s-two"), noon.Add(-early+time.Hour)), target); err != nil {
		t.Errorf("a clock that is 47 hours behind: %v", err)
	}
	for _, proto := range []string{protoLog, protoHTTP, "h2"} {
		c, err := tls.Dial("tcp", target.cfg.Address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{proto}})
		if err != nil {
			continue
		}
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s without a certificate: %v", proto, err)
		}
		_ = c.Close()
	}
}

// One client that says nothing must not keep others out.
func TestSilentConnectionsDoNotBlock(t *testing.T) {
	a := authority(t)
	target := start(t, Config{Identity: identity(t, a, "s-one")})
	echo(t, target)
	for range handshakes - 1 {
		c, err := net.Dial("tcp", target.cfg.Address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if err := hello(start(t, Config{Identity: identity(t, a, "s-two")}), target); err != nil {
		t.Error(err)
	}
}

func TestHTTPBetweenServers(t *testing.T) {
	a := authority(t)
	one := start(t, Config{Identity: identity(t, a, "s-one")})
	two := start(t, Config{Identity: identity(t, a, "s-two")})
	server := &http.Server{ConnContext: ConnContext, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, Server(r.Context()))
	})}
	defer server.Close()
	go func() { _ = server.Serve(one.HTTP()) }()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return two.DialHTTP(ctx, address, "s-one")
	}}}
	defer client.CloseIdleConnections()
	res, err := client.Get("http://" + one.cfg.Address + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); string(b) != "s-two" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if s := Server(t.Context()); s != "" {
		t.Errorf("a request by another way is of server %q", s)
	}
}

func TestIdentityIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "peers")
	if _, err := Load(dir, noon); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	i := identity(t, authority(t), "s-one")
	if err := i.Save(dir); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", f.Name(), info.Mode(), err)
		}
	}
	got, err := Load(dir, noon)
	if err != nil || got.Server != "s-one" || !got.Expires().Equal(i.Expires()) || got.authority.fingerprint() != i.authority.fingerprint() {
		t.Fatalf("%+v, %v", got, err)
	}
	// In the last third of its life it is replaced, of the same key, and the file is the new one.
	late := noon.Add(serverLife * 3 / 4)
	renewed, err := Load(dir, late)
	if err != nil || !renewed.Expires().After(i.Expires()) {
		t.Fatalf("good until %v, %v", renewed.Expires(), err)
	}
	again, err := Load(dir, late)
	if err != nil || !again.Expires().Equal(renewed.Expires()) {
		t.Errorf("renewed again: %v, %v", again.Expires(), err)
	}

	for name, b := range map[string][]byte{serverKeyFile: nil, authorityKeyFile: []byte("garbage"), serverCertFile: certPEM(i.authority.cert.Raw)} {
		path := filepath.Join(dir, name)
		was, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			err = os.Remove(path)
		} else {
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir, noon); err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s damaged: %v", name, err)
		}
		if err := os.WriteFile(path, was, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The key of another cluster's authority.
	other := filepath.Join(t.TempDir(), "other")
	if err := identity(t, authority(t), "s-one").Save(other); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(other, authorityKeyFile))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, authorityKeyFile), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir, noon); err == nil || !strings.Contains(err.Error(), authorityKeyFile) {
		t.Errorf("the key of another authority: %v", err)
	}
	for _, bad := range []string{"", "S", "a b", "a.b", strings.Repeat("a", 41)} {
		if _, err := NewIdentity(i.authority, bad, noon); err == nil {
			t.Errorf("id %q is taken", bad)
		}
	}
}

func TestTokens(t *testing.T) {
	a := authority(t)
	one, two := identity(t, a, "s-one"), identity(t, a, "s-two")
	token, err := one.NewToken(noon.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	text := token.Reveal()
	// Any server of the cluster knows it.
	if err := two.checkToken(muster.NewSecret(" "+text+"\n"), noon.Add(59*time.Minute)); err != nil {
		t.Error(err)
	}
	if err := two.checkToken(token, noon.Add(time.Hour)); !errors.Is(err, ErrTokenExpired) {
		t.Errorf("at its end: %v", err)
	}
	if err := identity(t, authority(t), "s-one").checkToken(token, noon); !errors.Is(err, ErrTokenCluster) {
		t.Errorf("of another cluster: %v", err)
	}
	if err := one.checkToken(muster.NewSecret(" "), noon); !errors.Is(err, ErrNoToken) {
		t.Errorf("none: %v", err)
	}
	for _, bad := range []string{"x", tokenPrefix, text[:len(text)-1], text + "A", strings.TrimPrefix(text, tokenPrefix)} {
		if err := one.checkToken(muster.NewSecret(bad), noon); !errors.Is(err, ErrTokenForm) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	// Every byte counts: the end cannot be moved.
	raw, err := decodeToken(token)
	if err != nil {
		t.Fatal(err)
	}
	for k := range raw {
		changed := bytes.Clone(raw)
		changed[k] ^= 1
		if err := one.checkToken(encoded(changed), noon); err == nil {
			t.Errorf("byte %d changed: accepted", k)
		}
	}
}

func TestJoin(t *testing.T) {
	a := authority(t)
	var asked []JoinRequest
	leader := start(t, Config{Identity: identity(t, a, "s-leader"), Admit: func(_ context.Context, r *JoinRequest) (*Admission, error) {
		asked = append(asked, *r)
		if r.Reads < 6 {
			return nil, errors.New("it reads log format 5 at most, and the cluster has 6; upgrade it first")
		}
		return &Admission{Secrets: map[string][]byte{"token": []byte("secret\n")}}, nil
	}})
	echo(t, leader)
	follower := start(t, Config{Identity: identity(t, a, "s-follower"), Admit: func(context.Context, *JoinRequest) (*Admission, error) {
		return &Admission{Elsewhere: leader.cfg.Address}, nil
	}})
	token, err := follower.cfg.Identity.NewToken(noon.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	req := JoinRequest{Server: "s-new", Name: "c", Address: "127.0.0.1:4751", Version: "v1", Reads: 6}
	i, admission, err := Join(t.Context(), follower.cfg.Address, token, req, at(noon))
	if err != nil {
		t.Fatal(err)
	}
	if i.Server != "s-new" || string(admission.Secrets["token"]) != "secret\n" || len(asked) != 1 || asked[0].Name != "c" {
		t.Errorf("%+v, %+v, %+v", i, admission, asked)
	}
	// It is one of them now, and can admit others.
	if err := hello(start(t, Config{Identity: i}), leader); err != nil {
		t.Error(err)
	}
	if next, err := i.NewToken(noon.Add(time.Hour)); err != nil || leader.cfg.Identity.checkToken(next, noon) != nil {
		t.Errorf("a token of the new server: %v", err)
	}

	other, err := identity(t, authority(t), "s-x").NewToken(noon.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	expired, err := i.NewToken(noon.Add(-time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		token  muster.Secret
		change func(*JoinRequest)
		clock  time.Time
		want   string
	}{
		"a token of another cluster": {token: other, want: "is of another cluster"},
		"an expired token":           {token: expired, want: "expired"},
		"a token that is not whole":  {token: muster.NewSecret("muster-join-abc"), want: "copy all"},
		"a clock that is off":        {clock: noon.Add(16 * time.Minute), want: "the clock of the server that joins is 16m0s off"},
		"an old version":             {change: func(r *JoinRequest) { r.Reads = 5 }, want: "upgrade it first"},
		"an address without port":    {change: func(r *JoinRequest) { r.Address = "here" }, want: "no host:port"},
		"an id with a dot":           {change: func(r *JoinRequest) { r.Server = "a.b" }, want: "cannot be the id"},
	} {
		r, now, with := req, noon, token
		if c.change != nil {
			c.change(&r)
		}
		if !c.clock.IsZero() {
			now = c.clock
		}
		if !c.token.IsZero() {
			with = c.token
		}
		_, _, err := Join(t.Context(), leader.cfg.Address, with, r, at(now))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), with.Reveal()) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// A port of something else.
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	go func() {
		for {
			c, err := web.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			_ = c.Close()
		}
	}()
	if _, _, err := Join(t.Context(), web.Addr().String(), token, req, at(noon)); err == nil || !strings.Contains(err.Error(), web.Addr().String()) {
		t.Errorf("a port of something else: %v", err)
	}
}

// What arrives on the port for joining is anybody's.
func TestJoinTakesNoGarbage(t *testing.T) {
	a := authority(t)
	n := start(t, Config{Identity: identity(t, a, "s-one"), Admit: func(context.Context, *JoinRequest) (*Admission, error) {
		t.Error("admitted")
		return &Admission{}, nil
	}})
	client := &http.Client{Transport: &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protoJoin}}}).DialContext(ctx, network, address)
		},
	}}
	defer client.CloseIdleConnections()
	for _, body := range []string{"", "{", "[]", `{"token":"x"}`, strings.Repeat(" ", joinMost+1) + "{}"} {
		res, err := client.Post("https://"+n.cfg.Address+"/join", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var answer joinAnswer
		err = json.NewDecoder(res.Body).Decode(&answer)
		_ = res.Body.Close()
		if err != nil || answer.Error == "" || len(answer.Certificate)+len(answer.AuthorityKey)+len(answer.Secrets) > 0 {
			t.Errorf("%.20q: %+v, %v", body, answer, err)
		}
	}
}

// The certificate is replaced while the server runs, and connections are made with the new one.
func TestCertificateIsRenewedInService(t *testing.T) {
	dir := t.TempDir()
	a := authority(t)
	now := noon
	n := New(Config{Identity: identity(t, a, "s-one"), Dir: dir, Clock: func() time.Time { return now }})
	n.renew()
	if n.identity.Load() != n.cfg.Identity {
		t.Error("renewed before it was due")
	}
	now = noon.Add(serverLife * 3 / 4)
	n.renew()
	next := n.identity.Load()
	if !next.Expires().After(n.cfg.Identity.Expires()) || n.serverTLS().Certificates[0].Leaf != next.cert.Leaf {
		t.Errorf("good until %v", next.Expires())
	}
	if _, err := os.Stat(filepath.Join(dir, serverCertFile)); err != nil {
		t.Error(err)
	}
}

// A removed server's connections end, also those that it has open.
func TestDrop(t *testing.T) {
	a := authority(t)
	target := start(t, Config{Identity: identity(t, a, "s-one")})
	echo(t, target)
	stays, goes := start(t, Config{Identity: identity(t, a, "s-two")}), start(t, Config{Identity: identity(t, a, "s-three")})
	open := func(n *Node) net.Conn {
		c, err := n.Log().Dial(raft.ServerAddress(target.cfg.Address), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	say := func(c net.Conn) error {
		if _, err := io.WriteString(c, "x"); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	c1, c2 := open(stays), open(goes)
	if err := errors.Join(say(c1), say(c2)); err != nil {
		t.Fatal(err)
	}
	target.Drop("s-three")
	if err := say(c2); err == nil {
		t.Error("the removed server's connection goes on")
	}
	if err := say(c1); err != nil {
		t.Errorf("the other server's connection: %v", err)
	}
	_ = c1.Close()
	stays.mu.Lock()
	defer stays.mu.Unlock()
	if len(stays.conns) != 0 {
		t.Errorf("%d closed connections are remembered", len(stays.conns))
	}
}
