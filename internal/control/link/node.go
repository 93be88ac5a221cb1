package link

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/link/pulls"
	"github.com/musterhq/muster/internal/decide/health"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// The delays of this file. Each pair is a first delay, which doubles after each failure, and the
// longest one.
const (
	// Between dials of an agent that does not answer.
	dialFirst, dialLongest = 5 * time.Millisecond, 2 * time.Second
	// Before the next dial of an agent that answers and is not ready.
	unreadyFirst = 250 * time.Millisecond
	// Before the next dial of an agent that refuses this server. refusedLongest is for unready ones
	// too.
	refusedFirst   = time.Second
	refusedLongest = 30 * time.Second
	// Between attempts to start an agent; startTimeout bounds one attempt.
	startFirst, startLongest = 100 * time.Millisecond, 30 * time.Second
	startTimeout             = 2 * time.Minute
	// A start that takes longer is shown as the reason why the agent does not answer.
	startSlow = 10 * time.Second
	// reasonEvery bounds how often a lost node gets a new reason in the log.
	reasonEvery = 10 * time.Second
	// Between attempts to commit a fact.
	proposeFirst, proposeLimit = 20 * time.Millisecond, 2 * time.Second
)

// nodeLink is the link to one node. Link creates it; it lives until the node needs no link any
// more, over many contacts. A session is one contact.
//
// Fields without another comment are set once. The dialing goroutine is the one that runs
// keepContact.
type nodeLink struct {
	l   *Link
	id  muster.NodeID
	log *slog.Logger
	// client is for small requests, bulk for transfers that would delay them.
	client, bulk *wire.Client
	jitter       *rand.Rand
	// box holds the changes for the sender. row is the newest row that the dispatcher, Run's
	// goroutine, has passed on.
	box *mailbox
	row atomic.Pointer[state.Node]
	// judge wakes watch, the goroutine that judges the node's health.
	judge chan struct{}
	// ended is closed when the node needs no link any more.
	ended   chan struct{}
	endOnce sync.Once
	// gone is closed when no goroutine of the link runs any more. Nothing is shipped after that.
	gone chan struct{}
	// lastRefusal is the refusal that was logged last, so that it is not logged again. The dialing
	// goroutine and the reader of its session use it.
	lastRefusal string
	// lastStart is the logged reason why the agent could not be started. It is empty once the agent
	// was started or heard. Only the dialing goroutine uses it.
	lastStart string
	// outdatedBoot says that the agent was started after the state got a reason why it does not
	// boot: that reason is out of date. Only the dialing goroutine uses it, under mu.
	outdatedBoot bool
	// renewed says that the agent is known to be of this build, or that the attempt to find out was
	// made. Only the dialing goroutine uses it.
	renewed bool
	// proving is true while a probe is under way. probeWait is the delay before the next probe;
	// only the probing goroutine uses it.
	proving   atomic.Bool
	probeWait time.Duration

	// reportsPaid is the time until which the reports read so far have used up the node's
	// allowance. Only the reader uses it. It belongs to the node and not to the session: a node
	// does not get a new allowance by reconnecting.
	reportsPaid time.Time

	// mu guards the fields below.
	mu      sync.Mutex
	contact health.Contact
	usage   Usage
	// ships holds the output that is being shipped. storing holds since when declared outputs are
	// being stored: the time limit runs over sessions.
	ships   map[muster.AllocID]*ship
	storing map[muster.AllocID]time.Time
	// pulls records what the node pulls and was given for it. It has its own lock.
	pulls *pulls.Book
}

func newNodeLink(l *Link, row *state.Node) *nodeLink {
	h := fnv.New64a()
	_, _ = h.Write([]byte(row.ID))
	n := &nodeLink{
		l: l, id: row.ID, log: l.log.With("node", row.ID),
		jitter: rand.New(rand.NewPCG(l.cfg.Seed, h.Sum64())),
		box:    newMailbox(), judge: make(chan struct{}, 1), ended: make(chan struct{}), gone: make(chan struct{}),
		contact: health.Contact{Began: l.cfg.Clock.Now()},
		ships:   map[muster.AllocID]*ship{}, storing: map[muster.AllocID]time.Time{},
		pulls: pulls.New(),
	}
	n.row.Store(row)
	// An instance that this leadership launched runs this build already.
	n.renewed = l.cfg.StartAgent == nil || row.Launched >= l.cfg.State.Latest().Meta().LeaderSince
	n.client = wire.NewClient(func(ctx context.Context) (net.Conn, error) {
		l.stats.dials.Add(1)
		return l.cfg.Dial(ctx, n.row.Load())
	})
	n.bulk = wire.NewClient(func(ctx context.Context) (net.Conn, error) { return l.cfg.DialBulk(ctx, n.row.Load()) })
	return n
}

// run keeps contact until ctx ends or the node needs no link any more.
func (n *nodeLink) run(ctx context.Context) {
	defer close(n.gone)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-n.ended:
			cancel()
		}
	})
	wg.Go(func() { n.watch(ctx, &wg) })
	n.keepContact(ctx)
	n.client.Close()
	n.bulk.Close()
	select {
	case <-n.ended:
		n.l.cfg.Leave(n.id)
	default:
		// The loop ends, not the node. The next loop uses the open connections.
	}
}

// terminating reports whether the newest row that the link has seen is terminating.
func (n *nodeLink) terminating() bool { return n.row.Load().Stage == muster.NodeTerminating }

func (n *nodeLink) end() { n.endOnce.Do(func() { close(n.ended) }) }

// changed takes a newer row. It wakes the judge only for changes that can alter the verdict.
func (n *nodeLink) changed(row *state.Node) {
	before := n.row.Swap(row)
	if before.Intent != row.Intent {
		// A held node gets no lease, so every set changes.
		n.box.addAll()
	}
	if before.Stage != row.Stage || row.Stage == muster.NodeTerminating && before.LiveAllocs != row.LiveAllocs || before.Health != row.Health || before.HealthReason != row.HealthReason || before.Denied != row.Denied {
		n.rejudge()
	}
}

func (n *nodeLink) rejudge() {
	wait.Poke(n.judge)
}

func (n *nodeLink) contactNow() health.Contact {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.contact
}

// touch changes what is known of the contact.
func (n *nodeLink) touch(change func(*health.Contact)) {
	n.mu.Lock()
	before := n.contact
	change(&n.contact)
	after := n.contact
	n.mu.Unlock()
	before.Heard, after.Heard = 0, 0
	if before != after {
		n.rejudge()
	}
}

// unready is the error for an agent that answers and can run nothing. again is the time after which
// it wants to be asked again; 0 leaves that to the link.
type unready struct {
	why   string
	again time.Duration
}

func (e *unready) Error() string { return e.why }

// keepContact talks to the agent, one contact after the other, until ctx ends. Between contacts it
// waits, or has the agent started.
func (n *nodeLink) keepContact(ctx context.Context) {
	delay, startWait := dialFirst, startFirst
	var startAt time.Time
	// start has the agent started, unless the last attempt was too recent.
	start := func() {
		if now := time.Now(); n.l.cfg.StartAgent == nil || now.Before(startAt) || !n.mayStart() {
			return
		}
		started, after := n.startAgent(ctx)
		if started {
			delay = dialFirst
		}
		if after > 0 {
			// The host itself was not reached. Its connection has a back-off of its own, and an
			// earlier attempt would fail at once.
			startAt = time.Now().Add(after)
			return
		}
		startAt = time.Now().Add(startWait)
		startWait = min(2*startWait, startLongest)
	}
	for ctx.Err() == nil {
		began := time.Now()
		heard, err := n.talk(ctx)
		if ctx.Err() != nil {
			return
		}
		// A contact of some length shows that the agent works. A shorter one does not reset the
		// delay: an agent that fails right after its first report must not be dialed without pause.
		if heard && time.Since(began) > time.Second {
			delay, startWait = dialFirst, startFirst
		}
		if heard {
			n.lastStart = ""
		}
		longest := dialLongest
		var refusal *wire.Refusal
		var notReady *unready
		switch {
		case errors.As(err, &refusal):
			n.refused(ctx, refusal)
			delay, longest = max(delay, refusedFirst), refusedLongest
			// Starting the agent replaces the one of the former node.
			if errors.Is(err, errFormerNode) {
				start()
			}
		case errors.As(err, &notReady):
			n.touch(func(c *health.Contact) { c.Up, c.Unready, c.Refused, c.Denied = false, notReady.why, "", false })
			delay, longest = max(delay, unreadyFirst), refusedLongest
			if notReady.again > 0 {
				wait.For(ctx, notReady.again)
				delay = dialFirst
				continue
			}
		case heard && delay == dialFirst:
			n.contactGone(err)
			delay = 2 * dialFirst
			// The agent was replaced, most likely: dial again without delay.
			continue
		case heard:
			n.contactGone(err)
		default:
			n.contactGone(err)
			start()
		}
		delay = min(delay, longest)
		// Up to a quarter more, so that many links do not dial in step.
		wait.For(ctx, delay+time.Duration(n.jitter.Int64N(int64(delay)/4+1)))
		delay *= 2
	}
}

// refused records that the agent refuses this server. If the node's instance was just adopted, the
// link then holds the node: the server that the agent obeys may be the right one, and only an
// operator can know. The same holds if the agent has obeyed a later epoch of this cluster: a backup
// was restored elsewhere, and that server now decides about the node. Without the hold this one would
// run the members of the node again when the other ends its instance.
func (n *nodeLink) refused(ctx context.Context, r *wire.Refusal) {
	why := muster.Truncate(r.Message, maxMessage)
	if why != n.lastRefusal {
		n.log.Warn("agent refuses to obey", "code", r.Code, "why", why)
		n.lastRefusal = why
	}
	n.touch(func(c *health.Contact) { c.Up, c.Refused, c.Unready, c.Denied = false, why, "", false })
	row := n.row.Load()
	ours, _ := n.l.fence(n.l.cfg.State.Latest())
	replaced := r.Fence.Cluster == ours.Cluster && r.Fence.Epoch > ours.Epoch
	if row.Intent == muster.NodeHold || row.Stage != muster.NodeAdopted && !replaced {
		return
	}
	hold := &state.NodeIntentSet{ID: n.id, Intent: muster.NodeHold, Reason: heldBecause + why, Who: state.WhoLink}
	if err := n.propose(ctx, hold); err != nil && ctx.Err() == nil {
		n.log.Warn("node not held", "error", err)
	}
}

// heldBecause is the prefix of the reason of a hold that the link set. An operator's hold has none.
const heldBecause = "refuses to obey: "

// letGo releases a hold that refused set, once the agent obeys. An operator's hold stays.
func (n *nodeLink) letGo(ctx context.Context) {
	row := n.l.cfg.State.Latest().Node(n.id)
	if row == nil || row.Intent != muster.NodeHold || !strings.HasPrefix(strings.TrimPrefix(row.IntentReason, "found, and "), heldBecause) {
		return
	}
	n.log.Info("held because it did not obey, and does now: released")
	if err := n.propose(ctx, &state.NodeIntentSet{ID: n.id, Intent: muster.NodeRun}); err != nil && ctx.Err() == nil {
		n.log.Warn("node not released", "error", err)
	}
}

// contactGone records the end of a contact, or a dial without an answer. While the agent cannot be
// started, the reason for that stays: it is better than a refused connection, which says only that
// nothing listens.
func (n *nodeLink) contactGone(err error) {
	now := n.l.cfg.Clock.Now()
	wasUp := false
	n.touch(func(c *health.Contact) {
		wasUp = c.Up
		// A stream that breaks was alive until now, unless it had fallen silent before.
		if c.Up && now.Sub(c.Heard) < 2*wire.HeartbeatMillis*time.Millisecond {
			c.Heard = now
		}
		c.Up, c.Refused, c.Unready = false, "", ""
		if n.lastStart == "" {
			c.Away = away(err)
			if n.outdatedBoot {
				c.Boot = muster.Truncate("its agent was started and does not answer: "+c.Away, maxMessage)
			}
		}
	})
	if wasUp {
		n.log.Info("contact gone", "error", err)
	}
}

// bootFor is how long a new instance gets to start its agent by itself.
const bootFor = time.Second

// mayStart reports whether the link may start the agent now.
func (n *nodeLink) mayStart() bool {
	row := n.row.Load()
	if row.Stage == muster.NodeTerminating {
		// The provider may be about to clear the host.
		return false
	}
	boots := row.Stage == muster.NodeBooting || row.Stage == muster.NodeAdopted
	return !boots || !n.l.cfg.StartsItself(row) || n.l.cfg.Clock.Now().Sub(row.StageSince) >= bootFor
}

// startAgent has the agent started. It reports whether that succeeded and, if not, after how long
// to try again, if that is known.
func (n *nodeLink) startAgent(ctx context.Context) (ok bool, after time.Duration) {
	within, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	n.l.stats.starts.Add(1)
	over := n.mentionSlowStart()
	err := n.l.cfg.StartAgent(within, n.row.Load())
	over()
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		// A start that hangs is reported like one that fails. Nothing else would say so.
		err = fmt.Errorf("it did not end within %s: %w", startTimeout, err)
	}
	n.touch(func(c *health.Contact) {
		c.Denied = muster.IsKind(err, muster.FaultNotFound)
		switch {
		case err == nil:
			n.outdatedBoot = n.outdatedBoot || c.Boot != ""
			c.Boot, c.Away = "", ""
		case ctx.Err() == nil:
			n.outdatedBoot = false
			c.Boot = muster.Truncate("its agent could not be started: "+err.Error(), maxMessage)
			c.Away = away(err)
		}
	})
	if err == nil {
		n.lastStart = ""
		return true, 0
	}
	// Log each reason once: the start on a booting instance is tried many times, and the operator
	// must be able to find the reason of the last failure.
	if why := muster.Truncate(err.Error(), maxMessage); why != n.lastStart && ctx.Err() == nil && !muster.IsKind(err, muster.FaultNotFound) {
		n.lastStart = why
		n.log.Info("agent not started yet", "why", why)
	}
	var fault *muster.Fault
	if errors.As(err, &fault) && fault.Kind == muster.FaultUnavailable {
		after = fault.After
	}
	return false, after
}

// mentionSlowStart shows a start that takes long as the reason why the agent does not answer, until
// over is called. Without it the error of the attempt before would stay, and the host may have
// changed since.
func (n *nodeLink) mentionSlowStart() (over func()) {
	// mu makes sure that the timer writes nothing after over has returned: its result is newer.
	var mu sync.Mutex
	done := false
	why := fmt.Sprintf("starting its agent has taken longer than %s so far", startSlow)
	slow := time.AfterFunc(startSlow, func() {
		mu.Lock()
		defer mu.Unlock()
		if !done {
			n.touch(func(c *health.Contact) { c.Boot, c.Away = why, why })
		}
	})
	return func() {
		slow.Stop()
		mu.Lock()
		defer mu.Unlock()
		done = true
	}
}

// talk runs one contact from the hello to its end. heard reports whether the agent sent a report.
// The order of the steps matters: the fence is checked before the agent may be replaced, so that an
// agent that obeys another server is left alone; the node proves that it is ready before it joins,
// so that it gets no work before.
func (n *nodeLink) talk(ctx context.Context) (heard bool, err error) {
	hello, err := n.client.Hello(ctx)
	if err != nil {
		return false, err
	}
	fence, leads := n.l.fence(n.l.cfg.State.Latest())
	if !leads {
		return false, errors.New("another leader has begun")
	}
	if r := n.check(hello, fence); r != nil {
		if n.isFormer(hello, fence) {
			return false, fmt.Errorf("%w: %w", errFormerNode, r)
		}
		return false, r
	}
	if !n.renewed && !n.terminating() && (n.l.cfg.KeepAgents == nil || !n.l.cfg.KeepAgents()) {
		if hello, err = n.renew(ctx, hello); err != nil {
			return false, err
		}
	}
	agentRun := hello.Run
	program := ""
	if n.l.cfg.OCIRuntime != nil {
		program = n.l.cfg.OCIRuntime(n.row.Load().Pool)
	}
	hello = believed(cleanHello(hello), &n.row.Load().Offering, program)
	n.mu.Lock()
	n.contact.Heard = n.l.cfg.Clock.Now()
	n.usage.Problems = hello.Problems
	n.mu.Unlock()
	if len(hello.Runtimes) == 0 {
		return false, &unready{why: muster.Truncate("its agent answers, and no runtime works there: "+strings.Join(hello.Problems, "; "), maxMessage)}
	}
	if err := n.proveFirst(ctx); err != nil {
		return false, err
	}
	n.touch(func(c *health.Contact) { c.Refused, c.Unready, c.Denied = "", "", false })
	if err := n.join(ctx, hello); err != nil {
		return false, err
	}
	n.letGo(ctx)
	s := newSession(n, agentRun)
	s.takesImages = hello.TakesImages
	err = s.run(ctx)
	return s.heardOf(), err
}

// renew replaces the agent of an earlier server if it is of another build. It is tried once in a
// leadership, and only after the agent was found to obey this server. It returns the hello of the
// agent that runs then.
func (n *nodeLink) renew(ctx context.Context, was wire.Hello) (wire.Hello, error) {
	n.renewed = true
	startCtx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := n.l.cfg.StartAgent(startCtx, n.row.Load()); err != nil {
		if ctx.Err() != nil {
			// This server stops. Nothing is wrong with the node.
			return was, ctx.Err()
		}
		// The old agent answers, and that is enough to go on.
		n.log.Warn("agent of an earlier server not looked at", "agent", was.Version, "error", err)
		return was, nil
	}
	return n.client.Hello(ctx)
}

// errFormerNode means that the agent on this node's instance still runs for a node that is gone.
var errFormerNode = errors.New("the agent of a former node")

// isFormer reports whether the agent that answered runs for a node that is gone, and would
// otherwise obey this server. That happens when an instance is found again after its node was
// declared gone: it gets a node with a new id, and its agent still runs under the old one.
func (n *nodeLink) isFormer(h wire.Hello, ours wire.Fence) bool {
	if h.Node == n.id {
		return false
	}
	if row := n.l.cfg.State.Latest().Node(h.Node); row != nil && row.Stage != muster.NodeGone {
		// The connection leads to another live node. Replacing that agent would end the work there.
		return false
	}
	h.Node = n.id
	return n.check(h, ours) == nil
}

// check returns why the link must not work with the agent that answered; nil if it may.
func (n *nodeLink) check(h wire.Hello, ours wire.Fence) *wire.Refusal {
	switch {
	case h.Node != n.id:
		return &wire.Refusal{Code: wire.RefusedCluster, Fence: h.Fence,
			Message: fmt.Sprintf("the agent that answers is of node %s", h.Node)}
	case h.Protocol < wire.Protocol-1:
		return &wire.Refusal{Code: wire.RefusedProtocol, Fence: h.Fence,
			Message: fmt.Sprintf("its agent speaks protocol %d, this server %d", h.Protocol, wire.Protocol)}
	case h.Fence.Cluster == "":
		// The agent has obeyed nobody yet.
		return nil
	case h.Fence.Cluster != ours.Cluster:
		return &wire.Refusal{Code: wire.RefusedCluster, Fence: h.Fence, Message: fmt.Sprintf(
			"its agent obeys cluster %s, this is %s; an operator can release it first", h.Fence.Cluster, ours.Cluster)}
	case h.Fence.Compare(ours) > 0:
		// The message leaves out the log index: it may become a fact, each fact moves the index,
		// and the new message would become the next fact.
		why := fmt.Sprintf("its agent has obeyed a newer server, of epoch %d and term %d; this one has epoch %d and term %d",
			h.Fence.Epoch, h.Fence.Term, ours.Epoch, ours.Term)
		if h.Fence.Epoch == ours.Epoch && h.Fence.Term == ours.Term {
			why = "its agent has obeyed log entries that this server does not have, as if its data directory had been put back; a backup begins a new epoch"
		}
		return &wire.Refusal{Code: wire.RefusedFence, Fence: h.Fence, Message: why}
	}
	return nil
}

// join commits that the agent answered, with what it said of its node, unless the state has that.
func (n *nodeLink) join(ctx context.Context, h wire.Hello) error {
	row := n.l.cfg.State.Latest().Node(n.id)
	if row == nil {
		return fmt.Errorf("node %s: not in the state any more", n.id)
	}
	if row.Stage == muster.NodeTerminating {
		return nil
	}
	attributes := maps.Clone(h.Attributes)
	if attributes == nil {
		attributes = map[string]string{}
	}
	// The operator's attributes win.
	maps.Copy(attributes, row.Offering.Attributes)
	// The health of a node is not part of this: watch sets it after the first report.
	known := (row.Stage == muster.NodeServing || row.Stage == muster.NodeDraining) &&
		row.Capacity == h.Capacity && row.Agent == h.Version && row.Boot == h.Run && maps.Equal(row.Attributes, attributes)
	if known {
		return nil
	}
	if row.Joined == 0 {
		n.log.Info("node joins", "agent", h.Version, "capacity", h.Capacity.String())
	}
	return n.propose(ctx, &state.NodeJoined{ID: n.id, Capacity: h.Capacity, Attributes: h.Attributes, Agent: h.Version, Boot: h.Run})
}

// propose commits a fact. It retries errors that pass, such as no leader for a moment or a full
// disk, until ctx ends. It returns a refusal by the state.
func (n *nodeLink) propose(ctx context.Context, f state.Fact) error {
	for delay := proposeFirst; ; delay = min(2*delay, proposeLimit) {
		_, _, err := n.l.cfg.Proposer.Propose(ctx, f)
		if err == nil || ctx.Err() != nil {
			return err
		}
		switch muster.KindOf(err) {
		case muster.FaultUnavailable, muster.FaultAmbiguous, muster.FaultDiskLow, muster.FaultTransient, muster.FaultRateLimited:
		default:
			// The state would refuse the same fact again.
			return err
		}
		n.log.Warn("fact not committed, trying again", "fact", fmt.Sprintf("%T", f), "error", err)
		wait.For(ctx, delay)
	}
}

// watch judges the node's health, after each change of the contact or the row and when a deadline
// passes, and proposes what changed. It also ends the link to a terminating node on time.
func (n *nodeLink) watch(ctx context.Context, wg *sync.WaitGroup) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	// said is the verdict that was proposed last.
	var said health.Verdict
	// reasonRenewed is when a lost node last got a new reason.
	var reasonRenewed muster.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.judge:
		case <-timer.C:
		}
		row := n.row.Load()
		grace := time.Duration(0)
		if p := n.l.cfg.State.Latest().Pool(row.Pool); p != nil {
			grace = time.Duration(p.Grace) * time.Microsecond
		}
		now := n.l.cfg.Clock.Now()
		if row.Stage == muster.NodeTerminating {
			if due := endingUntil(row); now < due {
				timer.Reset(due.Sub(now))
			} else {
				n.touch(func(c *health.Contact) { c.Up = false })
				n.end()
			}
			continue
		}
		v := health.Judge(row, grace, n.contactNow(), now)
		if v.Wake != 0 {
			timer.Reset(v.Wake.Sub(now))
		}
		// A probe may take as long as the pool allows, so it runs beside this loop, one at a time.
		if v.Probe && n.proving.CompareAndSwap(false, true) {
			wg.Go(func() { n.prove(ctx, row.HealthSince) })
		}
		if v.Health == row.Health && v.Reason == row.HealthReason && v.Denied == row.Denied && v.Incapable == row.Incapable {
			said = health.Verdict{}
			continue
		}
		// Propose a verdict once, and then wait until the row shows it. The state may refuse it for
		// good, and proposing it again would loop.
		v.Wake, v.Probe = 0, false
		if v == said {
			continue
		}
		if v.Health == row.Health && v.Health == muster.NodeLost && v.Denied == row.Denied {
			if delay := reasonRenewed.Add(reasonEvery).Sub(now); reasonRenewed != 0 && delay > 0 {
				timer.Reset(delay)
				continue
			}
			reasonRenewed = now
		}
		said = v
		n.log.Info("node health", "health", v.Health, "was", row.Health, "why", v.Reason)
		if err := n.propose(ctx, &state.NodeHealthChanged{ID: n.id, Health: v.Health, Reason: v.Reason, Denied: v.Denied, Incapable: v.Incapable}); err != nil && ctx.Err() == nil {
			n.log.Warn("health not changed", "error", err)
		}
	}
}
