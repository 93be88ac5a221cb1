package static

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/wait"
)

// Hosts does to hosts what has to be done there.
type Hosts interface {
	// Clear ends a node's agent and all that it runs, and deletes what it left. FaultUnavailable: the
	// host cannot be reached; FaultAuth and FaultInvalid: not before somebody has mended something.
	Clear(ctx context.Context, a cloud.Access, node muster.NodeID) error
	// Measure is what a host has, and its architecture.
	Measure(ctx context.Context, a cloud.Access) (muster.Resources, string, error)
}

// Host is one of the configuration.
type Host struct {
	Name   string
	Access cloud.Access
	// Offering that it is one of; empty: one of its own, of its name, with what is found there, and what follows.
	Offering   muster.OfferingName
	Price      muster.Price
	Zone       string
	Attributes map[string]string
}

// Config is what a Provider needs.
type Config struct {
	Name muster.ProviderName
	// Records keep who has which host.
	Records Records
	// Dir is where earlier versions kept that, in files. They are read once. Empty: there are none.
	Dir   string
	Owner string
	// Offerings are those that hosts name.
	Offerings []muster.Offering
	List      []Host
	Hosts     Hosts
	Logger    *slog.Logger
	// AgainAfter is how long a host that could not be reached is left alone; 0: 30 s.
	AgainAfter time.Duration
}

const (
	againAfter = 30 * time.Second
	clearFor   = 3 * time.Minute
	finishFor  = 10 * time.Second
	measureFor = 20 * time.Second
	// A host that was given back shortTakes times in a row, each time within shortLife, is left alone for restFor: most likely something
	// is wrong with it.
	shortLife, shortTakes, restFor = 10 * time.Second, 5, 2 * time.Minute
	// restAsk is the longest time until it is asked again: another host may be free before that.
	restAsk = 10 * time.Second
	// hostMemory and hostShare of what was found are left to the host itself.
	hostMemory, hostShare = 256 * muster.MiB, 20
)

// Provider gives out hosts.
type Provider struct {
	cfg Config
	log *slog.Logger
	// background are clears and measures under way that nobody waits for; each has a deadline.
	background sync.WaitGroup
	// taking is the turn to bring the files of an earlier version into the log; took: that is done.
	taking *wait.Turn
	took   bool

	mu    sync.Mutex
	tried map[string]time.Time // hosts that are being cleared or measured, or could not be reached: since when
	why   map[string]string    // that could not be reached: why
	found map[string]Found     // nil: not read yet
	// given is when a host was last given back, shorts how often in a row it was soon after it was taken.
	given  map[string]time.Time
	shorts map[string]int
}

var (
	_ cloud.Provider = (*Provider)(nil)
	_ cloud.Accessor = (*Provider)(nil)
)

// New makes the provider; nothing is dialled.
func New(cfg Config) (*Provider, error) {
	if cfg.Records == nil || cfg.Owner == "" || cfg.Name == "" || cfg.Hosts == nil {
		return nil, errors.New("provider static: name, records, owner and a way to the hosts are needed")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.AgainAfter = cmp.Or(cfg.AgainAfter, againAfter)
	return &Provider{cfg: cfg, log: cfg.Logger, taking: wait.NewTurn(), tried: map[string]time.Time{}, why: map[string]string{}, given: map[string]time.Time{}, shorts: map[string]int{}}, nil
}

// Wait returns when nothing goes on in the background any more.
func (p *Provider) Wait() { p.background.Wait() }

// Create is cloud.Provider's.
func (p *Provider) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	out := make([]cloud.Created, len(intents))
	for n := range intents {
		r, err := p.take(ctx, &intents[n])
		if err != nil {
			out[n].Err = err
			continue
		}
		out[n].Instance = r.Instance
	}
	return out
}

// take gives a free host to an intent, or the one that its token has. Another call may be quicker to
// have the chosen host in the log: then the next one is tried.
func (p *Provider) take(ctx context.Context, in *cloud.Intent) (*Record, error) {
	if in.Token == "" || in.Node == "" {
		return nil, muster.Faultf(muster.FaultInvalid, "an intent needs a token and a node id")
	}
	for range len(p.cfg.List) {
		r, err := p.choose(ctx, in)
		if err != nil || r.Created != 0 {
			return r, err
		}
		r.Created = muster.At(time.Now())
		switch err = p.cfg.Records.Take(ctx, *r); {
		case muster.IsKind(err, muster.FaultConflict):
			continue
		case err != nil:
			return nil, err
		}
		p.log.Info("host taken", "host", r.Host, "instance", r.ID, "node", in.Node)
		return r, nil
	}
	return nil, muster.Faultf(muster.FaultTransient, "offering %s: others take its hosts at the same time", in.Offering)
}

// choose returns the record that the token of an intent has, or else one of a free host that is to be
// taken: it has no time yet.
func (p *Provider) choose(ctx context.Context, in *cloud.Intent) (*Record, error) {
	market := cmp.Or(in.Market, muster.OnDemand)
	all, err := p.records(ctx)
	if err != nil {
		return nil, err
	}
	taken := make(map[string]*Record, len(all))
	for i := range all {
		r := &all[i]
		taken[r.Host] = r
		if r.Tags.Owner != p.cfg.Owner || r.Tags.Token != in.Token {
			continue
		}
		if r.Owed {
			return nil, muster.Faultf(muster.FaultConflict, "host %s of token %s was released", r.Host, in.Token)
		}
		return r, nil
	}
	hosts, zone, sold := p.hostsOf(in.Offering)
	if !sold || zone != in.Zone || market != muster.OnDemand {
		return nil, &muster.Fault{Kind: muster.FaultInvalid, Field: "offering", Message: fmt.Sprintf("there is no offering %s in zone %q on market %s", in.Offering, in.Zone, market)}
	}
	var owed []*Record
	hosts, resting, after := p.inTurn(hosts, taken)
	for _, h := range hosts {
		r := taken[h.Name]
		if r != nil {
			if r.Owed {
				owed = append(owed, r)
			}
			continue
		}
		sum := sha256.Sum256([]byte(p.cfg.Owner + "\x00" + string(in.Token)))
		return &Record{Access: h.Access, Host: h.Name, Instance: cloud.Instance{
			ID:   muster.InstanceID(h.Name + "-" + hex.EncodeToString(sum[:6])),
			Tags: cloud.Tags{Owner: p.cfg.Owner, Token: in.Token, Node: in.Node, Pool: in.Pool}, Offering: in.Offering, Zone: in.Zone, Market: market,
		}}, nil
	}
	p.settle(ctx, owed)
	return nil, &muster.Fault{Kind: muster.FaultCapacity, Message: fmt.Sprintf("offering %s: all of its %d hosts are in use%s%s", in.Offering, len(hosts)+len(resting), p.owedWords(owed), restWords(resting)), After: after,
		Scope: muster.Scope{Provider: p.cfg.Name, Zone: in.Zone, Offering: in.Offering, Market: market}}
}

// inTurn are the hosts in the order in which they are taken, those first that were not given back, or the longest ago: one that
// is of no use is not tried again and again while others are free. Resting are those that are left alone, the first until after.
func (p *Provider) inTurn(hosts []*Host, taken map[string]*Record) (turn, resting []*Host, after time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range hosts {
		left := restFor - time.Since(p.given[h.Name])
		if taken[h.Name] != nil || p.shorts[h.Name] < shortTakes || left <= 0 {
			turn = append(turn, h)
			continue
		}
		resting = append(resting, h)
		if left = min(left, restAsk); after == 0 || left < after {
			after = left
		}
	}
	slices.SortStableFunc(turn, func(a, b *Host) int { return p.given[a.Name].Compare(p.given[b.Name]) })
	return turn, resting, after
}

func restWords(resting []*Host) string {
	words := ""
	for _, h := range resting {
		words += fmt.Sprintf("; host %s was released %d times as soon as it was taken, and is not used for up to %s", h.Name, shortTakes, restFor)
	}
	return words
}

// owedWords says which hosts are neither in use nor free.
func (p *Provider) owedWords(owed []*Record) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	words := ""
	for _, r := range owed {
		words += fmt.Sprintf("; host %s is to be cleared first", r.Host)
		if why := p.why[r.Host]; why != "" {
			words += " (" + why + ")"
		}
	}
	return words
}

// hostsOf are the hosts of an offering.
func (p *Provider) hostsOf(name muster.OfferingName) (hosts []*Host, zone string, sold bool) {
	for i := range p.cfg.Offerings {
		if p.cfg.Offerings[i].Name == name {
			zone, sold = p.cfg.Offerings[i].Zone, true
		}
	}
	for i := range p.cfg.List {
		h := &p.cfg.List[i]
		switch {
		case h.Offering == name:
			hosts = append(hosts, h)
		case h.Offering == "" && h.Name == string(name):
			return []*Host{h}, h.Zone, true
		}
	}
	return hosts, zone, sold
}

// Destroy is cloud.Provider's. A host that cannot be reached is given back all the same, as what it runs is
// given up by whoever asks; it is not free before it was cleared.
func (p *Provider) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	errs := make([]error, len(ids))
	var wg sync.WaitGroup
	for n, id := range ids {
		wg.Go(func() { errs[n] = p.destroy(ctx, id) })
	}
	wg.Wait()
	return errs
}

func (p *Provider) destroy(ctx context.Context, id muster.InstanceID) error {
	all, err := p.records(ctx)
	if err != nil {
		return err
	}
	r := find(all, id)
	switch {
	case r == nil:
		return nil
	case r.Tags.Owner != p.cfg.Owner:
		return muster.Faultf(muster.FaultNotFound, "instance %s is not of owner %s", id, p.cfg.Owner)
	case r.Owed:
		return nil
	}
	clearCtx, cancel := context.WithTimeout(ctx, clearFor)
	defer cancel()
	err = p.cfg.Hosts.Clear(clearCtx, r.Access, r.Tags.Node)
	switch {
	case ctx.Err() != nil:
		return transient(ctx.Err(), "host %s", r.Host)
	case err == nil:
		return p.finish(ctx, r, false)
	case muster.IsKind(err, muster.FaultUnavailable), muster.IsKind(err, muster.FaultAuth), muster.IsKind(err, muster.FaultInvalid):
		p.log.Warn("host released and not cleared: work on it may keep running; it is not used before it can be reached", "host", r.Host, "node", r.Tags.Node, "error", err)
		p.failed(r.Host, err)
		return p.finish(ctx, r, true)
	}
	return transient(err, "host %s", r.Host)
}

// finish notes what became of a host that is given back.
func (p *Provider) finish(ctx context.Context, r *Record, owed bool) error {
	// Whatever was done there is done: the caller's end does not undo it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishFor)
	defer cancel()
	if err := p.cfg.Records.Release(ctx, r.Host, r.ID, owed); err != nil {
		return transient(err, "host %s", r.Host)
	}
	if owed {
		return nil
	}
	p.mu.Lock()
	if p.given[r.Host] = time.Now(); time.Since(r.Created.Std()) < shortLife {
		p.shorts[r.Host]++
	} else {
		delete(p.shorts, r.Host)
	}
	p.mu.Unlock()
	p.log.Info("host is free", "host", r.Host, "was", r.Tags.Node)
	return nil
}

func (p *Provider) failed(host string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tried[host], p.why[host] = time.Now(), err.Error()
}

// may reports whether a host may be tried now, and notes that it is.
func (p *Provider) may(host string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, ok := p.tried[host]; ok && time.Since(at) < p.cfg.AgainAfter {
		return false
	}
	p.tried[host] = time.Now().Add(clearFor) // until it has ended
	return true
}

// settle clears hosts that were given back without it, in the background.
func (p *Provider) settle(ctx context.Context, owed []*Record) {
	for _, r := range owed {
		if !p.may(r.Host) {
			continue
		}
		p.background.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearFor)
			defer cancel()
			err := p.cfg.Hosts.Clear(ctx, r.Access, r.Tags.Node)
			if err == nil {
				err = p.finish(ctx, r, false)
			}
			if err != nil {
				p.log.Debug("host not cleared yet", "host", r.Host, "error", err)
				p.failed(r.Host, err)
				return
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.tried, r.Host)
			delete(p.why, r.Host)
		})
	}
}

// List is cloud.Provider's: the hosts that the owner has. Hosts that are still to be cleared are.
func (p *Provider) List(ctx context.Context, _ string) (cloud.Listing, error) {
	if err := ctx.Err(); err != nil {
		return cloud.Listing{}, transient(err, "list")
	}
	all, err := p.records(ctx)
	if err != nil {
		return cloud.Listing{}, err
	}
	out := cloud.Listing{Complete: true}
	var owed []*Record
	for i := range all {
		r := &all[i]
		switch {
		case r.Tags.Owner != p.cfg.Owner:
		case r.Owed:
			owed = append(owed, r)
		default:
			out.Instances = append(out.Instances, r.Instance)
		}
	}
	p.settle(ctx, owed)
	return out, nil
}

// SetTags is cloud.Provider's.
func (p *Provider) SetTags(ctx context.Context, id muster.InstanceID, tags cloud.Tags) error {
	r, err := p.mine(ctx, id)
	switch {
	case err != nil:
		return err
	case tags.Owner != r.Tags.Owner || tags.Token != r.Tags.Token:
		return muster.Faultf(muster.FaultInvalid, "instance %s: its owner and its token are for ever", id)
	case tags == r.Tags:
		return nil
	}
	return p.cfg.Records.Tag(ctx, r.Host, id, tags)
}

// mine is the record of an instance that the owner has.
func (p *Provider) mine(ctx context.Context, id muster.InstanceID) (*Record, error) {
	all, err := p.records(ctx)
	if err != nil {
		return nil, err
	}
	if r := find(all, id); r != nil && r.Tags.Owner == p.cfg.Owner && !r.Owed {
		return r, nil
	}
	return nil, muster.Faultf(muster.FaultNotFound, "instance %s does not exist", id)
}

// Access is cloud.Accessor's. What the configuration says now of the host counts before what it said when it was taken.
func (p *Provider) Access(ctx context.Context, id muster.InstanceID) (cloud.Access, error) {
	r, err := p.mine(ctx, id)
	if err != nil {
		return cloud.Access{}, err
	}
	for i := range p.cfg.List {
		if p.cfg.List[i].Name == r.Host {
			a := p.cfg.List[i].Access
			a.Dir = r.Access.Dir // where its agent is
			return a, nil
		}
	}
	return r.Access, nil
}
