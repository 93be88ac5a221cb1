// Package wait has the waits that loops and services share: for some time unless a context ends,
// for a wake-up that may come from anywhere, for the first end of two contexts, and for the turn to
// do what only one should do at a time. It also tells whether something has ended, without a wait.
// It starts no goroutines. Pure packages must never import it.
package wait

import (
	"context"
	"time"
)

// For waits for d. It reports whether the context is still alive then; it returns at once when the
// context ends.
func For(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// Closed reports whether a channel that nobody sends on is closed.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Poke wakes whoever reads the channel, which has room for one: a wake-up that was not read yet is
// enough.
func Poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Drain takes back a wake-up that was not read yet.
func Drain(c <-chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// Either returns a context that ends with ctx, or when other ends: then with the cause of other.
// cancel must be called.
func Either(ctx, other context.Context) (_ context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(other, func() { end(context.Cause(other)) })
	return ctx, func() { unhook(); end(nil) }
}
