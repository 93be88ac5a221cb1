package driver

import (
	"context"
	"sync"
	"time"

	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/wait"
)

// Throttle finds out how often a cloud takes a kind of call, where it refuses calls for their number
// and says neither its rate nor when to come again. Other programs of the account share that rate, so
// no configuration knows it.
//
// Until a refusal, it lets everything through. From then on, one call at a time is under way. It
// measures the time between two that were taken, tries a little before that time is over, and in
// small steps after it. When calls are taken at once again, the time shrinks until nothing waits.
type Throttle struct {
	// Least is the time between two calls at the cloud's full rate. It must not change later.
	Least time.Duration

	// mu guards the fields below and is never held while a call waits or is under way.
	mu sync.Mutex
	// turn is for the one call under way while period is not 0.
	turn *wait.Turn
	// period is the measured time between two calls that are taken; 0: nothing was refused lately.
	period time.Duration
	// next is when to try, step how long after that if it is refused.
	next time.Time
	step time.Duration
	// won is when the last call that was taken was sent, tried the first refused one after it; zero if
	// there was none. last is when the newest call ended.
	won, tried, last time.Time
	// turned is when the refusal that counted last was answered.
	turned time.Time
	// waiting is how many calls wait for their turn or time, waited how long others have.
	waiting int
	waited  time.Duration
}

// Use is how often the cloud takes calls of that name, as far as it is known, and which wait for it.
func (t *Throttle) Use(calls string) cloud.PaceUse {
	t.mu.Lock()
	defer t.mu.Unlock()
	each := max(t.period, t.Least)
	u := cloud.PaceUse{Calls: calls, Rate: cloud.Rate{PerSecond: float64(time.Second) / float64(each)}, Waited: t.waited, Waiting: t.waiting}
	if u.Waiting > 0 {
		u.Last = max(time.Until(t.next), 0) + time.Duration(u.Waiting-1)*each
	}
	return u
}

// waits notes that n calls more wait, and for how long some have waited.
func (t *Throttle) waits(n int, waited time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting += n
	t.waited += waited
}

// The longest time between two tries; and how many periods without a call end the throttling, as the
// cloud has saved up calls again.
const longestStep, forgottenAfter = 15 * time.Second, 10

// Enter waits until a call may be tried. It reports false when ctx ends first. Otherwise the call must
// be made, and left told whether it was refused for the number of calls.
func (t *Throttle) Enter(ctx context.Context) (left func(refused bool), ok bool) {
	t.mu.Lock()
	if t.turn == nil {
		t.turn = wait.NewTurn()
	}
	turn := t.turn
	if t.period > 0 && time.Since(t.last) > forgottenAfter*max(t.period, t.Least) {
		t.period = 0
	}
	throttled := t.period > 0
	t.mu.Unlock()
	if !throttled {
		if ctx.Err() != nil {
			return nil, false
		}
		sent := time.Now()
		return func(refused bool) { t.ended(sent, refused) }, true
	}
	began := time.Now()
	t.waits(1, 0)
	defer func() { t.waits(-1, time.Since(began)) }()
	if turn.Take(ctx) != nil {
		return nil, false
	}
	t.mu.Lock()
	next := t.next
	t.mu.Unlock()
	if !wait.For(ctx, time.Until(next)) {
		turn.Leave()
		return nil, false
	}
	sent := time.Now()
	return func(refused bool) {
		t.ended(sent, refused)
		turn.Leave()
	}, true
}

// ended learns from a call.
func (t *Throttle) ended(sent time.Time, refused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = time.Now()
	if refused {
		t.refusedLocked(sent)
		return
	}
	switch {
	case t.period == 0:
	case sent.Before(t.turned):
		// It was under way when another one was refused: it says nothing about the time from now on.
	case t.tried.IsZero():
		// Taken at the first try: perhaps more would be.
		if t.period = t.period * 4 / 5; t.period <= t.Least {
			t.period = 0
		}
	default:
		// Nobody may have called for long before the first try, so that counts as one period at most.
		from := t.tried.Add(-t.period)
		if t.won.After(from) {
			from = t.won
		}
		t.period = max(sent.Sub(from), t.Least)
	}
	t.won, t.tried = sent, time.Time{}
	t.next, t.step = sent.Add(t.period-t.period/20), max(t.period/10, t.Least/5)
}

// refusedLocked takes one step back. Several calls that were under way together are one refusal.
func (t *Throttle) refusedLocked(sent time.Time) {
	if t.period > 0 && sent.Before(t.turned) {
		return
	}
	if t.period == 0 {
		t.period, t.step = t.Least, t.Least
	}
	if t.tried.IsZero() {
		t.tried = sent
	}
	t.turned = t.last
	t.next = t.turned.Add(t.step)
	t.step = min(t.step*5/4, longestStep)
}
