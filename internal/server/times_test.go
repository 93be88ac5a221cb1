package server

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// log applies facts at given seconds.
type factLog struct {
	*testing.T
	state *state.State
	index uint64
}

func (l *factLog) at(second float64, facts ...state.Fact) {
	l.Helper()
	var proposals [][]byte
	for _, f := range facts {
		b, err := l.state.Encode(f)
		if err != nil {
			l.Fatal(err)
		}
		proposals = append(proposals, b)
	}
	l.index++
	for i, v := range l.state.Apply(l.index, 1, time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC).UnixMicro()+int64(second*1e6), proposals) {
		if err, ok := v.(error); ok {
			l.Fatalf("%T: %v", facts[i], err)
		}
	}
}

// observed are count and sum of a registry's histograms by name.
func observed(t *testing.T, r *prometheus.Registry) map[string][2]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][2]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if h := m.GetHistogram(); h != nil {
				out[f.GetName()] = [2]float64{float64(h.GetSampleCount()), h.GetSampleSum()}
			}
		}
	}
	return out
}

// Each step is measured once, from its beginning: also when readiness comes late or goes again, and
// a retried member is not submitted anew.
func TestTimes(t *testing.T) {
	s, err := state.New(1000)
	if err != nil {
		t.Fatal(err)
	}
	l := &factLog{T: t, state: s}
	spec := &api.JobSpec{Name: "j", Template: api.Template{Command: []string{"true"}}, Count: 2, Restart: api.RestartSpec{Attempts: 3, On: []string{"any"}}}
	spec.Defaults()
	room := muster.Resources{CPU: 8000, Memory: 64 * muster.GiB, Disk: muster.TiB}
	l.at(0, &state.NodeLaunching{ID: "n", Token: "t", Pool: "p", Offering: muster.Offering{Provider: "fake", Name: "o", Capacity: room}})
	l.at(1, &state.NodeLaunched{ID: "n", Instance: "i"})
	// What was before is for those who led then.
	times := newTimes([]muster.ProviderName{"fake"})
	pos := times.begin(s.Latest())
	l.at(2, &state.NodeHealthChanged{ID: "n", Health: muster.NodeFlaky}, &state.NodeJoined{ID: "n", Capacity: room})
	l.at(3, &state.NodeHealthChanged{ID: "n", Health: muster.NodeUnready})
	l.at(4, &state.NodeHealthChanged{ID: "n", Health: muster.NodeGood}, &state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: "j"}, UID: "u", Spec: spec})
	l.at(5, &state.NodeHealthChanged{ID: "n", Health: muster.NodeLost}, &state.NodeHealthChanged{ID: "n", Health: muster.NodeGood}, &state.NodeJoined{ID: "n", Capacity: room})
	l.at(6, &state.PlanCommitted{Placements: []state.Placement{{UID: "u", Version: 1, Index: 0, Attempt: 1, Node: "n"}, {UID: "u", Version: 1, Index: 1, Attempt: 1, Node: "n"}}})
	start := muster.At(time.Date(2026, 9, 1, 0, 0, 7, 0, time.UTC))
	failed := func(id muster.AllocID) state.AllocUpdate {
		return state.AllocUpdate{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeFailed, Started: start, ExitCode: 1,
			Failure: &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonExit}}
	}
	l.at(8, &state.AllocsReported{Node: "n", Allocs: []state.AllocUpdate{{ID: "u-0-1", Status: muster.AllocRunning, Started: start}, failed("u-1-1")}})
	l.at(9, &state.AllocsReported{Node: "n", Allocs: []state.AllocUpdate{failed("u-0-1")}})
	l.at(600, &state.PlanCommitted{Placements: []state.Placement{{UID: "u", Version: 1, Index: 0, Attempt: 2, Node: "n"}}})
	l.at(601, &state.AllocsReported{Node: "n", Allocs: []state.AllocUpdate{{ID: "u-0-2", Status: muster.AllocRunning, Started: start.Add(594 * time.Second)}}})
	l.at(700, &state.NodeTerminating{ID: "n", Reason: "r"})
	l.at(706, &state.NodeGone{ID: "n"})

	changes, _, err := s.Feed().After(pos, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for i := range changes {
		times.take(&changes[i], s)
	}
	r := prometheus.NewRegistry()
	times.register(r)
	got := observed(t, r)
	for name, want := range map[string][2]float64{
		"muster_node_agent_seconds": {1, 2}, "muster_node_ready_seconds": {1, 4}, "muster_node_destroy_seconds": {1, 6}, "muster_queue_seconds": {2, 6},
	} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
}

// A leader that begins while a node has joined and is not ready yet measures the rest of its way.
func TestTimesOfANewLeader(t *testing.T) {
	s, err := state.New(1000)
	if err != nil {
		t.Fatal(err)
	}
	l := &factLog{T: t, state: s}
	room := muster.Resources{CPU: 8000, Memory: 64 * muster.GiB}
	l.at(0, &state.NodeLaunching{ID: "n", Token: "t", Pool: "p", Offering: muster.Offering{Provider: "fake", Name: "o", Capacity: room}})
	l.at(1, &state.NodeLaunched{ID: "n", Instance: "i"})
	l.at(2, &state.NodeHealthChanged{ID: "n", Health: muster.NodeFlaky}, &state.NodeJoined{ID: "n", Capacity: room})
	l.at(3, &state.NodeHealthChanged{ID: "n", Health: muster.NodeUnready, Reason: "its check fails"})
	times := newTimes(nil)
	pos := times.begin(s.Latest())
	l.at(9, &state.NodeHealthChanged{ID: "n", Health: muster.NodeGood})
	changes, _, err := s.Feed().After(pos, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for i := range changes {
		times.take(&changes[i], s)
	}
	r := prometheus.NewRegistry()
	times.register(r)
	if got := observed(t, r)["muster_node_ready_seconds"]; got != [2]float64{1, 9} {
		t.Errorf("%v", got)
	}
}
