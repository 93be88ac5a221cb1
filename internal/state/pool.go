package state

import (
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
)

// BreakerWindow is how far back a breaker looks.
const BreakerWindow = 10 * time.Minute

// Breaker is what a pool remembers of destroys that nothing but lost contact
// explains, and of more nodes that fail than may be sidelined. Rows are made by the first of them, and outlive the leader: neither a
// restart nor another server lets more of them pass.
type Breaker struct {
	Pool muster.PoolName `cbor:"1,keyasint"`
	// Destroyed are the times of those within the window, the oldest first.
	Destroyed []muster.Time `cbor:"2,keyasint,omitempty"`
	// Tripped is since when none is let pass; 0: it has not tripped.
	Tripped muster.Time `cbor:"3,keyasint,omitempty"`
	Reason  string      `cbor:"4,keyasint,omitempty"`
	// Resumed is when an operator last let it go on, and who.
	Resumed muster.Time `cbor:"5,keyasint,omitempty"`
	Who     string      `cbor:"6,keyasint,omitempty"`
	// Suspect is when last more of the pool's nodes failed than may be sidelined; 0: never.
	Suspect    muster.Time `cbor:"7,keyasint,omitempty"`
	SuspectWhy string      `cbor:"8,keyasint,omitempty"`
}

// Unexplained is how many were destroyed within the window before now. A nil breaker has none.
func (b *Breaker) Unexplained(now muster.Time) int {
	if b == nil {
		return 0
	}
	return len(b.Destroyed) - stale(b.Destroyed, now)
}

// IsTripped reports whether the breaker holds back now. A nil one does not.
func (b *Breaker) IsTripped() bool { return b != nil && b.Tripped != 0 }

// stale is how many of the times are out of the window.
func stale(times []muster.Time, now muster.Time) int {
	i := slices.IndexFunc(times, func(t muster.Time) bool { return t.Add(BreakerWindow) > now })
	if i < 0 {
		return len(times)
	}
	return i
}

// breaker is a copy of a pool's.
func (t *tables) breaker(pool muster.PoolName) Breaker {
	if b, ok := t.breakers.Get(&Breaker{Pool: pool}); ok {
		return *b
	}
	return Breaker{Pool: pool}
}

// unexplained counts one.
func (s *State) unexplained(pool muster.PoolName, now muster.Time) {
	b := s.t.breaker(pool)
	b.Destroyed = append(slices.Clone(b.Destroyed[stale(b.Destroyed, now):]), now)
	s.t.breakers.Set(&b)
}

func (f *PoolTripped) apply(s *State, now muster.Time) (any, error) {
	b := s.t.breaker(f.Pool)
	if b.Tripped != 0 {
		return nil, nil
	}
	b.Tripped, b.Reason = now, f.Reason
	s.t.breakers.Set(&b)
	s.changed(Change{Verb: VerbPoolTripped, Breaker: &b, Config: true})
	return nil, nil
}

func (f *PoolResumed) apply(s *State, now muster.Time) (any, error) {
	if _, ok := s.t.pools.Get(&Pool{Name: f.Pool}); !ok && s.t.breaker(f.Pool).Tripped == 0 {
		return nil, muster.Faultf(muster.FaultNotFound, "pool %s: not found", f.Pool)
	}
	b := s.t.breaker(f.Pool)
	if b.Tripped == 0 {
		return nil, nil
	}
	b = Breaker{Pool: f.Pool, Resumed: now, Who: f.Who, Suspect: b.Suspect, SuspectWhy: b.SuspectWhy}
	s.t.breakers.Set(&b)
	s.changed(Change{Verb: VerbPoolResumed, Breaker: &b, Config: true})
	return nil, nil
}

func (f *PoolsSet) apply(s *State, _ muster.Time) (any, error) {
	s.t.pools.Clear()
	for i := range f.Pools {
		p := f.Pools[i]
		s.t.pools.Set(&p)
	}
	// A breaker outlives its pool's absence only if it has tripped: a slip of the pen in
	// the configuration is not an operator's word.
	for _, b := range collect(s.t.breakers, &Breaker{}, func(*Breaker) bool { return true }) {
		if _, there := s.t.pools.Get(&Pool{Name: b.Pool}); !there && b.Tripped == 0 {
			s.t.breakers.Delete(b)
		}
	}
	s.renewMeta()
	for _, m := range collect(s.t.starts, &starts{}, func(*starts) bool { return true }) {
		if _, there := s.t.pools.Get(&Pool{Name: m.Pool}); !there {
			s.t.starts.Delete(m)
		}
	}
	s.changed(Change{Verb: VerbConfigPools, Config: true})
	return nil, nil
}

func (f *OfferingsSeen) apply(s *State, _ muster.Time) (any, error) {
	for _, o := range collect(s.t.offers, &muster.Offering{Provider: f.Provider}, func(o *muster.Offering) bool { return o.Provider == f.Provider }) {
		s.t.offers.Delete(o)
	}
	for i := range f.Offerings {
		o := f.Offerings[i]
		o.Provider = f.Provider
		s.t.offers.Set(&o)
	}
	s.changed(Change{Verb: VerbConfigOfferings, Config: true})
	return nil, nil
}

// Covers reports whether the pool may use the offering.
func (p *Pool) Covers(o *muster.Offering) bool {
	return p.Provider == o.Provider && (len(p.Offerings) == 0 || slices.ContainsFunc(p.Offerings, func(n muster.OfferingName) bool {
		return strings.EqualFold(string(n), string(o.Name))
	}))
}
