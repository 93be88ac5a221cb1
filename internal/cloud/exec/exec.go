package exec

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/cloud"
)

// Config is what a Provider needs.
type Config struct {
	Name  muster.ProviderName
	Owner string
	// Command is the program and its arguments.
	Command []string
	// Env is added to the environment, as NAME=value.
	Env []string
	// Timeout bounds each call; 0: a minute.
	Timeout time.Duration
	// Access is how instances are reached, as far as the program does not say.
	Access cloud.Access
	Logger *slog.Logger
}

// Provider asks a program. It remembers nothing but how instances are reached, which
// every list tells again.
type Provider struct {
	cfg Config
	log *slog.Logger

	mu    sync.Mutex
	ways  map[muster.InstanceID]way
	asked time.Time // when the list was last read for an instance that is not known
}

// way is what is known of an instance's way in.
type way struct {
	address, user string
	hostKeys      []string
	tags          cloud.Tags
}

var (
	_ cloud.Provider = (*Provider)(nil)
	_ cloud.Accessor = (*Provider)(nil)
)

const (
	defaultTimeout = time.Minute
	// askEvery is how often the list is read because somebody asks for an instance without an address.
	askEvery = 2 * time.Second
)

// New makes the provider; nothing is run.
func New(cfg Config) (*Provider, error) {
	if len(cfg.Command) == 0 || cfg.Owner == "" || cfg.Name == "" {
		return nil, errors.New("provider exec: name, owner and command are needed")
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Provider{cfg: cfg, log: cfg.Logger, ways: map[muster.InstanceID]way{}}, nil
}

// CallLimit is how long one run of the program may take. See cloud.CallLimiter.
func (p *Provider) CallLimit() time.Duration { return p.cfg.Timeout }

// Offers is cloud.Provider's.
func (p *Provider) Offers(ctx context.Context) ([]muster.Offering, error) {
	a, err := p.call(ctx, Request{Op: opOffers}, muster.FaultTransient)
	if err != nil {
		return nil, err
	}
	out := make([]muster.Offering, 0, len(a.Offers))
	for _, o := range a.Offers {
		switch {
		case o.Name == "":
			return nil, muster.Faultf(muster.FaultTransient, "%s: an offering has no name", p.named(opOffers))
		case !(o.CPU > 0 && o.CPU <= 1e6) || o.Memory <= 0 || o.Disk < 0 || !(o.Price >= 0 && o.Price <= 1e9) || !(o.PriceCap >= 0 && o.PriceCap <= 1e9) || o.Limit < 0:
			return nil, muster.Faultf(muster.FaultTransient, "%s: offering %s: cpu %g, memory %d, disk %d, price %g, price_cap %g, limit %d: it needs cores and memory, and nothing may be below 0",
				p.named(opOffers), o.Name, o.CPU, int64(o.Memory), int64(o.Disk), o.Price, o.PriceCap, o.Limit)
		}
		market := muster.Market(o.Market)
		market = cmp.Or(market, muster.OnDemand)
		if market != muster.OnDemand && market != muster.Spot {
			return nil, muster.Faultf(muster.FaultTransient, "%s: offering %s: market %q is neither %s nor %s", p.named(opOffers), o.Name, o.Market, muster.OnDemand, muster.Spot)
		}
		var devices []muster.Device
		for _, d := range o.Devices {
			devices = append(devices, muster.Device{Kind: cmp.Or(d.Kind, api.DefaultDeviceKind), Model: d.Model, Count: max(d.Count, 1), Shared: d.Shared})
		}
		out = append(out, muster.Offering{
			Provider: p.cfg.Name, Name: muster.OfferingName(o.Name), Zone: o.Zone, Market: market,
			Price: muster.Price(math.Round(o.Price * 1e6)), PriceCap: muster.Price(math.Round(o.PriceCap * 1e6)),
			Capacity:   muster.Resources{CPU: muster.MilliCPU(math.Round(o.CPU * 1000)), Memory: o.Memory.Bytes(), Disk: o.Disk.Bytes()},
			Attributes: o.Attributes, Devices: devices, Available: o.Available == nil || *o.Available, Limit: o.Limit, Family: o.Family,
		})
	}
	return out, nil
}

// Create is cloud.Provider's.
func (p *Provider) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	out := make([]cloud.Created, len(intents))
	if len(intents) == 0 {
		return out
	}
	q := Request{Op: opCreate}
	for _, in := range intents {
		market := in.Market
		market = cmp.Or(market, muster.OnDemand)
		q.Create = append(q.Create, Wanted{
			Token: string(in.Token), Offering: string(in.Offering), Zone: in.Zone, Market: string(market), Labels: maps.Clone(in.Labels),
			Tags: tagsOf(cloud.Tags{Owner: p.cfg.Owner, Token: in.Token, Node: in.Node, Pool: in.Pool}),
		})
	}
	a, err := p.call(ctx, q, muster.FaultAmbiguous)
	for i := range out {
		switch {
		case err != nil:
			out[i].Err = err
		case i >= len(a.Results) || (a.Results[i].Instance == nil && a.Results[i].Error == nil):
			out[i].Err = muster.Faultf(muster.FaultAmbiguous, "%s: %d results for %d instances, and none for token %s", p.named(opCreate), len(a.Results), len(intents), intents[i].Token)
		case a.Results[i].Error != nil:
			out[i].Err = p.fault(a.Results[i].Error, p.plain(opCreate), muster.FaultAmbiguous)
		default:
			out[i].Instance, out[i].Err = p.made(&intents[i], &q.Create[i], a.Results[i].Instance)
		}
	}
	return out
}

// plain makes faults of one of several results.
func (p *Provider) plain(op string) func(muster.FaultKind, string, ...any) error {
	return func(kind muster.FaultKind, format string, args ...any) error {
		f := muster.Faultf(kind, format, args...)
		f.Message = p.named(op) + " " + f.Message
		return f
	}
}

// made is an instance that was answered for an intent. What is not said of it is as it was asked for.
func (p *Provider) made(in *cloud.Intent, w *Wanted, i *Instance) (cloud.Instance, error) {
	if i.ID == "" {
		return cloud.Instance{}, muster.Faultf(muster.FaultAmbiguous, "%s: the instance of token %s has no id", p.named(opCreate), in.Token)
	}
	if len(i.Tags) == 0 {
		i.Tags = w.Tags
	}
	if i.Offering == "" {
		i.Offering, i.Zone, i.Market = w.Offering, w.Zone, w.Market
	}
	out := i.cloud()
	if out.Tags.Owner != p.cfg.Owner || out.Tags.Token != in.Token {
		return cloud.Instance{}, muster.Faultf(muster.FaultAmbiguous, "%s: for token %s it answers with instance %s of token %q and owner %q", p.named(opCreate), in.Token, i.ID, out.Tags.Token, out.Tags.Owner)
	}
	p.learn(i)
	return out, nil
}

// learn remembers how an instance is reached.
func (p *Provider) learn(i *Instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ways[muster.InstanceID(i.ID)] = way{address: i.Address, user: i.User, hostKeys: i.HostKeys, tags: i.tags()}
}

// Destroy is cloud.Provider's.
func (p *Provider) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	errs := make([]error, len(ids))
	q := Request{Op: opDestroy}
	var at []int
	for i, id := range ids {
		if id != "" { // an empty id is a filter for all, in some clouds
			q.Destroy, at = append(q.Destroy, string(id)), append(at, i)
		}
	}
	if len(at) == 0 {
		return errs
	}
	a, err := p.call(ctx, q, muster.FaultAmbiguous)
	for k, i := range at {
		switch {
		case err != nil:
			errs[i] = err
		case k >= len(a.Results):
			errs[i] = muster.Faultf(muster.FaultAmbiguous, "%s: %d results for %d instances, and none for %s", p.named(opDestroy), len(a.Results), len(at), ids[i])
		case a.Results[k].Error != nil:
			errs[i] = p.fault(a.Results[k].Error, p.plain(opDestroy), muster.FaultAmbiguous)
		default:
			p.mu.Lock()
			delete(p.ways, ids[i])
			p.mu.Unlock()
		}
	}
	return errs
}

// List is cloud.Provider's.
func (p *Provider) List(ctx context.Context, cursor string) (cloud.Listing, error) {
	a, err := p.call(ctx, Request{Op: opList, Cursor: cursor}, muster.FaultTransient)
	if err != nil {
		return cloud.Listing{}, err
	}
	out := cloud.Listing{Next: a.Next, Complete: a.Complete && a.Next == ""}
	for n := range a.Instances {
		i := &a.Instances[n]
		if i.ID == "" || i.Tags[tagOwner] != p.cfg.Owner {
			continue // of another, or of nobody: not ours to see
		}
		p.learn(i)
		out.Instances = append(out.Instances, i.cloud())
	}
	if cursor == "" && out.Complete {
		p.forget(out.Instances)
	}
	return out, nil
}

// forget drops the ways to what a complete list does not have.
func (p *Provider) forget(there []cloud.Instance) {
	keep := make(map[muster.InstanceID]bool, len(there))
	for i := range there {
		keep[there[i].ID] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.ways, func(id muster.InstanceID, _ way) bool { return !keep[id] })
}

// SetTags is cloud.Provider's.
func (p *Provider) SetTags(ctx context.Context, id muster.InstanceID, tags cloud.Tags) error {
	w, err := p.way(ctx, id)
	if err != nil {
		return err
	}
	if tags.Owner != w.tags.Owner || tags.Token != w.tags.Token {
		return muster.Faultf(muster.FaultInvalid, "instance %s: its owner and its token are for ever", id)
	}
	if _, err := p.call(ctx, Request{Op: opTags, ID: string(id), Tags: tagsOf(tags)}, muster.FaultTransient); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w.tags = tags
	p.ways[id] = w
	return nil
}

// way is what is known of an instance of ours, from a new list if need be.
func (p *Provider) way(ctx context.Context, id muster.InstanceID) (way, error) {
	p.mu.Lock()
	w, ok := p.ways[id]
	p.mu.Unlock()
	if ok {
		return w, nil
	}
	for cursor := ""; ; {
		page, err := p.List(ctx, cursor)
		if err != nil {
			return way{}, err
		}
		p.mu.Lock()
		w, ok = p.ways[id]
		p.mu.Unlock()
		switch {
		case ok:
			return w, nil
		case page.Next != "":
			cursor = page.Next
		case page.Complete:
			return way{}, muster.Faultf(muster.FaultNotFound, "instance %s does not exist", id)
		default:
			return way{}, muster.Faultf(muster.FaultUnavailable, "instance %s is in no list yet", id)
		}
	}
}

// Access is cloud.Accessor's.
func (p *Provider) Access(ctx context.Context, id muster.InstanceID) (cloud.Access, error) {
	p.mu.Lock()
	w, ok := p.ways[id]
	look := !ok || w.address == ""
	if look && time.Since(p.asked) < askEvery {
		p.mu.Unlock()
		return cloud.Access{}, &muster.Fault{Kind: muster.FaultUnavailable, Message: "instance " + string(id) + " has no address yet", After: askEvery}
	}
	if look {
		p.asked = time.Now()
		delete(p.ways, id)
	}
	p.mu.Unlock()
	if look {
		var err error
		if w, err = p.way(ctx, id); err != nil {
			return cloud.Access{}, err
		}
	}
	if w.address == "" {
		return cloud.Access{}, &muster.Fault{Kind: muster.FaultUnavailable, Message: "instance " + string(id) + " has no address yet", After: askEvery}
	}
	a := p.cfg.Access
	a.Address = w.address
	if w.user != "" {
		a.User = w.user
	}
	if len(w.hostKeys) > 0 {
		a.HostKeys, a.KnownHosts = w.hostKeys, ""
	}
	return a, nil
}
