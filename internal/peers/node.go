package peers

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/wait"
)

// The protocols on the port, as ALPN names them. A new version of one gets a new name, so that servers of
// two versions say in the handshake that they do not understand each other.
const (
	protoLog  = "muster-log/1"
	protoHTTP = "muster-http/1"
	protoJoin = "muster-join/1"
)

const (
	// handshakeTime bounds a handshake from its first byte to its last.
	handshakeTime = 10 * time.Second
	// handshakes is how many may be under way. Others wait in the kernel's queue.
	handshakes = 64
	// renewEvery is how often the certificate's end is looked at.
	renewEvery = 12 * time.Hour
)

// Errors of connections between servers.
var (
	// ErrOtherCluster: the other side's certificate is of another authority.
	ErrOtherCluster = errors.New("it is a server of another cluster")
	// ErrOtherServer: the address belongs to another server of the cluster than the one that was called.
	ErrOtherServer = errors.New("another server of the cluster has this address")
)

// Config is what a Node is made of. Identity, Listener and Address are needed.
type Config struct {
	Identity *Identity
	// Dir is where the identity is saved; a renewed certificate is written there. Empty: it is not renewed.
	Dir string
	// Listener takes the connections. The node closes it.
	Listener net.Listener
	// Address is where the others reach this server, as host:port.
	Address string
	// Expected is the id of the server at an address, as the log has it; empty if the log does not.
	Expected func(address string) string
	// Refuse says why a server may not send messages of the log, which its certificate allows: it was removed.
	// Nil: none is refused. Whoever serves HTTP asks by itself.
	Refuse func(server string) error
	// Admit decides about a server that wants to join; see Join. Nil: none may.
	Admit func(context.Context, *JoinRequest) (*Admission, error)
	// Clock is the system's clock; nil: time.Now.
	Clock  func() time.Time
	Logger *slog.Logger
}

// Node is this server's side of the connections between servers. Its methods are safe for concurrent use.
type Node struct {
	cfg      Config
	identity atomic.Pointer[Identity]
	log      *inbox
	http     *inbox
	join     *inbox

	mu    sync.Mutex
	conns map[*conn]bool // open ones, both ways; nil when Run has ended
}

// New makes a node, which takes connections once Run runs.
func New(c Config) *Node {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Expected == nil {
		c.Expected = func(string) string { return "" }
	}
	if c.Refuse == nil {
		c.Refuse = func(string) error { return nil }
	}
	address := addr(c.Address)
	n := &Node{cfg: c, conns: map[*conn]bool{}, log: newInbox(address), http: newInbox(address), join: newInbox(address)}
	n.identity.Store(c.Identity)
	return n
}

// Run takes connections until ctx ends, and renews the certificate. At its end it closes all connections,
// those that this server has made included: raft's transport keeps its own open. It returns nil when ctx
// ended. It runs once.
func (n *Node) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	joins := &http.Server{
		Handler: http.HandlerFunc(n.serveJoin), ReadTimeout: joinTime, WriteTimeout: 2 * joinTime, MaxHeaderBytes: 8 << 10,
		ErrorLog: slog.NewLogLogger(n.cfg.Logger.Handler(), slog.LevelDebug),
	}
	g.Go(func() error {
		<-ctx.Done()
		// What waits for a connection ends, and so do those that were not taken yet.
		err := errors.Join(n.cfg.Listener.Close(), n.log.Close(), n.http.Close(), joins.Close(), n.join.Close())
		n.drop(func(*conn) bool { return true }, true)
		return err
	})
	g.Go(func() error {
		if err := joins.Serve(n.join); !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
			return fmt.Errorf("joining servers: %w", err)
		}
		return nil
	})
	g.Go(func() error { return n.accept(ctx, g) })
	g.Go(func() error {
		for wait.For(ctx, renewEvery) {
			n.renew()
		}
		return nil
	})
	return g.Wait()
}

// accept hands each connection to a goroutine for its handshake. The goroutines are the group's.
func (n *Node) accept(ctx context.Context, g *errgroup.Group) error {
	slots := make(chan struct{}, handshakes)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		c, err := n.cfg.Listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			// A process without free files can accept again when some are closed.
			n.cfg.Logger.Warn("a connection of another server could not be taken", "error", err)
			if <-slots; !wait.For(ctx, time.Second) {
				return nil
			}
			continue
		}
		g.Go(func() error {
			n.greet(ctx, c)
			<-slots
			return nil
		})
	}
}

// greet does the handshake and passes the connection on to the protocol's reader.
func (n *Node) greet(ctx context.Context, raw net.Conn) {
	giveUp(raw)
	c := tls.Server(raw, n.serverTLS())
	hello, cancel := context.WithTimeout(ctx, handshakeTime)
	err := c.HandshakeContext(hello)
	cancel()
	to := map[string]*inbox{protoLog: n.log, protoHTTP: n.http, protoJoin: n.join}[c.ConnectionState().NegotiatedProtocol]
	if err == nil && to == nil {
		err = errors.New("it speaks none of the protocols between servers")
	}
	if err == nil {
		server := ""
		if to != n.join {
			server, err = n.identity.Load().verify(c.ConnectionState(), n.cfg.Clock())
		}
		if err == nil {
			if c := n.keep(c, server); c == nil || !to.put(ctx, c) {
				_ = raw.Close()
			}
			return
		}
	}
	if err != nil && ctx.Err() == nil {
		n.cfg.Logger.Debug("connection to the servers' port refused", "from", raw.RemoteAddr().String(), "error", err)
	}
	_ = raw.Close()
}

// silentFor is how long the other side may acknowledge nothing of what was sent before the connection ends. A host
// that lost its power says nothing, and by default the system would wait for it for a quarter of an hour.
const silentFor = 10 * time.Second

// giveUp sets that time. Where it cannot be set the default stays.
func giveUp(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: silentFor / 2, Interval: silentFor / 4, Count: 2})
	if raw, err := t.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silentFor.Milliseconds()))
		})
	}
}

func (n *Node) serverTLS() *tls.Config {
	i := n.identity.Load()
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{i.cert}, NextProtos: []string{protoLog, protoHTTP, protoJoin},
		ClientAuth: tls.RequestClientCert, SessionTicketsDisabled: true, Time: n.cfg.Clock,
		VerifyConnection: func(s tls.ConnectionState) error {
			if s.NegotiatedProtocol == protoJoin {
				return nil // it has a token
			}
			server, err := i.verify(s, n.cfg.Clock())
			if err != nil {
				return err
			}
			if s.NegotiatedProtocol == protoHTTP {
				return nil // a removed server is told so in an answer
			}
			return n.cfg.Refuse(server)
		},
	}
}

// verify is the server that the other side has proved to be.
func (i *Identity) verify(s tls.ConnectionState, now time.Time) (string, error) {
	if len(s.PeerCertificates) == 0 {
		return "", errors.New("it showed no certificate")
	}
	leaf := s.PeerCertificates[0]
	_, err := leaf.Verify(x509.VerifyOptions{Roots: i.roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) {
		return "", ErrOtherCluster
	}
	if invalid := (x509.CertificateInvalidError{}); errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return "", fmt.Errorf("its certificate is good from %s to %s; compare the clocks of both hosts, and restart a server that was off for months", leaf.NotBefore.UTC().Format(time.DateOnly), leaf.NotAfter.UTC().Format(time.DateOnly))
	}
	if err != nil {
		return "", err
	}
	server, ok := serverOf(leaf)
	if !ok {
		return "", errors.New("its certificate names no server")
	}
	return server, nil
}

// dial connects to a server, by one of the protocols. want is its id, or empty if any server of the
// cluster will do.
func (n *Node) dial(ctx context.Context, proto, address, want string) (net.Conn, error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	giveUp(raw)
	i := n.identity.Load()
	c := tls.Client(raw, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{i.cert}, NextProtos: []string{proto}, Time: n.cfg.Clock,
		// The name that is wanted is no host's: VerifyConnection does all that the standard check does, and more.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			got, err := i.verify(s, n.cfg.Clock())
			if err == nil && want != "" && got != want {
				err = fmt.Errorf("%w: it is %s, and not %s", ErrOtherServer, got, want)
			}
			return err
		},
	})
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("the server at %s: %w", address, err)
	}
	server, _ := serverOf(c.ConnectionState().PeerCertificates[0])
	kept := n.keep(c, server)
	if kept == nil {
		_ = raw.Close()
		return nil, net.ErrClosed
	}
	return kept, nil
}

// DialHTTP connects to a server of the cluster for HTTP. It is for an http.Transport that believes that it
// dials plain connections: the encryption is done here.
func (n *Node) DialHTTP(ctx context.Context, address, server string) (net.Conn, error) {
	return n.dial(ctx, protoHTTP, address, server)
}

// HTTP has the connections of other servers for HTTP. A server of net/http that serves it wants ConnContext.
func (n *Node) HTTP() net.Listener { return n.http }

// conn is a connection whose other side is known. It hides that it is one of TLS from net/http, which
// would look at the protocol's name and close a connection whose protocol it does not know.
type conn struct {
	*tls.Conn
	server string
	n      *Node
}

// Close also forgets the connection.
func (c *conn) Close() error {
	c.n.mu.Lock()
	delete(c.n.conns, c)
	c.n.mu.Unlock()
	return c.Conn.Close()
}

// keep remembers an open connection. It returns nil when Run has ended.
func (n *Node) keep(c *tls.Conn, server string) *conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns == nil {
		return nil
	}
	kept := &conn{c, server, n}
	n.conns[kept] = true
	return kept
}

// drop closes connections. last says that no more are kept.
func (n *Node) drop(which func(*conn) bool, last bool) {
	var closing []*conn
	n.mu.Lock()
	for c := range n.conns {
		if which(c) {
			closing = append(closing, c)
		}
	}
	if last {
		n.conns = nil
	}
	n.mu.Unlock()
	for _, c := range closing {
		// The other side is not told: the message could wait for one that does not read.
		_ = c.NetConn().Close()
		_ = c.Close()
	}
}

// Drop closes the connections of a server, which was removed. It can make no new ones if Refuse says so.
func (n *Node) Drop(server string) {
	n.drop(func(c *conn) bool { return c.server == server }, false)
}

type serverKey struct{}

// ConnContext is for http.Server.ConnContext: Server knows then whose a request is.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(*conn); ok {
		return context.WithValue(ctx, serverKey{}, c.server)
	}
	return ctx
}

// Server is the id of the server that a request has come from; empty if it has come by another way than
// HTTP's listener.
func Server(ctx context.Context) string {
	s, _ := ctx.Value(serverKey{}).(string)
	return s
}

// Log carries the messages of the log.
func (n *Node) Log() raft.StreamLayer { return logLayer{n.log, n} }

// logLayer is a raft.StreamLayer.
type logLayer struct {
	*inbox
	n *Node
}

// Dial connects to the server that the log has at an address, and to no other: a server that got the
// address of another one would have two votes.
func (l logLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return l.n.dial(ctx, protoLog, string(address), l.n.cfg.Expected(string(address)))
}

// renew replaces the certificate when it is due. A failure is told and tried again: the old one is still
// good for months.
func (n *Node) renew() {
	i := n.identity.Load()
	if n.cfg.Dir == "" || !i.due(n.cfg.Clock()) {
		return
	}
	next, err := i.renewed(n.cfg.Dir, n.cfg.Clock())
	if next != nil {
		n.identity.Store(next)
	}
	if err != nil {
		n.cfg.Logger.Warn("the renewed certificate of this server could not be saved; it is tried again", "file", filepath.Join(n.cfg.Dir, serverCertFile), "error", err)
		return
	}
	n.cfg.Logger.Info("the certificate of this server was renewed", "good_until", next.Expires())
}

// addr is a net.Addr of a host and port that are not resolved.
type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

// inbox is a net.Listener of connections that another one has accepted.
type inbox struct {
	address net.Addr
	conns   chan net.Conn
	closing context.Context
	close   context.CancelFunc
}

func newInbox(address net.Addr) *inbox {
	b := &inbox{address: address, conns: make(chan net.Conn)}
	b.closing, b.close = context.WithCancel(context.Background())
	return b
}

// put waits until somebody takes the connection. It is false if nobody will.
func (b *inbox) put(ctx context.Context, c net.Conn) bool {
	select {
	case b.conns <- c:
		return true
	case <-b.closing.Done():
	case <-ctx.Done():
	}
	return false
}

func (b *inbox) Accept() (net.Conn, error) {
	select {
	case c := <-b.conns:
		return c, nil
	case <-b.closing.Done():
		return nil, net.ErrClosed
	}
}

func (b *inbox) Addr() net.Addr { return b.address }

func (b *inbox) Close() error {
	b.close()
	return nil
}
