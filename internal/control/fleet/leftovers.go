package fleet

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/wait"
)

const (
	// leftoversEvery is how often a provider is asked for things that instances have left.
	leftoversEvery = 5 * time.Minute
	// leftoverAge is how old a leftover must be: what a create has just made is attached to nothing
	// for a moment.
	leftoverAge = 10 * time.Minute
	// leftoversPerSweep bounds one sweep. More than leftoversMost at once is no accident of single
	// creates, but a filter that is wrong or a change in the cloud: an operator has to look.
	leftoversPerSweep, leftoversMost = 32, 200
	leftoversTimeout                 = 2 * time.Minute
)

// sweepLeftovers removes what instances of a provider have left, as long as ctx lasts. Providers whose
// instances leave nothing need no goroutine.
func (f *Fleet) sweepLeftovers(ctx context.Context, name muster.ProviderName) {
	sweeper, ok := cloud.As[cloud.Sweeper](f.cfg.Providers[name])
	if !ok {
		return
	}
	// since is when a leftover without a date was first seen.
	since := map[string]muster.Time{}
	for wait.For(ctx, leftoversEvery) {
		if isScarce(f.cfg.Providers[name]) {
			continue // leftovers cost little, and can wait for an hour
		}
		f.sweepOnce(ctx, name, sweeper, since)
	}
}

// sweepOnce removes the leftovers of a provider that are old enough.
func (f *Fleet) sweepOnce(ctx context.Context, name muster.ProviderName, sweeper cloud.Sweeper, since map[string]muster.Time) {
	ctx, cancel := context.WithTimeout(ctx, f.limitOf(name, leftoversTimeout))
	defer cancel()
	all, err := sweeper.Leftovers(ctx)
	if err != nil {
		if ctx.Err() == nil {
			f.log.Warn("leftovers not listed", "provider", name, "error", err)
		}
		return
	}
	old := f.oldLeftovers(all, since)
	f.mu.Lock()
	f.leftovers[name] = len(all)
	f.mu.Unlock()
	if len(old) > leftoversMost {
		f.log.Error("too many leftovers to be believed; none is removed until an operator has removed some", "provider", name, "leftovers", len(old), "most", leftoversMost,
			"first", old[0].Kind+" "+old[0].ID)
		return
	}
	if len(old) > leftoversPerSweep {
		old = old[:leftoversPerSweep]
	}
	if len(old) == 0 {
		return
	}
	errs := sweeper.Remove(ctx, old)
	removed := 0
	for i, l := range old {
		if i < len(errs) && errs[i] == nil {
			removed++
			f.log.Info("leftover removed", "provider", name, "kind", l.Kind, "id", l.ID)
		} else if i < len(errs) && ctx.Err() == nil {
			f.log.Warn("leftover not removed", "provider", name, "kind", l.Kind, "id", l.ID, "error", errs[i])
		}
	}
	f.mu.Lock()
	f.stats.LeftoversRemoved += uint64(removed)
	f.leftovers[name] -= removed
	f.mu.Unlock()
}

// oldLeftovers are those that are older than leftoverAge, by the cloud's date or by when they were
// first seen.
func (f *Fleet) oldLeftovers(all []cloud.Leftover, since map[string]muster.Time) (old []cloud.Leftover) {
	now := f.cfg.Clock.Now()
	seen := make(map[string]bool, len(all))
	for _, l := range all {
		key := l.Kind + " " + l.ID
		seen[key] = true
		if since[key] == 0 {
			since[key] = now
		}
		from := l.Created
		if from == 0 {
			from = since[key]
		}
		if now.Sub(from) >= leftoverAge {
			old = append(old, l)
		}
	}
	for key := range since {
		if !seen[key] {
			delete(since, key)
		}
	}
	return old
}
