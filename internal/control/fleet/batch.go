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

// batch is facts that are proposed at the same time, so that the log takes them together.
type batch struct {
	facts []state.Fact
	errs  []error
}

func (b *batch) add(f state.Fact) { b.facts = append(b.facts, f) }

// proposals bounds how many facts are on their way at once.
const proposals = 128

// commit proposes all of a batch and waits. What is refused has been overtaken
// by the state, and the next pass sees that.
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

// propose commits one fact and logs what it says.
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
			// Nothing in the state will change because of it: look again by the clock.
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

// ids draws node ids and tokens. Ids rise with time, so that a list of nodes by
// id is one by age.
type ids struct {
	draw func() string

	mu   sync.Mutex
	last int64
}

const digits = "0123456789abcdefghijklmnopqrstuv"

func (g *ids) text() string {
	if g.draw != nil {
		return g.draw()
	}
	return strings.ToLower(rand.Text())
}

// node is an id of 14 characters: n, the time in tenths of a millisecond, each
// tenth once, and three random ones.
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

// token is the name of one intent.
func (g *ids) token() muster.Token { return muster.Token(g.text()) }
