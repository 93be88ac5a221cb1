package state

import (
	"cmp"
	"strings"
	"sync/atomic"

	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
)

// State is the replicated state. One goroutine applies; any number read
// through Latest and Feed.
type State struct {
	codec  codec
	t      tables
	meta   Meta
	latest atomic.Pointer[Snapshot]
	feed   *Feed

	// costRows and sumRows are how many rows of cost are kept apart; see cost.go.
	costRows, sumRows int

	// While an entry is applied.
	changes []Change
	// uses are the rows of namespaces as they are now; used names those that changed within the entry.
	uses map[muster.Namespace]*NamespaceUse
	used map[muster.Namespace]bool
}

// tables are the trees, primary ones first. Each is copied in O(1) for a snapshot.
type tables struct {
	jobsUID  *btree.BTreeG[*Job]    // by uid; all of them
	names    *btree.BTreeG[*life]   // by key; of each name the newest version
	lives    *btree.BTreeG[*life]   // by key, version; all of them
	members  *btree.BTreeG[*Member] // by uid, index; below NextIndex
	allocs   *btree.BTreeG[*Alloc]  // by uid, index, attempt: what ids are made of
	nodes    *btree.BTreeG[*Node]   // by id
	pools    *btree.BTreeG[*Pool]
	breakers *btree.BTreeG[*Breaker]         // by pool; of those that have something to remember
	offers   *btree.BTreeG[*muster.Offering] // by provider, name, zone, market
	receipts *btree.BTreeG[*Receipt]         // by namespace, key
	receiptN *btree.BTreeG[*Receipt]         // by log index, to bound them
	// receiptBytes is the sum of their bytes.
	receiptBytes int64

	nodeAllocs *btree.BTreeG[*Alloc] // live ones by node, id
	endedJobs  *btree.BTreeG[*Job]   // ended ones by time of end, uid
	endedBytes int64                 // about what their specs take
	goneNodes  *btree.BTreeG[*Node]  // gone ones by time, id
	liveNodes  *btree.BTreeG[*Node]  // not gone, by id
	openOutput *btree.BTreeG[*Alloc] // ended ones whose output is still open, by node, id

	unsettled *btree.BTreeG[*Job] // by uid
	wakeAt    *btree.BTreeG[Wake]
	warm      *btree.BTreeG[warmRow] // of nodes that are not gone, by key, node

	retryIndexes

	uses   *btree.BTreeG[*NamespaceUse]    // by namespace
	limits *btree.BTreeG[*NamespaceLimits] // by namespace
	shares *Shares
	config *AppliedConfig              // nil as long as none was applied
	loaded *btree.BTreeG[*LoadedImage] // by name
	// servers is nil in a cluster that never had more than one.
	servers *Servers
	paces   *btree.BTreeG[*Pace] // by job's key
	paceN   *btree.BTreeG[*Pace] // the longest not seen first, to bound them

	standingJobs *btree.BTreeG[*Job] // service and system jobs that have not ended, by uid

	environments

	standing
	money

	providerTables
	hostTables
}

// life is one job of a name. Rows of jobs change with each of their members, names do not:
// trees by name hold this and not the row, so that a placement has fewer trees to write.
type life struct {
	key     muster.JobKey
	version uint64
	uid     muster.JobUID
}

// Wake is a deadline at which a job wants to be looked at again.
type Wake struct {
	At  muster.Time
	UID muster.JobUID
	// Index of the member that is due first; -1 for a parked job. Other members of the job have no deadline of their own.
	Index int
}

func tree[T any](compare func(a, b T) int) *btree.BTreeG[T] {
	return btree.NewBTreeGOptions(func(a, b T) bool { return compare(a, b) < 0 }, btree.Options{NoLocks: true})
}

func compareStrings[T ~string](a, b T) int { return strings.Compare(string(a), string(b)) }

func newTables() tables {
	byNode := func(a, b *Alloc) int { return cmp.Or(compareStrings(a.Node, b.Node), compareStrings(a.ID, b.ID)) }
	nodeByID := func(a, b *Node) int { return compareStrings(a.ID, b.ID) }
	jobByUID := func(a, b *Job) int { return compareStrings(a.UID, b.UID) }
	return tables{
		jobsUID: tree(jobByUID),
		names:   tree(func(a, b *life) int { return a.key.Compare(b.key) }),
		lives:   tree(func(a, b *life) int { return cmp.Or(a.key.Compare(b.key), cmp.Compare(a.version, b.version)) }),
		members: tree(func(a, b *Member) int { return cmp.Or(compareStrings(a.UID, b.UID), cmp.Compare(a.Index, b.Index)) }),
		allocs: tree(func(a, b *Alloc) int {
			return cmp.Or(compareStrings(a.UID, b.UID), cmp.Compare(a.Index, b.Index), cmp.Compare(a.Attempt, b.Attempt))
		}),
		nodes:    tree(nodeByID),
		pools:    tree(func(a, b *Pool) int { return compareStrings(a.Name, b.Name) }),
		breakers: tree(func(a, b *Breaker) int { return compareStrings(a.Pool, b.Pool) }),
		offers: tree(func(a, b *muster.Offering) int {
			return cmp.Or(compareStrings(a.Provider, b.Provider), compareStrings(a.Name, b.Name),
				strings.Compare(a.Zone, b.Zone), compareStrings(a.Market, b.Market))
		}),
		receipts: tree(func(a, b *Receipt) int {
			return cmp.Or(compareStrings(a.Namespace, b.Namespace), strings.Compare(a.Key, b.Key))
		}),
		receiptN: tree(func(a, b *Receipt) int {
			return cmp.Or(cmp.Compare(a.Index, b.Index), compareStrings(a.Namespace, b.Namespace), strings.Compare(a.Key, b.Key))
		}),
		nodeAllocs: tree(byNode),
		endedJobs:  tree(func(a, b *Job) int { return cmp.Or(cmp.Compare(a.Ended, b.Ended), compareStrings(a.UID, b.UID)) }),
		goneNodes:  tree(func(a, b *Node) int { return cmp.Or(cmp.Compare(a.Gone, b.Gone), compareStrings(a.ID, b.ID)) }),
		liveNodes:  tree(nodeByID),
		openOutput: tree(byNode),
		unsettled:  tree(jobByUID),
		wakeAt: tree(func(a, b Wake) int {
			return cmp.Or(cmp.Compare(a.At, b.At), compareStrings(a.UID, b.UID), cmp.Compare(a.Index, b.Index))
		}),
		retryIndexes: newRetryIndexes(),
		warm:         tree(compareWarm),
		uses:         tree(compareUses),
		limits:       tree(compareLimits),
		loaded:       tree(compareLoaded),
		paces:        tree(func(a, b *Pace) int { return a.Key.Compare(b.Key) }),
		paceN:        tree(func(a, b *Pace) int { return cmp.Or(cmp.Compare(a.Last, b.Last), a.Key.Compare(b.Key)) }),
		standingJobs: tree(jobByUID),
		environments: newEnvironments(),
		money:        newMoney(),
		standing:     newStanding(),

		providerTables: newProviderTables(),
		hostTables:     newHostTables(),
	}
}

// copy is the O(1) copy of all trees: the work is done by later writes.
func (t *tables) copy() tables {
	return tables{
		jobsUID: t.jobsUID.Copy(), names: t.names.Copy(), lives: t.lives.Copy(), members: t.members.Copy(), allocs: t.allocs.Copy(),
		nodes: t.nodes.Copy(), pools: t.pools.Copy(), breakers: t.breakers.Copy(), offers: t.offers.Copy(), receipts: t.receipts.Copy(),
		receiptN: t.receiptN.Copy(), receiptBytes: t.receiptBytes, nodeAllocs: t.nodeAllocs.Copy(),
		endedJobs: t.endedJobs.Copy(), endedBytes: t.endedBytes, goneNodes: t.goneNodes.Copy(), liveNodes: t.liveNodes.Copy(),
		openOutput: t.openOutput.Copy(), unsettled: t.unsettled.Copy(), wakeAt: t.wakeAt.Copy(), retryIndexes: t.retryIndexes.copy(),
		warm: t.warm.Copy(), uses: t.uses.Copy(), limits: t.limits.Copy(), loaded: t.loaded.Copy(), shares: t.shares, servers: t.servers, config: t.config, paces: t.paces.Copy(), paceN: t.paceN.Copy(),
		standingJobs: t.standingJobs.Copy(), environments: t.environments.copy(), standing: t.standing.copy(), money: t.money.copy(),
		providerTables: t.providerTables.copy(), hostTables: t.hostTables.copy(),
	}
}

// New makes an empty state whose feed keeps the last feedSize changes.
func New(feedSize int) (*State, error) {
	c, err := newCodec()
	if err != nil {
		return nil, err
	}
	s := &State{codec: c, t: newTables(), feed: newFeed(feedSize), costRows: maxJobCosts, sumRows: maxNamespaceCosts,
		uses: map[muster.Namespace]*NamespaceUse{}, used: map[muster.Namespace]bool{}}
	s.publish()
	return s, nil
}

// Latest is the state after the last applied entry.
func (s *State) Latest() *Snapshot { return s.latest.Load() }

// Feed is the change feed.
func (s *State) Feed() *Feed { return s.feed }

func (s *State) publish() {
	s.publishUses()
	s.latest.Store(&Snapshot{t: s.t.copy(), meta: s.meta})
}

// Apply applies one committed entry: at is the leader's clock in microseconds.
// It answers for each proposal with the fact's value or an error. Only the
// raft log calls it, from one goroutine.
func (s *State) Apply(index, term uint64, at int64, proposals [][]byte) []any {
	now := max(muster.Time(at), s.meta.Time)
	s.meta.Index, s.meta.Time = index, now
	s.changes = s.changes[:0]
	results := make([]any, len(proposals))
	for i, p := range proposals {
		f, err := s.Decode(p)
		if err != nil {
			results[i] = err
			continue
		}
		v, err := f.apply(s, now)
		if err != nil {
			results[i] = err
		} else {
			results[i] = v
		}
	}
	for i := range s.changes {
		s.changes[i].Index, s.changes[i].Part, s.changes[i].At = index, i, now
	}
	// The snapshot is published first: who is woken by a change sees it.
	s.publish()
	s.feed.add(index, s.changes)
	return results
}

func (s *State) changed(c Change) { s.changes = append(s.changes, c) }

func replace[T any](t *btree.BTreeG[T], before, after T, had, has bool) {
	if had && !has {
		t.Delete(before)
	}
	if has {
		t.Set(after)
	}
}

// putJob puts a row in place of before (nil: new) and keeps every index right.
func (s *State) putJob(before, after *Job, verb Verb) {
	after.Modified = s.meta.Index
	s.reservedJob(before, after)
	s.useJob(before, after)
	s.t.jobsUID.Set(after)
	had := before != nil
	if !had || before.Version != after.Version {
		s.t.named(before, after)
	}
	if after.Env != nil {
		replace(s.t.envs, before, after, had, after.Stage != muster.JobEnded)
	}
	if after.Standing != nil {
		replace(s.t.standingJobs, before, after, had, after.Stage != muster.JobEnded)
	}
	replace(s.t.endedJobs, before, after, had && before.Stage == muster.JobEnded, false)
	if had && before.Stage == muster.JobEnded {
		s.t.endedBytes -= before.SpecBytes()
	}
	if after.Stage == muster.JobEnded {
		s.t.endedJobs.Set(after)
		s.t.endedBytes += after.SpecBytes()
	}
	replace(s.t.unsettled, before, after, had && before.Unsettled(), after.Unsettled())
	if had && before.ParkedUntil != 0 {
		s.t.wakeAt.Delete(Wake{before.ParkedUntil, before.UID, -1})
	}
	if after.ParkedUntil != 0 {
		s.t.wakeAt.Set(Wake{after.ParkedUntil, after.UID, -1})
	}
	if verb != "" {
		s.changed(Change{Verb: verb, JobBefore: before, Job: after})
	}
}

// named keeps the trees by name right when a job or a version of it comes.
func (t *tables) named(before, after *Job) {
	l := &life{after.Key, after.Version, after.UID}
	if before != nil {
		t.lives.Delete(&life{key: before.Key, version: before.Version})
	}
	t.lives.Set(l)
	// A name leads to its newest version; rows of earlier lives of it are found by uid.
	if newest, ok := t.names.Get(l); !ok || newest.version <= after.Version {
		t.names.Set(l)
	}
}

func (s *State) putMember(before, after *Member) {
	if before != nil && before.Status == muster.MemberWaiting {
		s.t.leaves(before)
	}
	s.t.members.Set(after)
	if after.Status == muster.MemberWaiting {
		s.t.waits(after)
	}
}

func (s *State) dropMember(m *Member) {
	if m.Status == muster.MemberWaiting {
		s.t.leaves(m)
	}
	s.t.members.Delete(m)
}

func (s *State) putAlloc(before, after *Alloc, verb Verb) {
	after.Modified = s.meta.Index
	s.t.allocs.Set(after)
	if before == nil && after.Live() {
		s.useAlloc(after.Run, 1)
	} else if before != nil && before.Live() && !after.Live() {
		s.useAlloc(after.Run, -1)
	}
	had := before != nil
	replace(s.t.nodeAllocs, before, after, had && before.Live(), after.Live())
	replace(s.t.openOutput, before, after, had && before.outputOpen(), after.outputOpen())
	if after.Runner != "" {
		s.t.indexRunner(before, after)
	}
	if verb != "" {
		s.changed(Change{Verb: verb, AllocBefore: before, Alloc: after})
	}
}

func (a *Alloc) outputOpen() bool { return !a.Live() && a.Output.Stage == OutputOpen }

func (s *State) dropAlloc(a *Alloc) {
	s.t.allocs.Delete(a)
	s.t.openOutput.Delete(a)
	if a.Runner != "" {
		s.t.dropRunner(a)
	}
	s.changed(Change{Verb: VerbAllocPurged, AllocBefore: a})
}

func (s *State) putNode(before, after *Node, verb Verb) {
	after.Modified = s.meta.Index
	if after.Stage != muster.NodeServing {
		after.Reserved = nil
	}
	after.remember(verb, s.meta.Time)
	s.t.nodes.Set(after)
	s.t.indexWarmth(before, after)
	s.t.tally(before, after)
	replace(s.t.liveNodes, before, after, before != nil && before.Stage.Live(), after.Stage.Live())
	if after.Stage == muster.NodeGone {
		s.t.goneNodes.Set(after)
	}
	if verb != "" {
		s.changed(Change{Verb: verb, NodeBefore: before, Node: after})
	}
	s.reservedNode(before, after)
}
