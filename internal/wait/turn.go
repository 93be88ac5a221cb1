package wait

import "context"

// Turn lets one at a time do what takes much of a machine. It is not fair, and whoever waits for it
// may give up.
type Turn struct{ taken chan struct{} }

// NewTurn makes a Turn that nobody has.
func NewTurn() *Turn { return &Turn{make(chan struct{}, 1)} }

// Take waits for the turn. The error is the end of ctx, by its cause; without one, Leave must be
// called.
func (t *Turn) Take(ctx context.Context) error {
	select {
	case t.taken <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Leave gives the turn back.
func (t *Turn) Leave() { <-t.taken }
