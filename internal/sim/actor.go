package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/apply"
	"github.com/musterhq/muster/internal/control/broker"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// What makes one seed one run: nothing that matters happens at the same moment as anything else. In a
// bubble time stands still until all have nothing to do, and whoever is at work at one moment comes in
// any order. So all that an actor does to others takes a time of its own, in nanoseconds, drawn from the seed, the moment and
// what is done: facts before and after they are in the log, plans, calls of the cloud, steps of sandboxes, blobs.

// delay is a time below limit for what a thing is about.
func (c *Cluster) delay(limit time.Duration, about ...any) time.Duration {
	if limit <= 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, time.Now().UnixNano(), about)
	return time.Duration(rand.New(rand.NewPCG(c.cfg.Seed, h.Sum64())).Int64N(int64(limit)))
}

// steps is how long what an actor does takes at most.
const steps = 2 * time.Millisecond

// sandboxDelay is how long a step of a sandbox takes.
func (c *Cluster) sandboxDelay(id muster.AllocID, step string) time.Duration {
	return c.delay(20*time.Millisecond, "sandbox", id, step)
}

// draw is the random part of ids and tokens.
func (c *Cluster) draw() string {
	c.mu.Lock()
	c.drawn++
	n := c.drawn
	c.mu.Unlock()
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, n, time.Now().UnixNano())
	r := rand.New(rand.NewPCG(c.cfg.Seed, h.Sum64()))
	const letters = "abcdefghijklmnopqrstuvwxyz234567"
	var b strings.Builder
	for range 26 {
		b.WriteByte(letters[r.IntN(len(letters))])
	}
	return b.String()
}

// actor proposes for one loop.
type actor struct {
	c    *Cluster
	name string
}

func (c *Cluster) actor(name string) actor { return actor{c, name} }

// Propose commits a fact. When the leader is killed before it is in the log it is not in it, and when he is
// killed after that nobody learns that it is.
func (a actor) Propose(ctx context.Context, f state.Fact) (uint64, any, error) {
	fact, err := a.c.Log.S.Encode(f)
	if err != nil {
		return 0, nil, err
	}
	if !wait.For(ctx, a.c.delay(steps, a.name, fact)) {
		return 0, nil, &muster.Fault{Kind: muster.FaultUnavailable, Message: "no leader", Err: ctx.Err()}
	}
	index, v, err := a.c.Log.Propose(ctx, f)
	if !wait.For(ctx, a.c.delay(steps, a.name, fact, "done")) {
		a.c.note("nobody learns of it")
		return 0, nil, &muster.Fault{Kind: muster.FaultAmbiguous, Message: "no leader any more", Err: ctx.Err()}
	}
	return index, v, err
}

// queue has several workers begin with their windows one after the other: they plan on one view.
type queue struct {
	c *Cluster
	*broker.Broker
}

// Dequeue is schedule.Queue's.
func (q *queue) Dequeue(ctx context.Context, limit int) (place.Window, error) {
	return q.later(ctx, limit, q.Broker.Dequeue)
}

// DequeueAhead is schedule.Queue's.
func (q *queue) DequeueAhead(ctx context.Context, limit int) (place.Window, error) {
	return q.later(ctx, limit, q.Broker.DequeueAhead)
}

func (q *queue) later(ctx context.Context, limit int, dequeue func(context.Context, int) (place.Window, error)) (place.Window, error) {
	w, err := dequeue(ctx, limit)
	if err == nil && !wait.For(ctx, q.c.delay(steps, "window", w.Jobs)) {
		err = ctx.Err()
	}
	return w, err
}

// submitter has the plans of several workers come one after the other.
type submitter struct {
	c *Cluster
	*apply.Applier
}

// Submit is schedule.Submitter's.
func (s *submitter) Submit(ctx context.Context, plan verify.Submission) (verify.Verdict, error) {
	if !wait.For(ctx, s.c.delay(steps, "plan", plan.Placements)) {
		return verify.Verdict{}, ctx.Err()
	}
	return s.Applier.Submit(ctx, plan)
}
