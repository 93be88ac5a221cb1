package linktest

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/state"
)

// Ledger is a log in memory: what raft would do, without disk and peers.
type Ledger struct {
	S *state.State
	// After, if set, is called after each fact was applied, with its error. Set it before use.
	After func(f state.Fact, err error)
	// Clock gives entries their time, as that of the real log does. Nil: the bubble's own clock. Set it before use, or while nothing proposes.
	Clock *clock.Steady

	ahead time.Duration
	mu    sync.Mutex
	index uint64
	fault func(f state.Fact) error
	// keeps: entries are kept, for Replay, from the one after base on.
	keeps   bool
	entries []entry
	base    []byte
}

// entry is one of the log.
type entry struct {
	term   uint64
	micros int64
	fact   []byte
}

// NewLedger begins a log and its first term.
func NewLedger(cluster string) (*Ledger, error) { return NewSkewedLedger(cluster, 0) }

// NewSkewedLedger is a log whose clock is ahead of this machine's, or behind it.
func NewSkewedLedger(cluster string, ahead time.Duration) (*Ledger, error) {
	s, err := state.New(1 << 14)
	if err != nil {
		return nil, err
	}
	l := &Ledger{S: s, ahead: ahead}
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
	e := entry{l.S.Latest().Meta().Term, int64(l.Now()), b}
	if l.keeps {
		l.entries = append(l.entries, e)
	}
	v := l.S.Apply(l.index, e.term, e.micros, [][]byte{b})[0]
	if err, refused := v.(error); refused {
		return l.index, nil, err
	}
	return l.index, v, nil
}

// Now is the log's time.
func (l *Ledger) Now() muster.Time {
	if l.Clock == nil {
		return now().Add(l.ahead)
	}
	return muster.Time(l.Clock.Next())
}

// Keep makes the log keep its entries from now on, so that it can be replayed.
func (l *Ledger) Keep() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keeps, l.entries = true, nil
	var err error
	l.base, err = l.imageLocked(l.S)
	return err
}

func (l *Ledger) imageLocked(s *state.State) ([]byte, error) {
	var image bytes.Buffer
	_, err := s.Image().WriteTo(&image)
	return image.Bytes(), err
}

// Replay makes the state anew of the newest image and of the entries after it, as
// a server does that starts. It fails if that is another state than there was. Nothing may read or propose meanwhile.
func (l *Ledger) Replay() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	fresh, err := state.New(1 << 14)
	if err != nil {
		return err
	}
	if err := fresh.Restore(bytes.NewReader(l.base)); err != nil {
		return err
	}
	index := fresh.Latest().Index()
	for _, e := range l.entries {
		index++
		fresh.Apply(index, e.term, e.micros, [][]byte{e.fact})
	}
	was, err := l.imageLocked(l.S)
	if err != nil {
		return err
	}
	is, err := l.imageLocked(fresh)
	if err != nil {
		return err
	}
	if !bytes.Equal(was, is) {
		return fmt.Errorf("the log replayed from entry %d to %d makes another state", index-uint64(len(l.entries)), index)
	}
	l.base, l.entries = is, nil
	return l.S.Restore(bytes.NewReader(is))
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
