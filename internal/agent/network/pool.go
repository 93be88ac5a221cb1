package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/wait"
)

// Spec is what a sandbox may reach and who may reach it.
type Spec struct {
	// Mode is NetworkNone or NetworkBridge; NetworkHost needs nothing of this package.
	Mode muster.NetworkMode `json:"mode"`
	// Egress, for bridge: nil is everywhere but the node itself and the cloud's
	// metadata addresses; else only these, and those two never. An empty list is nowhere. With a list,
	// names are resolved only if a resolver is in it.
	Egress []netip.Prefix `json:"egress"`
	// Ports are the inbound TCP ports that the node and other sandboxes of this agent may
	// connect to. Nothing else comes in.
	Ports []int `json:"ports,omitempty"`
}

// Net is the network of one sandbox.
type Net struct {
	// Path leads to the namespace for as long as this process lives and the net is not
	// released: /proc/PID/fd/N. A sandbox that was started in it keeps it alive by itself.
	Path string
	// IP is the sandbox's address; the zero Addr for NetworkNone.
	IP netip.Addr
	// DNS are the lines of its resolv.conf; none if there is no resolver that it may reach.
	DNS []string
}

// Config is what a Pool is made of.
type Config struct {
	// Dir is where records are kept, for root only; made if it is not there.
	Dir string
	// Name tells apart the agents of one host: 1 to 8 of a-z and 0-9.
	Name string
	// Subnet of the sandboxes' addresses. Zero: one is chosen by Name that no
	// route of the host overlaps, and remembered in Dir.
	Subnet netip.Prefix
	// Spare ready ones are kept while Run runs; 0 is 4, below 0 none.
	Spare int
	// Flows is how many connections one sandbox may have; 0: by the size of the node's table of tracked connections.
	Flows int
	// Never are addresses that no sandbox reaches, beside those that never names: where the node's
	// own network is not that of the host, those of the host.
	Never []netip.Prefix
	// Resolver answers the DNS requests of sandboxes if the node names no server that they reach.
	Resolver netip.Addr
	Logger   *slog.Logger
}

const (
	defaultSpare = 4
	// lookEvery is how often the node is re-evaluated: resolvers, interfaces,
	// others' rules, and whether the table is as it was written.
	lookEvery = 10 * time.Second
)

var nameForm = regexp.MustCompile(`^[a-z0-9]{1,8}$`)

// entry is one sandbox's network as the pool knows it.
type entry struct {
	id    string
	spec  Spec
	space *space // nil for those found again by Restore, and for none that has only a namespace: index 0
	index int    // 0: no veth pair, nothing in the table
	// going: a release has begun, the table is not to have it any more.
	going bool
	// busy is closed when the take or release that works on it has ended; nil if none does.
	busy chan struct{}
}

// Pool hands out networks. Its methods may be called at the same time.
type Pool struct {
	config Config
	spare  int
	log    *slog.Logger
	names  naming
	wake   chan struct{} // of Run: spares are missing
	rules  rules
	links  *remover

	mu       sync.Mutex
	open     bool // Restore has set the node up
	running  bool // Run keeps spares
	subnet   netip.Prefix
	node     nodeView
	entries  map[string]*entry
	spares   []*space
	used     map[int]use
	cursor   int    // the last index given out
	version  uint64 // counts changes of entries, so that a rewrite of the table knows what it missed
	problems []string
}

// use is what an index is used for.
type use int

const (
	useHeld  use = iota // by a sandbox, a spare, or one in the making
	useStale            // released; connections of its address may still be known to the kernel
)

// New makes a pool and starts nothing.
func New(c Config) (*Pool, error) {
	if !nameForm.MatchString(c.Name) {
		return nil, fmt.Errorf("network: name %q: 1 to 8 of a-z and 0-9 are needed", c.Name)
	}
	if c.Dir == "" {
		return nil, errors.New("network: a directory is needed")
	}
	if c.Subnet.IsValid() {
		if c.Subnet = c.Subnet.Masked(); !c.Subnet.Addr().Is4() || c.Subnet.Bits() > 29 {
			return nil, fmt.Errorf("network: subnet %s: an IPv4 prefix of at most 29 bits is needed", c.Subnet)
		}
	}
	c.Logger = cmp.Or(c.Logger, slog.Default())
	p := &Pool{
		config: c, spare: c.Spare, log: c.Logger, names: naming{c.Name}, wake: make(chan struct{}, 1),
		entries: map[string]*entry{}, used: map[int]use{},
	}
	p.rules = rules{names: p.names, never: c.Never, conns: make(chan *nftables.Conn, keptConns)}
	p.links = newRemover(p.names)
	switch {
	case c.Spare == 0:
		p.spare = defaultSpare
	case c.Spare < 0:
		p.spare = 0
	}
	return p, nil
}

var errNotOpen = errors.New("network: Restore comes before anything else")

// Run keeps spares ready and the node's side right until ctx ends, then lets the spares
// go. It never removes what a sandbox uses.
func (p *Pool) Run(ctx context.Context) error {
	p.mu.Lock()
	if !p.open {
		p.mu.Unlock()
		return errNotOpen
	}
	p.running = true
	p.mu.Unlock()
	defer p.dropSpares()

	deleted := make(chan struct{}, 1)
	var watching sync.WaitGroup
	watching.Go(func() { p.watchTables(ctx, deleted) })
	defer watching.Wait()

	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if err := p.fill(ctx); err != nil && ctx.Err() == nil {
			p.log.Warn("no network could be made ahead of need", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-deleted:
			p.heal(ctx)
		case <-tick.C:
			if err := p.look(ctx); err != nil {
				p.log.Warn("the node's network could not be looked at", "error", err)
			}
			p.heal(ctx)
			if err := p.purge(ctx); err != nil {
				p.log.Warn("old connections could not be forgotten", "error", err)
			}
		}
	}
}

func (p *Pool) nudge() {
	wait.Poke(p.wake)
}

// fill makes what is missing of the spares, one after the other: the kernel makes interfaces one at a time anyway.
func (p *Pool) fill(ctx context.Context) error {
	for ctx.Err() == nil {
		p.mu.Lock()
		missing := p.running && len(p.spares) < p.spare
		p.mu.Unlock()
		if !missing {
			return nil
		}
		s, err := p.make(ctx)
		if err != nil {
			return err
		}
		p.mu.Lock()
		keep := p.running
		if keep {
			p.spares = append(p.spares, s)
		}
		p.mu.Unlock()
		if !keep {
			return p.unmake(s)
		}
	}
	return nil
}

func (p *Pool) dropSpares() {
	p.mu.Lock()
	p.running = false
	spares := p.spares
	p.spares = nil
	p.mu.Unlock()
	if err := p.unmake(spares...); err != nil {
		p.log.Warn("spare networks could not be removed", "error", err)
	}
}

// make makes a wired namespace that no rule lets out yet.
func (p *Pool) make(ctx context.Context) (*space, error) {
	index, err := p.reserve(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	w := wiring{
		name: p.names.link(index), ip: address(p.subnet, index), gateway: address(p.subnet, 1),
		mtu: p.node.mtu, ipv6: p.node.ipv6, resolvers: p.node.resolvers,
	}
	p.mu.Unlock()
	s, err := wired(ctx, w)
	if err != nil {
		p.free(index, false)
		return nil, fmt.Errorf("network %s: %w", w.name, err)
	}
	s.index = index
	return s, nil
}

// unmake removes namespaces that no sandbox uses. The indexes of those that
// could not be removed stay used until the next Restore.
func (p *Pool) unmake(spaces ...*space) error {
	var names []string
	for _, s := range spaces {
		names = append(names, p.names.link(s.index))
	}
	err := p.links.remove(names...)
	for _, s := range spaces {
		if err = errors.Join(err, s.ns.Close()); err == nil {
			p.free(s.index, false)
		}
	}
	return err
}

// Take hands out the network of a sandbox: a spare one if there is one, else one made now. On an
// error nothing of it is left.
func (p *Pool) Take(ctx context.Context, id string, s Spec) (*Net, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("network of %s: %w", id, err)
	}
	e := &entry{id: id, spec: s.clone(), busy: make(chan struct{})}
	p.mu.Lock()
	switch {
	case s.Mode == muster.NetworkBridge && !p.open:
		p.mu.Unlock()
		return nil, errNotOpen
	case p.entries[id] != nil:
		p.mu.Unlock()
		return nil, fmt.Errorf("network of %s: it has one already", id)
	}
	p.entries[id] = e
	if s.Mode == muster.NetworkBridge && len(p.spares) > 0 {
		e.space = p.spares[0]
		p.spares = slices.Delete(p.spares, 0, 1)
	}
	p.mu.Unlock()

	n, err := p.take(ctx, e)
	gone := false
	if err != nil {
		left := p.release(e)
		gone = left == nil
		err = fmt.Errorf("network of %s: %w", id, errors.Join(err, left))
	}
	p.settle(e, gone)
	p.nudge() // only now: making the next one holds the kernel's lock of all interfaces
	return n, err
}

// settle ends what a take or a release does with an entry.
func (p *Pool) settle(e *entry, gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if gone {
		delete(p.entries, e.id)
	}
	p.version++
	close(e.busy)
	e.busy = nil
}

func (p *Pool) take(ctx context.Context, e *entry) (*Net, error) {
	if e.spec.Mode == muster.NetworkNone {
		s, err := bare()
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		e.space = s
		p.mu.Unlock()
		return &Net{Path: s.path()}, nil
	}
	s := e.space
	if s == nil {
		var err error
		if s, err = p.make(ctx); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	e.space, e.index = s, s.index
	p.version++
	ip, dns := address(p.subnet, s.index), p.node.dnsFor(e.spec)
	p.mu.Unlock()
	// The record comes first: an element of the table is never without a record that leads to it.
	if err := p.record(e); err != nil {
		return nil, err
	}
	err := p.rules.allow(grant{index: s.index, ip: ip, spec: e.spec})
	if errors.Is(err, os.ErrNotExist) {
		err = p.rewrite() // somebody has just removed the table, and Run has not seen it yet
	}
	if err != nil {
		return nil, err
	}
	return &Net{Path: s.path(), IP: ip, DNS: dns}, nil
}

// Release removes all of a sandbox's network: rules, veth pair, namespace, record. Safe
// twice, and for ids that never had one. After an error it can be called again.
func (p *Pool) Release(ctx context.Context, id string) error {
	for {
		p.mu.Lock()
		e := p.entries[id]
		if e == nil {
			p.mu.Unlock()
			return nil
		}
		if wait := e.busy; wait != nil {
			p.mu.Unlock()
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				return fmt.Errorf("network of %s: it is still being made or released: %w", id, ctx.Err())
			}
		}
		e.busy = make(chan struct{})
		p.mu.Unlock()

		err := p.release(e)
		p.settle(e, err == nil)
		if err != nil {
			return fmt.Errorf("network of %s: %w", id, err)
		}
		return nil
	}
}

func (p *Pool) release(e *entry) error {
	p.mu.Lock()
	index, s, subnet := e.index, e.space, p.subnet
	if index == 0 && s != nil {
		index = s.index
	}
	e.going = true
	p.version++
	p.mu.Unlock()
	if index != 0 {
		// First the veth pair: without it no rule matters. The record is last, so that a release cut short is found again.
		if err := p.links.remove(p.names.link(index)); err != nil {
			return err
		}
		if err := p.rules.revoke(grant{index: index, ip: address(subnet, index), spec: e.spec}); errors.Is(err, os.ErrNotExist) {
			// Somebody else's hand, or a take that failed half way: what is written anew has not got it.
			if err := p.rewrite(); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
		if err := p.forget(index); err != nil {
			return err
		}
	}
	if s != nil {
		if err := s.ns.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			return fmt.Errorf("close its namespace: %w", err)
		}
	}
	if index != 0 {
		p.free(index, true)
	}
	return nil
}

func (s Spec) check() error {
	switch s.Mode {
	case muster.NetworkNone:
		if s.Egress != nil || len(s.Ports) > 0 {
			return errors.New("mode none has neither egress nor ports")
		}
		return nil
	case muster.NetworkBridge:
	default:
		return fmt.Errorf("mode %q: none or bridge is needed", s.Mode)
	}
	for _, e := range s.Egress {
		if !e.IsValid() {
			return errors.New("an egress prefix is not valid")
		}
	}
	for _, port := range s.Ports {
		if port < 1 || port > 65535 {
			return fmt.Errorf("port %d: 1 to 65535 is needed", port)
		}
	}
	return nil
}

// clone, because what a caller changes later must not change what is allowed. nil egress stays nil.
func (s Spec) clone() Spec {
	s.Egress, s.Ports = slices.Clone(s.Egress), slices.Clone(s.Ports)
	slices.Sort(s.Ports)
	s.Ports = slices.Compact(s.Ports)
	return s
}
