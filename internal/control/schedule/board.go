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

// followBatch is how many changes are read of the feed at once.
const followBatch = 4096

// board is the one view that all workers plan on, one after the other. What one
// has planned is counted in for the next before it is committed, so that they do not plan for the same room.
type board struct {
	mu      sync.Mutex // never held across anything that blocks
	view    *place.View
	flights map[*flight]bool // plans that are not answered
	// returns counts plans of which something was given back.
	returns uint64
}

// flight is a plan from when it is made until its verdict is known.
type flight struct {
	landed chan struct{} // closed then
	// others were under way when it was made, by what they land with: they themselves had others, and those too.
	// Returns stood at this then.
	others  []<-chan struct{}
	returns uint64
}

// plan plans jobs on the newest there is.
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

// planLocking holds the board, as plans are made one after the other. Took is without the wait for it.
func (b *board) planLocking(s *Scheduler, jobs []muster.JobUID) (_ place.Decision, _ *flight, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	began := time.Now()
	b.followLocked(s.cfg.State)
	// Not before: the snapshot must be at least as new as the view.
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

// followLocked brings the view to the end of the feed.
func (b *board) followLocked(from State) {
	for b.view != nil {
		changes, last, err := from.Feed().After(b.view.Position(), followBatch)
		if err != nil {
			break // it has fallen behind
		}
		if len(changes) == followBatch {
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

// land tells what became of a plan. After an error nobody knows: it is given
// back, and if it was committed all the same, the feed tells.
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

// after waits until those that were under way when it was made have landed.
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

// mistaken reports whether those whom a plan found no room for may have been
// kept out by a plan that was never committed, or are owed room by stops that were refused: nothing else would wake them.
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
