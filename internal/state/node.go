package state

import (
	"cmp"
	"fmt"
	"maps"
	"strings"

	"github.com/musterhq/muster"
)

// WhoLink is who has held a node whose agent obeys another server.
const WhoLink = "link"

func (s *State) node(id muster.NodeID) (*Node, error) {
	n, ok := s.t.nodes.Get(&Node{ID: id})
	if !ok {
		return nil, muster.Faultf(muster.FaultNotFound, "node %s: not found", id)
	}
	return n, nil
}

// stage moves the stage dial of a copy of n.
func (s *State) stage(n *Node, next muster.NodeStage, reason string, now muster.Time) (*Node, error) {
	b := *n
	var err error
	if b.Stage, err = n.Stage.To("node "+string(n.ID), next); err != nil {
		return nil, &muster.Fault{Kind: muster.FaultConflict, Err: err}
	}
	b.StageReason, b.StageSince, b.StageWho = reason, now, ""
	return &b, nil
}

func (s *State) newNode(id muster.NodeID, token muster.Token, pool muster.PoolName, o muster.Offering, now muster.Time) *Node {
	return &Node{
		ID: id, Token: token, Pool: pool, Offering: o, StageSince: now,
		Health: muster.NodeUnready, HealthSince: now, HealthReason: "its agent has not answered yet", Intent: muster.NodeRun,
		Capacity: o.Capacity, Attributes: s.t.withMeta(pool, o.Attributes), Launched: now,
	}
}

func (f *NodeLaunching) apply(s *State, now muster.Time) (any, error) {
	if _, ok := s.t.nodes.Get(&Node{ID: f.ID}); ok {
		return nil, muster.Faultf(muster.FaultAlreadyExists, "node %s: exists already", f.ID)
	}
	n := s.newNode(f.ID, f.Token, f.Pool, f.Offering, now)
	n.Stage, n.StageReason, n.HostKey = muster.NodeLaunching, f.Reason, f.HostKey
	s.putNode(nil, n, VerbNodeLaunching)
	return nil, nil
}

func (f *NodeLaunched) apply(s *State, now muster.Time) (any, error) {
	n, err := s.node(f.ID)
	if err != nil {
		return nil, err
	}
	if n.Stage == muster.NodeTerminating && n.Instance == "" {
		// Given up while the provider was still at it: now it is known what to destroy.
		b := *n
		b.Instance = f.Instance
		s.putNode(n, &b, "")
		return nil, nil
	}
	b, err := s.stage(n, muster.NodeBooting, "", now)
	if err != nil {
		return nil, err
	}
	b.Instance = f.Instance
	s.putNode(n, b, VerbNodeBooting)
	return nil, nil
}

func (f *NodeAdopted) apply(s *State, now muster.Time) (any, error) {
	if _, ok := s.t.nodes.Get(&Node{ID: f.ID}); ok {
		return nil, muster.Faultf(muster.FaultAlreadyExists, "node %s: exists already", f.ID)
	}
	n := s.newNode(f.ID, f.Token, f.Pool, f.Offering, now)
	n.Stage, n.StageReason, n.Instance, n.HostKey = muster.NodeAdopted, "found with our tags, unknown to the state", f.Instance, f.HostKey
	if f.Intent != "" {
		n.Intent, n.IntentReason = f.Intent, "as its tags say"
	}
	s.putNode(nil, n, VerbNodeAdopted)
	return nil, nil
}

func (f *NodeRekeyed) apply(s *State, _ muster.Time) (any, error) {
	n, err := s.node(f.ID)
	if err != nil || n.HostKey == f.HostKey {
		return nil, err
	}
	b := *n
	b.HostKey = f.HostKey
	s.putNode(n, &b, "")
	return nil, nil
}

func (f *NodeJoined) apply(s *State, now muster.Time) (any, error) {
	n, err := s.node(f.ID)
	if err != nil {
		return nil, err
	}
	b, verb := n, VerbNodeServing
	switch n.Stage {
	case muster.NodeServing, muster.NodeDraining:
		// Joined again: its assignment is unchanged.
		c := *n
		b, verb = &c, VerbNodeRejoined
	default:
		if b, err = s.stage(n, muster.NodeServing, "", now); err != nil {
			return nil, err
		}
		// Times of boots are told by the first one, which a machine that was switched off and on again has had.
		b.Joined, b.IdleSince = cmp.Or(n.Joined, now), now
		// After a restore it may run what the state does not know, which its first report tells.
		unknown := b.Unheard || n.Stage == muster.NodeAdopted && s.meta.Epoch > 1
		if !unknown && (b.Health == muster.NodeUnready || b.Health == muster.NodeLost) {
			b.Health, b.HealthReason, b.HealthSince = muster.NodeGood, "", now
		}
	}
	b.Capacity, b.Agent, b.Boot = f.Capacity, f.Agent, f.Boot
	b.Attributes = s.t.withMeta(n.Pool, merge(n.Offering.Attributes, f.Attributes))
	s.putNode(n, b, verb)
	return nil, nil
}

// withMeta are the attributes of a pool's nodes: what the pool says of them wins.
func (t *tables) withMeta(pool muster.PoolName, attributes map[string]string) map[string]string {
	p, ok := t.pools.Get(&Pool{Name: pool})
	if !ok || len(p.Meta) == 0 {
		return attributes
	}
	out := maps.Clone(attributes)
	if out == nil {
		out = map[string]string{}
	}
	for k, v := range p.Meta {
		out[muster.MetaPrefix+k] = v
	}
	return out
}

// renewMeta brings the metadata of nodes in line with what their pools say now.
func (s *State) renewMeta() {
	for _, n := range collect(s.t.liveNodes, &Node{}, func(*Node) bool { return true }) {
		said := map[string]string{}
		for k, v := range n.Attributes {
			if !strings.HasPrefix(k, muster.MetaPrefix) {
				said[k] = v
			}
		}
		if after := s.t.withMeta(n.Pool, merge(n.Offering.Attributes, said)); !maps.Equal(after, n.Attributes) {
			b := *n
			b.Attributes = after
			s.putNode(n, &b, VerbNodeMetadata)
		}
	}
}

// idleFrom begins a node's idle time anew: what could not be given work, or of
// which nobody knew what runs there, was not idle.
func (n *Node) idleFrom(now muster.Time) {
	if n.IdleSince != 0 {
		n.IdleSince = now
	}
}

// merge lets the operator's word (the offering) win over the agent's, which
// cannot say anything of its metadata.
func merge(offering, agent map[string]string) map[string]string {
	out := make(map[string]string, len(offering)+len(agent))
	for k, v := range agent {
		if !strings.HasPrefix(k, muster.MetaPrefix) {
			out[k] = v
		}
	}
	for k, v := range offering {
		out[k] = v
	}
	return out
}

func (f *NodeHealthChanged) apply(s *State, now muster.Time) (any, error) {
	n, err := s.node(f.ID)
	if err != nil {
		return nil, err
	}
	if n.Stage == muster.NodeGone || (n.Health == f.Health && n.HealthReason == f.Reason && n.Denied == f.Denied && n.Incapable == f.Incapable) {
		return nil, nil
	}
	b := *n
	b.Denied = f.Denied && f.Health == muster.NodeLost
	b.Incapable = f.Incapable && f.Health == muster.NodeUnready
	if n.Joined == 0 && f.Health == muster.NodeUnready {
		b.BootError = f.Reason
	}
	if n.Health == f.Health {
		// The same, for another reason: what operators read is kept true.
		b.HealthReason = f.Reason
		s.putNode(n, &b, VerbNodeHealthReason)
		return nil, nil
	}
	if b.Health, err = n.Health.To("health of node "+string(n.ID), f.Health); err != nil {
		return nil, &muster.Fault{Kind: muster.FaultConflict, Err: err}
	}
	b.HealthReason, b.HealthSince = f.Reason, now
	switch {
	case f.Health == muster.NodeFlaky && b.SidelinedUntil <= now:
		b.SidelinedUntil = now.Add(s.t.sidelineOf(n.Pool))
	case n.SidelinedUntil != 0 && (f.Health == muster.NodeUnready || f.Health == muster.NodeGood):
		// Its time on the sideline is over: with a clean slate.
		b.Failures, b.SidelinedUntil = nil, 0
	}
	if f.Health == muster.NodeGood {
		b.Unheard = false
		b.idleFrom(now)
	}
	s.putNode(n, &b, verbOfHealth(f.Health))
	return nil, nil
}

func (f *NodeIntentSet) apply(s *State, now muster.Time) (any, error) {
	n, err := s.node(f.ID)
	if err != nil {
		return nil, err
	}
	switch {
	case n.Stage == muster.NodeGone:
		return nil, muster.Faultf(muster.FaultConflict, "node %s is gone", f.ID)
	case f.IfUntil != 0 && n.IntentUntil != f.IfUntil:
		return nil, muster.Faultf(muster.FaultConflict, "node %s was set to %s again meanwhile", f.ID, n.Intent)
	case n.Intent == f.Intent && n.IntentReason == f.Reason && n.IntentUntil == f.Until:
		return nil, nil
	}
	b := *n
	if n.Intent != f.Intent {
		if b.Intent, err = n.Intent.To("intent of node "+string(n.ID), f.Intent); err != nil {
			return nil, &muster.Fault{Kind: muster.FaultConflict, Err: err}
		}
		b.IntentSince = now
	}
	b.IntentReason, b.IntentWho, b.IntentUntil = f.Reason, f.Who, f.Until
	s.putNode(n, &b, verbOfIntent(f.Intent))
	return nil, nil
}

// held refuses what a hold keeps from a node.
func held(n *Node) error {
	if n.Intent != muster.NodeHold {
		return nil
	}
	return muster.Faultf(muster.FaultConflict, "node %s is held", n.ID)
}

func (f *NodeDraining) apply(s *State, now muster.Time) (any, error) {
	n, err := s.node(f.ID)
	if err != nil {
		return nil, err
	}
	if err := held(n); err != nil {
		return nil, err
	}
	b, err := s.stage(n, muster.NodeDraining, f.Reason, now)
	if err != nil {
		return nil, err
	}
	b.StageWho, b.Unplaced = f.Who, f.Unplaced
	s.putNode(n, b, VerbNodeDraining)
	return nil, nil
}

func (f *NodeKept) apply(s *State, now muster.Time) (any, error) {
	n, err := s.node(f.ID)
	if err != nil {
		return nil, err
	}
	if n.Stage != muster.NodeDraining || !n.Unplaced {
		return nil, muster.Faultf(muster.FaultConflict, "node %s does not drain because of the configuration", f.ID)
	}
	b, err := s.stage(n, muster.NodeServing, f.Reason, now)
	if err != nil {
		return nil, err
	}
	b.Unplaced = false
	b.idleFrom(now)
	s.putNode(n, b, VerbNodeKept)
	return nil, nil
}

func (f *NodeStopped) apply(s *State, now muster.Time) (any, error) {
	n, err := s.node(f.ID)
	switch {
	case err != nil:
		return nil, err
	case n.Busy():
		return nil, muster.Faultf(muster.FaultConflict, "node %s has %d live allocations", f.ID, n.LiveAllocs)
	case n.Intent != muster.NodeRun && n.Stage == muster.NodeServing:
		return nil, muster.Faultf(muster.FaultConflict, "node %s is to %s", f.ID, n.Intent)
	}
	b, err := s.stage(n, muster.NodeStopped, f.Reason, now)
	if err != nil {
		return nil, err
	}
	// What is known of its agent holds no more: it proves itself again when it is back.
	b.IdleSince, b.Failures = 0, nil
	b.rest("its machine is switched off", now)
	s.putNode(n, b, VerbNodeStopped)
	if n.LiveAllocs > 0 {
		// Members of system jobs keep no node: they end with its machine, and get others when it is back.
		s.lose(b, fmt.Sprintf("the machine of node %s is switched off: %s", n.ID, f.Reason), now)
	}
	return nil, nil
}

// rest makes a node unready that has no agent now.
func (n *Node) rest(why string, now muster.Time) {
	if n.Health != muster.NodeUnready {
		n.HealthSince = now
	}
	n.Health, n.HealthReason, n.Denied, n.Incapable = muster.NodeUnready, why, false, false
}

func (f *NodeStarting) apply(s *State, now muster.Time) (any, error) {
	n, err := s.node(f.ID)
	if err != nil {
		return nil, err
	}
	if err := held(n); err != nil {
		return nil, err
	}
	b, err := s.stage(n, muster.NodeStarting, f.Reason, now)
	if err != nil {
		return nil, err
	}
	b.Off = n.offUntil(now)
	b.rest("its machine is being switched on", now)
	s.putNode(n, b, VerbNodeStarting)
	return nil, nil
}

func (f *NodeStarted) apply(s *State, now muster.Time) (any, error) {
	n, err := s.node(f.ID)
	if err != nil {
		return nil, err
	}
	if n.Stage != muster.NodeStarting {
		return nil, muster.Faultf(muster.FaultConflict, "node %s is not being started", f.ID)
	}
	b, err := s.stage(n, muster.NodeBooting, "", now)
	if err != nil {
		return nil, err
	}
	b.rest("its agent has not answered since its machine was switched on", now)
	s.putNode(n, b, VerbNodeBooting)
	return nil, nil
}

func (f *NodeTerminating) apply(s *State, now muster.Time) (any, error) {
	n, err := s.node(f.ID)
	if err != nil {
		return nil, err
	}
	if err := held(n); err != nil {
		return nil, err
	}
	switch {
	case f.IfIdle && n.Busy():
		return nil, muster.Faultf(muster.FaultConflict, "node %s has %d live allocations", f.ID, n.LiveAllocs)
	case f.IfLostSince != 0 && (n.Health != muster.NodeLost || n.HealthSince != f.IfLostSince):
		return nil, muster.Faultf(muster.FaultConflict, "node %s was heard of meanwhile", f.ID)
	case f.Unexplained && s.t.breaker(n.Pool).Tripped != 0:
		return nil, muster.Faultf(muster.FaultConflict, "node %s: the breaker of pool %s has tripped", f.ID, n.Pool)
	}
	b, err := s.stage(n, muster.NodeTerminating, f.Reason, now)
	if err != nil {
		return nil, err
	}
	b.Off = n.offUntil(now)
	if f.Unexplained {
		s.unexplained(n.Pool, now)
	}
	b.StageWho = f.Who
	s.putNode(n, b, VerbNodeTerminating)
	if f.GiveUp {
		s.lose(b, fmt.Sprintf("node %s is given up: %s", n.ID, f.Reason), now)
	}
	return nil, nil
}

func (f *NodeGone) apply(s *State, now muster.Time) (any, error) {
	n, err := s.node(f.ID)
	if err != nil {
		return nil, err
	}
	if f.UnlessHeld && n.Stage != muster.NodeTerminating {
		if err := held(n); err != nil {
			return nil, err
		}
	}
	if f.IfUnchangedSince != 0 && n.ChangedAt() > f.IfUnchangedSince {
		return nil, muster.Faultf(muster.FaultConflict, "node %s was heard of meanwhile", f.ID)
	}
	b, err := s.stage(n, muster.NodeGone, f.Reason, now)
	if err != nil {
		return nil, err
	}
	b.Gone, b.IdleSince, b.Off = now, 0, n.offUntil(now)
	b.Warm, b.WarmAt, b.Failures, b.Spells, b.SidelinedUntil = nil, 0, nil, nil, 0
	s.putNode(n, b, VerbNodeGone)
	why := fmt.Sprintf("the instance of node %s is gone", n.ID)
	if f.Reason != "" {
		why += ": " + f.Reason
	}
	s.lose(n, why, now)
	s.closeCost(n.ID)
	return nil, nil
}

// ChangedAt is when the stage or the health of the node last changed.
func (n *Node) ChangedAt() muster.Time { return max(n.StageSince, n.HealthSince) }

// lose ends what is live on a node as lost, and gives its open output up.
func (s *State) lose(n *Node, why string, now muster.Time) {
	d := &drafts{s: s}
	for _, a := range collect(s.t.nodeAllocs, &Alloc{Node: n.ID}, func(a *Alloc) bool { return a.Node == n.ID }) {
		c := *a
		c.Outcome, c.Ended = muster.OutcomeLost, now
		c.Failure = &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonNodeGone, Message: why}
		c.Output.Stage, c.Output.Why = OutputIncomplete, why
		if a.Desired == muster.AllocStop {
			c.Outcome, c.Failure = muster.OutcomeStopped, nil
		}
		d.end(a, &c, now)
	}
	d.write()
	for _, a := range collect(s.t.openOutput, &Alloc{Node: n.ID}, func(a *Alloc) bool { return a.Node == n.ID }) {
		c := *a
		c.Output.Stage, c.Output.Why = OutputIncomplete, why
		s.putAlloc(a, &c, VerbAllocOutput)
	}
}

func (f *NodesPurged) apply(s *State, _ muster.Time) (any, error) {
	for _, id := range f.IDs {
		n, ok := s.t.nodes.Get(&Node{ID: id})
		if !ok || n.Stage != muster.NodeGone {
			continue
		}
		s.t.nodes.Delete(n)
		s.t.goneNodes.Delete(n)
		s.changed(Change{Verb: VerbNodePurged, NodeBefore: n})
	}
	return nil, nil
}

func (f *TermBegan) apply(s *State, now muster.Time) (any, error) {
	s.meta.Term, s.meta.LeaderSince = f.Term, now
	if s.meta.Cluster == "" {
		s.meta.Cluster, s.meta.Epoch = f.Cluster, 1
	}
	s.changed(Change{Verb: VerbConfigTerm, Config: true})
	return s.meta, nil
}

func (f *EpochBegan) apply(s *State, now muster.Time) (any, error) {
	s.meta.Epoch = max(s.meta.Epoch+1, f.Epoch)
	s.changed(Change{Verb: VerbConfigEpoch, Config: true})
	// What was empty when the backup was taken may have got work after it. Before
	// its agent has said so, it is given none, and must not be given back for having been idle for so long.
	for _, n := range collect(s.t.nodes, &Node{}, func(*Node) bool { return true }) {
		if !n.Stage.Live() {
			continue
		}
		b, verb := *n, Verb("")
		b.idleFrom(now)
		b.Unheard = true
		if n.Health == muster.NodeGood {
			b.Health, b.HealthReason, b.HealthSince = muster.NodeUnready, "a backup was restored, and its agent has not spoken since", now
			verb = VerbNodeUnready
		}
		s.putNode(n, &b, verb)
	}
	return s.meta, nil
}
