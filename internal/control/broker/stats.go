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

// Metrics calls gauge or counter with each figure that is a metric. A server that does not lead
// calls it on the zero value.
func (s *Stats) Metrics(gauge, counter func(name, help string, v float64)) {
	gauge("muster_evals_ready", "Evaluations that wait for a scheduling worker.", float64(s.Ready))
	gauge("muster_evals_out", "Evaluations in progress at a scheduling worker.", float64(s.Out))
	gauge("muster_evals_delayed", "Evaluations that are delayed until a given time.", float64(s.Delayed))
	gauge("muster_evals_blocked", "Evaluations that wait for capacity.", float64(s.Blocked))
	gauge("muster_evals_parked", "Evaluations parked by a fact.", float64(s.Parked))
	counter("muster_evals_delivered_total", "Evaluations handed to scheduling workers.", float64(s.Delivered))
	counter("muster_evals_nacked_total", "Evaluations that workers returned undone, time-outs included.", float64(s.Nacked))
	counter("muster_evals_woken_total", "Blocked evaluations woken because capacity became free.", float64(s.Woken))
	counter("muster_eval_wait_seconds_total", "Time that evaluations waited for a worker, summed.", s.Waited.Seconds())
	counter("muster_eval_run_seconds_total", "Time that evaluations were in progress, summed.", s.Ran.Seconds())
	counter("muster_reservations_total", "Reservations of capacity for starved work.", float64(s.Reserved))
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
