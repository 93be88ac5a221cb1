package runners

// Stats are figures since this server began to lead.
type Stats struct {
	// Claims is how many claims were made. Hits is how many of them found a warm runner. Refused is
	// how many got none, at once or within their wait.
	Claims, Hits, Refused uint64
	// Wait is how long claims took. Start is how long runners took from placement to warm. Both are
	// in seconds.
	Wait, Start Times
}

// Metrics calls gauge or counter with each figure that is a metric. A server that does not lead
// calls it on the zero value.
func (s *Stats) Metrics(gauge, counter func(name, help string, v float64)) {
	counter("muster_claims_total", "Claims of runners that were answered.", float64(s.Claims))
	counter("muster_claims_hit_total", "Claims that found a runner warm.", float64(s.Hits))
	counter("muster_claims_refused_total", "Claims that found no runner, at once or within their wait.", float64(s.Refused))
	counter("muster_claim_wait_seconds_total", "Time that answered claims took, summed.", s.Wait.Sum)
	counter("muster_runner_starts_seconds_total", "Time from placement to warm, summed over runners.", s.Start.Sum)
}

// Times is a histogram. Counts[i] is how many observations were at most Bounds[i] and above the
// bound before it; the last count has those above all bounds.
type Times struct {
	Bounds []float64
	Counts []uint64 // one more than Bounds
	Sum    float64
}

func newStats() Stats {
	return Stats{
		Wait:  newTimes(.0005, .001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60),
		Start: newTimes(.005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300),
	}
}

func newTimes(bounds ...float64) Times {
	return Times{Bounds: bounds, Counts: make([]uint64, len(bounds)+1)}
}

// Observe adds one observation.
func (t *Times) Observe(v float64) {
	i := 0
	for i < len(t.Bounds) && v > t.Bounds[i] {
		i++
	}
	t.Counts[i]++
	t.Sum += v
}

// Stats returns the current figures, as copies.
func (r *Runners) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Wait.Counts = append([]uint64(nil), s.Wait.Counts...)
	s.Start.Counts = append([]uint64(nil), s.Start.Counts...)
	return s
}
