package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// allocation is one allocation that the agent holds, from the set that brought it until it is
// forgotten. Its goroutine is live; all others only signal it.
//
// Its steps are in files of their own: alloc_journal.go (known to the disk), alloc_image.go,
// alloc_inputs.go, alloc_begin.go (the runtime is asked), alloc_network.go, alloc_watch.go (with
// alloc_ready.go and alloc_freeze.go), alloc_outputs.go and alloc_report.go (its end).
// alloc_attach.go goes on with what an earlier agent began.
type allocation struct {
	id   muster.AllocID
	dir  journal.AllocDir
	node *node
	// spec is what to run; nil once it has ended, and when it could not be read after a restart.
	// Its goroutine's.
	spec *wire.AllocSpec
	// image is held from before the start to the end; nil if it has none. Its goroutine's.
	image *contract.Image
	// stored: the spec is on disk. found: it was there already when the agent started.
	stored, found bool
	// begins is how often earlier agents marked it as begun.
	begins int
	// exclusive: it runs only while the guard holds.
	exclusive bool
	// ice holds a token: its sandbox is frozen or thawed by one at a time.
	ice chan struct{}
	// calls holds one token: the runtime is called for dir by one at a time.
	calls chan struct{}
	// stop is closed when it shall stop; wanted when a set of this agent's life asked for it to
	// run; opened when its sandbox is there or never will be; done when it has ended.
	stop, wanted, opened, done chan struct{}

	// mu guards the rest. Whoever holds the agent's mutex may take it, and who holds it may take
	// the reporter's.
	mu sync.Mutex
	// report is what readers are told, replaced and never changed; nil until the allocation is on
	// disk.
	report   *wire.AllocReport
	runtime  contract.Runtime
	box      *box
	begun    bool // the runtime was asked, so it must never be asked again
	ended    bool
	stopping bool
	asked    bool // wanted is closed
	// ready is when it became ready; 0: it is not.
	ready muster.Time
	// wantFrozen is what the last set said; frozen whether its sandbox stands. noFreezer: it cannot
	// be frozen.
	wantFrozen, frozen, noFreezer bool
	// awake is how many use its init.
	awake int
	// unready is why it was stopped before it was ready, unguarded why it was killed when the guard
	// lapsed.
	unready, unguarded *muster.Failure
}

func newAllocation(n *node, id muster.AllocID, spec *wire.AllocSpec) *allocation {
	return &allocation{
		id: id, node: n, spec: spec, exclusive: spec != nil && spec.Exclusive, dir: journal.OfAlloc(n.cfg.Dir, id),
		ice: make(chan struct{}, 1), calls: make(chan struct{}, 1), stop: make(chan struct{}), wanted: make(chan struct{}),
		opened: make(chan struct{}), done: make(chan struct{}),
	}
}

// live takes an allocation from where it is to its end, or to the agent's.
func (al *allocation) live(ctx context.Context) {
	var b *box
	var end *wire.AllocReport
	if al.begun {
		b, end = al.reattach(ctx)
	} else {
		b, end = al.start(ctx)
	}
	if b != nil {
		defer al.drop(b)
		end = al.watch(ctx, b)
	}
	if end != nil {
		al.finish(ctx, end)
	}
	// Without an end the agent itself is ending: the next one goes on from what is on disk.
}

// errHalted says that a step was broken off: the allocation is to stop, or the agent ends.
var errHalted = errors.New("the allocation is to stop, or the agent ends")

// start makes the sandbox, step by step. It returns it, or how the allocation ended without one, or
// neither if the agent ends.
func (al *allocation) start(ctx context.Context) (*box, *wire.AllocReport) {
	for _, step := range []func(context.Context) error{al.awaitSet, al.writeDown, al.findRuntime, al.openImage, al.placeInputs, al.awaitGuard} {
		if err := step(ctx); err != nil {
			return nil, al.endWithout(ctx, err)
		}
	}
	b, err := al.begin(ctx)
	if err != nil {
		return nil, al.endWithout(ctx, err)
	}
	return b, nil
}

// endWithout is the end of an allocation that has no sandbox because a step failed or was broken
// off; nil if the agent ends.
func (al *allocation) endWithout(ctx context.Context, err error) *wire.AllocReport {
	var f *muster.Failure
	switch {
	case errors.As(err, &f):
		return al.failed(f)
	case ctx.Err() != nil:
		return nil
	}
	return &wire.AllocReport{ID: al.id, Status: muster.AllocEnded, Outcome: muster.OutcomeStopped, Ended: muster.At(time.Now())}
}

// failed is the end of an allocation that has no sandbox.
func (al *allocation) failed(f *muster.Failure) *wire.AllocReport {
	return &wire.AllocReport{ID: al.id, Status: muster.AllocEnded, Outcome: muster.OutcomeFailed, Failure: f, Ended: muster.At(time.Now())}
}

// halted is errHalted if the allocation is to stop or the agent ends.
func (al *allocation) halted(ctx context.Context) error {
	if wait.Closed(al.stop) || ctx.Err() != nil {
		return errHalted
	}
	return nil
}

// take gets a token; errHalted if the allocation is to stop or the agent ends first.
func (al *allocation) take(ctx context.Context, tokens chan struct{}) error {
	if err := al.halted(ctx); err != nil {
		return err
	}
	select {
	case tokens <- struct{}{}:
		return nil
	case <-al.stop:
	case <-ctx.Done():
	}
	return errHalted
}

// untilStop is ctx, ended as well when the allocation is to stop.
func (al *allocation) untilStop(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	left := make(chan struct{})
	go func() {
		select {
		case <-al.stop:
			cancel()
		case <-left:
		}
	}()
	return ctx, func() { cancel(); close(left) }
}

// want takes in what a set says of the allocation.
func (al *allocation) want(ctx context.Context, want wire.DesiredAlloc) {
	al.mu.Lock()
	defer al.mu.Unlock()
	if al.wantFrozen != want.Frozen {
		al.wantFrozen = want.Frozen
		if al.box != nil {
			al.node.crew.spawn(func() { al.settleOpen(ctx) })
		}
	}
	switch {
	case want.Desired == muster.AllocStop && !al.stopping:
		al.stopping = true
		close(al.stop)
	case want.Desired == muster.AllocRun && !al.asked:
		al.asked = true
		close(al.wanted)
	}
}

// progress is how far an allocation has come.
type progress struct{ begun, ended, stopping bool }

func (al *allocation) progress() progress {
	al.mu.Lock()
	defer al.mu.Unlock()
	return progress{begun: al.begun, ended: al.ended, stopping: al.stopping}
}
