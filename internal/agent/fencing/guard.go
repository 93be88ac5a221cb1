package fencing

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/musterhq/muster/internal/agent/boot"
	"github.com/musterhq/muster/internal/atomicfile"
	"github.com/musterhq/muster/internal/wait"
)

// GuardName is the file that has the moment until which exclusive allocations may run.
const GuardName = "guard.json"

// guardLook is how soon after a suspend the agent sees that the guard has lapsed.
const guardLook = time.Second

// Guard is for how long exclusive allocations may run without hearing from the server again. It
// counts from a moment before the server spoke: each answer to a set carries the agent's own clock
// (Tick), the server returns it with the next set, and only what came back counts. However long a
// set was on its way, it renews nothing that the server did not mean to when it sent the set, and
// the two clocks need not agree.
//
// A guard outlives the agent: an agent that is started again reads from the disk how much is left.
type Guard struct {
	path string
	log  *slog.Logger
	// began is the zero of ticks, of this process. asleep is for how long the machine was suspended
	// since its boot, asleepAtBegan the same at began: time.Now does not advance meanwhile, and the
	// server's clock does.
	began         time.Time
	asleep        func() time.Duration
	asleepAtBegan time.Duration
	// write replaces the file.
	write func(path string, b []byte) error
	// changed holds a token when until is another moment.
	changed chan struct{}
	// writing holds one token: one goroutine at a time writes the file, without mu.
	writing chan struct{}

	mu    sync.Mutex
	until time.Time // zero: it never held
	from  time.Time // from when the newest grant counts
	limit time.Duration
	// renewed is closed and replaced when until is later.
	renewed chan struct{}
	// kept is the until on the disk, roughly; zero: none. keptAtMost is the latest that may be
	// there, while a write is under way or after it failed.
	kept, keptAtMost time.Time
}

// guardFile is the content of the file: a moment of this boot of the machine, as time since the
// boot, sleep included.
type guardFile struct {
	Kernel string        `json:"kernel"`
	Until  time.Duration `json:"until_ns"`
}

// LoadGuard continues what an earlier agent of this boot of the machine was granted. What cannot be
// read was granted nothing.
func LoadGuard(dir string, log *slog.Logger) *Guard {
	now := time.Now()
	g := &Guard{
		path: filepath.Join(dir, GuardName), log: log, began: now, asleep: boot.Suspended, asleepAtBegan: boot.Suspended(), write: atomicfile.Replace,
		changed: make(chan struct{}, 1), writing: make(chan struct{}, 1), renewed: make(chan struct{}),
	}
	b, err := os.ReadFile(g.path)
	if err != nil {
		return g
	}
	var f guardFile
	if up, ok := boot.Uptime(); ok && json.Unmarshal(b, &f) == nil && f.Kernel != "" && f.Kernel == boot.ID() && f.Until > up {
		g.until = now.Add(f.Until - up)
		g.kept, g.keptAtMost = g.until, g.until
	}
	return g
}

// now is the time by which the guard counts. It advances while the machine is suspended.
func (g *Guard) now() time.Time {
	slept := g.asleep() - g.asleepAtBegan
	if slept < time.Second { // less comes from reading two clocks one after the other
		slept = 0
	}
	return time.Now().Add(slept)
}

// Tick is the agent's clock as the server returns it: microseconds since this agent began, at
// least 1.
func (g *Guard) Tick() int64 { return max(g.now().Sub(g.began).Microseconds(), 1) }

// Renew grants so many milliseconds from tick on. The newest grant counts, also one of less time:
// the server that shortened the fence counts on it. With keep there is something to guard, and a
// restarted agent has to know of it.
func (g *Guard) Renew(tick, millis int64, keep bool) {
	if tick <= 0 || millis <= 0 {
		return
	}
	tick = min(tick, g.Tick())
	limit := time.Duration(millis) * time.Millisecond
	from := g.began.Add(time.Duration(tick) * time.Microsecond)
	if g.grant(from, limit, keep) {
		g.save()
	}
}

// grant records a grant and reports whether it has to be on the disk.
func (g *Guard) grant(from time.Time, limit time.Duration, keep bool) (save bool) {
	until := from.Add(limit)
	g.mu.Lock()
	defer g.mu.Unlock()
	if from.Before(g.from) || until.Equal(g.until) {
		return false
	}
	later := until.After(g.until)
	g.until, g.limit, g.from = until, limit, from
	wait.Poke(g.changed)
	if !later {
		return g.keptAtMost.After(until)
	}
	close(g.renewed)
	g.renewed = make(chan struct{})
	return keep && until.Sub(g.kept) > limit/16
}

// Keep writes down until when it holds, unless that is done.
func (g *Guard) Keep() {
	g.mu.Lock()
	save := g.until.After(g.kept)
	g.mu.Unlock()
	if save {
		g.save()
	}
}

// save writes down the newest until. It is not synced: after a power cut nothing runs that the
// guard is for.
func (g *Guard) save() {
	g.writing <- struct{}{}
	defer func() { <-g.writing }()
	g.mu.Lock()
	until := g.until
	done := g.kept.Equal(until) && g.keptAtMost.Equal(until)
	if !done && until.After(g.keptAtMost) {
		// A grant of less time may come while this one is being written: it has to see what the
		// disk will say.
		g.keptAtMost = until
	}
	g.mu.Unlock()
	up, ok := boot.Uptime()
	if done || !ok {
		return
	}
	b, err := json.Marshal(guardFile{Kernel: boot.ID(), Until: up + until.Sub(g.now())})
	if err == nil {
		err = g.write(g.path, b)
	}
	if err != nil {
		// A restarted agent ends exclusive allocations too early then, never too late.
		g.log.Warn("how long exclusive allocations may run is not on disk", "error", err)
		return
	}
	g.mu.Lock()
	g.kept, g.keptAtMost = until, until
	g.mu.Unlock()
}

// Left is for how long the guard holds, 0 or less if it does not, and limit for how long the last
// grant was; 0: there was none in this agent's time. It never waits for the disk.
func (g *Guard) Left() (left, limit time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.until.Sub(g.now()), g.limit
}

// Holds reports whether exclusive allocations may run now.
func (g *Guard) Holds() bool { left, _ := g.Left(); return left > 0 }

// Await waits until the guard holds, and its end is on disk. It is false if ctx ends or stop is
// closed before.
func (g *Guard) Await(ctx context.Context, stop <-chan struct{}) bool {
	for {
		g.mu.Lock()
		left, renewed := g.until.Sub(g.now()), g.renewed
		g.mu.Unlock()
		if left > 0 {
			g.Keep()
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-stop:
			return false
		case <-renewed:
		}
	}
}

// Watch calls lapsed, with the limit of the last grant, whenever the guard does not hold, until ctx
// ends: once at first if it never held, and again after each change that leaves it lapsed.
func (g *Guard) Watch(ctx context.Context, lapsed func(limit time.Duration)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.changed:
		case <-timer.C:
		}
		left, limit := g.Left()
		if left > 0 {
			// Timers do not run while the machine is suspended.
			timer.Reset(min(left, guardLook))
			continue
		}
		lapsed(limit)
	}
}
