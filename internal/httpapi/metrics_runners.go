package httpapi

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

var (
	descRunners = desc("muster_runners", "Runners of each environment by state.", "namespace", "environment", "state")
	descStock   = desc("muster_runners_wanted", "Runners that each environment wants warm.", "namespace", "environment")
	descClaimed = desc("muster_environment_claims_total", "Claims of runners that were made, by environment.", "namespace", "environment")
	descTooFew  = desc("muster_environment_alert", "1 while too few runners of an environment are warm for too long.", "namespace", "environment")
)

func runnerDescs() []*prometheus.Desc {
	return []*prometheus.Desc{descRunners, descStock, descClaimed, descTooFew}
}

// collectRunners shows the environments that live.
func collectRunners(snap *state.Snapshot, out chan<- prometheus.Metric) {
	snap.Environments(func(j *state.Job) bool {
		if j.Stage != muster.JobLive {
			return true // another one may have the name by now
		}
		name, _ := j.Key.Environment()
		show := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(d, kind, v, append([]string{string(j.Key.Namespace), name}, labels...)...)
		}
		c := j.Runners()
		show(descRunners, prometheus.GaugeValue, float64(c.Starting), string(muster.RunnerStarting))
		show(descRunners, prometheus.GaugeValue, float64(c.Warm), string(muster.RunnerWarm))
		show(descRunners, prometheus.GaugeValue, float64(c.Claimed), string(muster.RunnerClaimed))
		show(descStock, prometheus.GaugeValue, float64(j.Env.Stock))
		show(descClaimed, prometheus.CounterValue, float64(j.Env.Claims))
		alert := 0.0
		if j.Env.Alert != 0 {
			alert = 1
		}
		show(descTooFew, prometheus.GaugeValue, alert)
		return true
	})
}
