package fleet

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// batch holds facts that are proposed at the same time, so that the log can commit them together.
// They have no order among themselves: facts that need an order go into separate batches.
type batch struct {
	// errs has one entry for each fact, once commit has returned.
	facts []state.Fact
	errs  []error
}

func (b *batch) add(f state.Fact) { b.facts = append(b.facts, f) }

// proposals bounds how many facts of a batch are under way at the same time.
const proposals = 128

// commit proposes all facts of a batch and waits for them. The state refuses a fact if something
// newer has overtaken the decision; the next pass sees the newer state. No lock may be held.
func (f *Fleet) commit(ctx context.Context, b *batch) {
	b.errs = make([]error, len(b.facts))
	slots := make(chan struct{}, proposals)
	var wg sync.WaitGroup
	for i, fact := range b.facts {
		slots <- struct{}{}
		wg.Go(func() {
			b.errs[i] = f.propose(ctx, fact)
			<-slots
		})
	}
	wg.Wait()
}

// propose commits one fact and logs what it did.
func (f *Fleet) propose(ctx context.Context, fact state.Fact) error {
	_, _, err := f.cfg.Proposer.Propose(ctx, fact)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		switch muster.KindOf(err) {
		case muster.FaultConflict, muster.FaultNotFound, muster.FaultAlreadyExists:
			f.log.Debug("overtaken", "fact", fmt.Sprintf("%T", fact), "error", err)
		default:
			f.log.Warn("fact not committed", "fact", fmt.Sprintf("%T", fact), "error", err)
			// The fact changed nothing in the state, so no change wakes the loop. Wake it by a
			// timer.
			time.AfterFunc(resync/10, func() { wait.Poke(f.wake) })
		}
		return err
	}
	switch x := fact.(type) {
	case *state.NodeLaunching:
		f.log.Info("node launching", "node", x.ID, "pool", x.Pool, "offering", x.Offering.Name, "why", x.Reason)
	case *state.NodeLaunched:
		f.log.Info("node booting", "node", x.ID, "instance", x.Instance)
	case *state.NodeDraining:
		f.log.Info("node draining", "node", x.ID, "why", x.Reason)
	case *state.NodeKept:
		f.log.Info("node serves again", "node", x.ID, "why", x.Reason)
	case *state.NodeStopped:
		f.log.Info("node stopped", "node", x.ID, "why", x.Reason)
	case *state.NodeStarting:
		f.log.Info("node starting", "node", x.ID, "why", x.Reason)
	case *state.NodeStarted:
		f.log.Info("node booting", "node", x.ID)
	case *state.NodeTerminating:
		f.log.Info("node terminating", "node", x.ID, "why", x.Reason)
	case *state.NodeGone:
		f.log.Info("node gone", "node", x.ID, "why", x.Reason)
	case *state.PoolTripped:
		f.log.Error("the breaker of the pool has tripped: nothing is destroyed without an explanation until `muster pool resume`", "pool", x.Pool, "why", x.Reason)
	case *state.NodeIntentSet:
		f.log.Info("node released", "node", x.ID, "why", x.Reason)
	case *state.NodeAdopted:
		f.log.Warn("instance adopted", "node", x.ID, "instance", x.Instance, "pool", x.Pool)
	case *state.JobFailed:
		f.log.Info("job can never run", "uid", x.UID, "why", x.Reason)
	}
	return nil
}

// ids makes node ids and tokens. Node ids rise with time, so that nodes sorted by id are sorted by
// age.
type ids struct {
	draw func() string

	// mu guards last, the time in the newest id, in tenths of a millisecond.
	mu   sync.Mutex
	last int64
}

// digits are those of base 32, in ascending order of their bytes: ids sort like the numbers in
// them.
const digits = "0123456789abcdefghijklmnopqrstuv"

func (g *ids) text() string {
	if g.draw != nil {
		return g.draw()
	}
	return strings.ToLower(rand.Text())
}

// node returns an id of 14 characters: the letter n, the time in tenths of a millisecond, of which
// each value is used once, and three random characters.
func (g *ids) node() muster.NodeID {
	g.mu.Lock()
	g.last = max(g.last+1, time.Now().UnixMicro()/100)
	t := g.last
	g.mu.Unlock()
	var b [10]byte
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = digits[t%32]
		t /= 32
	}
	return muster.NodeID("n" + string(b[:]) + g.text()[:3])
}

// token returns the name of one intent. The provider stores it with the instance.
func (g *ids) token() muster.Token { return muster.Token(g.text()) }
