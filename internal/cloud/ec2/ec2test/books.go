package ec2test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	pending      = "pending"
	running      = "running"
	shuttingDown = "shutting-down"
	terminated   = "terminated"
	stopping     = "stopping"
	stopped      = "stopped"

	// lingers is how long an ended instance is listed, tagsLast how long it has all its tags, and
	// countsOn how long its quota is taken.
	lingers, tagsLast, countsOn = time.Hour, 10 * time.Minute, time.Minute

	ownerTag = "muster-owner"
)

// codes are the numbers of the states. EC2 sends both, and clients use either.
var codes = map[string]int{pending: 0, running: 16, shuttingDown: 32, terminated: 48, stopping: 64, stopped: 80}

// tag keeps its place: EC2 answers tags in an order that does not change.
type tag struct{ key, value string }

// instance is one instance, from its launch on. Nothing is ever taken out of the books.
type instance struct {
	// n counts all instances from 1 and makes the id; index counts those of one launch from 0.
	n, index                           int
	id, reservation, ami, zone, subnet string
	token, address, public, request    string
	kind                               Type
	spot, leaves                       bool
	// booted: its machine was started. Until then a machine that does not run is no machine that has
	// shut down.
	booted bool
	// onPoweroff is what becomes of it when it shuts itself down: stop, unless the launch said terminate.
	onPoweroff        string
	userData          []byte
	tags, requestTags []tag

	// Times of the server's own clock; the error of that clock is in signatures only.
	created time.Time
	// EC2 answers from replicas that agree after a while, and a client cannot choose one: two are
	// enough to have an instance come and go.
	seen   [2]time.Time // when each replica shows it
	tagged time.Time    // when lists show its tags

	state  string
	turns  time.Duration // how long it shuts down or stops
	until  time.Time     // of pending, shutting-down and stopping
	ended  time.Time
	reason string // of the state, CODE: text
	// What the script has decided for it when it was made. It is carried out by whoever looks at the
	// books after fateAt, so that no goroutine runs for an instance and a bubble can end.
	fate       string // fails, taken, dies
	fateAt     time.Time
	fateReason string
	// With the behaviour terminate, the request is closed at the notice already, while the instance runs
	// on: a client that waits for the instance's state learns of it two minutes too late.
	noticed  time.Time // when the spot request turned; zero: not yet, or never
	noticeAt time.Time
	closed   string // status of the spot request once it is over
	closedAt time.Time
}

// volume is a disk.
type volume struct {
	id, instance, zone string
	size               int
	tags               []tag
	keep               bool // it outlives its instance
	created, deleted   time.Time
}

// books are all that was ever made, and what tokens stand for.
type books struct {
	// In the order in which they were made, which is that of lists.
	instances []*instance
	byID      map[string]*instance
	volumes   []*volume
	// By zone and token: the same token in another zone makes another instance.
	tokens  map[string]*usedToken
	cursors map[string]*cursor
	// foreign: the strangers of the script were put in.
	foreign bool
}

// newBooks are those of an account that nobody has used.
func newBooks() books {
	return books{byID: map[string]*instance{}, tokens: map[string]*usedToken{}, cursors: map[string]*cursor{}}
}

// Machine is an instance in the books.
type Machine struct {
	ID, State, Type, Zone, Subnet, Token string
	// Index is its place in its launch, from 0.
	Index          int
	Spot           bool
	Tags           map[string]string
	UserData       []byte
	Created, Ended time.Time
}

// Volume is a disk in the books.
type Volume struct {
	ID, Instance string
	Tags         map[string]string
	Deleted      bool
}

// Made are all instances ever made, in order, strangers included.
func (s *Server) Made() []Machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Machine
	for _, i := range s.instances {
		i.advance(s.now())
		out = append(out, Machine{ID: i.id, State: i.state, Type: i.kind.Name, Zone: i.zone, Subnet: i.subnet, Token: i.token, Index: i.index, Spot: i.spot,
			Tags: tagMap(i.tags), UserData: slices.Clone(i.userData), Created: i.created, Ended: i.ended})
	}
	return out
}

// Volumes are all disks ever made, in order.
func (s *Server) Volumes() []Volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	var out []Volume
	for _, v := range s.volumes {
		out = append(out, Volume{ID: v.id, Instance: v.instance, Tags: tagMap(v.tags), Deleted: !v.deleted.IsZero()})
	}
	return out
}

// Populate puts running instances of an owner and a pool into the books, which an operator holds: they
// are what a server finds whose log was lost, and what makes its lists long.
func (s *Server) Populate(owner, pool string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		i := s.enter(s.cfg.Types[0], s.cfg.Subnets[0], subject{})
		i.state, i.ami = running, s.cfg.Images[0].ID
		i.tags = []tag{{ownerTag, owner}, {"muster-token", "found-" + itoa(i.n)}, {"muster-pool", pool}, {"muster-intent", "hold"}}
	}
}

// Take turns a spot instance's request now, as EC2 does two minutes before it ends the instance, and
// ends the instance after the time. A script decides that when an instance is made; this is for tests
// that want it in the middle of something. It reports whether there is such an instance.
func (s *Server) Take(id string, in time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.byID[id]
	if i == nil || !i.spot || i.over() {
		return false
	}
	i.fate, i.noticeAt, i.fateAt = "taken", s.now(), s.now().Add(in)
	if s.cfg.Machines != nil {
		time.AfterFunc(in, func() { s.cfg.Machines.Stop(id) })
	}
	return true
}

// Left are the ids of what an owner has now: instances that have not ended, and volumes.
func (s *Server) Left(owner string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	var out []string
	for _, i := range s.instances {
		if !i.over() && tagMap(i.tags)[ownerTag] == owner {
			out = append(out, i.id)
		}
	}
	for _, v := range s.volumes {
		if v.deleted.IsZero() && tagMap(v.tags)[ownerTag] == owner {
			out = append(out, v.id)
		}
	}
	return out
}

// Notice is when an instance that was told so will be taken, for a metadata responder.
func (s *Server) Notice(id string) (at time.Time, noticed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.byID[id]
	if i == nil {
		return time.Time{}, false
	}
	i.advance(s.now())
	return i.fateAt, !i.noticed.IsZero() && !i.over()
}

// over reports whether the instance is paid for no more.
func (i *instance) over() bool { return i.state == shuttingDown || i.state == terminated }

// tagMap is for those who look for one tag.
func tagMap(tags []tag) map[string]string {
	m := map[string]string{}
	for _, t := range tags {
		m[t.key] = t.value
	}
	return m
}

// settle brings all instances and volumes to now. mu is held.
func (s *Server) settle() {
	now := s.now()
	for _, i := range s.instances {
		i.advance(now)
	}
	for _, v := range s.volumes {
		if i := s.byID[v.instance]; i != nil && i.state == terminated && !v.keep && v.deleted.IsZero() {
			v.deleted = i.until
		}
	}
}

// advance brings an instance to now. Nothing happens between calls: what would have happened is
// found out by the next one.
func (i *instance) advance(now time.Time) {
	if !i.noticeAt.IsZero() && i.noticed.IsZero() && !now.Before(i.noticeAt) && !i.over() {
		i.noticed = i.noticeAt
		i.closed, i.closedAt = "instance-terminated-no-capacity", i.noticeAt
	}
	if !i.fateAt.IsZero() && !now.Before(i.fateAt) && !i.over() {
		switch {
		case i.fate == "taken":
			i.end(i.fateAt, "Server.SpotInstanceTermination: Spot instance termination")
			if i.closedAt.IsZero() {
				i.closed, i.closedAt = "instance-terminated-no-capacity", i.fateAt
			}
		// The default of EC2: an instance that powers itself off is stopped, and its disk is paid for.
		case i.fate == "dies" && i.onPoweroff != "terminate":
			i.turn(i.fateAt, stopping)
		case i.fate == "dies":
			i.end(i.fateAt, "Client.InstanceInitiatedShutdown: Instance initiated shutdown")
		default:
			i.end(i.fateAt, i.fateReason)
		}
		i.fateAt = time.Time{}
	}
	if !i.until.IsZero() && !now.Before(i.until) {
		switch i.state {
		case pending:
			i.state = running
		case shuttingDown:
			i.state = terminated
		case stopping:
			i.state = stopped
		}
	}
}

// end lets the instance shut down for good.
func (i *instance) end(at time.Time, reason string) {
	// The first end counts. A terminate of an instance that is ending is answered as a success.
	if i.over() {
		return
	}
	i.turn(at, shuttingDown)
	i.ended, i.reason = at, reason
	if i.closedAt.IsZero() {
		i.closed, i.closedAt = "instance-terminated-by-user", at
	}
}

// turn lets the instance be on its way to a state until its time is over.
func (i *instance) turn(at time.Time, to string) {
	i.state, i.until = to, at.Add(i.turns)
}

// shownTags are those that a list shows: none yet, all, or fewer and fewer of an ended instance.
func (i *instance) shownTags(now time.Time) []tag {
	switch {
	case now.Before(i.tagged):
		return nil
	// EC2's own words: tags of a terminated instance vanish one by one, which makes it look like an
	// instance of nobody's while it is still listed.
	case i.state == terminated && now.Sub(i.ended) > tagsLast:
		return i.tags[min(len(i.tags), int((now.Sub(i.ended)-tagsLast)/time.Minute)):]
	}
	return i.tags
}

// listed reports whether a replica shows the instance.
func (i *instance) listed(replica int, now time.Time) bool {
	return !now.Before(i.seen[replica]) && (i.state != terminated || now.Sub(i.ended) < lingers)
}

// xml is the instance as every answer has it. The tags are told apart, since not each answer shows them.
func (i *instance) xml(tags []tag) string {
	code, text, _ := strings.Cut(i.reason, ": ")
	var b strings.Builder
	b.WriteString(el("instanceId", i.id) + el("imageId", i.ami) + stateXML("instanceState", i.state) +
		"<privateDnsName></privateDnsName><reason></reason>" + fmt.Sprintf("<amiLaunchIndex>%d</amiLaunchIndex>", i.index) +
		el("instanceType", i.kind.Name) + el("launchTime", stamp(i.created)) + nest("placement", el("availabilityZone", i.zone), el("tenancy", "default")))
	// An ended instance has no network any more, and its elements are left out.
	if !i.over() {
		b.WriteString(el("subnetId", i.subnet) + el("privateIpAddress", i.address) + el("ipAddress", i.public))
	}
	b.WriteString(el("architecture", i.kind.Arch) + el("clientToken", i.token))
	if i.spot {
		b.WriteString(el("instanceLifecycle", "spot") + el("spotInstanceRequestId", i.request))
	}
	if i.reason != "" {
		b.WriteString(nest("stateReason", el("code", code), el("message", code+": "+text)))
	}
	if len(tags) > 0 {
		b.WriteString(tagsXML(tags))
	}
	return nest("item", b.String())
}

// stateXML is a state under the name that it has in an answer: now, before, or of an instance.
func stateXML(name, state string) string {
	return nest(name, el("code", itoa(codes[state])), el("name", state))
}

// strangers puts instances into the books that are not the tested owner's, once. mu is held.
func (s *Server) strangers() {
	if s.foreign {
		return
	}
	for _, l := range s.script {
		if l.where != "account" || l.what != "foreign" && l.what != "untagged" {
			continue
		}
		s.foreign = true
		l.Hits++
		n := 0
		_, _ = fmt.Sscan(l.words[0], &n)
		for range n {
			i := s.enter(s.cfg.Types[0], s.cfg.Subnets[0], subject{})
			i.state, i.ami = running, s.cfg.Images[0].ID
			// An untagged one is what somebody has made by hand in the same account.
			if l.what == "foreign" {
				i.tags = []tag{{ownerTag, "a-stranger"}, {"muster-token", "their-" + itoa(i.n)}}
			}
		}
	}
}

// enter makes an instance in the books. mu is held.
func (s *Server) enter(kind Type, in Subnet, about subject) *instance {
	n := len(s.instances) + 1
	now := s.now()
	i := &instance{n: n, id: fmt.Sprintf("i-%017x", n), kind: kind, zone: in.Zone, subnet: in.ID, created: now, state: pending, until: now,
		address: fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255), seen: [2]time.Time{now, now}, tagged: now}
	// Each replica draws its own time: between the two, the answers of two calls differ.
	about.n = n
	if l := s.striking("list", "late", about); l != nil {
		i.seen = [2]time.Time{now.Add(l.Moment()), now.Add(l.Moment())}
	}
	if l := s.striking("list", "tagless", about); l != nil {
		i.tagged = now.Add(l.Moment())
	}
	if l := s.striking("instance", "boots", about); l != nil {
		i.until = now.Add(l.Moment())
	}
	if l := s.striking("instance", "turns", about); l != nil {
		i.turns = l.Moment()
	}
	i.leaves = s.striking("instance", "leaves", about) != nil
	s.destine(i, about)
	// Also what ends at once is in the books: tests count what was ever made.
	s.instances, s.byID[i.id] = append(s.instances, i), i
	return i
}

// destine decides what becomes of an instance. mu is held.
func (s *Server) destine(i *instance, about subject) {
	for _, l := range s.script {
		spotOnly := l.what == "taken" && about.market != "spot"
		// Only a spot instance is taken, so that a line without a market does not strike the others.
		if l.where != "instance" || l.what != "fails" && l.what != "taken" && l.what != "dies" || spotOnly || !l.strikes(about, s.now().Sub(s.played)) {
			continue
		}
		i.fate, i.fateAt = l.what, i.created.Add(l.Moment())
		switch l.what {
		case "fails":
			i.fateReason, i.until = l.words[0]+": "+l.words[0], i.fateAt.Add(time.Nanosecond)
		case "taken":
			if l.at["silent"] == "" {
				in, _ := time.ParseDuration(l.at["in"])
				i.noticeAt, i.fateAt = i.fateAt, i.fateAt.Add(in)
			}
		}
		return
	}
}

// free is how many addresses a subnet has. Stopped instances keep theirs. mu is held.
func (s *Server) free(in Subnet) int {
	// They are counted each time: tests have few instances, and a counter could drift from them.
	n := in.Free
	if l := s.striking("subnet", "free", subject{id: in.ID}); l != nil {
		_, _ = fmt.Sscan(l.words[0], &n)
	}
	for _, i := range s.instances {
		if i.subnet == in.ID && i.state != terminated {
			n--
		}
	}
	return max(n, 0)
}

// setTags changes tags and keeps their order.
func setTags(tags *[]tag, set map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(set)) {
		if at := slices.IndexFunc(*tags, func(t tag) bool { return t.key == k }); at >= 0 {
			(*tags)[at].value = set[k]
		} else {
			*tags = append(*tags, tag{k, set[k]})
		}
	}
}
