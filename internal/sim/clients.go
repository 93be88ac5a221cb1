package sim

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/runners"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// client claims one runner, executes commands in it and releases it, as a user of the API does.
type client struct {
	c    *Cluster
	name string
	env  muster.JobKey
	// ttl and idle of the claim, wait for a runner. leave, if not 0, is when the client drops the request. use is the time
	// between two executions, 0: none; last is how long it keeps the runner. gone: it never releases it.
	ttl, idle, wait, leave, use, last time.Duration
	gone                              bool
	// extend is the deadline it asks for in the middle of last; 0: it does not ask.
	extend time.Duration
	// keyed: the request has an idempotency key and is repeated until it is answered.
	keyed bool
}

// clients are those that are at work, and what they know.
type clients struct {
	wg sync.WaitGroup

	mu sync.Mutex
	// had is the claim by which each runner was handed out.
	had map[muster.AllocID]muster.ClaimID
	// acked are claims that a client knows of and has not ended, used when each of them was last used.
	acked map[muster.ClaimID]muster.AllocID
	used  map[muster.ClaimID]time.Time
	// answered counts executions that were answered, refused claims that were not served.
	answered, claimed, refused int
}

func newClients() *clients {
	return &clients{had: map[muster.AllocID]muster.ClaimID{}, acked: map[muster.ClaimID]muster.AllocID{}, used: map[muster.ClaimID]time.Time{}}
}

func (k *client) run() {
	ctx := k.c.life
	if k.leave > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, k.leave)
		defer cancel()
	}
	claim := k.claim(ctx)
	if claim == nil {
		k.c.clients.mu.Lock()
		k.c.clients.refused++
		k.c.clients.mu.Unlock()
		k.c.note("%s got no runner", k.name)
		return
	}
	k.c.note("%s has claim %s of %s", k.name, claim.ID, claim.Runner)
	if err := k.c.handedOut(claim); err != nil {
		k.c.fail(err)
	}
	defer k.c.forgotten(claim.ID)
	began, extended := time.Now(), k.extend == 0
	for left := k.last; left > 0; left = k.last - time.Since(began) {
		next := left
		if k.use > 0 {
			next = min(next, k.use)
		}
		if !wait.For(k.c.life, next+k.c.delay(steps, k.name, "next")) {
			return
		}
		if !extended && time.Since(began) >= k.last/2 {
			extended = true
			k.extendClaim(claim)
		}
		if k.use > 0 && !k.execute(claim) {
			return
		}
	}
	if !k.gone {
		k.release(claim)
	}
}

// claim asks for a runner. A request with a key is repeated while servers come and go.
func (k *client) claim(ctx context.Context) *state.Claim {
	deadline := time.Now().Add(k.wait + time.Minute)
	key := ""
	if k.keyed {
		key = k.name
	}
	for tries := 0; ; tries++ {
		if !wait.For(ctx, k.c.delay(steps, k.name, "claim", tries)) {
			return nil
		}
		r := k.c.Loops().Runners
		j := k.c.Log.Latest().Job(k.env)
		if r == nil || j == nil || j.Stage != muster.JobLive {
			return nil
		}
		claim, err := r.Claim(ctx, runners.Request{UID: j.UID, TTL: k.ttl, Idle: k.idle, Wait: k.wait, Note: k.name, Key: key, Digest: key})
		switch {
		case err == nil:
			return claim
		case !k.keyed, ctx.Err() != nil, !muster.IsKind(err, muster.FaultUnavailable) && !muster.IsKind(err, muster.FaultAmbiguous), time.Now().After(deadline):
			return nil
		}
		if !wait.For(ctx, 3*time.Second+k.c.delay(time.Second, k.name, "again", tries)) {
			return nil
		}
	}
}

// execute sends a command into the runner and reads what it answers. It is false once the client has the runner no more.
func (k *client) execute(claim *state.Claim) bool {
	snap, l := k.c.Log.Latest(), k.c.Loops()
	now := snap.Claim(claim.ID)
	a := snap.Alloc(claim.Runner)
	if now == nil || now.State != muster.ClaimHeld || a == nil {
		return false
	}
	if k.c.leaderless() {
		return true // nobody answers, and the client comes again
	}
	end := l.Runners.Use(claim.ID)
	defer end()
	ctx, cancel := context.WithTimeout(k.c.life, 10*time.Second)
	defer cancel()
	text := []byte("echo " + k.name + "\n")
	t, err := l.Link.Tunnel(ctx, a, text)
	if err != nil {
		return true
	}
	defer func() { _ = t.Close() }()
	got := make([]byte, len(text))
	if _, err := io.ReadFull(t, got); err != nil {
		return true
	}
	if string(got) != string(text) {
		k.c.fail(fmt.Errorf("%s: the runner answered %q to %q", k.name, got, text))
	}
	k.c.clients.mu.Lock()
	k.c.clients.answered++
	k.c.clients.used[claim.ID] = time.Now()
	k.c.clients.mu.Unlock()
	return true
}

func (k *client) extendClaim(claim *state.Claim) {
	if !k.c.leaderless() {
		_ = k.c.propose(&state.ClaimExtended{Claim: claim.ID, TTL: muster.Time(k.extend.Microseconds()), Idle: -1})
	}
}

// release ends the claim, as often as it takes.
func (k *client) release(claim *state.Claim) {
	for tries := range 200 {
		if now := k.c.Log.Latest().Claim(claim.ID); now == nil || now.State != muster.ClaimHeld {
			return
		}
		if !k.c.leaderless() && k.c.propose(&state.ClaimReleased{Claim: claim.ID}) == nil {
			return
		}
		if !wait.For(k.c.life, 2*time.Second+k.c.delay(time.Second, k.name, "release", tries)) {
			return
		}
	}
}

// leaderless reports whether no loops run.
func (c *Cluster) leaderless() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ledSince.IsZero()
}

// handedOut takes in that a client has a runner: nobody had it before.
func (c *Cluster) handedOut(claim *state.Claim) error {
	c.clients.mu.Lock()
	defer c.clients.mu.Unlock()
	if before, had := c.clients.had[claim.Runner]; had && before != claim.ID {
		return fmt.Errorf("runner %s was handed out by claim %s and again by claim %s", claim.Runner, before, claim.ID)
	}
	c.clients.had[claim.Runner] = claim.ID
	c.clients.acked[claim.ID] = claim.Runner
	c.clients.used[claim.ID] = time.Now()
	c.clients.claimed++
	return nil
}

func (c *Cluster) forgotten(id muster.ClaimID) {
	c.clients.mu.Lock()
	defer c.clients.mu.Unlock()
	delete(c.clients.acked, id)
}

// lastUse is when a client last used its claim; zero: no client is known to have it.
func (c *Cluster) lastUse(id muster.ClaimID) time.Time {
	c.clients.mu.Lock()
	defer c.clients.mu.Unlock()
	return c.clients.used[id]
}

// claimsKept: what clients know to have is there after a restart.
func (c *Cluster) claimsKept(snap *state.Snapshot) error {
	c.clients.mu.Lock()
	defer c.clients.mu.Unlock()
	for id, runner := range c.clients.acked {
		if snap.Claim(id) == nil && snap.Alloc(runner) == nil {
			continue // it ended long ago, and its client has not looked since
		}
		if snap.Claim(id) == nil {
			return fmt.Errorf("claim %s of runner %s was acknowledged and is not there after a restart", id, runner)
		}
	}
	return nil
}
