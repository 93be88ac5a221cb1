package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/mend"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// Blocks returns what the fleet does not ask of the providers now, and what it tries with care
// because nothing has succeeded since a block ended.
func (f *Fleet) Blocks() []size.Block {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.blocks.now(f.cfg.Clock.Now())
}

// Unblock ends the blocks of all that a pool may launch, and returns how many it ended. An operator
// calls it when the cause of the refusals is fixed.
func (f *Fleet) Unblock(pool muster.PoolName) int {
	snap := f.cfg.State.Latest()
	p := snap.Pool(pool)
	if p == nil {
		return 0
	}
	var offers []muster.Offering
	snap.Offerings(func(o *muster.Offering) bool {
		if p.Covers(o) {
			offers = append(offers, *o)
		}
		return true
	})
	f.mu.Lock()
	ended := f.blocks.forget(offers)
	f.mu.Unlock()
	if ended > 0 {
		f.log.Info("blocks ended by an operator", "pool", pool, "blocks", ended)
		wait.Poke(f.wake)
	}
	return ended
}

// Shelter protects the instance with a token, which belongs to no node, from being adopted or
// destroyed until end is called, and at most for the given time if this leadership ends before.
// Package check uses it for its trial instance. The caller must call it before the instance is
// created. After a destroy the protection lasts a while longer, because a list that began before may
// still show the instance.
//
// The shelter is in the log, so that the next leader knows it too. It has an end there, as nobody
// may be left who ends it. The error is that of the log: without a shelter no instance may be
// created.
func (f *Fleet) Shelter(ctx context.Context, t muster.Token, most time.Duration) (end func(destroyed bool), err error) {
	const forEver = muster.Time(1 << 62)
	kept := f.cfg.State.Latest().Meta()
	if kept.LogFormat() >= state.FormatProviders {
		if err := f.propose(ctx, &state.InstanceSheltered{Token: t, Until: f.cfg.Clock.Now().Add(most)}); err != nil {
			return nil, err
		}
	}
	shelter := func(until muster.Time) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.sheltered == nil {
			f.sheltered = map[muster.Token]muster.Time{}
		}
		f.sheltered[t] = until
	}
	shelter(forEver)
	return func(destroyed bool) {
		var until muster.Time
		if destroyed {
			until = f.cfg.Clock.Now().Add(listTimeout)
		}
		shelter(until)
		if kept.LogFormat() < state.FormatProviders {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endShelterFor)
		defer cancel()
		// If this fails, the shelter ends by its own time.
		_ = f.propose(ctx, &state.InstanceSheltered{Token: t, Until: until})
	}, nil
}

// endShelterFor bounds the proposal that ends a shelter.
const endShelterFor = 10 * time.Second

// unsheltered removes the sheltered instances from the results of a list. This leadership's own
// word on a shelter counts more than the log's, which may be behind.
func (f *Fleet) unsheltered(strays []mend.Stray, adopt []mend.Adoption) ([]mend.Stray, []mend.Adoption) {
	if len(strays)+len(adopt) == 0 {
		return strays, adopt
	}
	kept := state.ProvidersOf(f.cfg.State.Latest())
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.cfg.Clock.Now()
	hidden := func(t muster.Token) bool {
		if until, own := f.sheltered[t]; own {
			return until > now
		}
		return kept.IsSheltered(t, now)
	}
	return slices.DeleteFunc(strays, func(s mend.Stray) bool { return hidden(s.Token) }),
		slices.DeleteFunc(adopt, func(a mend.Adoption) bool { return hidden(a.Token) })
}
