package broker

import "time"

// Stats holds how many evaluations are in which stage now, and counts of what has happened since
// New.
type Stats struct {
	Ready, Out, Delayed, Blocked, Parked int
	// Shapes is how many shapes are blocked.
	Shapes int

	// Seen counts evaluations that entered the queue.
	Seen      uint64
	Delivered uint64
	Acked     uint64
	// Nacked includes time-outs.
	Nacked   uint64
	TimedOut uint64
	// Woken counts blocked jobs that were woken by room or by a limit.
	Woken uint64
	// ParkFacts counts jobs parked by a fact.
	ParkFacts uint64
	// Reserved counts reservations made by a fact.
	Reserved uint64
	// Waited is the time from ready to out, Ran the time from out to the answer, both summed over
	// evaluations.
	Waited, Ran time.Duration
	// Resyncs counts how often the feed had dropped changes.
	Resyncs uint64

	count [stages]int
}

// clear resets the stages. The other counts go on over leaderships.
func (s *Stats) clear() { s.count = [stages]int{} }

// Stats returns the current figures.
func (b *Broker) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Ready, s.Out, s.Delayed, s.Blocked = s.count[ready], s.count[out], s.count[delayed], s.count[blocked]
	s.Parked = s.count[parking] + s.count[parked]
	s.Shapes = len(b.groups)
	return s
}
