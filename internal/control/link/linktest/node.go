package linktest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Config of a node in memory.
type Config struct {
	ID         muster.NodeID
	Capacity   muster.Resources
	Attributes map[string]string
	Version    string
	// Delay is how long a sandbox takes for each of its own steps (start, run, end), whoever waits for it; nil: no time.
	Delay func(id muster.AllocID, step string) time.Duration
	// LieHello and LieReport change what the agent says; nil: it is honest.
	LieHello  func(h *wire.Hello)
	LieReport func(r *wire.Report)
	// RawReport is sent in place of each report, and is made once: large lies cost more to write than to read. Empty: what is to be reported.
	RawReport []byte
	// LieInside answers requests into sandboxes, for output, outputs and about images in the agent's place; nil: it is honest.
	LieInside http.HandlerFunc
	// Flood: it sends reports without an end, as fast as they are read.
	Flood bool
}

// HasInput reports whether the bytes of a digest were handed over.
func (n *Node) HasInput(digest string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.inputs[digest] != nil
}

// Node is a machine in memory. Its disk and its sandboxes outlive its agent.
// Safe for use by many goroutines.
type Node struct {
	cfg Config
	wg  sync.WaitGroup

	mu        sync.Mutex
	agent     *agent // nil: not running
	boots     int
	destroyed bool
	cut       bool
	stuck     bool
	hung      chan struct{} // not nil: nothing is answered until it is closed
	silent    chan struct{} // closed: nothing passes any more
	problems  []string
	runtimes  []string
	fence     wire.Fence
	sandboxes map[muster.AllocID]*sandbox
	forgotten map[muster.AllocID]bool
	inputs    map[string][]byte
	ran       map[muster.AllocID]int
	sets      []wire.Desired
	// needGrants are asked for; grants were given. images are in the cache.
	needGrants []string
	grants     []wire.PullGrant
	images     []string
	// probeTakes is how long a probe is answered after.
	probeTakes time.Duration
	// answers are given to probes, one after the other; with none left it is ready. probed are when it was.
	answers   []wire.ProbeAnswer
	probed    []muster.Time
	condition wire.Condition
	// guarded is until when exclusive sandboxes may run, counted from began; renewed is closed and replaced when that is later.
	began   time.Time
	guarded time.Time
	renewed chan struct{}
}

// NewNode makes a node whose agent does not run yet.
func NewNode(cfg Config) *Node {
	cfg.Version = cmp.Or(cfg.Version, "test")
	return &Node{
		cfg: cfg, runtimes: []string{"process"}, sandboxes: map[muster.AllocID]*sandbox{},
		forgotten: map[muster.AllocID]bool{}, inputs: map[string][]byte{}, ran: map[muster.AllocID]int{},
		began: time.Now(), renewed: make(chan struct{}), silent: make(chan struct{}),
	}
}

// Start starts the agent if it does not run. A destroyed node has none: FaultNotFound.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.destroyed:
		return muster.Faultf(muster.FaultNotFound, "instance of node %s: not found", n.cfg.ID)
	case n.agent != nil:
		return nil
	}
	n.boots++
	a := &agent{n: n, run: fmt.Sprintf("%s-boot%d", n.cfg.ID, n.boots), conns: make(chan net.Conn), ended: make(chan struct{}), readers: map[*reader]struct{}{}}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.http = &http.Server{Handler: a.handler(), BaseContext: func(net.Listener) context.Context { return a.ctx }}
	n.agent = a
	n.wg.Go(func() { _ = a.http.Serve(a) })
	n.wg.Go(func() { a.beat() })
	return nil
}

// Kill ends the agent as kill -9 would: its sandboxes go on.
func (n *Node) Kill() {
	n.mu.Lock()
	a := n.agent
	n.agent = nil
	n.mu.Unlock()
	if a != nil {
		a.stop()
	}
}

// Destroy ends the agent and all sandboxes, without a report, and waits for them.
func (n *Node) Destroy() {
	n.mu.Lock()
	n.destroyed = true
	if n.hung != nil {
		close(n.hung)
		n.hung = nil
	}
	for _, b := range n.sandboxes {
		b.kill()
	}
	n.mu.Unlock()
	n.Kill()
	n.wg.Wait()
}

// Cut breaks every connection and refuses new ones while on. The agent goes on.
func (n *Node) Cut(on bool) {
	n.mu.Lock()
	n.cut = on
	a := n.agent
	n.mu.Unlock()
	if on && a != nil {
		a.hangUp()
	}
}

// Hang makes the agent accept and never answer while on.
func (n *Node) Hang(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case on && n.hung == nil:
		n.hung = make(chan struct{})
	case !on && n.hung != nil:
		close(n.hung)
		n.hung = nil
	}
}

// Stick makes sandboxes not end any more, whether their command does or they are
// asked to: processes that nothing can kill. Only with the machine do they go.
func (n *Node) Stick() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stuck = true
}

// Sick makes the agent say that no runtime works, for these reasons; none: all is well.
func (n *Node) Sick(problems ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.problems, n.runtimes = problems, []string{"process"}
	if len(problems) > 0 {
		n.runtimes = nil
	}
}

// Answer makes the agent answer its next probes so, one after the other; after them it is ready. One that has Why "hang" is
// never answered; after "slow 3s" it is ready when that time is over.
func (n *Node) Answer(answers ...wire.ProbeAnswer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answers = answers
}

// ProbeTakes makes the agent answer every probe only after so long, as with a slow command.
func (n *Node) ProbeTakes(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.probeTakes = d
}

// Probed is when it was asked whether it is ready.
func (n *Node) Probed() []muster.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.probed)
}

// Cache sets which images are at hand.
func (n *Node) Cache(refs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.images = refs
}

// Says sets what the agent's own checks say, which is reported at once.
func (n *Node) Says(c wire.Condition) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.condition = c
	if n.agent != nil {
		for r := range n.agent.readers {
			r.beat = true
			r.poke()
		}
	}
}

// Obeyed sets the fence that the agent has obeyed.
func (n *Node) Obeyed(f wire.Fence) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fence = f
}

// Wipe empties the disk of a node whose agent does not run: sandboxes end and are forgotten.
func (n *Node) Wipe() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range n.sandboxes {
		b.kill()
	}
	clear(n.sandboxes)
}

// Reboot is a machine that stops and keeps its disk, while its agent does not run: the sandboxes
// die. The next agent reports those that had begun as ended, and waits for a set that asks for the
// others.
func (n *Node) Reboot() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, b := range n.sandboxes {
		b.kill()
		switch {
		case b.report.Status == muster.AllocEnded:
		case n.ran[id] == 0:
			delete(n.sandboxes, id)
		default:
			r := &b.report
			r.Status, r.Ended, r.Outcome = muster.AllocEnded, now(), muster.OutcomeFailed
			r.Failure = &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonSandboxDied, Message: "its machine was restarted"}
			b.growLocked()
			n.changedLocked(id)
		}
	}
}

// Dial opens a connection to the agent.
func (n *Node) Dial(ctx context.Context) (net.Conn, error) {
	n.mu.Lock()
	a, cut := n.agent, n.cut
	n.mu.Unlock()
	if a == nil || cut {
		return nil, muster.Faultf(muster.FaultUnavailable, "node %s: connection refused", n.cfg.ID)
	}
	if wait.Closed(n.silent) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	client, server := net.Pipe()
	select {
	case a.conns <- &silenced{Conn: server, silent: n.silent, closed: make(chan struct{})}:
		return client, nil
	case <-a.ended:
	case <-ctx.Done():
	}
	_, _ = client.Close(), server.Close()
	return nil, muster.Faultf(muster.FaultUnavailable, "node %s: connection refused", n.cfg.ID)
}

// Boots is how often the agent was started.
func (n *Node) Boots() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.boots
}

// Ran is how often the command of each allocation was started.
func (n *Node) Ran() map[muster.AllocID]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[muster.AllocID]int{}
	for id, k := range n.ran {
		out[id] = k
	}
	return out
}

// Prove says of an allocation that runs what its readiness command says of it: it is ready, or why it is not.
func (n *Node) Prove(id muster.AllocID, why string) {
	n.mu.Lock()
	b := n.sandboxes[id]
	n.mu.Unlock()
	b.change(func(r *wire.AllocReport) {
		if r.Detail = why; why == "" {
			r.Ready = now()
		}
	})
}

// Stands reports whether the last set that named an allocation wants it to stand still.
func (n *Node) Stands(id muster.AllocID) (stands bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, set := range n.sets {
		for _, d := range set.Allocs {
			if d.ID == id {
				stands = d.Frozen
			}
		}
	}
	return stands
}

// Live are the allocations whose command runs.
func (n *Node) Live() []muster.AllocID {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []muster.AllocID
	for id, b := range n.sandboxes {
		if b.report.Status != muster.AllocEnded && !wait.Closed(b.killed) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// Held are all allocations that the node keeps, ended ones included.
func (n *Node) Held() []muster.AllocID {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []muster.AllocID
	for id := range n.sandboxes {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// Sets are all the sets that were obeyed.
func (n *Node) Sets() []wire.Desired {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.sets)
}

// changed tells every reader about an allocation. mu is held.
func (n *Node) changedLocked(id muster.AllocID) {
	if n.agent == nil {
		return
	}
	for r := range n.agent.readers {
		r.dirty[id] = true
		r.poke()
	}
}

func now() muster.Time { return muster.At(time.Now()) }
