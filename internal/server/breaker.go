package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/state"
)

// breakers shows the breakers of the pools as metrics, for alerts. It reads the state at each
// scrape, so that every server of a cluster shows the same values, leader or not.
type breakers struct {
	latest               func() *state.Snapshot
	clock                clock.Clock // the log's
	tripped, unexplained *prometheus.Desc
}

func newBreakers(latest func() *state.Snapshot, c clock.Clock) *breakers {
	pool := []string{"pool"}
	return &breakers{
		latest:      latest,
		clock:       c,
		tripped:     prometheus.NewDesc("muster_pool_tripped", "1 while the breaker of the pool has tripped and waits for `muster pool resume`.", pool, nil),
		unexplained: prometheus.NewDesc("muster_pool_unexplained_destroys", "Nodes of the pool destroyed in the last ten minutes only because of lost contact.", pool, nil),
	}
}

// Describe and Collect implement prometheus.Collector.
func (b *breakers) Describe(ch chan<- *prometheus.Desc) {
	ch <- b.tripped
	ch <- b.unexplained
}

func (b *breakers) Collect(ch chan<- prometheus.Metric) {
	snap, now := b.latest(), b.clock.Now()
	snap.Pools(func(p *state.Pool) bool {
		of, tripped := snap.Breaker(p.Name), 0.0
		if of.IsTripped() {
			tripped = 1
		}
		ch <- prometheus.MustNewConstMetric(b.tripped, prometheus.GaugeValue, tripped, string(p.Name))
		ch <- prometheus.MustNewConstMetric(b.unexplained, prometheus.GaugeValue, float64(of.Unexplained(now)), string(p.Name))
		return true
	})
}
