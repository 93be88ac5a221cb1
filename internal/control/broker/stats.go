package broker

import "time"

// Stats tells how many evaluations are in which stage, and how many of what
// has happened since New.
type Stats struct {
	Ready, Out, Delayed, Blocked, Parked int
	// Shapes that are blocked.
	Shapes int

	Seen      uint64 // evaluations that came in
	Delivered uint64
	Acked     uint64
	Nacked    uint64 // time-outs included
	TimedOut  uint64
	Woken     uint64 // blocked ones, by growth of room
	ParkFacts uint64 // jobs parked by a fact
	Reserved  uint64 // reservations of room, by a fact
	// Waited is the time from ready to out, Ran that from out to the answer, summed over evaluations.
	Waited, Ran time.Duration
	Resyncs     uint64 // times that the feed could not be followed

	count [stages]int
}

func (s *Stats) clear() { s.count = [stages]int{} }

// Stats is what is true now.
func (b *Broker) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Ready, s.Out, s.Delayed, s.Blocked = s.count[ready], s.count[out], s.count[delayed], s.count[blocked]
	s.Parked = s.count[parking] + s.count[parked]
	s.Shapes = len(b.groups)
	return s
}
