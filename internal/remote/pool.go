package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/musterhq/muster"
)

// PoolConfig is what a Pool is made of.
type PoolConfig struct {
	// Dials are how many handshakes may go on at the same time: 32 if zero. A thousand hosts that
	// come back at once must not take all processors.
	Dials int
	// FirstWait after a failure; it doubles up to LongWait. 250 ms and 30 s if zero. FaultAuth and FaultInvalid wait LongWait at once.
	FirstWait, LongWait time.Duration
	// Changed is told when the connection to a host has come (nil) or gone, or could not be made. It must not
	// wait. Two calls close together may come in the wrong order: what is true is what Get says.
	Changed func(name string, err error)
	Logger  *slog.Logger
}

const (
	defaultDials     = 32
	defaultFirstWait = 250 * time.Millisecond
	defaultLongWait  = 30 * time.Second
	// steady is how long a connection must have lasted for its loss to be the first failure.
	steady = time.Minute
)

// Pool keeps one connection to each of many hosts, and makes it anew when it is lost. A host costs
// no goroutine while it is connected or waits for its next attempt, but those of its Conn.
type Pool struct {
	config PoolConfig
	log    *slog.Logger
	dials  chan struct{} // holds a token for each handshake that goes on

	mu      sync.Mutex
	ctx     context.Context // of Run; nil: not running
	working sync.WaitGroup
	hosts   map[string]*host
}

// host is one that the pool keeps a connection to. Guarded by the pool's mu.
type host struct {
	name     string
	config   Config
	conn     *Conn
	since    time.Time // of conn
	dialling context.CancelFunc
	changed  chan struct{} // closed and replaced whenever an attempt ends
	failures int
	err      error
	next     time.Time // no attempt before
	timer    *time.Timer
}

// NewPool makes a pool and starts nothing.
func NewPool(c PoolConfig) (*Pool, error) {
	if c.Dials < 0 || c.FirstWait < 0 || c.LongWait < 0 {
		return nil, muster.Faultf(muster.FaultInvalid, "remote: a pool's limits are not below 0")
	}
	c.Dials = cmp.Or(c.Dials, defaultDials)
	c.FirstWait = cmp.Or(c.FirstWait, defaultFirstWait)
	c.LongWait = cmp.Or(c.LongWait, defaultLongWait)
	if c.Changed == nil {
		c.Changed = func(string, error) {}
	}
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return &Pool{config: c, log: c.Logger, dials: make(chan struct{}, c.Dials), hosts: map[string]*host{}}, nil
}

// Run keeps the connections until ctx ends, and then closes them all.
func (p *Pool) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.mu.Lock()
	if p.ctx != nil {
		p.mu.Unlock()
		return errors.New("remote: the pool runs already")
	}
	p.ctx = ctx
	for _, h := range p.hosts {
		p.dialLocked(h)
	}
	p.mu.Unlock()

	<-ctx.Done()
	p.mu.Lock()
	var open []*Conn
	for _, h := range p.hosts {
		open = append(open, p.dropLocked(h)...)
	}
	p.ctx = nil
	p.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
	p.working.Wait()
	return nil
}

// Set adds a host, or gives it another configuration. A connection that the new one would not have
// made (address, user, host keys) is closed.
func (p *Pool) Set(name string, c Config) error {
	c, err := c.ready()
	if err != nil {
		return fmt.Errorf("host %s: %w", name, err)
	}
	p.mu.Lock()
	h := p.hosts[name]
	var stale []*Conn
	if h == nil {
		h = &host{name: name, changed: make(chan struct{})}
		p.hosts[name] = h
	} else if !h.config.sameHost(c) {
		stale = p.dropLocked(h)
		h.failures, h.next, h.err = 0, time.Time{}, nil
	} else if h.conn != nil {
		h.conn.SetProgram(c.Program)
	}
	h.config = c
	p.dialLocked(h)
	p.mu.Unlock()
	for _, s := range stale {
		s.Close()
	}
	return nil
}

// Remove forgets a host and closes its connection.
func (p *Pool) Remove(name string) {
	p.mu.Lock()
	var stale []*Conn
	if h := p.hosts[name]; h != nil {
		delete(p.hosts, name)
		stale = p.dropLocked(h)
	}
	p.mu.Unlock()
	for _, s := range stale {
		s.Close()
	}
}

// Get returns the connection to a host, waiting for an attempt that goes on. When the last attempt has failed it
// says so at once; its fault's After says when the next one is made.
func (p *Pool) Get(ctx context.Context, name string) (*Conn, error) {
	for {
		p.mu.Lock()
		h := p.hosts[name]
		if h == nil {
			p.mu.Unlock()
			return nil, muster.Faultf(muster.FaultNotFound, "host %s: the pool does not have it", name)
		}
		if c := h.conn; c != nil && c.Err() == nil {
			p.mu.Unlock()
			return c, nil
		}
		if after := time.Until(h.next); h.err != nil && h.dialling == nil && after > 0 {
			err := h.err
			p.mu.Unlock()
			return nil, &muster.Fault{Kind: muster.KindOf(err), Message: "host " + name, After: after, Err: err}
		}
		p.dialLocked(h)
		changed := h.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, &muster.Fault{Kind: muster.FaultUnavailable, Message: "host " + name + ": not connected yet", Err: ctx.Err()}
		}
	}
}

// Retry makes the next attempt now: somebody knows that the host is back.
func (p *Pool) Retry(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.hosts[name]; h != nil {
		h.next = time.Time{}
		p.dialLocked(h)
	}
}

// dropLocked stops all that goes on for a host, and returns what is to be closed.
func (p *Pool) dropLocked(h *host) []*Conn {
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	if h.dialling != nil {
		h.dialling()
		h.dialling = nil
	}
	c := h.conn
	h.conn = nil
	close(h.changed)
	h.changed = make(chan struct{})
	if c == nil {
		return nil
	}
	return []*Conn{c}
}

// dialLocked begins an attempt, now or when the wait is over, if there is no connection and no attempt.
func (p *Pool) dialLocked(h *host) {
	if p.ctx == nil || p.ctx.Err() != nil || h.conn != nil || h.dialling != nil {
		return
	}
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	if wait := time.Until(h.next); wait > 0 {
		h.timer = time.AfterFunc(wait, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.hosts[h.name] == h {
				h.timer = nil
				p.dialLocked(h)
			}
		})
		return
	}
	ctx, cancel := context.WithCancel(p.ctx)
	h.dialling = cancel
	config := h.config
	p.working.Go(func() { p.dial(ctx, cancel, h, config) })
}

func (p *Pool) dial(ctx context.Context, cancel context.CancelFunc, h *host, config Config) {
	defer cancel()
	var c *Conn
	var err error
	c, err = p.shake(ctx, config)
	p.mu.Lock()
	if ctx.Err() != nil { // removed, changed, or the pool ends: whoever did that has said so
		p.mu.Unlock()
		if c != nil {
			c.Close()
		}
		return
	}
	h.dialling = nil
	if err == nil {
		h.conn, h.since, h.err = c, time.Now(), nil
		p.working.Add(1) // Run waits for what the end of a connection does
		c.onEnd(func() {
			defer p.working.Done()
			p.lost(h, c)
		})
	} else {
		first := h.failures == 0
		p.failedLocked(h, err)
		if first {
			defer p.log.Warn("host not reached; it is tried again", "host", h.name, "error", err)
		}
	}
	close(h.changed)
	h.changed = make(chan struct{})
	p.mu.Unlock()
	p.config.Changed(h.name, err)
}

// shake dials. Only handshakes wait for each other, as they cost our processors: a
// host that does not answer at all must not keep the others waiting.
func (p *Pool) shake(ctx context.Context, config Config) (*Conn, error) {
	held := false
	let := func() {
		if held {
			<-p.dials
		}
		held = false
	}
	defer let()
	config, err := config.ready()
	if err != nil {
		return nil, err
	}
	reach := config.Through
	config.Through = func(ctx context.Context, address string) (net.Conn, error) {
		let() // of the attempt before
		raw, err := reach(ctx, address)
		if err != nil {
			return nil, err
		}
		select {
		case p.dials <- struct{}{}:
			held = true
			return raw, nil
		case <-ctx.Done():
			_ = raw.Close()
			return nil, fmt.Errorf("%d other handshakes go on: %w", p.config.Dials, ctx.Err())
		}
	}
	c, err := Dial(ctx, config)
	if c != nil {
		c.config.Through = reach // what it dials later is not the pool's
	}
	return c, err
}

// failedLocked notes a failure and plans the next attempt.
func (p *Pool) failedLocked(h *host, err error) {
	h.err = err
	wait := p.config.FirstWait << min(h.failures, 30)
	if wait > p.config.LongWait || wait <= 0 || muster.IsKind(err, muster.FaultAuth) || muster.IsKind(err, muster.FaultInvalid) {
		wait = p.config.LongWait
	}
	h.failures++
	h.next = time.Now().Add(wait/2 + rand.N(wait/2+1))
	p.dialLocked(h)
}

// lost is called when a connection has ended.
func (p *Pool) lost(h *host, c *Conn) {
	err := c.Err()
	p.mu.Lock()
	if h.conn != c {
		p.mu.Unlock()
		return
	}
	h.conn = nil
	if time.Since(h.since) > steady {
		h.failures = 0
	}
	p.failedLocked(h, err)
	close(h.changed)
	h.changed = make(chan struct{})
	p.mu.Unlock()
	p.log.Info("connection lost", "host", h.name, "error", err)
	p.config.Changed(h.name, err)
}

// sameHost is true when a connection made by one configuration serves the other.
func (c Config) sameHost(o Config) bool {
	if c.Address != o.Address || c.User != o.User || c.KnownHosts != o.KnownHosts || len(c.HostKeys) != len(o.HostKeys) {
		return false
	}
	for i := range c.HostKeys {
		if string(c.HostKeys[i].Marshal()) != string(o.HostKeys[i].Marshal()) {
			return false
		}
	}
	return true
}
