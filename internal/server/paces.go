package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster/internal/cloud"
)

var (
	descPaceRate   = prometheus.NewDesc("muster_provider_pace_per_second", "How many calls a second a provider gets at most on average: the limit of its driver, or rates in the configuration. Creates and destroys count instances.", []string{"provider", "calls"}, nil)
	descPaceWaited = prometheus.NewDesc("muster_provider_pace_wait_seconds_total", "Time that calls to a provider waited for its pace. The sum starts at 0 with each leadership and reload.", []string{"provider", "calls"}, nil)
)

// collectPaces sends the rates of the providers of the present turn, and what waiting for them has
// cost. A provider without rates has none of these metrics.
func collectPaces(ch chan<- prometheus.Metric, l *loops) {
	if l == nil {
		return
	}
	for name, p := range l.providers {
		paced, ok := cloud.As[cloud.Paced](p)
		if !ok {
			continue
		}
		for _, u := range paced.Paces() {
			ch <- prometheus.MustNewConstMetric(descPaceRate, prometheus.GaugeValue, u.Rate.PerSecond, string(name), u.Calls)
			ch <- prometheus.MustNewConstMetric(descPaceWaited, prometheus.CounterValue, u.Waited.Seconds(), string(name), u.Calls)
		}
	}
}
