package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
)

// The pace of a provider is found through what is around it, and one without rates has no series.
func TestPacesAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.New(fake.Config{})
		slow := cloud.NewLimited(c.Owner("o"), cloud.Rates{Destroy: cloud.Rate{PerSecond: 2, Burst: 1}})
		for range 3 {
			slow.Destroy(t.Context(), []muster.InstanceID{"i"})
		}
		r := prometheus.NewRegistry()
		l := &loops{providers: providers{"slow": cloud.NewCounted(slow), "free": c.Owner("o")}}
		r.MustRegister(collects(func(ch chan<- prometheus.Metric) { collectPaces(ch, l) }))
		got := gather(t, r)
		for name, want := range map[string]float64{
			"muster_provider_pace_per_second{calls=destroy,provider=slow}":         2,
			"muster_provider_pace_wait_seconds_total{calls=destroy,provider=slow}": time.Second.Seconds(),
		} {
			if v, ok := got[name]; !ok || v != want {
				t.Errorf("%s is %g (%v), want %g", name, v, ok, want)
			}
		}
		if len(got) != 2 {
			t.Errorf("%d series: %v", len(got), got)
		}
	})
}

// collects is a collector of what a function sends.
type collects func(chan<- prometheus.Metric)

func (collects) Describe(ch chan<- *prometheus.Desc)   { ch <- descPaceRate; ch <- descPaceWaited }
func (c collects) Collect(ch chan<- prometheus.Metric) { c(ch) }
