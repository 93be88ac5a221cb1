package linktest

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Ledger is a log in memory: what raft would do, without disk and peers.
type Ledger struct {
	S *state.State
	// After, if set, is called after each fact was applied, with its error. Set it before use.
	After func(f state.Fact, err error)

	mu    sync.Mutex
	index uint64
	fault func(f state.Fact) error
}

// NewLedger begins a log and its first term.
func NewLedger(cluster string) (*Ledger, error) {
	s, err := state.New(1 << 14)
	if err != nil {
		return nil, err
	}
	l := &Ledger{S: s}
	_, _, err = l.Propose(context.Background(), &state.TermBegan{Term: 1, Cluster: cluster})
	return l, err
}

// Fail makes proposals fail with what fn returns; nil: as usual.
func (l *Ledger) Fail(fn func(f state.Fact) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = fn
}

// Propose commits and applies one fact.
func (l *Ledger) Propose(ctx context.Context, f state.Fact) (uint64, any, error) {
	if err := ctx.Err(); err != nil {
		return 0, nil, &muster.Fault{Kind: muster.FaultUnavailable, Err: err}
	}
	index, v, err := l.apply(f)
	if l.After != nil {
		l.After(f, err)
	}
	return index, v, err
}

func (l *Ledger) apply(f state.Fact) (uint64, any, error) {
	b, err := l.S.Encode(f)
	if err != nil {
		return 0, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault != nil {
		if err := l.fault(f); err != nil {
			return 0, nil, err
		}
	}
	l.index++
	v := l.S.Apply(l.index, l.S.Latest().Meta().Term, time.Now().UnixMicro(), [][]byte{b})[0]
	if err, refused := v.(error); refused {
		return l.index, nil, err
	}
	return l.index, v, nil
}

// Lead begins the next term, as a new leader does.
func (l *Ledger) Lead(ctx context.Context) error {
	_, _, err := l.Propose(ctx, &state.TermBegan{Term: l.Latest().Meta().Term + 1})
	return err
}

// RestoreFrom replaces the state by that of another log as it is now.
func (l *Ledger) RestoreFrom(other *Ledger) error {
	var image bytes.Buffer
	if _, err := other.S.Image().WriteTo(&image); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.S.Restore(&image)
	l.index = l.S.Latest().Index()
	return err
}

// Latest is the newest snapshot.
func (l *Ledger) Latest() *state.Snapshot { return l.S.Latest() }

// Feed is the change feed.
func (l *Ledger) Feed() *state.Feed { return l.S.Feed() }

// Until waits until the state is as ok says, or ctx ends.
func (l *Ledger) Until(ctx context.Context, ok func(*state.Snapshot) bool) bool {
	for {
		snap := l.Latest()
		if ok(snap) {
			return true
		}
		if l.Feed().Wait(ctx, snap.Index()) != nil {
			return ok(l.Latest())
		}
	}
}
