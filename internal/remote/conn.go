package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/musterhq/muster"
)

const (
	keepAlive = "keepalive@openssh.com"
	// keepAlives in one span of silence.
	keepAlives = 3
	// maxLeft bounds the channels that we have closed and the peer has not: a host that never lets go of any must not use up our memory.
	maxLeft = 1024
	// bulkIdle is how long the second connection stays open with nothing on it.
	bulkIdle = time.Minute
)

// Conn is a connection to a host that has proved who it is. All methods may be called at the same time.
type Conn struct {
	config Config
	ssh    ssh.Conn
	wire   *wire
	log    *slog.Logger
	done   chan struct{} // closed when it has ended and err says why

	mu          sync.Mutex
	err         error
	alive       *time.Timer // of the next keep-alive
	idle        *time.Timer // nil: it stays open with nothing on it
	idleAfter   time.Duration
	open        int  // channels in use
	left        int  // channels that the peer has not closed yet
	maySudo     bool // sudo has worked once
	forwarding  Forwarding
	reached     string // the last socket that forwarding led to
	programPath string // of muster-node on the host
	dialSudo    bool   // sockets are for root, and we are not
	atEnd       func()
	bulk        *Conn
	bulkWait    chan struct{} // closed when the dial for bulk has ended; nil: none goes on
}

// Forwarding says how unix sockets of the host are reached.
type Forwarding string

// What is known about forwarding.
const (
	ForwardingUnknown Forwarding = ""
	ForwardingAllowed Forwarding = "allowed"
	ForwardingRefused Forwarding = "refused" // muster-node dial carries the bytes
)

func newConn(c Config, w *wire, sc ssh.Conn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) *Conn {
	conn := &Conn{config: c, programPath: c.Program, ssh: sc, wire: w, log: c.Logger, done: make(chan struct{})}
	go conn.serve(chans, reqs)
	conn.mu.Lock()
	defer conn.mu.Unlock()
	every := c.Silence / keepAlives
	conn.alive = time.AfterFunc(every/2+rand.N(every/2+1), conn.ask) // not all hosts at the same moment
	return conn
}

// Address is the host's, with its port.
func (c *Conn) Address() string { return c.config.Address }

// SetProgram says where muster-node is on the host, once it is known.
func (c *Conn) SetProgram(path string) {
	c.mu.Lock()
	c.programPath = path
	bulk := c.bulk
	c.mu.Unlock()
	if bulk != nil {
		bulk.SetProgram(path)
	}
}

func (c *Conn) program() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.programPath
}

// User is who we are there.
func (c *Conn) User() string { return c.config.User }

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err says why it has ended; nil while it has not.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.err
	default:
		return nil
	}
}

// Wait returns when the connection has ended, with the reason.
func (c *Conn) Wait() error {
	<-c.done
	return c.Err()
}

var errClosed = errors.New("closed by us")

// Close ends the connection and all that goes on over it. It does not wait.
func (c *Conn) Close() { c.fail(errClosed) }

// fail ends the connection for a reason. The first one counts.
func (c *Conn) fail(why error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = c.lost(why)
	}
	c.mu.Unlock()
	_ = c.wire.Close()
}

// lost is the error of what was under way when the connection ended.
func (c *Conn) lost(why error) error {
	return &muster.Fault{Kind: muster.FaultUnavailable, Message: "connection to host " + c.config.Address, Err: why}
}

// ended is the error for somebody who finds the connection broken.
func (c *Conn) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	return c.lost(errors.New("lost"))
}

// serve refuses what the host asks of us, and sees the end.
func (c *Conn) serve(chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
	for chans != nil || reqs != nil {
		select {
		case r, ok := <-reqs:
			if !ok {
				reqs = nil
				continue
			}
			_ = r.Reply(false, nil)
		case n, ok := <-chans:
			if !ok {
				chans = nil
				continue
			}
			_ = n.Reject(ssh.Prohibited, "not from that side")
		}
	}
	why := c.ssh.Wait()
	c.mu.Lock()
	if c.err == nil {
		c.err = c.lost(fmt.Errorf("lost: %w", why))
	}
	bulk, atEnd := c.bulk, c.atEnd
	for _, t := range []*time.Timer{c.alive, c.idle} {
		if t != nil {
			t.Stop()
		}
	}
	close(c.done) // below the lock: whoever arms a timer looks at it there
	c.mu.Unlock()
	_ = c.wire.Close()
	if bulk != nil {
		bulk.Close()
	}
	if atEnd != nil {
		atEnd()
	}
}

// onEnd has f called when the connection has ended, by a goroutine of its own if it has ended already.
func (c *Conn) onEnd(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.done:
		go f()
	default:
		c.atEnd = f
	}
}

// overLocked is true when the connection has ended or is to end.
func (c *Conn) overLocked() bool {
	select {
	case <-c.done:
		return true
	default:
		return c.err != nil
	}
}

// ask sends one keep-alive and waits for its answer, whatever it is.
func (c *Conn) ask() {
	late := time.AfterFunc(c.config.Silence, func() {
		c.fail(fmt.Errorf("no answer to a keep-alive within %s", c.config.Silence))
	})
	_, _, err := c.ssh.SendRequest(keepAlive, true, nil)
	late.Stop()
	if err != nil {
		c.fail(fmt.Errorf("lost: %w", err))
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.overLocked() {
		c.alive.Reset(c.config.Silence / keepAlives)
	}
}

// channel is one opened channel with what the host asks on it.
type channel struct {
	ssh.Channel
	requests <-chan *ssh.Request
}

// openChannel opens a channel. The library cannot be told to stop waiting: a channel that opens after
// ctx has ended is closed again by the goroutine that was left behind.
func (c *Conn) openChannel(ctx context.Context, kind string, extra []byte) (channel, error) {
	c.mu.Lock()
	if c.overLocked() {
		c.mu.Unlock()
		return channel{}, c.ended()
	}
	if c.left >= maxLeft {
		c.mu.Unlock()
		c.fail(fmt.Errorf("the host does not let go of %d channels", maxLeft))
		return channel{}, c.ended()
	}
	c.open++
	if c.idle != nil {
		c.idle.Stop()
	}
	c.mu.Unlock()

	type opened struct {
		channel
		err error
	}
	result := make(chan opened)
	go func() {
		ch, reqs, err := c.ssh.OpenChannel(kind, extra)
		select {
		case result <- opened{channel{ch, reqs}, err}:
			return
		case <-ctx.Done():
		case <-c.done:
		}
		if err != nil {
			c.release(true)
			return
		}
		go ssh.DiscardRequests(reqs)
		_ = ch.Close()
		c.release(true)
	}()
	var err error
	select {
	case o := <-result:
		if o.err == nil {
			return o.channel, nil
		}
		if c.wire.broken.Load() {
			o.err = c.ended()
		}
		c.release(false)
		return channel{}, o.err
	case <-ctx.Done():
		err = &muster.Fault{Kind: muster.FaultUnavailable, Message: fmt.Sprintf("host %s: it opened no channel", c.config.Address), Err: ctx.Err()}
	case <-c.done:
		err = c.ended()
	}
	c.leave()
	return channel{}, err
}

// leave counts a channel as closed by us; release(true) follows when the peer has closed it too.
func (c *Conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left++
	c.closedLocked()
}

// release counts a channel as gone.
func (c *Conn) release(left bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if left {
		c.left--
		return
	}
	c.closedLocked()
}

func (c *Conn) closedLocked() {
	c.open--
	if c.open > 0 || c.idleAfter == 0 || c.overLocked() {
		return
	}
	if c.idle == nil {
		c.idle = time.AfterFunc(c.idleAfter, c.closeIdle)
		return
	}
	c.idle.Reset(c.idleAfter)
}

func (c *Conn) closeIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open > 0 || c.overLocked() {
		return
	}
	c.err = c.lost(errClosed) // below the lock: from now on nobody opens a channel
	_ = c.wire.Close()
}

// usable is true while channels can be opened. It puts off the end of a connection that nothing uses.
func (c *Conn) usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.overLocked() || c.wire.broken.Load() {
		return false
	}
	if c.idle != nil && c.open == 0 {
		c.idle.Reset(c.idleAfter)
	}
	return true
}

// Bulk is a second connection to the same host, for what would delay small requests on this one. It is dialled when
// it is first asked for, closed when nothing has used it for a minute, and ends with this one. A
// channel moves at most 2 MB per round trip: use several for more.
func (c *Conn) Bulk(ctx context.Context) (*Conn, error) {
	for {
		c.mu.Lock()
		if c.overLocked() {
			c.mu.Unlock()
			return nil, c.ended()
		}
		if b := c.bulk; b != nil && b.usable() {
			c.mu.Unlock()
			return b, nil
		}
		if wait := c.bulkWait; wait != nil {
			c.mu.Unlock()
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				return nil, &muster.Fault{Kind: muster.FaultUnavailable, Message: fmt.Sprintf("host %s: second connection", c.config.Address), Err: ctx.Err()}
			case <-c.done:
				continue
			}
		}
		wait := make(chan struct{})
		c.bulkWait = wait
		c.mu.Unlock()
		config := c.config
		config.Program = c.program()
		b, err := Dial(ctx, config)
		c.mu.Lock()
		c.bulkWait = nil
		close(wait)
		over := c.overLocked()
		if err == nil && !over {
			b.keepIdle(bulkIdle)
			b.forwarding, b.maySudo = c.forwarding, c.maySudo // nobody else has it yet
			c.bulk = b
		}
		c.mu.Unlock()
		if err != nil {
			return nil, fmt.Errorf("second connection: %w", err)
		}
		if over {
			b.Close()
			return nil, c.ended()
		}
		return b, nil
	}
}

// keepIdle makes the connection close itself when nothing has used it for so long.
func (c *Conn) keepIdle(after time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idleAfter = after
	c.idle = time.AfterFunc(after, c.closeIdle)
}

// DialTCP connects to an address as seen from the host: the way to hosts behind it (Config.Through).
func (c *Conn) DialTCP(ctx context.Context, address string) (net.Conn, error) {
	host, number, err := net.SplitHostPort(address)
	port, e := strconv.ParseUint(number, 10, 16)
	if err = errors.Join(err, e); err != nil {
		return nil, muster.Faultf(muster.FaultInvalid, "host %s: connect to %q: %v", c.config.Address, address, err)
	}
	// RFC 4254, 7.2.
	to := struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}{host, uint32(port), "127.0.0.1", 0}
	ch, err := c.openChannel(ctx, "direct-tcpip", ssh.Marshal(&to))
	if err != nil {
		return nil, c.unreached(address, err)
	}
	return newStream(c, ch, address, make(chan ending, 1)), nil
}

// unreached is the error of a channel that was not opened.
func (c *Conn) unreached(what string, err error) error {
	if refusal := (*ssh.OpenChannelError)(nil); errors.As(err, &refusal) {
		return &muster.Fault{Kind: muster.FaultUnavailable, Message: fmt.Sprintf("host %s: connect to %s", c.config.Address, what), Err: err}
	}
	return err
}
