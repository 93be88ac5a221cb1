package raftlog

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/musterhq/muster/internal/wait"
)

// leadership is what raft said last, as a context that lives as long as one
// leadership does.
type leadership struct {
	mu      sync.Mutex
	ctx     context.Context         // not nil while this server leads
	end     context.CancelCauseFunc // ends ctx
	stopped error
	changed chan struct{} // closed and replaced at every change

	now atomic.Bool // ctx is not nil, for those who propose
	// confirmed: an entry of this leadership was committed.
	confirmed bool
}

func newLeadership() *leadership {
	return &leadership{changed: make(chan struct{})}
}

// set is called for each change, in order.
func (l *leadership) set(leads bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(ErrNotLeader)
	if leads && l.stopped == nil {
		l.ctx, l.end = context.WithCancelCause(context.Background())
		l.now.Store(true)
	}
	l.changedLocked()
}

// stop ends leadership for good, as far as this process is concerned.
func (l *leadership) stop(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped == nil {
		l.stopped = why
	}
	l.endLocked(why)
	l.changedLocked()
}

func (l *leadership) endLocked(why error) {
	if l.ctx != nil {
		l.end(why)
		l.ctx, l.end, l.confirmed = nil, nil, false
		l.now.Store(false)
	}
}

func (l *leadership) changedLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *leadership) leads() bool { return l.now.Load() }

// current is the context of this leadership, nil if there is none, and whether an entry of it was committed.
func (l *leadership) current() (ctx context.Context, confirmed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ctx, l.confirmed
}

// confirm says that an entry was committed in the leadership that led is the context of.
func (l *leadership) confirm(led context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == led && led != nil {
		l.confirmed = true
	}
}

// wait blocks until this server leads, and gives that leadership's context.
func (l *leadership) wait(ctx context.Context) (context.Context, error) {
	for {
		l.mu.Lock()
		led, stopped, changed := l.ctx, l.stopped, l.changed
		l.mu.Unlock()
		switch {
		case stopped != nil:
			return nil, stopped
		case led != nil:
			return led, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// watch follows raft's notifications until stop. raft waits for each to be
// taken before it goes on, so leadership is over here before it can begin again.
func (l *Log) watch(stop <-chan struct{}) {
	for {
		select {
		case leads := <-l.notify:
			l.log.Debug("leadership", "leads", leads)
			if err := l.latch.err(); err != nil {
				l.lead.stop(err)
			} else {
				l.lead.set(leads)
			}
		case <-stop:
			return
		}
	}
}

// IsLeader says whether this server leads, as far as it knows.
func (l *Log) IsLeader() bool { return l.lead.leads() }

// Lead runs fn whenever this server leads, after an entry of its own term has
// been applied here: fn sees everything that earlier leaders confirmed. The
// context that fn gets ends with leadership or with ctx, and Lead waits for fn
// then. term fences: it only grows.
//
// If fn returns nil, it is not called again before the next leadership; if it
// returns ErrNotLeader or ErrAmbiguous, having heard of the end before its
// context did, as soon as an entry can be committed here. Any other error ends
// Lead, unless the context had ended first. Lead returns nil when ctx ends,
// ErrStopping when the log stops, and the StorageError if that is why.
func (l *Log) Lead(ctx context.Context, fn func(ctx context.Context, term uint64) error) error {
	for {
		led, err := l.lead.wait(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		err = l.leadOnce(ctx, led, fn)
		if errors.Is(err, ErrNotLeader) || errors.Is(err, ErrAmbiguous) {
			continue
		}
		if err != nil {
			return err
		}
		select {
		case <-led.Done():
		case <-ctx.Done():
			return nil
		}
	}
}

// leadOnce is one leadership, or what is left of it.
func (l *Log) leadOnce(ctx, led context.Context, fn func(context.Context, uint64) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(led, func() { cancel(context.Cause(led)) })()

	first, err := l.firstEntry(ctx)
	if err != nil {
		return nil // ctx ended
	}
	l.lead.confirm(led)
	l.ownAddress(ctx)
	err = fn(ctx, first.Term)
	if err == nil || ctx.Err() == nil {
		return err
	}
	// It was told to end. How it ended is a matter of the log only.
	if !errors.Is(err, context.Canceled) && !errors.Is(err, context.Cause(ctx)) {
		l.log.Warn("what the leader did ended badly", "error", err)
	}
	return nil
}

// ownAddress puts the address of this server into the configuration, if it has another one: the server
// was alone before, or has moved. A failure is told; the others go on with the old one.
func (l *Log) ownAddress(ctx context.Context) {
	if l.address == "" {
		return
	}
	if err := l.AddMember(ctx, l.Self(), l.address); err != nil && ctx.Err() == nil {
		l.log.Warn("the address of this server could not be changed in the log", "address", l.address, "error", err)
	}
}

// firstEntry commits an entry of this term. It can be refused while leadership
// is being handed over, and that can come to nothing: so it is asked again.
func (l *Log) firstEntry(ctx context.Context) (Result, error) {
	for {
		r, err := l.propose(ctx, item{barrier: true})
		if err == nil {
			return r, nil
		}
		if !wait.For(ctx, firstEntryRetry) {
			return r, err
		}
	}
}

const firstEntryRetry = 20 * time.Millisecond
