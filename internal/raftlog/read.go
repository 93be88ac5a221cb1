package raftlog

import (
	"context"
	"fmt"
	"sync"
)

// ReadIndex is an index such that a state that has it has everything that was confirmed before the call. It
// costs one question to each of the other servers and no entry; reads that come while one is asked share
// the next. A server alone answers at once. Only the leader has one: others, and a leader that a majority
// no longer follows, get ErrNotLeader.
func (l *Log) ReadIndex(ctx context.Context) (uint64, error) {
	if err := l.latch.err(); err != nil {
		return 0, err
	}
	led, confirmed := l.lead.current()
	if led == nil {
		return 0, l.gather.refusal()
	}
	// What earlier leaders have confirmed is here only after an entry of the own term.
	if !confirmed {
		if err := l.Barrier(ctx); err != nil {
			return 0, err
		}
	}
	// What this leader has confirmed, its machine had before. raft's own commit index would count entries
	// that the machine never sees, such as changes of the members.
	index := l.Applied()
	if l.ask == nil {
		return index, nil
	}
	if err := l.rounds.wait(ctx, l.round); err != nil {
		return 0, err
	}
	// Had it lost leadership and regained it in between, others may have confirmed more than index.
	if led.Err() != nil {
		return 0, ErrNotLeader
	}
	return index, nil
}

// Term is the newest term that this server has heard of. A server that has voted for a new leader, or has
// entries of it, has its term.
func (l *Log) Term() uint64 { return l.raft.CurrentTerm() }

// round asks all others for their terms. A majority that was still in the leader's term after the round
// began has not elected another leader before it, so nobody else has confirmed anything by then.
//
// raft's VerifyLeader counts answers that were sent before it was called: a server that stood still for
// some time, and finds such an answer in its buffers, would read what is long outdated.
func (l *Log) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	term := l.Term()
	members := l.Members()
	answers := make(chan bool, len(members)) // room for all: none of the goroutines waits
	voters, asked, with := 0, 0, 0
	for _, m := range members {
		if !m.Votes {
			continue
		}
		voters++
		if m.ID == l.Self() {
			with++
			continue
		}
		asked++
		go func() {
			t, err := l.ask(ctx, m)
			answers <- err == nil && t == term
		}()
	}
	for ; asked > 0 && with <= voters/2; asked-- {
		select {
		case same := <-answers:
			if same {
				with++
			}
		case <-ctx.Done():
			return ErrNotLeader
		}
	}
	if with <= voters/2 || !l.IsLeader() || l.Term() != term {
		return ErrNotLeader
	}
	return nil
}

// rounds lets those who ask at the same time share one round. Whoever comes while one is under way needs
// the next: the one before may have been answered too early for it.
type rounds struct {
	mu      sync.Mutex
	next    *oneRound // not nil if somebody waits for it
	running bool
	ending  context.Context // ends what is under way
}

type oneRound struct {
	done chan struct{}
	err  error // set before done is closed
}

// wait is for one who asks.
func (r *rounds) wait(ctx context.Context, round func(context.Context) error) error {
	r.mu.Lock()
	if r.next == nil {
		r.next = &oneRound{done: make(chan struct{})}
	}
	mine := r.next
	if !r.running {
		r.running = true
		go r.run(round)
	}
	r.mu.Unlock()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return fmt.Errorf("not read: %w", context.Cause(ctx))
	}
}

// run does rounds until nobody waits.
func (r *rounds) run(round func(context.Context) error) {
	for {
		r.mu.Lock()
		one := r.next
		r.next = nil
		if one == nil {
			r.running = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		one.err = round(r.ending)
		close(one.done)
	}
}
