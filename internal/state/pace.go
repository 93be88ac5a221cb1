package state

import "github.com/musterhq/muster"

// maxPaces bounds how many names of jobs an estimate is kept for.
const maxPaces = 20_000

// paceMemory is how many ends the mean looks back: past it the newest counts for 1 in so many.
const paceMemory = 32

// Pace is how long the members of jobs of one name take: a running mean over those that succeeded.
type Pace struct {
	Key muster.JobKey `cbor:"1,keyasint"`
	// Mean time from start to end, in microseconds.
	Mean muster.Time `cbor:"2,keyasint"`
	// Count of ends that it is the mean of.
	Count uint64 `cbor:"3,keyasint"`
	// Last is the log index of the newest.
	Last uint64 `cbor:"4,keyasint"`
}

// pace counts an allocation that ends.
func (s *State) pace(a *Alloc) {
	if a.Outcome != muster.OutcomeSucceeded || a.Started == 0 || a.Ended < a.Started {
		return
	}
	p := Pace{Key: a.Run.Key}
	if before, ok := s.t.paces.Get(&p); ok {
		p = *before
		s.t.paceN.Delete(before)
	}
	p.Count++
	p.Mean += (a.Ended - a.Started - p.Mean) / muster.Time(min(p.Count, paceMemory))
	p.Last = s.meta.Index
	s.t.paces.Set(&p)
	s.t.paceN.Set(&p)
	for s.t.paceN.Len() > maxPaces {
		if old, ok := s.t.paceN.PopMin(); ok {
			s.t.paces.Delete(old)
		}
	}
}

// Pace of the jobs of a name; nil if none of them has succeeded in anything yet.
func (s *Snapshot) Pace(key muster.JobKey) *Pace { return get(s.t.paces, &Pace{Key: key}) }
