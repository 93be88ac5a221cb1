package raftlog

import (
	"sync"
	"time"
)

// clock is the log's time, which the leader writes into entries. It follows the
// system's clock forwards only. While that one is behind, because somebody set
// it back or because an earlier leader's was ahead, the log's time does not
// stand still, or nothing in the state would expire until the system's has
// caught up: it runs on from where it was, at the pace of the monotonic clock.
type clock struct {
	wall func() int64 // microseconds since the epoch; nil: the system's clock

	mu    sync.Mutex
	at    int64     // what it said
	since time.Time // when it said so; only its monotonic part is of use
}

// next is the time of a new entry.
func (c *clock) next() int64 {
	wall := c.wall
	if wall == nil {
		wall = func() int64 { return time.Now().UnixMicro() }
	}
	return c.reach(wall())
}

// heard tells it the time of an entry that was applied, whoever wrote that.
func (c *clock) heard(at int64) { c.reach(at) }

// reach gives the later of at and the time as it runs. It starts anew only where
// it jumps: what is lost by rounding would add up.
func (c *clock) reach(at int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if !c.since.IsZero() {
		if on := c.at + now.Sub(c.since).Microseconds(); on >= at {
			return on
		}
	}
	c.at, c.since = at, now
	return at
}
