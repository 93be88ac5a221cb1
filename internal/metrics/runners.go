package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

var (
	descRunners = desc("muster_runners", "Runners of each environment by state; * is all beyond the first 500.", "namespace", "environment", "state")
	descStock   = desc("muster_runners_wanted", "Runners that each environment wants warm; * is all beyond the first 500.", "namespace", "environment")
	descClaimed = desc("muster_environment_claims_total", "Claims of runners that were made, by environment, of the first 500.", "namespace", "environment")
	descTooFew  = desc("muster_environment_alert", "1 while too few runners of an environment are warm for too long; * is all beyond the first 500.", "namespace", "environment")
)

// runnerDescs are the metrics of environments and their runners.
func runnerDescs() []*prometheus.Desc {
	return []*prometheus.Desc{descRunners, descStock, descClaimed, descTooFew}
}

// MaxEnvironmentSeries bounds how many environments are told apart in metrics, the first by uid.
// The rest is summed up as "*", but for its claims: that sum would fall when an environment goes.
const MaxEnvironmentSeries = 500

// collectRunners shows the environments that live. One that is being deleted is left out, as
// another one may have its name already.
func collectRunners(snap *state.Snapshot, out chan<- prometheus.Metric) {
	show := func(namespace, name string, c api.RunnerCounts, stock int, alert bool) {
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{namespace, name}, labels...)...)
		}
		gauge(descRunners, float64(c.Starting), string(muster.RunnerStarting))
		gauge(descRunners, float64(c.Warm), string(muster.RunnerWarm))
		gauge(descRunners, float64(c.Claimed), string(muster.RunnerClaimed))
		gauge(descStock, float64(stock))
		few := 0.0
		if alert {
			few = 1
		}
		gauge(descTooFew, few)
	}
	// What is beyond the bound is summed up, so that sums over all series stay right.
	n, stock, alert, rest := 0, 0, false, api.RunnerCounts{}
	snap.Environments(func(j *state.Job) bool {
		if j.Stage != muster.JobLive {
			return true // another one may have the name by now
		}
		name, _ := j.Key.Environment()
		c := j.Runners()
		if n++; n > MaxEnvironmentSeries {
			rest.Starting, rest.Warm, rest.Claimed = rest.Starting+c.Starting, rest.Warm+c.Warm, rest.Claimed+c.Claimed
			stock, alert = stock+j.Env.Stock, alert || j.Env.Alert != 0
			return true
		}
		show(string(j.Key.Namespace), name, c, j.Env.Stock, j.Env.Alert != 0)
		out <- prometheus.MustNewConstMetric(descClaimed, prometheus.CounterValue, float64(j.Env.Claims), string(j.Key.Namespace), name)
		return true
	})
	if n > MaxEnvironmentSeries {
		show("*", "*", rest, stock, alert)
	}
}
