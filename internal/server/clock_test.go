package server

import (
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/fleet"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/metrics"
	"github.com/musterhq/muster/internal/state"
)

// TestMetricsGoByTheLogsClock: the system's clock may be a year away from the log's. What metrics show of times does not follow it.
func TestMetricsGoByTheLogsClock(t *testing.T) {
	for _, off := range []time.Duration{-8760 * time.Hour, 0, 8760 * time.Hour} {
		s, err := state.New(64)
		if err != nil {
			t.Fatal(err)
		}
		now := muster.At(time.Now().Add(off))
		for i, f := range []state.Fact{
			&state.TermBegan{Term: 1, Cluster: "c"},
			&state.PoolsSet{Pools: []state.Pool{{Name: "p", Provider: "fake", Max: 9}}},
			&state.NodeLaunching{ID: "n1", Token: "t1", Pool: "p", Offering: muster.Offering{Provider: "fake", Name: "o", Price: 3_600_000}},
			&state.NodeLaunching{ID: "n2", Token: "t2", Pool: "p", Offering: muster.Offering{Provider: "fake", Name: "o"}},
			&state.NodeLaunched{ID: "n1", Instance: "i1"},
			&state.NodeLaunched{ID: "n2", Instance: "i2"},
			&state.NodeJoined{ID: "n1"},
			&state.NodeJoined{ID: "n2"},
			&state.NodeHealthChanged{ID: "n2", Health: muster.NodeLost},
			&state.NodeTerminating{ID: "n2", Unexplained: true},
		} {
			b, err := s.Encode(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range s.Apply(uint64(i+1), 1, int64(now), [][]byte{b}) {
				if err, failed := r.(error); failed {
					t.Fatalf("%T: %v", f, err)
				}
			}
		}
		later := func() muster.Time { return now.Add(5 * time.Second) }
		c := newCollector(&loopStats{}, s, later, []muster.ProviderName{"fake"})
		r := prometheus.NewRegistry()
		r.MustRegister(newBreakers(s.Latest, later), collecting(func(ch chan<- prometheus.Metric) {
			c.collectProbes(ch, map[muster.NodeID]muster.Time{})
			c.collectFleet(ch, &fleet.Stats{Blocks: []size.Block{
				{Scope: muster.Scope{Provider: "fake", Zone: "z"}, Until: later().Add(time.Second)},
				{Scope: muster.Scope{Provider: "fake", Offering: "o"}, Until: later().Add(-time.Second)},
			}}, nil)
		}))
		got := gather(t, r)
		maps.Copy(got, gather(t, metrics.New(metrics.Config{State: s, Clock: later}).Registry()))
		for name, want := range map[string]float64{
			"muster_pool_unexplained_destroys{pool=p}": 1, "muster_probe_age_seconds{of=max}": 5,
			"muster_blocks{provider=fake,scope=zone}": 1, "muster_blocks{provider=fake,scope=offering}": 0,
			"muster_spend_total{pool=p}": 0.005, // for 5 seconds at 3.6 an hour
		} {
			if v, ok := got[name]; !ok || v != want {
				t.Errorf("the system's clock is %s ahead: %s is %g (%v), want %g", -off, name, v, ok, want)
			}
		}
	}
}

// collecting is a prometheus.Collector that describes nothing ahead.
type collecting func(chan<- prometheus.Metric)

func (collecting) Describe(chan<- *prometheus.Desc)      {}
func (c collecting) Collect(ch chan<- prometheus.Metric) { c(ch) }
