package fleet

import (
	"maps"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/mend"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/wait"
)

// Blocks are what is not asked of the providers now, and what is tried with care
// because nobody has said yes since.
func (f *Fleet) Blocks() []size.Block {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.blocks.now(f.cfg.Clock.Now())
}

// Unblock has the provider asked again for what it refused to the pool, as an operator knows that the cause is mended, and
// returns how many blocks it ended.
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

// Shelter keeps the instance of a token, which stands behind no node, from being
// adopted or destroyed until end is called. It must be called before the instance is made. After a
// destroy it stays sheltered for a while: a list that was asked for before may still show it.
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

// unsheltered leaves out of what a list shows what is sheltered.
func (f *Fleet) unsheltered(strays []mend.Stray, adopt []mend.Adoption) ([]mend.Stray, []mend.Adoption) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.cfg.Clock.Now()
	maps.DeleteFunc(f.sheltered, func(_ muster.Token, until muster.Time) bool { return until <= now })
	hidden := func(t muster.Token) bool { return f.sheltered[t] != 0 }
	return slices.DeleteFunc(strays, func(s mend.Stray) bool { return hidden(s.Token) }),
		slices.DeleteFunc(adopt, func(a mend.Adoption) bool { return hidden(a.Token) })
}
