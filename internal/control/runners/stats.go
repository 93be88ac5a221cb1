package runners

// Stats are figures since the start of the leadership.
type Stats struct {
	// Claims were made; Hits of them found a runner warm; Refused found none, at once or within their wait.
	Claims, Hits, Refused uint64
	// Wait is how long claims took, Start how long runners took from their placement to warm; in seconds.
	Wait, Start Times
}

// Times is a histogram: how many observations were at most each bound.
type Times struct {
	Bounds []float64
	Counts []uint64 // of the bound and not of the one before; one more: above all
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

// Observe adds one.
func (t *Times) Observe(v float64) {
	i := 0
	for i < len(t.Bounds) && v > t.Bounds[i] {
		i++
	}
	t.Counts[i]++
	t.Sum += v
}

// Stats are the present ones.
func (r *Runners) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Wait.Counts = append([]uint64(nil), s.Wait.Counts...)
	s.Start.Counts = append([]uint64(nil), s.Start.Counts...)
	return s
}
