package schedule

import (
	"context"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

// followBatch bounds how many changes are read from the feed at once.
const followBatch = 4096

// board is the one view on which all workers plan, one after the other. What one worker has planned
// is counted for the next before it is committed, so that they do not plan for the same room.
type board struct {
	// mu guards the fields below. It is never held across anything that blocks.
	mu   sync.Mutex
	view *place.View
	// flights are the plans without a verdict.
	flights map[*flight]bool
	// returns counts plans of which something was returned to the view.
	returns uint64
}

// flight is a plan from when it is made until its verdict is known.
type flight struct {
	// landed is closed when the verdict is known.
	landed chan struct{}
	// others are the flights that were under way when this one was made, each by its landed
	// channel; holding the flights themselves would keep whole chains of them in memory. returns is
	// board.returns at that time.
	others  []<-chan struct{}
	returns uint64
}

// plan plans jobs on the newest state, and logs and counts that after the lock is released.
func (b *board) plan(s *Scheduler, jobs []muster.JobUID) (place.Decision, *flight) {
	d, f, took := b.planLocking(s, jobs)
	s.count(func(st *Stats) {
		st.Passes++
		st.Planning += took
	})
	s.log.Debug("planned", "jobs", len(jobs), "index", d.Index, "placements", len(d.Placements), "stops", len(d.Stops),
		"blocked", len(d.Blocked), "left", len(d.Left), "took", took)
	return d, f
}

// planLocking holds the lock while it plans, since plans are made one after the other. took does
// not include the wait for the lock.
func (b *board) planLocking(s *Scheduler, jobs []muster.JobUID) (_ place.Decision, _ *flight, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	began := time.Now()
	b.followLocked(s.cfg.State)
	// The snapshot is taken after the view is advanced: it must be at least as new as the view.
	snap := s.cfg.State.Latest()
	now := max(s.cfg.Clock.Now(), snap.Meta().Time)
	d := b.view.Plan(snap, jobs, now, s.cfg.Limits)
	d.Reserved(snap, now)
	f := &flight{landed: make(chan struct{}), returns: b.returns}
	for o := range b.flights {
		f.others = append(f.others, o.landed)
	}
	b.flights[f] = true
	return d, f, time.Since(began)
}

// followLocked advances the view to the end of the feed, or builds it again if the feed has dropped
// changes.
func (b *board) followLocked(from State) {
	for b.view != nil {
		changes, last, err := from.Feed().After(b.view.Position(), followBatch)
		if err != nil {
			// The feed has dropped changes.
			break
		}
		if len(changes) == followBatch {
			// The batch may end inside an entry.
			last = changes[len(changes)-1].Index
		}
		if !b.view.Advance(changes, last) {
			break
		}
		if len(changes) < followBatch {
			return
		}
		b.view.At(changes[len(changes)-1].Position())
	}
	if b.view == nil {
		b.view = place.NewView(from.Latest())
	} else {
		b.view.Rebuild(from.Latest())
	}
}

// land tells the view what became of a plan: it returns the room of what was refused. After an
// error nothing is known for certain. Then all of the plan is returned; if it was committed in
// spite of the error, the feed shows it.
func (b *board) land(f *flight, d *place.Decision, v verify.Verdict, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.flights, f)
	close(f.landed)
	refused := make([]state.Placement, 0, len(v.Refused))
	for i := range v.Refused {
		refused = append(refused, v.Refused[i].Placement)
	}
	if err != nil || len(v.Placements)+len(v.Refused) == 0 {
		refused = d.Placements
	}
	if len(refused)+len(v.RefusedStops) > 0 {
		b.view.Return(refused)
		b.returns++
	}
}

// after waits until the plans have landed that were under way when this one was made.
func (f *flight) after(ctx context.Context) error {
	for _, o := range f.others {
		select {
		case <-o:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// mistaken reports whether a plan may have blocked jobs wrongly: the room was taken by another plan
// that was never committed, or was to come from stops that were refused. Nothing else would wake
// such jobs.
func (b *board) mistaken(ctx context.Context, f *flight, blocked bool) (bool, error) {
	if !blocked {
		return false, nil
	}
	if err := f.after(ctx); err != nil {
		return false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.returns != f.returns, nil
}
