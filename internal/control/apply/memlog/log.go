// Package memlog is a log in memory under a real state: for tests of loops that
// propose facts. Facts are encoded and decoded as in the real log.
//
// Only tests use it. It must never apply two facts at once.
package memlog

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/state"
)

// Log commits one fact per entry, except by Fill.
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
	if t, ok := f.(*state.TermBegan); ok {
		l.term = t.Term
	}
	index, values := l.applyLocked([]state.Fact{f}, [][]byte{b})
	return index, values[0]
}

func (l *Log) applyLocked(facts []state.Fact, encoded [][]byte) (uint64, []any) {
	l.index++
	l.facts = append(l.facts, facts...)
	now := time.Now
	if l.Clock != nil {
		now = l.Clock
	}
	return l.index, l.Apply(l.index, l.term, now().UnixMicro(), encoded)
}

// fillEntry is how many facts Fill puts into an entry.
const fillEntry = 1000

// Fill commits many facts in few entries, as the real log does under load, and fails the test if one is refused. It costs
// a fraction of as many calls of Must. Before and After are not called.
func (l *Log) Fill(t testing.TB, facts []state.Fact) {
	t.Helper()
	for part := range slices.Chunk(facts, fillEntry) {
		encoded := make([][]byte, len(part))
		for i, f := range part {
			var err error
			if encoded[i], err = l.Encode(f); err != nil {
				t.Fatal(err)
			}
		}
		l.mu.Lock()
		_, values := l.applyLocked(part, encoded)
		l.mu.Unlock()
		for i, v := range values {
			if err, ok := v.(error); ok {
				t.Fatalf("%T: %v", part[i], err)
			}
		}
	}
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
