package fake

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/wait"
)

// Cloud is one cloud, shared by all its owners. Safe for use by many goroutines.
type Cloud struct {
	cfg Config

	mu        sync.Mutex
	next      int
	instances map[muster.InstanceID]*instance
	past      []*instance // that are gone, for lists that are stale
	script    []*rule
	played    time.Time
	faults    Faults
	calls     Calls
	left      []leftover
}

type instance struct {
	cloud.Instance
	seq       int
	labels    map[string]string
	born      time.Time
	gone      time.Time
	dying     bool
	suspended bool
	stopped   bool
	halted    bool // lists leave it out
	leaves    bool // a disk stays when it is destroyed
	boot      cloud.Boot
	fate      Fate
	notice    time.Time // when the cloud takes it; zero: no notice is open
	timers    []*time.Timer
	dead      chan struct{} // closed when it is gone
}

// Config of a cloud.
type Config struct {
	Offerings []muster.Offering
	Seed      uint64
	// Delay is the shortest time that a call takes; up to Jitter is added, drawn from the seed.
	Delay, Jitter time.Duration
	// Page is how many instances a page of a list has; 0: all.
	Page int
	// Consistency is what drivers say of their lists; zero: cloud.DefaultConsistency.
	Consistency cloud.Consistency
	// UserDataLimit makes drivers cloud.Bootable, with this limit in bytes; 0: they are not.
	UserDataLimit int
	// Created is called when an instance has been made, Destroyed when it is
	// to end; it is gone when that returns. Both may be nil, and are called without a lock held.
	Created   func(cloud.Instance)
	Destroyed func(cloud.Instance)
	// Told is called, without a lock held, with each answer in words, for a trace; may be nil.
	Told func(answer string)
	// Suspended is called when an instance was put to sleep, or woken; may be nil.
	Suspended func(in cloud.Instance, asleep bool)
	// Stopped is called when an instance was switched off, or on; may be nil.
	Stopped func(in cloud.Instance, off bool)
}

// Fate is what the script has in store for an instance, for whoever plays its
// machine. What the cloud itself does to it (it dies, it is taken) is not in it.
type Fate struct {
	NoBoot, WrongKey, Stuck bool
	// Boots is how long after it was made its agent starts.
	Boots time.Duration
	// Broken and AgentDies are when in its life; 0: at its beginning; below 0: never.
	Broken, AgentDies time.Duration
}

// Faults are what goes wrong beside the script. Each function may be nil; it is asked at each call.
type Faults struct {
	// Create says why an intent is not carried out.
	Create func(cloud.Intent) error
	// Lost says that the instance is made and the answer lost: this error is answered instead.
	Lost func(cloud.Intent) error
	// Destroy says why an instance is not destroyed.
	Destroy func(muster.InstanceID) error
	// Switch says why an instance is not stopped, or started.
	Switch func(id muster.InstanceID, off bool) error
	// List is the fault of a list; Cut shortens a page: what it returns is what
	// the page has, and whether the list says that it is complete.
	List func() error
	Cut  func([]cloud.Instance) (page []cloud.Instance, complete bool)
}

// Calls counts the calls.
type Calls struct{ Offers, Create, Intents, Destroy, List, SetTags, Notices int }

// New makes a cloud without instances.
func New(cfg Config) *Cloud {
	return &Cloud{cfg: cfg, instances: map[muster.InstanceID]*instance{}}
}

// Play replaces the script; see the package comment. Its time begins now. What
// it had in store for instances that are there already stays.
func (c *Cloud) Play(script string) error {
	rules, err := parse(script, c.cfg.Seed)
	if err != nil {
		return fmt.Errorf("fake cloud's script: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.script, c.played = rules, time.Now()
	return nil
}

// SetFaults replaces the faults beside the script.
func (c *Cloud) SetFaults(f Faults) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = f
}

// SetOffers replaces what is sold.
func (c *Cloud) SetOffers(offers []muster.Offering) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cfg.Offerings = slices.Clone(offers)
}

// Calls so far.
func (c *Cloud) Calls() Calls {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// Instances are all that there are, of all owners, in the order in which they were made.
func (c *Cloud) Instances() []cloud.Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	return plain(c.sortedLocked(func(*instance) bool { return true }))
}

func (c *Cloud) sortedLocked(want func(*instance) bool) []*instance {
	var all []*instance
	for _, i := range c.instances {
		if want(i) {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(a, b *instance) int { return a.seq - b.seq })
	return all
}

func plain(all []*instance) []cloud.Instance {
	out := make([]cloud.Instance, len(all))
	for k, i := range all {
		out[k] = i.Instance
	}
	return out
}

// Number is which instance of the cloud it is, from 1; 0: none.
func (c *Cloud) Number(id muster.InstanceID) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.instances[id]; i != nil {
		return i.seq
	}
	return 0
}

// Fate of an instance; of one that is not there, that nothing ever goes wrong.
func (c *Cloud) Fate(id muster.InstanceID) Fate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.instances[id]; i != nil {
		return i.fate
	}
	return Fate{Broken: never, AgentDies: never}
}

// Boot of an instance, as its intent had it.
func (c *Cloud) Boot(id muster.InstanceID) cloud.Boot {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.instances[id]; i != nil {
		return i.boot
	}
	return cloud.Boot{}
}

// Leftovers are the things that destroyed instances have left, of all owners.
func (c *Cloud) Leftovers() (all []cloud.Leftover) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.left {
		all = append(all, l.Leftover)
	}
	return all
}

// leftover is a thing with its owner.
type leftover struct {
	owner string
	cloud.Leftover
}

// Labels of an instance, as its intent had them.
func (c *Cloud) Labels(id muster.InstanceID) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.instances[id]; i != nil {
		return i.labels
	}
	return nil
}

const never = time.Duration(-1)

// Vanish takes an instance away as a cloud does that loses a machine. Destroyed is called.
func (c *Cloud) Vanish(id muster.InstanceID) {
	c.mu.Lock()
	i := c.instances[id]
	ours := i != nil && !i.dying
	if ours {
		i.dying = true
	}
	c.mu.Unlock()
	if ours {
		c.end(i)
	}
}

// Halt stops an instance, as its operator does who repairs it, or starts it again. Clouds leave stopped ones out of some lists, and so
// does this one, out of all.
func (c *Cloud) Halt(id muster.InstanceID, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.instances[id]; i != nil {
		i.halted = on
	}
}

// end takes an instance that is dying out of the world.
func (c *Cloud) end(i *instance) {
	if c.cfg.Destroyed != nil {
		c.cfg.Destroyed(i.Instance)
	}
	c.mu.Lock()
	i.gone = time.Now()
	delete(c.instances, i.ID)
	if i.leaves {
		c.left = append(c.left, leftover{i.Tags.Owner, cloud.Leftover{Kind: "disk", ID: "d-" + string(i.ID), Created: i.Created}})
	}
	c.past = append(c.past, i)
	for len(c.past) > 0 && time.Since(c.past[0].gone) > time.Hour {
		c.past = c.past[1:]
	}
	for _, t := range i.timers {
		t.Stop()
	}
	c.mu.Unlock()
	close(i.dead)
}

// Notice says that the cloud takes an instance when so much time is over, and takes it then.
func (c *Cloud) Notice(id muster.InstanceID, in time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.instances[id]; i != nil {
		i.notice = time.Now().Add(in)
		i.timers = append(i.timers, time.AfterFunc(in, func() { c.Vanish(id) }))
	}
}

// Add makes an instance that nobody asked for, and returns it.
func (c *Cloud) Add(tags cloud.Tags, offering muster.OfferingName) cloud.Instance {
	c.mu.Lock()
	i := c.bearLocked(tags.Owner, cloud.Intent{Token: tags.Token, Node: tags.Node, Pool: tags.Pool, Offering: offering})
	i.Tags = tags
	in := i.Instance
	c.mu.Unlock()
	c.born(in)
	return in
}

// tell says what is answered to a call.
func (c *Cloud) tell(err error, format string, args ...any) {
	if c.cfg.Told == nil {
		return
	}
	answer := fmt.Sprintf(format, args...)
	if err != nil {
		answer += ": " + err.Error()
	}
	c.cfg.Told(answer)
}

func (c *Cloud) born(in cloud.Instance) {
	if c.cfg.Created != nil {
		c.cfg.Created(in)
	}
}

// bearLocked makes an instance.
func (c *Cloud) bearLocked(owner string, in cloud.Intent) *instance {
	c.next++
	in.Market = cmp.Or(in.Market, muster.OnDemand)
	now := time.Now()
	i := &instance{seq: c.next, born: now, dead: make(chan struct{}), labels: in.Labels, boot: in.Boot,
		fate: Fate{Broken: never, AgentDies: never},
		Instance: cloud.Instance{
			ID:       muster.InstanceID(fmt.Sprintf("i-%04d", c.next)),
			Tags:     cloud.Tags{Owner: owner, Token: in.Token, Node: in.Node, Pool: in.Pool},
			Offering: in.Offering, Zone: in.Zone, Market: in.Market, Created: muster.At(now),
		}}
	c.instances[i.ID] = i
	c.fateLocked(i)
	return i
}

// fateLocked reads out of the script what is to become of an instance.
func (c *Cloud) fateLocked(i *instance) {
	s := c.subjectLocked(i.Tags.Owner, cloud.Intent{Pool: i.Tags.Pool, Offering: i.Offering, Zone: i.Zone, Market: i.Market}, i.seq)
	for _, r := range c.script {
		if r.where != "instance" || !r.strikes(s, time.Since(c.played)) {
			continue
		}
		switch at := r.Moment(); r.what {
		case "noboot":
			i.fate.NoBoot = true
		case "boots":
			i.fate.Boots = at
		case "leaves":
			i.leaves = true
		case "refused":
			i.fate.NoBoot = true
			fault := r.fault("instance %s could not be made to run", i.ID).(*muster.Fault)
			i.timers = append(i.timers, time.AfterFunc(at, func() {
				c.mu.Lock()
				i.Failed = fault
				c.mu.Unlock()
			}))
		case "wrong-key":
			i.fate.WrongKey = true
		case "stuck":
			i.fate.Stuck = true
		case "broken":
			i.fate.Broken = at
		case "agent-dies":
			i.fate.AgentDies = at
		case "dies":
			i.timers = append(i.timers, time.AfterFunc(at, func() { c.Vanish(i.ID) }))
		case "notice":
			i.timers = append(i.timers, time.AfterFunc(at, func() { c.Notice(i.ID, r.in) }))
		}
	}
}

func (c *Cloud) subjectLocked(owner string, in cloud.Intent, n int) *subject {
	s := &subject{offering: in.Offering, zone: in.Zone, market: in.Market, pool: in.Pool, owner: owner, n: n}
	s.market = cmp.Or(s.market, muster.OnDemand)
	if o := c.soldLocked(in); o != nil {
		s.family = o.Family
	}
	return s
}

// soldLocked is the offering of an intent.
func (c *Cloud) soldLocked(in cloud.Intent) *muster.Offering {
	for k := range c.cfg.Offerings {
		if o := &c.cfg.Offerings[k]; o.Name == in.Offering && o.Zone == in.Zone && (in.Market == "" || o.Market == in.Market) {
			return o
		}
	}
	return nil
}

// wait is the time that a call takes. It comes of the seed, the moment and what the call is about, so that
// which of two calls of one moment came first makes no difference: about tells them apart.
func (c *Cloud) wait(ctx context.Context, where string, s *subject, about string) error {
	if !pause(ctx, c.delay(where, about)) {
		return endedCall(ctx)
	}
	c.mu.Lock()
	more := time.Duration(0)
	for _, r := range c.script {
		if r.where == where && r.what == "slow" && r.strikes(s, time.Since(c.played)) {
			more += r.slow
		}
	}
	c.mu.Unlock()
	if !pause(ctx, more) {
		return endedCall(ctx)
	}
	return nil
}

func (c *Cloud) delay(where, about string) time.Duration {
	if c.cfg.Jitter <= 0 {
		return c.cfg.Delay
	}
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s %s %d", where, about, time.Now().UnixNano())
	return c.cfg.Delay + time.Duration(rand.New(rand.NewPCG(c.cfg.Seed, h.Sum64())).Int64N(int64(c.cfg.Jitter)))
}

// pause waits; false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	return wait.For(ctx, d)
}

func endedCall(ctx context.Context) error {
	return &muster.Fault{Kind: muster.FaultTransient, Message: "the call was ended", Err: ctx.Err()}
}

// later does what a call had begun when its caller left, if the script says so.
func (c *Cloud) later(where string, s *subject, about string, do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.script {
		if r.where == where && r.what == "late" && r.about(about, c.cfg.Seed).strikes(s, time.Since(c.played)) {
			time.AfterFunc(c.delay(where+" late", about), do)
			return
		}
	}
}

// HostKey is what the machine of an instance shows: with a wrong key, not what HostKeys says.
func (c *Cloud) HostKey(id muster.InstanceID) ed25519.PrivateKey {
	return c.key(id, c.Fate(id).WrongKey)
}

func (c *Cloud) key(id muster.InstanceID, wrong bool) ed25519.PrivateKey {
	seed := sha256.Sum256(fmt.Appendf(nil, "%d %s %v", c.cfg.Seed, id, wrong))
	return ed25519.NewKeyFromSeed(seed[:])
}

// KeyLine is a public key as in authorized_keys.
func KeyLine(k ed25519.PrivateKey) string {
	const name = "ssh-ed25519"
	wire := binary.BigEndian.AppendUint32(nil, uint32(len(name)))
	wire = append(wire, name...)
	wire = binary.BigEndian.AppendUint32(wire, ed25519.PublicKeySize)
	wire = append(wire, k.Public().(ed25519.PublicKey)...)
	return name + " " + base64.StdEncoding.EncodeToString(wire)
}
