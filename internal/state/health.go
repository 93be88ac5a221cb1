package state

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
)

const (
	// FlakyFailures of a node's own making within FlakyWindow sideline it.
	FlakyFailures = 3
	FlakyWindow   = 10 * time.Minute
	// A node is drained when it is sidelined for the spellsToDrain-th time within spellWindow.
	spellsToDrain = 3
	spellWindow   = 24 * time.Hour
	// defaultSideline is for nodes of pools that say nothing of it.
	defaultSideline = 15 * time.Minute
	// A pool may have the larger of 1 and one in sidelineShare (rounded up) of its serving nodes sidelined.
	sidelineShare = 5
	// A start is slow that takes slowLeast and slowTimes as long as those of its pool, once so many were measured.
	slowLeast   = 5 * time.Second
	slowTimes   = 10
	slowSamples = 20
)

// NodeFailure is one failure of a node's own making.
type NodeFailure struct {
	At   muster.Time `cbor:"1,keyasint"`
	What string      `cbor:"2,keyasint"`
}

// Tally is what apply counts of a pool's nodes. A pool without any has no row.
type Tally struct {
	Pool muster.PoolName
	// Serving and Sidelined are nodes in service, and those among them that are flaky.
	Serving, Sidelined int
}

// starts is how long starts in a pool take, for those that nothing was to be fetched for.
type starts struct {
	Pool muster.PoolName `cbor:"1,keyasint"`
	// Mean is a running one, in microseconds; Count how many were measured, up to a bound.
	Mean  int64 `cbor:"2,keyasint"`
	Count int   `cbor:"3,keyasint"`
}

// standing is what apply counts of nodes, pool by pool.
type standing struct {
	tallies *btree.BTreeG[*Tally]  // of pools that have nodes in service
	starts  *btree.BTreeG[*starts] // of pools in which starts were measured
}

func newStanding() standing {
	return standing{
		tallies: tree(func(a, b *Tally) int { return compareStrings(a.Pool, b.Pool) }),
		starts:  tree(func(a, b *starts) int { return compareStrings(a.Pool, b.Pool) }),
	}
}

func (s standing) copy() standing { return standing{s.tallies.Copy(), s.starts.Copy()} }

// Recent are the failures within the window before now, the oldest first.
func (n *Node) Recent(now muster.Time) []NodeFailure {
	i := slices.IndexFunc(n.Failures, func(f NodeFailure) bool { return f.At.Add(FlakyWindow) > now })
	if i < 0 {
		return nil
	}
	return n.Failures[i:]
}

// MaySideline is how many of a pool's serving nodes may be sidelined at once: when more seem to
// be flaky, it is more likely that something is wrong with what they share.
func MaySideline(serving int) int { return max(1, (serving+sidelineShare-1)/sidelineShare) }

func (f *NodeFailed) apply(s *State, now muster.Time) (any, error) {
	n, err := s.node(f.ID)
	if err != nil {
		return nil, err
	}
	s.failedNode(n, f.Reason, f.Prove, now)
	return nil, nil
}

// failedNode counts a failure of the node's own making. prove: before it gets more work it is to be probed.
func (s *State) failedNode(n *Node, what string, prove bool, now muster.Time) {
	s.failedTimes(n, 1, what, prove, now)
}

// failedTimes is failedNode for what counts as several.
func (s *State) failedTimes(n *Node, times int, what string, prove bool, now muster.Time) {
	if n.Stage != muster.NodeServing || n.Health != muster.NodeGood && n.Health != muster.NodeUnready {
		return
	}
	b := *n
	// Clipped by slices.Concat: rows that share the array must not see each other's entries.
	b.Failures = slices.Concat(n.Recent(now), slices.Repeat([]NodeFailure{{now, what}}, times))
	if k := len(b.Failures) - 2*FlakyFailures; k > 0 {
		b.Failures = b.Failures[k:]
	}
	if len(b.Failures) >= FlakyFailures && s.sideline(n, &b, now) {
		return
	}
	var verb Verb // none: no change is told
	if prove && n.Health == muster.NodeGood {
		b.Health, b.HealthSince, verb = muster.NodeUnready, now, VerbNodeUnready
		b.HealthReason = "to be probed after a node failure: " + what
	}
	s.putNode(n, &b, verb)
}

// blamed is a failure of a node's own that a fact has brought: counted once the fact's drafts are written.
type blamed struct {
	node muster.NodeID
	what string
	// ran: it ended something that ran. Of what one incident ends at once only the first counts.
	ran, prove bool
}

// blame counts an allocation's end against its node if that was the node's doing. What one incident ends at
// once, as the restart of a machine does, is one failure; each start that fails is one.
func (d *drafts) blame(before, a *Alloc) {
	// What fills a node is the work of others, who could otherwise have it taken out of service.
	if full(a.Failure) {
		return
	}
	if a.Failure != nil && a.Failure.Class == muster.FailureNode && a.Desired == muster.AllocRun {
		d.blames = append(d.blames, blamed{a.Node, a.Failure.Message, before.Status == muster.AllocRunning, true})
	}
}

// settleBlames turns dials by what was gathered.
func (d *drafts) settleBlames(now muster.Time) {
	ran := muster.NodeID("")
	for _, b := range d.blames {
		if b.ran && b.node == ran {
			continue
		}
		if b.ran {
			ran = b.node
		}
		if n, ok := d.s.t.nodes.Get(&Node{ID: b.node}); ok {
			d.s.failedNode(n, b.what, b.prove, now)
		}
	}
	d.blames = nil
}

// sideline makes a node flaky, unless too many of its pool are. b is n's copy with the failure counted in.
func (s *State) sideline(n, b *Node, now muster.Time) bool {
	last := b.Failures[len(b.Failures)-1].What
	t, _ := s.t.tallies.Get(&Tally{Pool: n.Pool})
	if t != nil && t.Sidelined >= MaySideline(t.Serving) {
		s.suspect(n, fmt.Sprintf("%d of %d serving nodes are quarantined, and node %s fails as well: %s", t.Sidelined, t.Serving, n.ID, last), now)
		return false
	}
	for len(b.Spells) > 0 && b.Spells[0].Add(spellWindow) <= now {
		b.Spells = b.Spells[1:]
	}
	b.Spells = slices.Concat(b.Spells, []muster.Time{now})
	b.Health, b.HealthSince, b.SidelinedUntil = muster.NodeFlaky, now, now.Add(s.t.sidelineOf(n.Pool))
	b.HealthReason = fmt.Sprintf("%d node failures within %s, the last: %s", len(b.Failures), FlakyWindow, last)
	s.putNode(n, b, VerbNodeFlaky)
	if len(b.Spells) < spellsToDrain || n.Intent == muster.NodeHold {
		return true
	}
	if c, err := s.stage(b, muster.NodeDraining, fmt.Sprintf("flaky for the %d. time in a day: %s", len(b.Spells), last), now); err == nil {
		s.putNode(b, c, VerbNodeDraining)
	}
	return true
}

func (t *tables) sidelineOf(pool muster.PoolName) time.Duration {
	if p, ok := t.pools.Get(&Pool{Name: pool}); ok && p.Sideline > 0 {
		return time.Duration(p.Sideline) * time.Microsecond
	}
	return defaultSideline
}

// suspect marks a pool of which more nodes fail than may be sidelined.
func (s *State) suspect(n *Node, why string, now muster.Time) {
	b := s.t.breaker(n.Pool)
	said := b.IsSuspect(now)
	b.Suspect, b.SuspectWhy = now, why
	s.t.breakers.Set(&b)
	if !said {
		s.changed(Change{Verb: VerbPoolSuspect, Breaker: &b, Config: true})
	}
}

// IsSuspect reports whether more of the pool's nodes failed lately than may be sidelined. A nil breaker is not.
func (b *Breaker) IsSuspect(now muster.Time) bool {
	return b != nil && b.Suspect != 0 && b.Suspect.Add(FlakyWindow) > now
}

// measure takes in how long a start took, and counts one that took much longer than those of
// its pool against the node. Few are looked at: a mean needs no more.
func (d *drafts) measure(a *Alloc, now muster.Time) {
	s := d.s
	took := now.Sub(a.Placed)
	slow := took >= slowLeast
	// Placed is the time of an entry of the log: as good as drawn, and the same on every server.
	if !slow && a.Placed%16 != 0 || a.Detail != "" || len(a.Run.Spec.Inputs) > 0 {
		return
	}
	n, ok := s.t.nodes.Get(&Node{ID: a.Node})
	if !ok {
		return
	}
	b := starts{Pool: n.Pool}
	if before, ok := s.t.starts.Get(&b); ok {
		b = *before
	}
	if mean := time.Duration(b.Mean) * time.Microsecond; slow && b.Count >= slowSamples && took >= slowTimes*mean {
		d.blames = append(d.blames, blamed{node: n.ID, what: fmt.Sprintf("a start took %s, where those of pool %s take %s", took.Round(time.Millisecond), n.Pool, mean.Round(time.Millisecond))})
		return
	}
	b.Count = min(b.Count+1, slowSamples)
	b.Mean += (took.Microseconds() - b.Mean) / int64(b.Count)
	s.t.starts.Set(&b)
}

// tally keeps the counts of a pool right when a node's row changes.
func (t *tables) tally(before, after *Node) {
	count := func(n *Node) (serving, sidelined int) {
		if n == nil || n.Stage != muster.NodeServing {
			return 0, 0
		}
		if n.Health == muster.NodeFlaky {
			return 1, 1
		}
		return 1, 0
	}
	hadServing, hadSidelined := count(before)
	serving, sidelined := count(after)
	if serving == hadServing && sidelined == hadSidelined {
		return
	}
	sum := &Tally{Pool: after.Pool}
	if old, ok := t.tallies.Get(sum); ok {
		*sum = *old
	}
	sum.Serving += serving - hadServing
	sum.Sidelined += sidelined - hadSidelined
	if sum.Serving == 0 && sum.Sidelined == 0 {
		t.tallies.Delete(sum)
	} else {
		t.tallies.Set(sum)
	}
}

// Tally of a pool's nodes.
func (s *Snapshot) Tally(pool muster.PoolName) Tally {
	if t := get(s.t.tallies, &Tally{Pool: pool}); t != nil {
		return *t
	}
	return Tally{Pool: pool}
}

func (f *NodeEvicted) apply(s *State, _ muster.Time) (any, error) {
	n, err := s.node(f.ID)
	if err != nil {
		return nil, err
	}
	if f.IfUntil != 0 && n.IntentUntil != f.IfUntil {
		return nil, muster.Faultf(muster.FaultConflict, "node %s was set to %s again meanwhile", f.ID, n.Intent)
	}
	if n.IntentUntil != 0 && n.Intent == muster.NodeDrain {
		b := *n
		b.IntentUntil = 0
		s.putNode(n, &b, VerbNodeEvicted)
	}
	cause := fmt.Sprintf("node %s: %s", n.ID, cmp.Or(f.Reason, "it is drained"))
	for _, a := range collect(s.t.nodeAllocs, &Alloc{Node: n.ID}, func(a *Alloc) bool { return a.Node == n.ID }) {
		if a.Desired == muster.AllocRun {
			s.stopAlloc(a, muster.StopMoved, cause)
		}
	}
	return nil, nil
}
