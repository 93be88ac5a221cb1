package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// source is the part of the state that metrics read.
type source interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// times are histograms of how long steps took, in seconds. The leader reads them off the change
// feed, so that each fact is counted by the leader of its time and by no other. Only the goroutine
// in follow writes its fields; the Prometheus types are safe for concurrent use.
type times struct {
	agent, ready, gone *prometheus.HistogramVec // by provider
	start              prometheus.Histogram
	missed             prometheus.Counter
	transitions        *transitions
	rollouts           *rollouts
	// commits are not read off the feed: each server measures its own proposals.
	commits *commits

	// waiting are the nodes whose agent has answered and that have not taken work yet. Only follow
	// uses it.
	waiting map[muster.NodeID]bool
}

// newTimes makes the histograms, with the series of the given providers at 0.
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
			Name: "muster_times_missed_total", Help: "Times that changes came faster than the histograms could record them; missed changes are in none of them.",
		}),
		transitions: newTransitions(),
		rollouts:    newRollouts(),
		commits:     newCommits(),
		waiting:     map[muster.NodeID]bool{},
	}
}

func (t *times) register(r prometheus.Registerer) {
	r.MustRegister(t.agent, t.ready, t.gone, t.start, t.missed, t.transitions.counter, t.transitions.former, t.rollouts.ended, t.rollouts.replaced, t.commits.all)
}

// follow counts the changes from now on, until ctx ends. If changes come faster than it can count
// them, the feed drops some; follow counts the gap in missed and goes on from the present state.
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

// begin finds the nodes that have yet to take work, and returns the position to follow from. The
// snapshot and the position belong together: no change is counted twice or left out between them.
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

// node counts the steps of a node's life. A node whose agent answered under an earlier leader is in
// waiting through begin.
func (t *times) node(before, n *state.Node, at muster.Time) {
	t.transitions.node(before, n)
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

// alloc measures the start of a member's first attempt. An attempt that was too short to be seen
// running reports its start with its end.
func (t *times) alloc(before, a *state.Alloc, src source) {
	began := before.Status != muster.AllocRunning && (a.Status == muster.AllocRunning || a.Status == muster.AllocEnded)
	if !began || before.Status == muster.AllocEnded || a.Started == 0 {
		return
	}
	// Only the first attempt of the present version counts: a retry's wait is the backoff and not
	// the queue.
	j := src.Latest().JobByUID(a.UID)
	if j == nil || j.Version != a.Version || a.Attempt != j.AttemptBase+1 {
		return
	}
	observe(t.start, j.Submitted, a.Started)
}

// observe records a duration. Moments come from the clocks of several machines, so the difference
// may be negative; it counts as 0.
func observe(h prometheus.Observer, from, to muster.Time) {
	h.Observe(max(to.Sub(from), time.Duration(0)).Seconds())
}
