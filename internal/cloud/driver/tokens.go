package driver

import (
	"context"
	"sync"

	"github.com/musterhq/muster"
)

// Tokens lets one create of a token run at a time, for clouds that would make two instances of two.
// The zero value is ready.
type Tokens struct {
	mu sync.Mutex
	// busy are the tokens in calls now; their channels close when the call is over.
	busy map[muster.Token]chan struct{}
}

// Take waits until no other call makes one of the tokens, and reserves them all. It returns what
// must be called afterwards; nil if the context has ended.
func (l *Tokens) Take(ctx context.Context, tokens ...muster.Token) (done func()) {
	for ctx.Err() == nil {
		other, mine := l.reserve(tokens)
		if other == nil {
			return func() { l.free(tokens, mine) }
		}
		select {
		case <-other:
		case <-ctx.Done():
		}
	}
	return nil
}

// reserve takes the tokens, or returns a channel that closes when one of them is free.
func (l *Tokens) reserve(tokens []muster.Token) (other, mine chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range tokens {
		if c := l.busy[t]; c != nil {
			return c, nil
		}
	}
	if l.busy == nil {
		l.busy = map[muster.Token]chan struct{}{}
	}
	mine = make(chan struct{})
	for _, t := range tokens {
		l.busy[t] = mine
	}
	return nil, mine
}

func (l *Tokens) free(tokens []muster.Token, mine chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range tokens {
		delete(l.busy, t)
	}
	close(mine)
}
