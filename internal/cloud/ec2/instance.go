package ec2

import (
	"context"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Tags of the instances of one launch: an entry for each launch index, separated by slashes.
const (
	tagTokens = "muster-tokens"
	tagNodes  = "muster-nodes"
)

const (
	// listLag is how long lists may lack a new instance. EC2 promises nothing and speaks of minutes.
	listLag = 2 * time.Minute
	// youngFor is how long EC2 may not know an instance that it has just made.
	youngFor = 5 * time.Minute
	// failedFor is how long an instance that EC2 ended by itself is shown.
	failedFor = 10 * time.Minute
)

// idShape is what an instance id looks like. EC2 refuses a whole call for one id of another shape.
var idShape = regexp.MustCompile(`^i-([0-9a-f]{8}|[0-9a-f]{17})$`)

// States of an instance.
const (
	statePending      = "pending"
	stateRunning      = "running"
	stateShuttingDown = "shutting-down"
	stateTerminated   = "terminated"
	stateStopping     = "stopping"
	stateStopped      = "stopped"
)

func ended(state string) bool { return state == stateShuttingDown || state == stateTerminated }

// wireInstance is an instance as EC2 answers it.
type wireInstance struct {
	ID         string    `xml:"instanceId"`
	State      string    `xml:"instanceState>name"`
	Index      int       `xml:"amiLaunchIndex"`
	Type       string    `xml:"instanceType"`
	Launched   time.Time `xml:"launchTime"`
	Zone       string    `xml:"placement>availabilityZone"`
	Private    string    `xml:"privateIpAddress"`
	Public     string    `xml:"ipAddress"`
	Lifecycle  string    `xml:"instanceLifecycle"`
	Reason     string    `xml:"stateReason>code"`
	ReasonText string    `xml:"stateReason>message"`
	Tags       []wireTag `xml:"tagSet>item"`
}

type wireTag struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

// reservation is the part of a list that one launch made.
type reservation struct {
	Instances []wireInstance `xml:"instancesSet>item"`
}

// instancesAnswer is that of DescribeInstances.
type instancesAnswer struct {
	Reservations []reservation `xml:"reservationSet>item"`
	Next         string        `xml:"nextToken"`
}

// tags reads an instance's tags. Its own win over those of its launch, which SetTags never changes.
func (w *wireInstance) tags() cloud.Tags {
	var t cloud.Tags
	var tokens, nodes string
	for i := range w.Tags {
		v := w.Tags[i].Value
		switch w.Tags[i].Key {
		case driver.TagOwner:
			t.Owner = v
		case driver.TagToken:
			t.Token = muster.Token(v)
		case driver.TagNode:
			t.Node = muster.NodeID(v)
		case driver.TagPool:
			t.Pool = muster.PoolName(v)
		case driver.TagIntent:
			t.Intent = muster.NodeIntent(v)
		case tagTokens:
			tokens = v
		case tagNodes:
			nodes = v
		}
	}
	if t.Token == "" {
		t.Token = muster.Token(entry(tokens, w.Index))
	}
	if t.Node == "" {
		t.Node = muster.NodeID(entry(nodes, w.Index))
	}
	return t
}

// entry is the nth of a list separated by slashes; empty if there are fewer.
func entry(list string, n int) string {
	for i := 0; ; i++ {
		first, rest, more := strings.Cut(list, "/")
		switch {
		case i == n:
			return first
		case !more:
			return ""
		}
		list = rest
	}
}

func (w *wireInstance) about() about {
	a := about{offering: muster.OfferingName(w.Type), zone: w.Zone, market: muster.OnDemand}
	if w.Lifecycle == "spot" {
		a.market = muster.Spot
	}
	return a
}

// cloud is the instance for the fleet.
func (w *wireInstance) cloud(tags cloud.Tags) cloud.Instance {
	a := w.about()
	i := cloud.Instance{ID: muster.InstanceID(w.ID), Tags: tags, Offering: a.offering, Zone: a.zone, Market: a.market}
	if !w.Launched.IsZero() {
		i.Created = muster.At(w.Launched)
	}
	return i
}

// instance is what the driver remembers of one.
type instance struct {
	cloud.Instance
	state           string
	private, public string
	// made is when this process created it, seen when EC2 last showed it; zero: never.
	made, seen time.Time
	// asked is when its address was last looked for.
	asked time.Time
	// batch: a launch of several made it.
	batch bool
	// failed is when a list first showed that EC2 ended it by itself.
	failed time.Time
}

// listing is what the pages of a list have shown so far.
type listing struct {
	began   time.Time
	seen    map[muster.InstanceID]bool
	partial bool
}

// instances are those of the owner, as they were last seen.
type instances struct {
	mu sync.Mutex
	m  map[muster.InstanceID]*instance
	// listings are lists in progress, by the cursor of their next page.
	listings map[string]*listing
}

// maxListings bounds the lists in progress; those that were given up are forgotten.
const maxListings = 16

// learn remembers an instance that EC2 has shown. Made: this process has just created it.
func (s *instances) learn(w *wireInstance, tags cloud.Tags, now time.Time, made bool) *instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.m[muster.InstanceID(w.ID)]
	if i == nil {
		i = &instance{}
		s.m[muster.InstanceID(w.ID)] = i
	}
	failed := i.Failed
	i.Instance = w.cloud(tags)
	i.Failed = failed
	i.state, i.seen = w.State, now
	if w.Private != "" {
		i.private = w.Private
	}
	if w.Public != "" {
		i.public = w.Public
	}
	if made {
		i.made = now
	}
	return i
}

// inBatch notes whether a launch of several made the instance.
func (s *instances) inBatch(id muster.InstanceID, batch bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.m[id]; i != nil {
		i.batch = batch
	}
}

// get is a copy of what is known of an instance.
func (s *instances) get(id muster.InstanceID) (instance, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.m[id]; i != nil {
		return *i, true
	}
	return instance{}, false
}

func (s *instances) forget(id muster.InstanceID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, id)
}

// young reports whether this process made the instance so recently that EC2 may not know it yet.
func (s *instances) young(id muster.InstanceID, now time.Time) bool {
	i, ok := s.get(id)
	return ok && !i.made.IsZero() && now.Sub(i.made) < youngFor
}

// begin returns the list that a page belongs to.
func (s *instances) begin(cursor string, now time.Time) *listing {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.listings[cursor]; l != nil && cursor != "" {
		delete(s.listings, cursor)
		return l
	}
	// A page in the middle of a list that this process does not know cannot complete it.
	return &listing{began: now, seen: map[muster.InstanceID]bool{}, partial: cursor != ""}
}

// resume keeps the list for its next page.
func (s *instances) resume(cursor string, l *listing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.listings) >= maxListings {
		oldest := ""
		for c, other := range s.listings {
			if oldest == "" || other.began.Before(s.listings[oldest].began) {
				oldest = c
			}
		}
		delete(s.listings, oldest)
	}
	s.listings[cursor] = l
}

// missing are the instances that a complete list lacks, although none has shown them running yet:
// EC2 may have refused them after it accepted them.
func (s *instances) missing(l *listing) []muster.InstanceID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []muster.InstanceID
	for id, i := range s.m {
		if !l.seen[id] && i.state == statePending && i.Failed == nil {
			out = append(out, id)
		}
	}
	return out
}

// settle forgets what a complete list lacks and no lag can hide, and returns the instances that EC2
// ended by itself.
func (s *instances) settle(l *listing, now time.Time) []cloud.Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []cloud.Instance
	for id, i := range s.m {
		switch {
		case l.seen[id]:
		case i.Failed != nil && now.Sub(i.failed) < failedFor:
			out = append(out, i.Instance)
		case i.Failed != nil || now.Sub(i.seen) > listLag && now.Sub(i.made) > youngFor:
			delete(s.m, id)
		}
	}
	return out
}

// fail notes why EC2 ended an instance.
func (s *instances) fail(id muster.InstanceID, why *muster.Fault, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.m[id]; i != nil && i.Failed == nil {
		i.Failed, i.failed = why, now
	}
}

// List is cloud.Provider's.
func (p *Provider) List(ctx context.Context, cursor string) (cloud.Listing, error) {
	now := p.cfg.Now()
	l := p.instances.begin(cursor, now)
	// The filter and the size of a page bring the larger of EC2's buckets; and a zone that is out then
	// fails the whole call.
	form := url.Values{"MaxResults": {strconv.Itoa(maxPage)}}
	filter(form, "tag:"+driver.TagOwner, p.cfg.Owner)
	filter(form, "instance-state-name", statePending, stateRunning, stateStopping, stateStopped, stateShuttingDown)
	if cursor != "" {
		form.Set("NextToken", cursor)
	}
	var a instancesAnswer
	if err := p.api.do(ctx, call{action: "DescribeInstances", form: form, effect: driver.Reads}, &a); err != nil {
		return cloud.Listing{}, err
	}
	var out cloud.Listing
	for r := range a.Reservations {
		for k := range a.Reservations[r].Instances {
			w := &a.Reservations[r].Instances[k]
			if i, ok := p.shown(w, l, now); ok {
				out.Instances = append(out.Instances, i)
			}
		}
	}
	if a.Next != "" {
		out.Next = a.Next
		p.instances.resume(a.Next, l)
		return out, nil
	}
	out.Complete = !l.partial
	if out.Complete {
		p.lookForRefused(ctx, l, now)
		out.Instances = append(out.Instances, p.instances.settle(l, now)...)
	}
	return out, nil
}

// shown takes over an instance of a list. It reports whether it is one to show: it may be another
// owner's, ended, on an earlier page already, or so young that its tags are not there yet.
func (p *Provider) shown(w *wireInstance, l *listing, now time.Time) (cloud.Instance, bool) {
	id := muster.InstanceID(w.ID)
	tags := w.tags()
	if tags.Owner != p.cfg.Owner || w.State == stateTerminated || l.seen[id] || id == "" {
		return cloud.Instance{}, false
	}
	if tags.Token == "" {
		// The tags of a new instance can appear bit by bit.
		if known, ok := p.instances.get(id); ok && known.Tags.Token != "" {
			tags = known.Tags
		} else if now.Sub(w.Launched) < youngFor {
			l.partial = true
			return cloud.Instance{}, false
		}
	}
	l.seen[id] = true
	before, known := p.instances.get(id)
	i := p.instances.learn(w, tags, now, false)
	if ended(w.State) {
		ran := !known || before.state != statePending
		if why := p.failedBy(w.Reason, w.ReasonText, ran, w.about()); why != nil {
			p.instances.fail(id, why, now)
		}
	}
	p.instances.mu.Lock()
	defer p.instances.mu.Unlock()
	return i.Instance, true
}

// lookForRefused asks for the instances that were pending and are in no list now, and notes the
// reason where EC2 ended them. What it cannot find out now, a later list will.
func (p *Provider) lookForRefused(ctx context.Context, l *listing, now time.Time) {
	ids := p.instances.missing(l)
	for len(ids) > 0 {
		n := min(len(ids), maxValues)
		found, err := p.describe(ctx, ids[:n])
		if err != nil {
			p.log.Debug("what became of instances that the list lacks", "provider", p.cfg.Name, "error", err)
			return
		}
		for id, w := range found {
			if w.State != stateTerminated {
				continue
			}
			if why := p.failedBy(w.Reason, w.ReasonText, false, w.about()); why != nil {
				p.instances.fail(id, why, now)
			} else {
				p.instances.forget(id)
			}
		}
		ids = ids[n:]
	}
}

// describe asks for instances by their ids, whoever owns them. A filter, unlike a list of ids, does
// not make EC2 refuse the call when one of them is not there.
func (p *Provider) describe(ctx context.Context, ids []muster.InstanceID) (map[muster.InstanceID]*wireInstance, error) {
	out := make(map[muster.InstanceID]*wireInstance, len(ids))
	for len(ids) > 0 {
		n := min(len(ids), maxValues)
		form := url.Values{}
		filter(form, "instance-id", ids[:n]...)
		err := each(ctx, p, "DescribeInstances", form, maxPage, func(a *instancesAnswer) string {
			for r := range a.Reservations {
				for k := range a.Reservations[r].Instances {
					w := &a.Reservations[r].Instances[k]
					out[muster.InstanceID(w.ID)] = w
				}
			}
			return a.Next
		})
		if err != nil {
			return nil, err
		}
		ids = ids[n:]
	}
	return out, nil
}

// own finds an instance of the owner, in memory or by a call. FaultNotFound: there is none, it has
// ended, or it is another owner's. FaultTransient: EC2 does not show it, or not its tags, and it may be
// so young that EC2 will: the caller takes NotFound for an instance that is gone.
func (p *Provider) own(ctx context.Context, id muster.InstanceID) (instance, error) {
	none := muster.Faultf(muster.FaultNotFound, "instance %q is not there, or not of owner %s", id, p.cfg.Owner)
	if !idShape.MatchString(string(id)) {
		return instance{}, none
	}
	if i, ok := p.instances.get(id); ok {
		if ended(i.state) {
			return instance{}, none
		}
		return i, nil
	}
	found, err := p.describe(ctx, []muster.InstanceID{id})
	if err != nil {
		return instance{}, err
	}
	w, now := found[id], p.cfg.Now()
	switch {
	case w == nil && now.Sub(p.began) < listLag:
		// A server that has ended a moment ago may have made it, and what that one knew is lost.
		return instance{}, tooYoung(id)
	case w == nil || ended(w.State):
		return instance{}, none
	}
	tags := w.tags()
	switch {
	case tags.Owner == "" && now.Sub(w.Launched) < youngFor:
		return instance{}, tooYoung(id)
	case tags.Owner != p.cfg.Owner:
		return instance{}, none
	}
	p.instances.learn(w, tags, now, false)
	i, _ := p.instances.get(id)
	return i, nil
}

// tooYoung is the answer for an instance of which EC2 does not say all yet.
func tooYoung(id muster.InstanceID) error {
	return &muster.Fault{Kind: muster.FaultTransient, Message: "EC2 does not show instance " + string(id) + " and its tags, or not yet", After: askEvery}
}

// SetTags is cloud.Provider's. It changes the tags that may change and never the others, so a policy
// can forbid these.
func (p *Provider) SetTags(ctx context.Context, id muster.InstanceID, tags cloud.Tags) error {
	i, err := p.own(ctx, id)
	switch {
	case err != nil:
		return err
	case tags.Owner != p.cfg.Owner || tags.Token != i.Tags.Token:
		return muster.Faultf(muster.FaultInvalid, "instance %s: its owner and its token are for ever", id)
	}
	form := url.Values{}
	list(form, "ResourceId", []muster.InstanceID{id})
	for n, kv := range [][2]string{{driver.TagNode, string(tags.Node)}, {driver.TagPool, string(tags.Pool)}, {driver.TagIntent, string(tags.Intent)}} {
		form.Set("Tag."+strconv.Itoa(n+1)+".Key", kv[0])
		form.Set("Tag."+strconv.Itoa(n+1)+".Value", kv[1])
	}
	// Sent twice, the same tags are the same: a lost answer is no harm.
	err = p.api.do(ctx, call{action: "CreateTags", form: form, effect: driver.Reads}, nil)
	if muster.IsKind(err, muster.FaultNotFound) {
		if p.instances.young(id, p.cfg.Now()) {
			return &muster.Fault{Kind: muster.FaultTransient, Message: "instance " + string(id) + " is too young for tags", Err: err}
		}
		p.instances.forget(id)
	}
	if err == nil {
		p.instances.mu.Lock()
		if known := p.instances.m[id]; known != nil {
			known.Tags = tags
		}
		p.instances.mu.Unlock()
	}
	return err
}

// askEvery is how often EC2 is asked for the address of an instance.
const askEvery = 2 * time.Second

// Access is cloud.Accessor's.
func (p *Provider) Access(ctx context.Context, id muster.InstanceID) (cloud.Access, error) {
	i, err := p.own(ctx, id)
	if err != nil {
		return cloud.Access{}, err
	}
	if address := p.address(&i); address != "" {
		return p.access(address), nil
	}
	unavailable := &muster.Fault{Kind: muster.FaultUnavailable, Message: "instance " + string(id) + " has no address yet", After: askEvery}
	ask := p.addressless(id)
	if len(ask) == 0 {
		return cloud.Access{}, unavailable
	}
	found, err := p.describe(ctx, ask)
	if err != nil {
		return cloud.Access{}, err
	}
	now := p.cfg.Now()
	for _, w := range found {
		if tags := w.tags(); tags.Owner == p.cfg.Owner && tags.Token != "" {
			p.instances.learn(w, tags, now, false)
		}
	}
	if i, err = p.own(ctx, id); err != nil {
		return cloud.Access{}, err
	}
	if address := p.address(&i); address != "" {
		return p.access(address), nil
	}
	return cloud.Access{}, unavailable
}

func (p *Provider) address(i *instance) string {
	if p.cfg.PublicIP {
		return i.public
	}
	return i.private
}

func (p *Provider) access(address string) cloud.Access {
	a := p.cfg.Access
	a.Address = address
	return a
}

// addressless are all instances without an address, to be asked for together with this one; none
// if this one was asked for a moment ago.
func (p *Provider) addressless(id muster.InstanceID) []muster.InstanceID {
	now := p.cfg.Now()
	s := &p.instances
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.m[id]; i == nil || now.Sub(i.asked) < askEvery {
		return nil
	}
	out := []muster.InstanceID{id}
	for other, i := range s.m {
		if p.address(i) == "" && !ended(i.state) && other != id && len(out) < maxValues {
			out = append(out, other)
		}
	}
	for _, id := range out {
		s.m[id].asked = now
	}
	return out
}
