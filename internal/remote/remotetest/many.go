package remotetest

import (
	"bytes"
	"context"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
)

// Many is one SSH server in this process that stands for many hosts: the user who logs in names the host. It runs
// no commands: it answers those of package reach as a host would that has muster-node already.
type Many struct {
	Address          string
	KeyFile, HostKey string
	// start and dial are the agent of a host.
	start func(host string) error
	dial  func(ctx context.Context, host string) (net.Conn, error)

	all sync.WaitGroup
}

// NewMany starts it. Start is called for muster-node start, dial for each connection to an agent's socket.
func NewMany(t testing.TB, start func(host string) error, dial func(ctx context.Context, host string) (net.Conn, error)) *Many {
	t.Helper()
	h := &Host{Dir: t.TempDir()}
	private, public := key(t)
	hostPrivate, hostPublic := key(t)
	signer, err := ssh.ParsePrivateKey([]byte(hostPrivate))
	if err != nil {
		t.Fatal(err)
	}
	allowed, _, _, _, err := ssh.ParseAuthorizedKey([]byte(public))
	if err != nil {
		t.Fatal(err)
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
		if !bytes.Equal(k.Marshal(), allowed.Marshal()) {
			return nil, io.ErrUnexpectedEOF
		}
		return nil, nil
	}}
	config.AddHostKey(signer)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &Many{Address: l.Addr().String(), KeyFile: h.write(t, "key", private), HostKey: hostPublic, start: start, dial: dial}
	ctx, cancel := context.WithCancel(context.Background())
	m.all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			m.all.Go(func() { m.serve(ctx, conn, config) })
		}
	})
	t.Cleanup(func() { cancel(); _ = l.Close(); m.all.Wait() })
	return m
}

func (m *Many) serve(ctx context.Context, conn net.Conn, config *ssh.ServerConfig) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	sc, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	m.all.Go(func() { ssh.DiscardRequests(requests) })
	for n := range channels {
		m.all.Go(func() {
			if n.ChannelType() == "session" {
				m.session(sc.User(), n)
			} else {
				m.forward(ctx, sc.User(), n)
			}
		})
	}
}

// forward carries bytes between a channel and the agent.
func (m *Many) forward(ctx context.Context, host string, n ssh.NewChannel) {
	agent, err := m.dial(ctx, host)
	if err != nil {
		_ = n.Reject(ssh.ConnectionFailed, "open failed")
		return
	}
	defer func() { _ = agent.Close() }()
	ch, requests, err := n.Accept()
	if err != nil {
		return
	}
	m.all.Go(func() { ssh.DiscardRequests(requests) })
	m.all.Go(func() {
		_, _ = io.Copy(agent, ch)
		_ = agent.Close()
	})
	_, _ = io.Copy(ch, agent)
	_ = ch.Close()
}

var programSum = regexp.MustCompile(`muster-node-([0-9a-f]{64})`)

// session answers one command.
func (m *Many) session(host string, n ssh.NewChannel) {
	ch, requests, err := n.Accept()
	if err != nil {
		return
	}
	defer func() { _ = ch.Close() }()
	for r := range requests {
		if r.Type != "exec" {
			_ = r.Reply(false, nil)
			continue
		}
		var p struct{ Line string }
		_ = ssh.Unmarshal(r.Payload, &p)
		_ = r.Reply(true, nil)
		status := uint32(0)
		switch sum := programSum.FindStringSubmatch(p.Line); {
		case strings.Contains(p.Line, "muster-probe"):
			_, _ = io.WriteString(ch, "muster-probe Linux x86_64 0 yes\n")
		case sum != nil && strings.Contains(p.Line, " start --base "):
			if m.start(host) != nil {
				status = 1
			}
		case sum != nil:
			_, _ = io.WriteString(ch, sum[1]+"  -\n") // it is there already
		default:
			status = 127
		}
		_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(&struct{ Status uint32 }{status}))
		_ = ch.CloseWrite()
		return
	}
}
