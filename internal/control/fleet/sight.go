package fleet

import (
	"maps"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/mend"
	"github.com/musterhq/muster/internal/decide/size"
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
// destroyed until end is called. Package check uses it for its trial instance. The caller must call
// it before the instance is created. After a destroy the protection lasts a while longer, because a
// list that began before may still show the instance.
func (f *Fleet) Shelter(t muster.Token) (end func(destroyed bool)) {
	const forEver = muster.Time(1 << 62)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sheltered == nil {
		f.sheltered = map[muster.Token]muster.Time{}
	}
	f.sheltered[t] = forEver
	return func(destroyed bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if destroyed {
			f.sheltered[t] = f.cfg.Clock.Now().Add(listTimeout)
		} else {
			delete(f.sheltered, t)
		}
	}
}

// unsheltered removes the sheltered instances from the results of a list.
func (f *Fleet) unsheltered(strays []mend.Stray, adopt []mend.Adoption) ([]mend.Stray, []mend.Adoption) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.cfg.Clock.Now()
	maps.DeleteFunc(f.sheltered, func(_ muster.Token, until muster.Time) bool { return until <= now })
	hidden := func(t muster.Token) bool { return f.sheltered[t] != 0 }
	return slices.DeleteFunc(strays, func(s mend.Stray) bool { return hidden(s.Token) }),
		slices.DeleteFunc(adopt, func(a mend.Adoption) bool { return hidden(a.Token) })
}
