package agent

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/boot"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/atomicfile"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// guardName is where the moment is kept until which exclusive allocations may run.
const guardName = "guard.json"

// guardLook is how soon after a suspend it is seen that the guard has lapsed.
const guardLook = time.Second

// guard is for how long exclusive allocations may run without a further word from the server. It counts from a moment
// before the server spoke: each answer to a set carries the agent's own clock (tick), the server gives it back with the next set,
// and only what came back counts. However long a set was on its way, it renews nothing that the server did not mean to when it
// sent it, and the two clocks need not agree.
//
// It outlives the agent: one that is started again knows from the disk how much is left.
type guard struct {
	path string
	log  *slog.Logger
	// began is the zero of ticks, of this process. asleep is for how long the machine was suspended since its boot, asleepAtBegan
	// that at began: time.Now does not advance meanwhile, and the server's clock does not.
	began         time.Time
	asleep        func() time.Duration
	asleepAtBegan time.Duration
	// changed holds a token when until is another moment.
	changed chan struct{}

	mu    sync.Mutex
	until time.Time // zero: never held
	from  time.Time // from when on the newest word counts
	limit time.Duration
	// renewed is closed and replaced when until is later.
	renewed chan struct{}
	kept    time.Time // the until on the disk, roughly
}

// guardFile is the content of guard.json: of this boot of the machine, in its time since then, sleep included.
type guardFile struct {
	Kernel string        `json:"kernel"`
	Until  time.Duration `json:"until_ns"`
}

// now is the time by which the guard counts: it goes on while the machine is suspended.
func (g *guard) now() time.Time {
	slept := g.asleep() - g.asleepAtBegan
	if slept < time.Second { // what is less comes of reading two counters one after the other
		slept = 0
	}
	return time.Now().Add(slept)
}

// loadGuard goes on with what an earlier agent of this boot of the machine was granted. What cannot be read was granted nothing.
func loadGuard(dir string, log *slog.Logger) *guard {
	now := time.Now()
	g := &guard{path: filepath.Join(dir, guardName), log: log, began: now, asleep: boot.Suspended, asleepAtBegan: boot.Suspended(), changed: make(chan struct{}, 1), renewed: make(chan struct{})}
	b, err := os.ReadFile(g.path)
	if err != nil {
		return g
	}
	var f guardFile
	if up, ok := boot.Uptime(); ok && json.Unmarshal(b, &f) == nil && f.Kernel != "" && f.Kernel == boot.ID() && f.Until > up {
		g.until = now.Add(f.Until - up)
		g.kept = g.until
	}
	return g
}

// tick is the agent's clock as the server gives it back.
func (g *guard) tick() int64 { return max(g.now().Sub(g.began).Microseconds(), 1) }

// renew grants millis from tick on. The newest word holds, also one that grants less: whoever shortened the fence counts
// on it. keep: there is something to guard, and a restarted agent is to know of it.
func (g *guard) renew(tick, millis int64, keep bool) {
	if tick <= 0 || millis <= 0 {
		return
	}
	tick = min(tick, g.tick())
	limit := time.Duration(millis) * time.Millisecond
	from := g.began.Add(time.Duration(tick) * time.Microsecond)
	until := from.Add(limit)
	g.mu.Lock()
	defer g.mu.Unlock()
	if from.Before(g.from) || until.Equal(g.until) {
		return
	}
	later := until.After(g.until)
	g.until, g.limit, g.from = until, limit, from
	switch {
	case !later && g.kept.After(until):
		g.keepLocked()
	case later:
		close(g.renewed)
		g.renewed = make(chan struct{})
		if keep && until.Sub(g.kept) > limit/16 {
			g.keepLocked()
		}
	}
	wait.Poke(g.changed)
}

// keepLocked writes down how long it holds. Not synced: after a power cut nothing runs that it is for.
func (g *guard) keepLocked() {
	up, ok := boot.Uptime()
	if !ok {
		return
	}
	b, err := json.Marshal(guardFile{Kernel: boot.ID(), Until: up + g.until.Sub(g.now())})
	if err == nil {
		err = atomicfile.Replace(g.path, b)
	}
	if err != nil {
		// A restarted agent would end what is exclusive too early, never too late.
		g.log.Warn("how long exclusive allocations may run is not on disk", "error", err)
		return
	}
	g.kept = g.until
}

// keep writes it down if that is not done.
func (g *guard) keep() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.until.After(g.kept) {
		g.keepLocked()
	}
}

// left is for how long it holds, 0 or less if it does not; waits is closed when it is renewed.
func (g *guard) left() (left, limit time.Duration, waits <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.until.Sub(g.now()), g.limit, g.renewed
}

func (g *guard) holds() bool { left, _, _ := g.left(); return left > 0 }

// await waits until it holds; false if the allocation is to stop or the agent ends first.
func (g *guard) await(ctx context.Context, al *alloc) bool {
	for {
		left, _, renewed := g.left()
		if left > 0 {
			g.keep()
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-al.stop:
			return false
		case <-renewed:
		}
	}
}

// watchGuard ends exclusive allocations when the guard lapses, until ctx ends.
func (a *Agent) watchGuard(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.guard.changed:
		case <-timer.C:
		}
		left, limit, _ := a.guard.left()
		if left > 0 {
			// Timers do not run while the machine is suspended.
			timer.Reset(min(left, guardLook))
			continue
		}
		a.endExclusive(limit)
	}
}

// endExclusive kills what is exclusive and was begun. What was not waits for the server.
func (a *Agent) endExclusive(limit time.Duration) {
	var held []*alloc
	var boxes []*box
	a.mu.Lock()
	for _, al := range a.allocs {
		if !al.exclusive || !al.begun || al.ended || al.unguarded != nil {
			continue
		}
		al.unguarded = a.lapsed(limit)
		if al.stopping {
			if al.box != nil {
				al.box.refs++
				held, boxes = append(held, al), append(boxes, al.box)
			}
			continue
		}
		al.stopping = true
		close(al.stop)
	}
	a.mu.Unlock()
	for i, al := range held {
		a.log.Warn("no word from the server: exclusive allocation is killed", "alloc", al.id)
		boxes[i].sandbox.Stop(0)
		a.drop(al, boxes[i])
	}
}

func (a *Agent) lapsed(limit time.Duration) *muster.Failure {
	if limit == 0 {
		return contract.Failure(muster.FailureOutside, muster.ReasonUnguarded, "its job is exclusive, and the agent of node %s was away for longer than its fence allows", a.cfg.Node)
	}
	return contract.Failure(muster.FailureOutside, muster.ReasonUnguarded, "its job is exclusive, and no server has spoken to node %s for its fence of %s", a.cfg.Node, limit)
}

// whyUnguarded is why it was ended because the guard lapsed; nil if that is not so.
func (a *Agent) whyUnguarded(al *alloc) *muster.Failure {
	a.mu.Lock()
	defer a.mu.Unlock()
	return al.unguarded
}

// guards reports whether anything exclusive is held or about to be.
func (a *Agent) guards(d *wire.Desired) bool {
	for i := range d.Allocs {
		if s := d.Allocs[i].Spec; s != nil && s.Exclusive {
			return true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, al := range a.allocs {
		if al.exclusive && !al.ended {
			return true
		}
	}
	return false
}
