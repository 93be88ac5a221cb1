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
	"github.com/musterhq/muster/internal/decide/health"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	dialFirst, dialLongest   = 5 * time.Millisecond, 2 * time.Second
	unreadyFirst             = 250 * time.Millisecond
	refusedFirst             = time.Second
	refusedLongest           = 30 * time.Second
	startFirst, startLongest = 100 * time.Millisecond, 30 * time.Second
	startTimeout             = 2 * time.Minute
	// startSlow is after how long a start that goes on is mentioned as the reason why the agent does not answer.
	startSlow = 10 * time.Second
	// reasonEvery bounds how often the reason of a node that stays lost is renewed in the log.
	reasonEvery                = 10 * time.Second
	proposeFirst, proposeLimit = 20 * time.Millisecond, 2 * time.Second
)

// nodeLink is the link to one node.
type nodeLink struct {
	l   *Link
	id  muster.NodeID
	log *slog.Logger
	// client is for small requests, bulk for those that would be in their way.
	client, bulk *wire.Client
	jitter       *rand.Rand // of the dialling goroutine
	// box is what the dispatcher has for it, row the newest row that it has seen.
	box *mailbox
	row atomic.Pointer[state.Node]
	// judge wakes the goroutine that turns the health dial.
	judge chan struct{}
	// ended is closed when the node needs no link any more.
	ended   chan struct{}
	endOnce sync.Once
	// gone is closed when nothing of the link runs any more.
	gone chan struct{}
	// lastRefusal was logged: the same one is not logged again. Of the dialling goroutine.
	lastRefusal string
	// lastStart is why its agent could not be started, as logged; empty since it was started or heard. Of the dialling goroutine.
	lastStart string
	// outdatedBoot: its agent was started since a reason was given why it does not boot. Of the dialling goroutine.
	outdatedBoot bool
	// renewed: the agent is of this build, as far as that was asked for. Of the dialling goroutine.
	renewed bool
	// proving: a probe is under way. probeWait is the back-off of the next; of the one that probes.
	proving   atomic.Bool
	probeWait time.Duration

	// reportsPaid is when the reports that were read are paid for. Of the goroutine that reads them, and outlives sessions.
	reportsPaid time.Time

	mu      sync.Mutex
	contact health.Contact
	usage   Usage
	// ships are the outputs in shipping; storing since when declared outputs are.
	ships   map[muster.AllocID]*ship
	storing map[muster.AllocID]time.Time
	// pulling counts the pulls under way that were asked for, by image; grants are
	// the rights to pull that the node was given last.
	pulling map[string]int
	grants  map[string]wire.Grant
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
		pulling: map[string]int{}, grants: map[string]wire.Grant{},
	}
	n.row.Store(row)
	// What this leadership launches is of its build already.
	n.renewed = l.cfg.StartAgent == nil || row.Launched >= l.cfg.State.Latest().Meta().LeaderSince
	n.client = wire.NewClient(func(ctx context.Context) (net.Conn, error) {
		l.stats.dials.Add(1)
		return l.cfg.Dial(ctx, n.row.Load())
	})
	n.bulk = wire.NewClient(func(ctx context.Context) (net.Conn, error) { return l.cfg.DialBulk(ctx, n.row.Load()) })
	return n
}

// run keeps in touch until ctx ends or the node needs no link any more.
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
		// The loop ends, and not the node: the next one uses what is open.
	}
}

// terminating reports whether its node is being destroyed, as far as it knows.
func (n *nodeLink) terminating() bool { return n.row.Load().Stage == muster.NodeTerminating }

func (n *nodeLink) end() { n.endOnce.Do(func() { close(n.ended) }) }

// changed takes a newer row.
func (n *nodeLink) changed(row *state.Node) {
	before := n.row.Swap(row)
	if before.Intent != row.Intent {
		n.box.addAll() // a hold changes what every set says of the lease
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

// unready is an agent that answers and can run nothing. again is when it wants to be asked again; 0: as we like.
type unready struct {
	why   string
	again time.Duration
}

func (e *unready) Error() string { return e.why }

// keepContact talks to the agent for as long as it can, again and again.
func (n *nodeLink) keepContact(ctx context.Context) {
	delay, startWait := dialFirst, startFirst
	var startAt time.Time
	// start has an agent started, if that may be tried again by now.
	start := func() {
		if now := time.Now(); n.l.cfg.StartAgent == nil || now.Before(startAt) || !n.mayStart() {
			return
		}
		started, after := n.startAgent(ctx)
		if started {
			delay = dialFirst
		}
		if after > 0 {
			// Not even its host is reached: asked again when that has been tried again.
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
			continue // at once: most often it is the agent that was replaced
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

// refused notes that the agent will not obey. An instance that the state has
// just found is then held: whoever it obeys may be right, and only an operator knows.
func (n *nodeLink) refused(ctx context.Context, r *wire.Refusal) {
	why := muster.Truncate(r.Message, maxMessage)
	if why != n.lastRefusal {
		n.log.Warn("agent refuses to obey", "code", r.Code, "why", why)
		n.lastRefusal = why
	}
	n.touch(func(c *health.Contact) { c.Up, c.Refused, c.Unready, c.Denied = false, why, "", false })
	row := n.row.Load()
	if row.Stage != muster.NodeAdopted || row.Intent == muster.NodeHold {
		return
	}
	hold := &state.NodeIntentSet{ID: n.id, Intent: muster.NodeHold, Reason: heldBecause + why, Who: "link"}
	if err := n.propose(ctx, hold); err != nil && ctx.Err() == nil {
		n.log.Warn("node not held", "error", err)
	}
}

// heldBecause begins the reason of a hold that nobody asked for, by which it is known again.
const heldBecause = "found, and refuses to obey: "

// letGo takes such a hold back, once the agent obeys; an operator's stays.
func (n *nodeLink) letGo(ctx context.Context) {
	row := n.l.cfg.State.Latest().Node(n.id)
	if row == nil || row.Intent != muster.NodeHold || !strings.HasPrefix(row.IntentReason, heldBecause) {
		return
	}
	n.log.Info("held because it did not obey, and does now: released")
	if err := n.propose(ctx, &state.NodeIntentSet{ID: n.id, Intent: muster.NodeRun}); err != nil && ctx.Err() == nil {
		n.log.Warn("node not released", "error", err)
	}
}

// contactGone notes the end of a contact that was, or a call that was not answered. While the agent cannot be started,
// that is the better reason: a refused connection says only that nothing listens.
func (n *nodeLink) contactGone(err error) {
	now := n.l.cfg.Clock.Now()
	wasUp := false
	n.touch(func(c *health.Contact) {
		wasUp = c.Up
		// A stream that breaks was heard until then; one that fell silent was not.
		if c.Up && now.Sub(c.Heard) < 2*wire.HeartbeatEvery*time.Millisecond {
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

// bootFor is how long a new instance is left to start its agent by itself.
const bootFor = time.Second

func (n *nodeLink) mayStart() bool {
	row := n.row.Load()
	if row.Stage == muster.NodeTerminating {
		return false // the provider may be about to clear the host
	}
	boots := row.Stage == muster.NodeBooting || row.Stage == muster.NodeAdopted
	return !boots || !n.l.cfg.StartsItself(row) || n.l.cfg.Clock.Now().Sub(row.StageSince) >= bootFor
}

// startAgent has the agent started; not ok if it could not be. After is when to come again, if that is known.
func (n *nodeLink) startAgent(ctx context.Context) (ok bool, after time.Duration) {
	within, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	n.l.stats.starts.Add(1)
	over := n.mentionSlowStart()
	err := n.l.cfg.StartAgent(within, n.row.Load())
	over()
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		// What hangs is told like what fails: nothing else says why nothing comes of the node.
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
	// Once for each reason: an instance that boots is asked many times, and what was last in the way has to be found.
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

// mentionSlowStart has a start that takes long mentioned as the reason, until over is called: the error of the attempt
// before would stay otherwise, and the host may have changed since.
func (n *nodeLink) mentionSlowStart() (over func()) {
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

// talk is one contact, from the first word to its end. heard: the agent reported.
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
	if !n.renewed && !n.terminating() {
		if hello, err = n.renew(ctx, hello); err != nil {
			return false, err
		}
	}
	boot := hello.Boot
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
	// What was wrong before is not any more. Said before it joins, so that the
	// node is not called unready again for an old reason between that and its first report.
	n.touch(func(c *health.Contact) { c.Refused, c.Unready, c.Denied = "", "", false })
	if err := n.join(ctx, hello); err != nil {
		return false, err
	}
	n.letGo(ctx)
	s := newSession(n, boot)
	err = s.run(ctx)
	return s.heardOf(), err
}

// renew has the agent of an earlier server replaced if it is of another build:
// once in a leadership, and only where it was found to obey this server.
func (n *nodeLink) renew(ctx context.Context, was wire.Hello) (wire.Hello, error) {
	n.renewed = true
	startCtx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := n.l.cfg.StartAgent(startCtx, n.row.Load()); err != nil {
		if ctx.Err() != nil {
			return was, ctx.Err() // this server stops, and nothing is wrong with the node
		}
		// It answers, and that is what counts.
		n.log.Warn("agent of an earlier server not looked at", "agent", was.Version, "error", err)
		return was, nil
	}
	return n.client.Hello(ctx)
}

// errFormerNode is that of an agent which runs for a node that is gone, on an instance that has become this node's.
var errFormerNode = errors.New("the agent of a former node")

// isFormer reports whether the agent that answered is one of a node that is gone, and would obey as this node's. An instance
// that is found again after its node was taken for gone gets a node with another id, and its agent runs on under the old one.
func (n *nodeLink) isFormer(h wire.Hello, ours wire.Fence) bool {
	if h.Node == n.id {
		return false
	}
	if row := n.l.cfg.State.Latest().Node(h.Node); row != nil && row.Stage != muster.NodeGone {
		return false // this is the way to another node's agent
	}
	h.Node = n.id
	return n.check(h, ours) == nil
}

// check says why the agent that answered is not one to work with.
func (n *nodeLink) check(h wire.Hello, ours wire.Fence) *wire.Refusal {
	switch {
	case h.Node != n.id:
		return &wire.Refusal{Code: wire.RefusedCluster, Fence: h.Fence,
			Message: fmt.Sprintf("the agent that answers is of node %s", h.Node)}
	case h.Protocol < wire.Protocol-1:
		return &wire.Refusal{Code: wire.RefusedProtocol, Fence: h.Fence,
			Message: fmt.Sprintf("its agent speaks protocol %d, this server %d", h.Protocol, wire.Protocol)}
	case h.Fence.Cluster == "":
		return nil
	case h.Fence.Cluster != ours.Cluster:
		return &wire.Refusal{Code: wire.RefusedCluster, Fence: h.Fence, Message: fmt.Sprintf(
			"its agent obeys cluster %s, this is %s; an operator can release it first", h.Fence.Cluster, ours.Cluster)}
	case h.Fence.Compare(ours) > 0:
		// Without an index: this becomes a fact, which moves the index, and would be another one each time.
		why := fmt.Sprintf("its agent has obeyed a newer server, of epoch %d and term %d; this one has epoch %d and term %d",
			h.Fence.Epoch, h.Fence.Term, ours.Epoch, ours.Term)
		if h.Fence.Epoch == ours.Epoch && h.Fence.Term == ours.Term {
			why = "its agent has obeyed log entries that this server does not have, as if its data directory had been put back; a backup begins a new epoch"
		}
		return &wire.Refusal{Code: wire.RefusedFence, Fence: h.Fence, Message: why}
	}
	return nil
}

// join tells the state that the agent answered, unless it knows all of that.
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
	maps.Copy(attributes, row.Offering.Attributes) // the operator's word wins
	// Its health is another dial: what its first report says turns that.
	known := (row.Stage == muster.NodeServing || row.Stage == muster.NodeDraining) &&
		row.Capacity == h.Capacity && row.Agent == h.Version && row.Boot == h.Boot && maps.Equal(row.Attributes, attributes)
	if known {
		return nil
	}
	if row.Joined == 0 {
		n.log.Info("node joins", "agent", h.Version, "capacity", h.Capacity.String())
	}
	return n.propose(ctx, &state.NodeJoined{ID: n.id, Capacity: h.Capacity, Attributes: h.Attributes, Agent: h.Version, Boot: h.Boot})
}

// propose commits a fact. What passes (no leader for a moment, no room on the
// disk) is waited for; a refusal by apply is returned.
func (n *nodeLink) propose(ctx context.Context, f state.Fact) error {
	for delay := proposeFirst; ; delay = min(2*delay, proposeLimit) {
		_, _, err := n.l.cfg.Proposer.Propose(ctx, f)
		if err == nil || ctx.Err() != nil {
			return err
		}
		switch muster.KindOf(err) {
		case muster.FaultUnavailable, muster.FaultAmbiguous, muster.FaultDiskLow, muster.FaultTransient, muster.FaultRateLimited:
		default:
			return err // the same fact would meet the same again
		}
		n.log.Warn("fact not committed, trying again", "fact", fmt.Sprintf("%T", f), "error", err)
		wait.For(ctx, delay)
	}
}

// watch turns the health dial, by what was last heard and a timer.
func (n *nodeLink) watch(ctx context.Context, wg *sync.WaitGroup) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var said health.Verdict
	var reasonRenewed muster.Time // when the reason of a lost node was last renewed
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
		if v.Probe && n.proving.CompareAndSwap(false, true) {
			wg.Go(func() { n.prove(ctx, row.HealthSince) })
		}
		if v.Health == row.Health && v.Reason == row.HealthReason && v.Denied == row.Denied && v.Incapable == row.Incapable {
			said = health.Verdict{}
			continue
		}
		// Said once, and waited for until the row shows it: it may be refused for good.
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
