package server

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// scraped collects the gauges of rollouts alone.
type scraped struct{ state *state.State }

func (s scraped) Describe(ch chan<- *prometheus.Desc) { ch <- rolloutsDesc }
func (s scraped) Collect(ch chan<- prometheus.Metric) { collectRollouts(ch, s.state.Latest()) }

// A service is counted by the stage of its rollout, each end of one once, and each allocation that gives way to another version; batch jobs are not.
func TestRollouts(t *testing.T) {
	s, err := state.New(1000)
	if err != nil {
		t.Fatal(err)
	}
	l := &factLog{T: t, state: s}
	service := func(command string) *state.JobSubmitted {
		spec := &api.JobSpec{Name: "web", Type: "service", Template: api.Template{Command: []string{command}}, Count: 2}
		spec.Defaults()
		return &state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: "web"}, UID: "u", Spec: spec}
	}
	batch := &api.JobSpec{Name: "j", Template: api.Template{Command: []string{"true"}}, Count: 1}
	batch.Defaults()
	room := muster.Resources{CPU: 8000, Memory: 64 * muster.GiB, Disk: muster.TiB}
	r := prometheus.NewRegistry()
	times := newTimes(nil)
	times.register(r)
	r.MustRegister(scraped{s})
	pos := times.begin(s.Latest())
	second := 0.0
	after := func(want map[string]float64, facts ...state.Fact) {
		t.Helper()
		second++
		l.at(second, facts...)
		changes, last, err := s.Feed().After(pos, 1000)
		if err != nil {
			t.Fatal(err)
		}
		pos = state.AfterIndex(last)
		for i := range changes {
			times.take(&changes[i], s)
		}
		got := gather(t, r)
		for name, v := range want {
			if have, ok := got[name]; !ok || have != v {
				t.Errorf("at %g s %s is %g, want %g", second, name, have, v)
			}
		}
	}
	const (
		rolling, done, failed = "muster_rollouts{stage=rolling}", "muster_rollouts{stage=done}", "muster_rollouts{stage=failed}"
		ends, fails, replaced = "muster_rollout_ends_total{stage=done}", "muster_rollout_ends_total{stage=failed}", "muster_rollout_replaced_total"
	)
	after(map[string]float64{rolling: 0, done: 0, failed: 0, ends: 0, fails: 0, replaced: 0},
		&state.NodeLaunching{ID: "n", Token: "t", Pool: "p", Offering: muster.Offering{Provider: "fake", Name: "o", Capacity: room}}, &state.NodeLaunched{ID: "n", Instance: "i"}, &state.NodeJoined{ID: "n", Capacity: room},
		&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: "j"}, UID: "b", Spec: batch})
	after(map[string]float64{rolling: 1, done: 0, failed: 0, ends: 0}, service("a"))
	placed := []state.Placement{{UID: "u", Version: 1, Index: 0, Attempt: 1, Node: "n"}, {UID: "u", Version: 1, Index: 1, Attempt: 1, Node: "n"}}
	after(map[string]float64{rolling: 1, ends: 0}, &state.PlanCommitted{Placements: placed})
	after(map[string]float64{rolling: 0, done: 1, ends: 1, fails: 0}, &state.RolloutMoved{UID: "u", Version: 1, Stage: muster.RolloutDone})
	after(map[string]float64{rolling: 1, done: 0, ends: 1}, service("b"))
	after(map[string]float64{replaced: 1}, &state.PlanCommitted{Stops: []state.Stop{{Alloc: "u-0-1", Reason: muster.StopUpdated, For: "u", Why: "its job is at version 2"}}})
	start := muster.At(time.Date(2026, 9, 1, 0, 0, 3, 0, time.UTC))
	after(map[string]float64{replaced: 1}, &state.AllocsReported{Node: "n", Allocs: []state.AllocUpdate{{ID: "u-0-1", Status: muster.AllocEnded, Outcome: muster.OutcomeStopped, Started: start, Output: &state.Output{Stage: state.OutputComplete}}}})
	after(map[string]float64{rolling: 0, failed: 1, fails: 1, ends: 1}, &state.RolloutMoved{UID: "u", Version: 2, Stage: muster.RolloutFailed, Reason: "not healthy"})
	after(map[string]float64{rolling: 0, failed: 0, done: 0, fails: 1, replaced: 1}, &state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "web"}},
		&state.AllocsReported{Node: "n", Allocs: []state.AllocUpdate{{ID: "u-1-1", Status: muster.AllocEnded, Outcome: muster.OutcomeStopped, Started: start, Output: &state.Output{Stage: state.OutputComplete}}}})
}
