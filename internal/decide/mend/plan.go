package mend

import (
	"fmt"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

const (
	// LaunchDeadline is how long a launch is tried under one intent.
	LaunchDeadline = 10 * time.Minute
	// destroyAgain is how long after an answered destroy an instance that is
	// still listed is destroyed again; lookAgain how often a suspect is looked for.
	destroyAgain = 30 * time.Second
	lookAgain    = 2 * time.Second
	// What a pool without configuration is judged by.
	defaultBoot, defaultGrace = 5 * time.Minute, time.Minute
)

// Memory is what the fleet remembers of its own calls under this leader.
type Memory struct {
	// Creating and Destroying: a call for the node is under way.
	Creating, Destroying map[muster.NodeID]bool
	// Switching: a call is under way that switches the node's machine off or on. Off: the provider answered
	// that it is, or will be, switched off.
	Switching, Off map[muster.NodeID]bool
	// Tried is when the last create of the node was answered without saying what became of it.
	Tried map[muster.NodeID]muster.Time
	// Destroyed is when the provider answered that it destroys, or did.
	Destroyed map[muster.NodeID]muster.Time
	// NotBefore is when a call for the node may be made again.
	NotBefore map[muster.NodeID]muster.Time
	// Due is when live allocations are to have ended that were told to, or have a limit; see DueBy.
	Due map[muster.AllocID]muster.Time
	// Notices are what the providers say about taking instances.
	Notices map[muster.NodeID]Notice
	// Heard is the time since which the silence of a broken node's agent counts: its health does not tell that contact is
	// lost as well. A broken node without an entry waits for its work however long that takes.
	Heard map[muster.NodeID]muster.Time
}

// Found is a node whose instance was found by its token.
type Found struct {
	Node     muster.NodeID
	Instance muster.InstanceID
}

// Turn is a node whose stage is to change.
type Turn struct {
	Node   muster.NodeID
	Reason string
	// Unexplained: nothing but lost contact speaks for it.
	Unexplained bool
	// Failed: it was to come into service and did not.
	Failed bool
	// Refused: its provider had accepted it and then could not make it run. Nobody booted it.
	Refused bool
	// GiveUp: what ran there is given up at once, as nothing can ever confirm that the machine is gone.
	GiveUp bool
	// LostSince, unless 0: only while the node is lost, and was not heard of since then.
	LostSince muster.Time
	// UnchangedSince, unless 0: only while its stage and its health have not changed after that.
	UnchangedSince muster.Time
	// Silent: only while its agent has not been heard after SilentSince. No fact says so: the caller asks again before it proposes.
	Silent      bool
	SilentSince muster.Time
}

// Look is a provider to be listed.
type Look struct {
	Provider muster.ProviderName
	At       muster.Time
}

// Decisions are what to do now. Every list is in the order of node ids.
type Decisions struct {
	Launched []Found
	// Create and Destroy are to be asked for, again or for the first time under this leader.
	Create, Destroy []muster.NodeID
	// SwitchOff and SwitchOn are to be asked for in the same way.
	SwitchOff, SwitchOn []muster.NodeID
	Drain               []Turn
	Terminate           []Turn
	Gone                []Turn
	Looks               []Look
	// Overdue are nodes in a state for longer than it should last, out of which only the provider can help.
	Overdue []Turn
	// Tripped are pools whose breaker is to trip.
	Tripped []Trip
	// Release are nodes whose hold is over.
	Release []Release
	// Evict are nodes whose drain has come to its deadline.
	Evict []Release
	Wake  muster.Time
}

type planner struct {
	snap   *state.Snapshot
	sights map[muster.ProviderName]*Sight
	mem    *Memory
	now    muster.Time
	out    Decisions
	looks  map[muster.ProviderName]muster.Time

	breakers map[muster.PoolName]*breaker
	stuck    map[muster.NodeID][]overdue
}

// Plan says what to do about the nodes of the snapshot, given what lists showed.
func Plan(snap *state.Snapshot, sights map[muster.ProviderName]*Sight, mem *Memory, now muster.Time) *Decisions {
	p := &planner{snap: snap, sights: sights, mem: mem, now: now, looks: map[muster.ProviderName]muster.Time{}}
	p.readBreakers()
	p.readStuck()
	snap.LiveNodes(func(n *state.Node) bool {
		p.release(n)
		if s := sights[n.Offering.Provider]; s != nil && !p.leaves(n) {
			p.node(n, s)
		}
		return true
	})
	for provider, at := range p.looks {
		p.out.Looks = append(p.out.Looks, Look{provider, at})
	}
	slices.SortFunc(p.out.Looks, func(a, b Look) int {
		if a.Provider < b.Provider {
			return -1
		}
		return 1
	})
	return &p.out
}

func (p *planner) wakeAt(t muster.Time) {
	if t > p.now && (p.out.Wake == 0 || t < p.out.Wake) {
		p.out.Wake = t
	}
}

func (p *planner) look(s *Sight, at muster.Time) {
	at = max(at, p.now)
	if before, ok := p.looks[s.Provider]; !ok || at < before {
		p.looks[s.Provider] = at
	}
}

func (p *planner) gone(n *state.Node, reason string) {
	if due := p.guardedUntil(n); p.now < due {
		p.wakeAt(due)
		return
	}
	p.out.Gone = append(p.out.Gone, Turn{Node: n.ID, Reason: reason, UnchangedSince: n.ChangedAt()})
}

// guardedUntil is until when exclusive work may run on a node of which nothing can confirm that it is gone: a host of a static pool
// that was given back, and could not be cleared, goes on until its agent's fence is over. The link has
// renewed nothing since the node was lost, or was to be destroyed.
func (p *planner) guardedUntil(n *state.Node) muster.Time {
	if q := p.snap.Pool(n.Pool); q == nil || !q.Static || n.LiveAllocs == 0 {
		return 0
	}
	_, grace := p.times(n)
	due := n.StageSince.Add(grace)
	if n.Health == muster.NodeLost {
		due = n.HealthSince.Add(grace)
	}
	if p.now >= due {
		return due
	}
	exclusive := false
	p.snap.NodeAllocs(n.ID, func(a *state.Alloc) bool {
		exclusive = a.Run.Spec.Exclusive
		return !exclusive
	})
	if !exclusive {
		return 0
	}
	return due
}

func (p *planner) times(n *state.Node) (boot, grace time.Duration) {
	boot, grace = defaultBoot, defaultGrace
	if q := p.snap.Pool(n.Pool); q != nil {
		boot, grace = time.Duration(q.BootTimeout)*time.Microsecond, time.Duration(q.Grace)*time.Microsecond
	}
	return boot, grace
}

func (p *planner) node(n *state.Node, s *Sight) {
	switch n.Stage {
	case muster.NodeLaunching:
		p.launching(n, s)
	case muster.NodeBooting, muster.NodeAdopted:
		p.booting(n, s)
	case muster.NodeServing, muster.NodeDraining:
		p.serving(n, s)
	case muster.NodeStopped:
		p.stopped(n, s)
	case muster.NodeStarting:
		p.starting(n, s)
	case muster.NodeTerminating:
		p.terminating(n, s)
	}
}

// stopped has the machine of a node switched off, until the provider says that it is. A new leader asks
// again: what is off already is no error.
func (p *planner) stopped(n *state.Node, s *Sight) {
	if p.vanished(n, s) || p.mem.Switching[n.ID] || p.mem.Off[n.ID] || !p.ready(n.ID) {
		return
	}
	p.out.SwitchOff = append(p.out.SwitchOff, n.ID)
}

// starting has the machine of a node switched on. One that does not come on in the time that a new one has is
// given up.
func (p *planner) starting(n *state.Node, s *Sight) {
	if p.vanished(n, s) {
		return
	}
	boot, _ := p.times(n)
	due := n.StageSince.Add(boot)
	switch {
	case n.Intent == muster.NodeHold || p.mem.Switching[n.ID]:
	case p.now >= due:
		p.out.Terminate = append(p.out.Terminate, Turn{Node: n.ID, Reason: fmt.Sprintf("its provider did not switch it on within %s", boot), Failed: true})
	default:
		p.wakeAt(due)
		if p.ready(n.ID) {
			p.out.SwitchOn = append(p.out.SwitchOn, n.ID)
		}
	}
}

// ready reports whether a call for the node may be made now.
func (p *planner) ready(id muster.NodeID) bool {
	if t := p.mem.NotBefore[id]; t > p.now {
		p.wakeAt(t)
		return false
	}
	return true
}

// launching finds out what became of a create. A list that shows the instance is believed while the call is still under way:
// a call may take minutes, and one that creates several instances ends with the slowest.
func (p *planner) launching(n *state.Node, s *Sight) {
	if id, ok := s.has(n.Token); ok {
		p.out.Launched = append(p.out.Launched, Found{n.ID, id})
		return
	}
	if p.mem.Creating[n.ID] {
		p.look(s, max(n.StageSince, s.newest).Add(lookAgain))
		return
	}
	// The leader before may have asked until this one began.
	since := max(n.StageSince, p.snap.Meta().LeaderSince)
	if t := p.mem.Tried[n.ID]; t != 0 {
		since = t
	}
	deadline := n.StageSince.Add(LaunchDeadline)
	switch {
	case !s.lacks(n.Token, since) && p.now >= deadline && n.Intent != muster.NodeHold:
		// Whether it was made is not known, because nothing lists it. It counts as launching no more: what wants
		// it may be launched elsewhere. If it turns up it is destroyed.
		p.out.Terminate = append(p.out.Terminate, Turn{Node: n.ID, Failed: true,
			Reason: fmt.Sprintf("the provider has not reported its state within %s", LaunchDeadline)})
	case !s.lacks(n.Token, since):
		p.look(s, p.now)
	case p.now >= deadline:
		if gone, next := s.gone(n, false); gone {
			p.gone(n, fmt.Sprintf("the provider has not made it within %s", LaunchDeadline))
		} else {
			p.look(s, next)
		}
	case p.ready(n.ID):
		// The token makes it safe: were the instance made after all, this finds it.
		p.out.Create = append(p.out.Create, n.ID)
	}
}

func (p *planner) booting(n *state.Node, s *Sight) {
	if p.vanished(n, s) {
		return
	}
	if n.Joined != 0 {
		// Its machine was switched off and on: it may have another address, which drivers learn from lists.
		p.look(s, max(n.StageSince, s.newest.Add(lookAgain)))
	}
	boot, _ := p.times(n)
	due := n.StageSince.Add(boot)
	switch why := s.failed[n.Token]; {
	case n.Intent == muster.NodeHold:
	case why != "":
		p.out.Terminate = append(p.out.Terminate, Turn{Node: n.ID, Refused: true, Reason: "its provider could not make it run: " + why})
	case p.now < due:
		p.wakeAt(due)
	default:
		p.out.Terminate = append(p.out.Terminate, Turn{Node: n.ID, Reason: fmt.Sprintf("its agent did not come into service within %s%s", boot, muster.Because(n.BootError)), Failed: true})
	}
}

// vanished declares a node gone whose instance is, and looks for one that seems to be.
func (p *planner) vanished(n *state.Node, s *Sight) bool {
	gone, next := s.gone(n, n.Denied)
	switch {
	case gone && n.Intent == muster.NodeHold:
		// Somebody wants to keep it, and clouds leave machines out of their lists while they are stopped: with its row gone it
		// would be a stray once it is listed again. The operator gives it up by ending the hold.
		p.out.Overdue = append(p.out.Overdue, Turn{Node: n.ID, Reason: "it is held, and a complete list no longer has its instance; release it to give it up"})
		p.look(s, s.newest.Add(lookAgain))
		return true
	case gone && p.mayForget(n):
		p.gone(n, "a complete list no longer has its instance")
		return true
	case gone:
		p.look(s, s.newest.Add(lookAgain))
	case next != 0:
		p.look(s, next)
	}
	if !gone && s.seemsGone(n) {
		// How much lists lack is the breaker's business long before they are believed.
		p.mayForget(n)
	}
	return false
}

func (p *planner) serving(n *state.Node, s *Sight) {
	if n.Health != muster.NodeLost && n.Health != muster.NodeBroken {
		return
	}
	if p.vanished(n, s) {
		return
	}
	if n.Health == muster.NodeBroken {
		p.silent(n)
		return
	}
	switch {
	case s.newest < n.HealthSince:
		p.look(s, p.now)
	default:
		p.look(s, s.newest.Add(lookAgain))
	}
	_, grace := p.times(n)
	// A new leader has not asked yet: nobody could hear the node before it began.
	due := max(n.HealthSince, p.snap.Meta().LeaderSince).Add(grace)
	switch {
	case n.Intent == muster.NodeHold:
	case p.now < due:
		p.wakeAt(due)
	case n.Denied:
		// The provider's own word explains it: the breaker does not count it.
		p.out.Terminate = append(p.out.Terminate, Turn{Node: n.ID, LostSince: n.HealthSince, Reason: fmt.Sprintf("no contact for %s, and the provider says that the instance is not there", grace)})
	case !p.mayDestroy(n):
	default:
		// Nobody can say that a host of a static pool is gone: the grace is all that there is (case c), and what runs there may go on
		// for a while. What is exclusive does not: its agent's fence is shorter than the grace.
		q := p.snap.Pool(n.Pool)
		p.out.Terminate = append(p.out.Terminate, Turn{Node: n.ID, LostSince: n.HealthSince, Reason: fmt.Sprintf("no contact for %s%s", grace, muster.Because(n.HealthReason)), Unexplained: !p.breakers[n.Pool].excused(n), GiveUp: q != nil && q.Static})
	}
}

// silent gives up a broken node that has been out of contact for its grace: nobody hears of the end of what runs there, or gets
// its output, and nothing else ends the wait for them. Health stays broken meanwhile, as that is final.
func (p *planner) silent(n *state.Node) {
	heard, known := p.mem.Heard[n.ID]
	if !known || n.Intent == muster.NodeHold {
		return
	}
	_, grace := p.times(n)
	due := max(heard, n.HealthSince, p.snap.Meta().LeaderSince).Add(grace)
	switch {
	case p.now < due:
		p.wakeAt(due)
	case p.mayDestroy(n):
		p.out.Terminate = append(p.out.Terminate, Turn{Node: n.ID, Unexplained: !p.breakers[n.Pool].excused(n), Silent: true, SilentSince: heard,
			Reason: fmt.Sprintf("it is broken (%s), and there was no contact for %s", n.HealthReason, grace)})
	}
}

// mayBeDestroyed reports whether the leader before may have had an instance destroyed: no list under
// this one has ended yet, or the newest lacks it. A new leader would otherwise destroy all again that
// is on its way out. A provider that cannot be listed is asked all the same, a little later.
func (p *planner) mayBeDestroyed(n *state.Node, s *Sight) bool {
	began := p.snap.Meta().LeaderSince
	if n.StageSince >= began {
		return false
	}
	return s.newest < began && p.now < began.Add(destroyAgain) || s.lacks(n.Token, began)
}

func (p *planner) terminating(n *state.Node, s *Sight) {
	if p.now >= n.StageSince.Add(TerminateDeadline) {
		p.out.Overdue = append(p.out.Overdue, Turn{Node: n.ID, Reason: fmt.Sprintf("to be destroyed since %s, and the provider has not confirmed it", p.now.Sub(n.StageSince).Round(time.Second))})
	}
	if p.mem.Creating[n.ID] || p.mem.Destroying[n.ID] || p.mem.Switching[n.ID] {
		return
	}
	if n.Instance == "" {
		// Given up before the provider answered.
		if id, ok := s.has(n.Token); ok {
			p.out.Launched = append(p.out.Launched, Found{n.ID, id})
		} else if gone, next := s.gone(n, false); gone {
			p.gone(n, n.StageReason)
		} else {
			p.look(s, max(next, s.newest.Add(Apart)))
		}
		return
	}
	answered, ok := p.mem.Destroyed[n.ID]
	switch gone, next := s.gone(n, ok); {
	case gone:
		p.gone(n, n.StageReason)
	case ok && s.lacks(n.Token, answered) && n.LiveAllocs == 0:
		// Destroyed, they say, and not there any more. With work on it one list is not enough to start it elsewhere.
		p.gone(n, n.StageReason)
	case ok && next != 0:
		p.look(s, next)
	case ok && s.newest < answered:
		p.look(s, p.now)
	case !ok && p.mayBeDestroyed(n, s):
		p.look(s, next)
	case !ok, p.now >= answered.Add(destroyAgain):
		if p.ready(n.ID) {
			p.out.Destroy = append(p.out.Destroy, n.ID)
		}
	default:
		p.wakeAt(answered.Add(destroyAgain))
		p.look(s, s.newest.Add(lookAgain))
	}
}
