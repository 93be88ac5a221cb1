// Package memlog is a log in memory under a real state: for tests of loops that
// propose facts. Facts are encoded and decoded as in the real log.
//
// Only tests use it. It must never apply two facts at once.
package memlog

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/state"
)

// Log commits one fact per entry.
type Log struct {
	*state.State

	// Before, if set, is called with each fact before it is committed, and may
	// block; an error keeps it out of the log. After is called when it is
	// applied; an error is what the proposer gets all the same. Set them before use.
	Before, After func(ctx context.Context, f state.Fact) error
	// Clock, if set, is used in place of the wall's.
	Clock func() time.Time

	mu    sync.Mutex
	index uint64
	term  uint64
	facts []state.Fact
}

// New makes an empty log of term 1.
func New(t testing.TB, feedSize int) *Log {
	t.Helper()
	s, err := state.New(feedSize)
	if err != nil {
		t.Fatal(err)
	}
	return On(s, 0)
}

// On goes on with a state that has applied entries up to index.
func On(s *state.State, index uint64) *Log { return &Log{State: s, index: index, term: 1} }

// Propose commits a fact and returns when it is applied.
func (l *Log) Propose(ctx context.Context, f state.Fact) (uint64, any, error) {
	if err := ctx.Err(); err != nil {
		return 0, nil, err
	}
	b, err := l.Encode(f)
	if err != nil {
		return 0, nil, err
	}
	if l.Before != nil {
		if err := l.Before(ctx, f); err != nil {
			return 0, nil, err
		}
	}
	index, value := l.commit(f, b)
	if l.After != nil {
		if err := l.After(ctx, f); err != nil {
			return 0, nil, err
		}
	}
	if err, ok := value.(error); ok {
		return index, nil, err
	}
	return index, value, nil
}

func (l *Log) commit(f state.Fact, b []byte) (uint64, any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.index++
	if t, ok := f.(*state.TermBegan); ok {
		l.term = t.Term
	}
	l.facts = append(l.facts, f)
	now := time.Now
	if l.Clock != nil {
		now = l.Clock
	}
	return l.index, l.Apply(l.index, l.term, now().UnixMicro(), [][]byte{b})[0]
}

// Must proposes and fails the test if the fact is refused.
func (l *Log) Must(t testing.TB, f state.Fact) any {
	t.Helper()
	_, v, err := l.Propose(t.Context(), f)
	if err != nil {
		t.Fatalf("%T: %v", f, err)
	}
	return v
}

// Facts are those committed so far.
func (l *Log) Facts() []state.Fact {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]state.Fact(nil), l.facts...)
}
