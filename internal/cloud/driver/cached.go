package driver

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/musterhq/muster/internal/wait"
)

// Cached is a value that is read seldom. Between two reads it answers from memory; one caller
// reads while others wait, or until their context ends. An error is not kept.
type Cached[T any] struct {
	// Read gets a new value. Life is how long it is used; up to a tenth less is drawn at random, so
	// that servers and values do not all read at once. Now is the clock.
	Read func(ctx context.Context) (T, error)
	Life time.Duration
	Now  func() time.Time
	// Stale: while reads fail, the last value is used for up to this long after its life.
	Stale time.Duration

	once sync.Once
	turn *wait.Turn

	mu    sync.Mutex
	value T
	until time.Time // zero: no value
	read  time.Time
}

// Get is the value.
func (c *Cached[T]) Get(ctx context.Context) (T, error) {
	if v, ok := c.fresh(); ok {
		return v, nil
	}
	c.once.Do(func() { c.turn = wait.NewTurn() })
	if err := c.turn.Take(ctx); err != nil {
		var none T
		return none, err
	}
	defer c.turn.Leave()
	if v, ok := c.fresh(); ok {
		return v, nil
	}
	began := c.Now()
	v, err := c.Read(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if !c.until.IsZero() && c.Now().Before(c.until.Add(c.Stale)) {
			return c.value, nil
		}
		var none T
		return none, err
	}
	less := time.Duration(rand.Float64() * float64(c.Life) / 10)
	c.value, c.read, c.until = v, began, began.Add(c.Life-less)
	return v, nil
}

// Forget makes the next Get read again, unless the value was read less than since ago.
func (c *Cached[T]) Forget(since time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.until.IsZero() && c.Now().Sub(c.read) >= since {
		c.until = c.read
	}
}

func (c *Cached[T]) fresh() (T, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, !c.until.IsZero() && c.Now().Before(c.until)
}
