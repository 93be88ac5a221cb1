package server

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/state"
)

// machine lets the log drive the state.
type machine struct{ s *state.State }

func (m machine) Apply(index, term uint64, at int64, proposals [][]byte) []any {
	results := m.s.Apply(index, term, at, proposals)
	for i, r := range results {
		// What is committed and cannot be read ends the process: to go on without
		// it would be another state than that of who wrote it.
		if err, is := r.(*state.UnreadableError); is {
			results[i] = &raftlog.Fatal{Err: err}
		}
	}
	return results
}

func (m machine) Snapshot() (raftlog.Image, error) { return m.s.Image(), nil }

func (m machine) Restore(r io.Reader) error {
	err := m.s.Restore(r)
	if newer := (*state.NewerError)(nil); errors.As(err, &newer) {
		return &raftlog.Fatal{Err: err}
	}
	return err
}

// proposeFunc is how bytes get into the log.
type proposeFunc func(ctx context.Context, proposal []byte) (raftlog.Result, error)

// ledger writes facts: what loops and handlers see of the log.
type ledger struct {
	state   *state.State
	propose proposeFunc
	took    *commits
}

// users writes the facts that users ask for. What ends work or removes something is still written when the disk is
// nearly full: it is how they make room.
type users struct{ ledger, freeing ledger }

func (u users) Propose(ctx context.Context, f state.Fact) (uint64, any, error) {
	if frees(f) {
		return u.freeing.Propose(ctx, f)
	}
	return u.ledger.Propose(ctx, f)
}

func frees(f state.Fact) bool {
	switch f := f.(type) {
	case *state.JobStopped, *state.ClaimReleased, *state.EnvironmentDeleted, *state.NodeTerminating, *state.NodeDraining:
		return true
	case *state.NodeIntentSet:
		return f.Intent == muster.NodeDrain
	}
	return false
}

// commits is how long facts take from their proposal until they are durable and applied. What the log did
// not take is in none of them.
type commits struct {
	all                  *prometheus.HistogramVec
	plans, claims, other prometheus.Observer
}

func newCommits() *commits {
	all := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "muster_commit_seconds", Help: "Time from the proposal of a fact until it was durable and applied: of plans, of claims, of all others.",
		Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
	}, []string{"of"})
	return &commits{all, all.WithLabelValues("plans"), all.WithLabelValues("claims"), all.WithLabelValues("others")}
}

func (c *commits) observe(f state.Fact, d time.Duration) {
	of := c.other
	switch f.(type) {
	case *state.PlanCommitted:
		of = c.plans
	case *state.RunnerClaimed:
		of = c.claims
	}
	of.Observe(d.Seconds())
}

// Propose commits a fact and answers with its log index and the value that
// apply gave, or with the error by which apply refused it.
func (l ledger) Propose(ctx context.Context, f state.Fact) (uint64, any, error) {
	if err := l.state.MayWrite(f); err != nil {
		return 0, nil, err
	}
	b, err := l.state.Encode(f)
	if err != nil {
		return 0, nil, &muster.Fault{Kind: muster.FaultInternal, Err: err}
	}
	began := time.Now()
	r, err := l.propose(ctx, b)
	if err != nil {
		return r.Index, nil, fault(err)
	}
	l.took.observe(f, time.Since(began))
	return r.Index, r.Value, nil
}

// fault gives the log's errors their kinds; a refusal of the state has one already.
func fault(err error) error {
	kind := muster.FaultInternal
	var disk *raftlog.StorageError
	var refusal *muster.Fault
	switch {
	case errors.As(err, &refusal):
		return err
	case errors.Is(err, raftlog.ErrDiskLow):
		kind = muster.FaultDiskLow
	case errors.Is(err, raftlog.ErrTooLarge):
		kind = muster.FaultInvalid
	case errors.Is(err, raftlog.ErrNotLeader), errors.Is(err, raftlog.ErrStopping):
		kind = muster.FaultUnavailable
	case errors.Is(err, raftlog.ErrAmbiguous):
		kind = muster.FaultAmbiguous
	case errors.As(err, &disk):
		kind = muster.FaultUnavailable
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return &muster.Fault{Kind: kind, Err: err}
}
