// Package conns bounds the connections to a server, so that whoever opens many of them keeps nobody else out.
//
// A connection costs a descriptor and memory before its client has shown that it may do anything. When as many are open as there
// may be, the oldest one that serves no admitted request makes room for the next: who holds connections idle, or sends
// requests slowly, only loses them, and a client that asks is answered. The package never reads or writes a connection. It is used by
// internal/server (the listener) and internal/door (which requests were admitted).
package conns

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
)

const (
	// DefaultTotal is how many connections there may be, where the process may have enough descriptors.
	DefaultTotal = 4096
	// keptDescriptors are left to the log, blobs, links to nodes and whatever else is no client's.
	keptDescriptors = 256
	// perConnection: a request may be carried on to a node, over a connection of its own.
	perConnection = 2
	// minimum is what is served with ever so few descriptors.
	minimum = 16
)

// Config of a Listener.
type Config struct {
	// Total is the most connections at once; 0: DefaultTotal. It is made smaller to fit the process's limit of descriptors.
	Total int
	// PerAddress is the most of one remote address, but for loopback ones; 0: Total.
	PerAddress int
}

// Listener hands out at most so many connections at once. Safe for concurrent use.
type Listener struct {
	net.Listener
	total, perAddress int

	closed, refused atomic.Int64

	mu          sync.Mutex
	first, last *Conn // by age, the oldest first
	open        int
	addresses   map[netip.Addr]int
}

// New bounds the connections of a listener.
func New(inner net.Listener, c Config) *Listener {
	total := c.Total
	if total <= 0 {
		total = DefaultTotal
	}
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil && limit.Cur < 1<<31 {
		total = min(total, (int(limit.Cur)-keptDescriptors)/perConnection)
	}
	total = max(total, minimum)
	l := &Listener{Listener: inner, total: total, perAddress: total, addresses: map[netip.Addr]int{}}
	if c.PerAddress > 0 {
		l.perAddress = min(c.PerAddress, total)
	}
	return l
}

// Total is the most connections at once.
func (l *Listener) Total() int { return l.total }

// Open is how many connections there are, Closed how many were closed for others' sake, and Refused how many found all others busy.
func (l *Listener) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// Closed is how many connections had to make room for others.
func (l *Listener) Closed() int64 { return l.closed.Load() }

// Refused is how many connections were closed at once, as all others served requests.
func (l *Listener) Refused() int64 { return l.refused.Load() }

// Accept waits for the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		inner, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &Conn{Conn: inner, l: l, address: addressOf(inner)}
		old, ok := l.add(c)
		if old != nil {
			l.closed.Add(1)
			_ = old.Close()
		}
		if ok {
			return c, nil
		}
		l.refused.Add(1)
		_ = inner.Close()
	}
}

func addressOf(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// add counts a connection in. If there is no room it finds one that is to be closed instead, and is not ok if there is none.
func (l *Listener) add(c *Conn) (old *Conn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sameOnly := c.address.IsValid() && !c.address.IsLoopback() && l.addresses[c.address] >= l.perAddress
	if l.open >= l.total || sameOnly {
		for old = l.first; old != nil; old = old.next {
			if old.serving.Load() == 0 && (!sameOnly || old.address == c.address) {
				break
			}
		}
		if old == nil {
			return nil, false
		}
		l.removeLocked(old)
	}
	c.previous = l.last
	if l.last != nil {
		l.last.next = c
	} else {
		l.first = c
	}
	l.last, c.listed = c, true
	l.open++
	l.addresses[c.address]++
	return old, true
}

func (l *Listener) removeLocked(c *Conn) {
	if !c.listed {
		return
	}
	c.listed = false
	if c.previous != nil {
		c.previous.next = c.next
	} else {
		l.first = c.next
	}
	if c.next != nil {
		c.next.previous = c.previous
	} else {
		l.last = c.previous
	}
	c.previous, c.next = nil, nil
	l.open--
	if l.addresses[c.address]--; l.addresses[c.address] == 0 {
		delete(l.addresses, c.address)
	}
}

// Conn is a connection that is counted until it is closed, by whoever has it then.
type Conn struct {
	net.Conn
	l       *Listener
	address netip.Addr
	// serving counts the admitted requests that are served on it.
	serving atomic.Int32

	// The rest is guarded by the listener's lock.
	previous, next *Conn
	listed         bool
}

// Close closes the connection and makes room for another.
func (c *Conn) Close() error {
	c.l.mu.Lock()
	c.l.removeLocked(c)
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// ReadFrom lets files be sent without passing through this process, as without this package.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

// CloseWrite ends what is sent, where the connection can do that.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

type key struct{}

// Context is for http.Server.ConnContext: requests know their connection by it.
func Context(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(*Conn); ok {
		return context.WithValue(ctx, key{}, c)
	}
	return ctx
}

// Serving notes that an admitted request is served on the connection of this context until done is called: it is not closed for others' sake meanwhile.
func Serving(ctx context.Context) (done func()) {
	c, ok := ctx.Value(key{}).(*Conn)
	if !ok {
		return func() {}
	}
	c.serving.Add(1)
	return func() { c.serving.Add(-1) }
}
