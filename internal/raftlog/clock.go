package raftlog

import (
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// clock is the log's time, which the leader writes into entries and by which all loops decide. It never goes back, and
// it goes on while nothing is written, at the pace of this machine's own counters.
//
// The system's clock decides only where the time begins when the process does. A step of it after that, by somebody or by a
// bad answer of a time server, is not followed but approached, by a tenth of the time that passes: an hour that was
// not there must not end claims, delete output and give up nodes, and an hour twice must not hold them up.
// Where the log is ahead of the system's clock, because an earlier leader's was, the time runs on from the log's.
type clock struct {
	wall func() int64         // microseconds since the epoch; nil: the system's clock
	away func() time.Duration // how long this machine was suspended since it was booted; nil: ask the kernel
	log  *slog.Logger         // is told of steps; nil: nobody is

	mu sync.Mutex
	// log's time: what it said, and when it said so.
	at    int64
	since moment
	// trusted is the system's clock without its steps, in nanoseconds, as of when it was last looked at.
	trusted int64
	looked  moment
	// told is the direction of the step that was told of, 0: none is open. Each is told once.
	told int
}

const (
	// slew is the part of the time that passes by which a step is approached.
	slew = 10
	// step is how far the system's clock must be off to be told, and slight when it no longer is.
	step, slight = 10 * time.Second, time.Second
)

// moment is one on the counters that no step of the system's clock touches.
type moment struct {
	mono time.Time // only its monotonic part is of use
	away time.Duration
}

func (c *clock) moment() moment {
	away := c.away
	if away == nil {
		away = suspended
	}
	return moment{time.Now(), away()}
}

// to is the time from m to n, that in which the machine was suspended included.
func (m moment) to(n moment) time.Duration {
	d := n.mono.Sub(m.mono)
	if slept := n.away - m.away; slept >= time.Second { // what is less comes of reading two counters one after the other
		d += slept
	}
	return d
}

// suspended is how much longer this machine is up than it has been awake.
func suspended() time.Duration {
	var boot, mono unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono) != nil {
		return 0
	}
	return time.Duration(boot.Nano() - mono.Nano())
}

// next is the time of a new entry.
func (c *clock) next() int64 {
	wall := c.wall
	if wall == nil {
		wall = func() int64 { return time.Now().UnixMicro() }
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.moment()
	return c.reach(c.trust(wall()*1000, now)/1000, now)
}

// heard tells it the time of an entry that was applied, whoever wrote that.
func (c *clock) heard(at int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reach(at, c.moment())
}

// trust is the system's clock, as far as it did not step.
func (c *clock) trust(wall int64, now moment) int64 {
	if c.looked.mono.IsZero() {
		c.trusted, c.looked = wall, now
		if !c.since.mono.IsZero() {
			if behind := time.Duration(c.at*1000-wall) + c.since.to(now); behind >= step && c.log != nil {
				go c.log.Warn("the system's clock is behind the times in the log; the server's time runs on from those", "by", behind.Round(time.Second))
			}
		}
		return wall
	}
	passed := c.looked.to(now)
	on := c.trusted + int64(passed)
	off := time.Duration(wall - on)
	most := passed / slew
	c.trusted, c.looked = on+int64(min(max(off, -most), most)), now
	c.tell(off)
	return c.trusted
}

// tell warns of a step, once.
func (c *clock) tell(off time.Duration) {
	way, direction := 1, "ahead"
	if off < 0 {
		way, direction = -1, "back"
	}
	switch {
	case off.Abs() < slight:
		c.told = 0
	case off.Abs() >= step && c.told != way:
		c.told = way
		if c.log != nil {
			// In a goroutine: what writes logs may block, and entries wait for this.
			go c.log.Warn("the system's clock was set "+direction+"; deadlines go on as they were, and the server's time approaches it by a tenth of the time that passes. If the clock is right now, a restart of the server takes it over at once", "by", off.Abs().Round(time.Second))
		}
	}
}

// reach gives the later of at and the time as it runs. It starts anew only where
// it jumps: what is lost by rounding would add up.
func (c *clock) reach(at int64, now moment) int64 {
	if !c.since.mono.IsZero() {
		if on := c.at + c.since.to(now).Microseconds(); on >= at {
			return on
		}
	}
	c.at, c.since = at, now
	return at
}
