// Package local is the provider "local": an instance is a directory on this
// host with an agent process on it, that behaves like a machine with the capacity, price
// and boot delay of its offering. It is for trying Muster out, for one strong
// host, and for tests on real processes.
//
// It must never touch a directory of another owner, never keep anything of an
// instance in memory only (a restarted server finds all of them again), and never report an
// instance as destroyed while a process of it lives. The fleet calls it as a cloud.Provider, link
// as a cloud.Dialer and cloud.AgentStarter.
//
// # A machine's life
//
//	DIR/i-0123456789ab/instance.json   written before the agent is started, with all tags
//	DIR/i-0123456789ab/…               the agent's own directory
//
// The id comes from owner and token, so that two calls with one token can only
// make one instance. An instance is powered on while its agent or any process of
// its sandboxes lives, and for a while after its agent alone has died, so that it can be
// started again before results that nobody has fetched are given up. Killed in the middle of
// work, or after a restart of the host, it is off at once. What is off is not in the list, is cleaned
// away by the next List, and is never powered on again.
package local

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/atomicfile"
	"github.com/musterhq/muster/internal/cloud"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	instanceName = "instance.json"
	idPrefix     = "i-"
	// imagesName is the directory of the caches of images, which outlive instances.
	imagesName = "images"
	// gonePrefix begins the name of the directory of an instance that is no more.
	gonePrefix = "gone-"
	// defaultProvider is the name in offerings that bring none.
	defaultProvider muster.ProviderName = "local"
	// sweepAfter is how old an unfinished directory must be to be taken for abandoned.
	sweepAfter = time.Minute
)

// Config of the provider.
type Config struct {
	// Dir holds the instances; made if it is not there.
	Dir string
	// Owner is the cluster's id; instances of others are left alone.
	Owner string
	// NodeBinary is the muster-node program.
	NodeBinary string
	Offerings  []Offering
	// AgentArgs are what a pool's configuration adds to the arguments of its nodes' agents. May be nil.
	AgentArgs func(muster.PoolName) []string
	// Network returns the network settings of a pool's agents, as package outbound encodes them;
	// empty: they have this process's environment. May be nil.
	Network func(muster.PoolName) ([]byte, error)
	Logger  *slog.Logger
}

// Offering is what can be had of this host.
type Offering struct {
	muster.Offering
	// BootDelay is how long a new instance takes to answer.
	BootDelay time.Duration
	// MaxInstances is how many there can be at once; 0 = any number.
	MaxInstances int
}

// Provider makes instances on this host.
type Provider struct {
	cfg Config
	log *slog.Logger
	// admit holds one token: instances are counted and made by one at a time.
	admit chan struct{}
	// startGrace is how long a started agent may take until its record is there; offAfter is how
	// long an instance whose agent alone has died is still on.
	startGrace, offAfter time.Duration

	mu sync.Mutex
	// busy are instances that something is being done to: one thing at a time for each.
	busy map[muster.InstanceID]*turn
	// children are the agent processes that this process started and that have not ended.
	children map[muster.InstanceID][]*child
	// quiet is since when an instance was seen without a living process.
	quiet map[muster.InstanceID]time.Time
	// ours are instances of the owner whose agents were dialled.
	ours map[muster.InstanceID]bool
}

var (
	_ cloud.Provider     = (*Provider)(nil)
	_ cloud.Dialer       = (*Provider)(nil)
	_ cloud.AgentStarter = (*Provider)(nil)
)

// New makes the provider; nothing is started.
func New(cfg Config) (*Provider, error) {
	switch {
	case cfg.Dir == "":
		return nil, errors.New("provider local: no directory given")
	case cfg.Owner == "":
		return nil, errors.New("provider local: no owner given")
	case cfg.NodeBinary == "":
		return nil, errors.New("provider local: path of muster-node is not given")
	}
	var err error
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, err
	}
	if cfg.NodeBinary, err = filepath.Abs(cfg.NodeBinary); err != nil {
		return nil, err
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Offerings = slices.Clone(cfg.Offerings)
	for n := range cfg.Offerings {
		o := &cfg.Offerings[n]
		o.Provider = cmp.Or(o.Provider, defaultProvider)
		o.Market = cmp.Or(o.Market, muster.OnDemand)
	}
	return &Provider{
		cfg: cfg, log: cfg.Logger, admit: make(chan struct{}, 1), startGrace: startGrace, offAfter: offAfter,
		busy: map[muster.InstanceID]*turn{}, children: map[muster.InstanceID][]*child{}, quiet: map[muster.InstanceID]time.Time{}, ours: map[muster.InstanceID]bool{},
	}, nil
}

// instance is the content of instance.json: all that is needed to start its
// agent, whatever becomes of the configuration.
type instance struct {
	Tags       cloud.Tags          `json:"tags"`
	Offering   muster.OfferingName `json:"offering"`
	Zone       string              `json:"zone,omitempty"`
	Market     muster.Market       `json:"market"`
	Capacity   muster.Resources    `json:"capacity"`
	Attributes map[string]string   `json:"attributes,omitempty"`
	BootDelay  time.Duration       `json:"boot_delay_ns,omitempty"`
	Created    muster.Time         `json:"created"`
	// Destroying: no agent is started on it any more.
	Destroying bool `json:"destroying,omitempty"`

	id  muster.InstanceID
	dir string
}

func (i *instance) cloud() cloud.Instance {
	return cloud.Instance{ID: i.id, Tags: i.Tags, Offering: i.Offering, Zone: i.Zone, Market: i.Market, Created: i.Created}
}

// idOf is the id of the instance that a token of an owner names.
func idOf(owner string, token muster.Token) muster.InstanceID {
	sum := sha256.Sum256([]byte(owner + "\x00" + string(token)))
	return muster.InstanceID(idPrefix + hex.EncodeToString(sum[:6]))
}

func (p *Provider) dir(id muster.InstanceID) string { return filepath.Join(p.cfg.Dir, string(id)) }

// validID keeps a foreign id from leading out of the directory.
func validID(id muster.InstanceID) bool {
	rest, ok := strings.CutPrefix(string(id), idPrefix)
	return ok && rest != "" && strings.Trim(rest, "0123456789abcdef") == ""
}

// read finds an instance of whichever owner; fs.ErrNotExist if there is none.
func (p *Provider) read(id muster.InstanceID) (*instance, error) {
	if !validID(id) {
		return nil, fs.ErrNotExist
	}
	b, err := os.ReadFile(filepath.Join(p.dir(id), instanceName))
	if err != nil {
		return nil, err
	}
	i := &instance{id: id, dir: p.dir(id)}
	if err := json.Unmarshal(b, i); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(p.dir(id), instanceName), err)
	}
	return i, nil
}

// mine finds an instance of the owner; anything else is FaultNotFound.
func (p *Provider) mine(id muster.InstanceID) (*instance, error) {
	i, err := p.read(id)
	switch {
	case err == nil && i.Tags.Owner == p.cfg.Owner:
		return i, nil
	case err == nil || errors.Is(err, fs.ErrNotExist):
		return nil, muster.Faultf(muster.FaultNotFound, "instance %s does not exist", id)
	}
	return nil, transient(err, "instance %s", id)
}

// write replaces instance.json, on disk: a torn one would be nobody's.
func (i *instance) write() error {
	b, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(i.dir, instanceName), append(b, '\n'))
}

// Offers are the offerings of the configuration. They are always available:
// what is sold out is told by the limit and the nodes that there are, at every
// moment, and not by an offer that may be a minute old.
func (p *Provider) Offers(context.Context) ([]muster.Offering, error) {
	list := make([]muster.Offering, 0, len(p.cfg.Offerings))
	for _, o := range p.cfg.Offerings {
		offer := o.Offering
		offer.Available, offer.Limit = true, o.MaxInstances
		list = append(list, offer)
	}
	return list, nil
}

// List is all instances that are powered on. What is off is cleaned away.
func (p *Provider) List(ctx context.Context, _ string) (cloud.Listing, error) {
	p.sweep()
	all, whole, err := p.all()
	if err != nil {
		return cloud.Listing{}, err
	}
	listing := cloud.Listing{Complete: whole}
	for _, i := range all {
		if i.Tags.Owner != p.cfg.Owner {
			continue
		}
		there, err := p.look(ctx, i)
		if err != nil {
			// Not knowing is not absence.
			p.log.Warn("instance cannot be looked at", "instance", i.id, "error", err)
			listing.Complete = false
			continue
		}
		if there {
			listing.Instances = append(listing.Instances, i.cloud())
		}
	}
	if err := ctx.Err(); err != nil {
		return cloud.Listing{}, transient(err, "list")
	}
	return listing, nil
}

// look reports whether the instance is there, and cleans up after one that is off.
func (p *Provider) look(ctx context.Context, i *instance) (bool, error) {
	done := p.turnNow(i.id)
	if done == nil {
		return true, nil // something is being done to it: it is there
	}
	defer done()
	now, err := p.read(i.id)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	on, err := p.powered(ctx, now)
	if err != nil || on {
		return true, err
	}
	p.log.Info("instance is off: no process of it lives", "instance", i.id, "node", i.Tags.Node)
	if err := p.clear(ctx, now); err != nil {
		p.log.Warn("leftovers of an instance cannot be cleaned away yet", "instance", i.id, "error", err)
	}
	return false, nil
}

// all reads every instance of every owner, in the order of the ids; not whole if one could not be read.
func (p *Provider) all() (list []*instance, whole bool, err error) {
	entries, err := os.ReadDir(p.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, transient(err, "instances")
	}
	whole = true
	for _, e := range entries {
		i, err := p.read(muster.InstanceID(e.Name()))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue // not of ours, or not yet an instance, or one no more
		}
		if err != nil {
			p.log.Error("instance cannot be read", "instance", e.Name(), "error", err)
			whole = false
			continue
		}
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b *instance) int { return strings.Compare(string(a.id), string(b.id)) })
	return list, whole, nil
}

// sweep deletes what calls that died in the middle have left: directories of
// destroyed instances, and those that never became one.
func (p *Provider) sweep() {
	entries, _ := os.ReadDir(p.cfg.Dir)
	for _, e := range entries {
		path := filepath.Join(p.cfg.Dir, e.Name())
		if strings.HasPrefix(e.Name(), gonePrefix) {
			if err := journal.RemoveTree(path); err != nil {
				p.log.Warn("leftovers of a destroyed instance", "path", path, "error", err)
			}
			continue
		}
		info, err := e.Info()
		if err != nil || !validID(muster.InstanceID(e.Name())) || time.Since(info.ModTime()) < sweepAfter {
			continue
		}
		if _, err := os.Lstat(filepath.Join(path, instanceName)); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(filepath.Join(path, instanceName+atomicfile.TempSuffix))
			_ = os.Remove(filepath.Join(path, ".instance.json")) // of an earlier version
			_ = os.Remove(path)                                  // only if it is empty
		}
	}
}

// maxOurs bounds what is remembered of instances that may be gone.
const maxOurs = 1000

// DialAgent opens a connection to the agent's socket. Whose an instance is never changes and is read once: requests into sandboxes come
// here, and wait.
func (p *Provider) DialAgent(ctx context.Context, id muster.InstanceID) (net.Conn, error) {
	p.mu.Lock()
	ours := p.ours[id]
	p.mu.Unlock()
	if ours {
		if conn, err := wire.DialSocket(ctx, filepath.Join(p.dir(id), wire.SocketName)); err == nil {
			return conn, nil
		}
	}
	i, err := p.mine(id)
	p.mu.Lock()
	switch {
	case err != nil:
		delete(p.ours, id)
	case len(p.ours) >= maxOurs:
		clear(p.ours)
		fallthrough
	default:
		p.ours[id] = true
	}
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	conn, err := wire.DialSocket(ctx, filepath.Join(i.dir, wire.SocketName))
	if err != nil {
		return nil, &muster.Fault{Kind: muster.FaultUnavailable, Message: fmt.Sprintf("instance %s", id), Err: err}
	}
	return conn, nil
}

// turn is the right to do something to an instance.
type turn struct {
	token chan struct{}
	users int // guarded by Provider.mu
}

// turn waits until nothing else is being done to the instance; done ends it.
func (p *Provider) turn(ctx context.Context, id muster.InstanceID) (done func(), err error) {
	t := p.queue(id)
	select {
	case t.token <- struct{}{}:
		return func() { <-t.token; p.leave(id, t) }, nil
	case <-ctx.Done():
		p.leave(id, t)
		return nil, transient(context.Cause(ctx), "instance %s: something else is being done to it", id)
	}
}

// turnNow is turn without waiting; nil if something is being done to the instance.
func (p *Provider) turnNow(id muster.InstanceID) (done func()) {
	t := p.queue(id)
	select {
	case t.token <- struct{}{}:
		return func() { <-t.token; p.leave(id, t) }
	default:
		p.leave(id, t)
		return nil
	}
}

func (p *Provider) queue(id muster.InstanceID) *turn {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.busy[id]
	if t == nil {
		t = &turn{token: make(chan struct{}, 1)}
		p.busy[id] = t
	}
	t.users++
	return t
}

func (p *Provider) leave(id muster.InstanceID, t *turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(p.busy, id)
	}
}

func transient(err error, format string, args ...any) *muster.Fault {
	return &muster.Fault{Kind: muster.FaultTransient, Message: fmt.Sprintf(format, args...), Err: err}
}

// OffersConfigured makes it a cloud.OffersConfigured.
func (p *Provider) OffersConfigured() {}
