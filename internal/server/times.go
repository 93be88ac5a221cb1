package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// source is the state as it is applied.
type source interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// times are histograms of how long steps took, read off the change feed while this server leads: each
// fact is counted by the leader of its time, and by no other.
type times struct {
	agent, ready, gone *prometheus.HistogramVec // by provider
	start              prometheus.Histogram
	missed             prometheus.Counter
	turns              *turns
	rollouts           *rollouts
	// commits are not read off the feed: each server counts what it proposed itself.
	commits *commits

	// waiting are nodes whose agent has answered and that have not yet taken work. Only follow uses it.
	waiting map[muster.NodeID]bool
}

// newTimes makes them, with those of the given providers at 0.
func newTimes(providers []muster.ProviderName) *times {
	nodes := func(name, help string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1200}}, []string{"provider"})
		for _, p := range providers {
			v.WithLabelValues(string(p))
		}
		return v
	}
	return &times{
		agent: nodes("muster_node_agent_seconds", "Time from the intent to launch a node to its agent's first answer."),
		ready: nodes("muster_node_ready_seconds", "Time from the intent to launch a node until it could take work."),
		gone:  nodes("muster_node_destroy_seconds", "Time from the decision to destroy a node until it was confirmed to be gone."),
		start: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "muster_queue_seconds", Help: "Time from the submission of a job to the start of each member's first attempt.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 24 * 3600},
		}),
		missed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "muster_times_missed_total", Help: "How often changes came faster than the histograms could take them in: what was missed is in none of them.",
		}),
		turns:    newTurns(),
		rollouts: newRollouts(),
		commits:  newCommits(),
		waiting:  map[muster.NodeID]bool{},
	}
}

func (t *times) register(r prometheus.Registerer) {
	r.MustRegister(t.agent, t.ready, t.gone, t.start, t.missed, t.turns.counter, t.rollouts.ended, t.rollouts.replaced, t.commits.all)
}

// follow takes in what changes from now on, until ctx ends.
func (t *times) follow(ctx context.Context, src source) error {
	src.Feed().Follow(ctx, t.begin(src.Latest()), func(changes []state.Change) {
		for i := range changes {
			t.take(&changes[i], src)
		}
	}, func() state.Position {
		t.missed.Inc()
		return t.begin(src.Latest())
	})
	return nil
}

// begin looks which nodes have yet to take work, and says where to go on from.
func (t *times) begin(snap *state.Snapshot) state.Position {
	clear(t.waiting)
	snap.LiveNodes(func(n *state.Node) bool {
		if n.Stage == muster.NodeServing && n.Served == 0 && !n.Schedulable() && n.Health == muster.NodeUnready {
			t.waiting[n.ID] = true
		}
		return true
	})
	return state.AfterIndex(snap.Index())
}

func (t *times) take(c *state.Change, src source) {
	switch {
	case c.Node != nil:
		t.node(c.NodeBefore, c.Node, c.At)
	case c.Alloc != nil && c.AllocBefore != nil:
		t.alloc(c.AllocBefore, c.Alloc, src)
		t.rollouts.alloc(c.AllocBefore, c.Alloc)
	case c.Job != nil:
		t.rollouts.job(c.JobBefore, c.Job)
	}
}

func (t *times) node(before, n *state.Node, at muster.Time) {
	t.turns.node(before, n)
	if before == nil {
		return
	}
	provider := string(n.Offering.Provider)
	if before.Joined == 0 && n.Joined != 0 {
		observe(t.agent.WithLabelValues(provider), n.Launched, n.Joined)
		t.waiting[n.ID] = true
	}
	if t.waiting[n.ID] && n.Health == muster.NodeGood {
		observe(t.ready.WithLabelValues(provider), n.Launched, at)
		delete(t.waiting, n.ID)
	}
	if n.Stage == muster.NodeGone {
		delete(t.waiting, n.ID)
		if before.Stage == muster.NodeTerminating {
			observe(t.gone.WithLabelValues(provider), before.StageSince, n.Gone)
		}
	}
}

// alloc takes in the start of a first attempt. One that was too short to be seen running
// tells with its end when it started.
func (t *times) alloc(before, a *state.Alloc, src source) {
	began := before.Status != muster.AllocRunning && (a.Status == muster.AllocRunning || a.Status == muster.AllocEnded)
	if !began || before.Status == muster.AllocEnded || a.Started == 0 {
		return
	}
	j := src.Latest().JobByUID(a.UID)
	if j == nil || j.Version != a.Version || a.Attempt != j.AttemptBase+1 {
		return
	}
	observe(t.start, j.Submitted, a.Started)
}

func observe(h prometheus.Observer, from, to muster.Time) {
	h.Observe(max(to.Sub(from), time.Duration(0)).Seconds())
}
