package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// rollouts counts the rollouts of services and system jobs. The counters are fed from the change
// feed by times, so that only the leader counts.
type rollouts struct {
	ended    *prometheus.CounterVec // by stage
	replaced prometheus.Counter
}

func newRollouts() *rollouts {
	r := &rollouts{
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_rollout_ends_total", Help: "Finished rollouts of services and system jobs, by result: done or failed.",
		}, []string{"stage"}),
		replaced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "muster_rollout_replaced_total", Help: "Allocations stopped so that their member runs another version.",
		}),
	}
	for _, stage := range []muster.RolloutStage{muster.RolloutDone, muster.RolloutFailed} {
		r.ended.WithLabelValues(string(stage))
	}
	return r
}

// job counts the end of a rollout; before is nil for a new job.
func (r *rollouts) job(before, j *state.Job) {
	if j.Standing == nil || before == nil || before.Standing == nil || before.Standing.Rollout == j.Standing.Rollout || j.Standing.Rollout == muster.RolloutRolling {
		return
	}
	r.ended.WithLabelValues(string(j.Standing.Rollout)).Inc()
}

// alloc counts an allocation that is told to stop so that another version replaces it.
func (r *rollouts) alloc(before, a *state.Alloc) {
	if before.Desired == muster.AllocRun && a.Desired == muster.AllocStop && a.StopReason == muster.StopUpdated {
		r.replaced.Inc()
	}
}

var rolloutsDesc = prometheus.NewDesc("muster_rollouts", "Live services and system jobs, by the stage of their rollout.", []string{"stage"}, nil)

// collectRollouts sends how many jobs are in each stage of their rollout now. It reads the state,
// so every server shows it.
func collectRollouts(ch chan<- prometheus.Metric, snap *state.Snapshot) {
	by := map[muster.RolloutStage]int{muster.RolloutRolling: 0, muster.RolloutDone: 0, muster.RolloutFailed: 0}
	snap.StandingJobs(func(j *state.Job) bool {
		by[j.Standing.Rollout]++
		return true
	})
	for stage, n := range by {
		ch <- prometheus.MustNewConstMetric(rolloutsDesc, prometheus.GaugeValue, float64(n), string(stage))
	}
}
