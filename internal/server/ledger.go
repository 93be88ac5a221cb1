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

// machine lets the log drive the state. The log calls it from one goroutine, in the order of the
// entries.
type machine struct{ s *state.State }

// Apply applies the proposals of one entry and returns one result for each. at is the time of the
// entry in microseconds, stamped by the leader that wrote it: no server reads its own clock here,
// so that all get the same state.
func (m machine) Apply(index, term uint64, at int64, proposals [][]byte) []any {
	results := m.s.Apply(index, term, at, proposals)
	for i, r := range results {
		// A committed entry that this version cannot read ends the process. Continuing without it
		// would give a state that differs from that of the server that wrote it.
		if err, is := r.(*state.UnreadableError); is {
			results[i] = &raftlog.Fatal{Err: err}
		}
	}
	return results
}

func (m machine) Snapshot() (raftlog.Image, error) { return m.s.Image(), nil }

// Restore replaces the state by a snapshot. A snapshot of a newer format ends the process, as an
// unreadable entry does.
func (m machine) Restore(r io.Reader) error {
	err := m.s.Restore(r)
	if newer := (*state.NewerError)(nil); errors.As(err, &newer) {
		return &raftlog.Fatal{Err: err}
	}
	return err
}

// proposeFunc commits bytes to the log: Propose, ProposeUser or ProposeFreeing of raftlog. They
// differ in when a nearly full disk refuses the proposal.
type proposeFunc func(ctx context.Context, proposal []byte) (raftlog.Result, error)

// ledger writes facts. It is all that loops and services see of the log.
type ledger struct {
	state   *state.State
	propose proposeFunc
	took    *commits
}

// ledgerOf is what loops write with.
func ledgerOf(s *Server) ledger { return ledger{s.state, s.raft.Propose, s.times.commits} }

// users writes the facts that users ask for. While the disk is nearly full, facts that end work or
// remove something are still written, because they are how users make room.
type users struct{ ledger, freeing ledger }

func (u users) Propose(ctx context.Context, f state.Fact) (uint64, any, error) {
	if frees(f) {
		return u.freeing.Propose(ctx, f)
	}
	return u.ledger.Propose(ctx, f)
}

// frees reports whether a fact ends work or removes something.
func frees(f state.Fact) bool {
	switch f := f.(type) {
	case *state.JobStopped, *state.ClaimReleased, *state.EnvironmentDeleted, *state.NodeTerminating, *state.NodeDraining, *state.ImageRemoved:
		return true
	case *state.NodeIntentSet:
		return f.Intent == muster.NodeDrain
	}
	return false
}

// commits measures how long facts take from their proposal until they are durable and applied, in
// seconds. A fact that the log did not take is not counted.
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

// Propose commits a fact. It returns the fact's log index and the value of its application, or the
// error with which the state refused it. When it returns without an error, the fact is durable and
// in the state of this server.
//
// A fault of kind ambiguous means that the fact may or may not be committed. The caller must not
// simply propose it again, unless applying it twice does no harm.
func (l ledger) Propose(ctx context.Context, f state.Fact) (uint64, any, error) {
	// A fact that needs a newer log format than the cluster has would stop servers of an older
	// version.
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

// fault gives the errors of the log their kinds, by which transports choose a status. A refusal of
// the state has a kind already.
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
	// The caller has left. That is no fault of the server, and nobody reads the answer.
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return &muster.Fault{Kind: kind, Err: err}
}
