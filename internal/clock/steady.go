package clock

import (
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Steady is the log's time, which the leader writes into entries and by which all loops decide. It never goes back, and
// it goes on while nothing is written, at the pace of this machine's own counters. It is safe for concurrent use.
//
// The system's clock sets only where the time begins when the process starts. A later step of the system's clock, by an
// operator or by a bad answer of a time server, is not followed at once. The time approaches it by a tenth of the time that
// passes: an hour that never was must not end claims, delete output and give up nodes, and an hour that comes twice must not
// delay them. Where the log is ahead of the system's clock, because that of an earlier leader was, the time runs on from the log's.
//
// The fields are set before first use.
type Steady struct {
	// Wall is the system's clock, in microseconds since the epoch. Nil: time.Now.
	Wall func() int64
	// Away is how long this machine has been suspended since it booted. Nil: as the kernel says.
	Away func() time.Duration
	// Logger gets a warning for each step. Nil: none.
	Logger *slog.Logger

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

func (c *Steady) moment() moment {
	away := c.Away
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

// Next is the time of a new entry, in microseconds since the epoch.
func (c *Steady) Next() int64 {
	wall := c.Wall
	if wall == nil {
		wall = func() int64 { return time.Now().UnixMicro() }
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.moment()
	return c.reach(c.trust(wall()*1000, now)/1000, now)
}

// Heard takes in the time of an entry that was applied, whichever server wrote it. Next is never before it.
func (c *Steady) Heard(at int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reach(at, c.moment())
}

// trust is the system's clock, as far as it did not step.
func (c *Steady) trust(wall int64, now moment) int64 {
	if c.looked.mono.IsZero() {
		c.trusted, c.looked = wall, now
		if !c.since.mono.IsZero() {
			if behind := time.Duration(c.at*1000-wall) + c.since.to(now); behind >= step && c.Logger != nil {
				go c.Logger.Warn("the system's clock is behind the times in the log; the server's time runs on from those", "by", behind.Round(time.Second))
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
func (c *Steady) tell(off time.Duration) {
	way, direction := 1, "ahead"
	if off < 0 {
		way, direction = -1, "back"
	}
	switch {
	case off.Abs() < slight:
		c.told = 0
	case off.Abs() >= step && c.told != way:
		c.told = way
		if c.Logger != nil {
			// In a goroutine: what writes logs may block, and entries wait for this.
			go c.Logger.Warn("the system's clock was set "+direction+"; deadlines go on as they were, and the server's time approaches it by a tenth of the time that passes. If the clock is right now, a restart of the server takes it over at once", "by", off.Abs().Round(time.Second))
		}
	}
}

// reach gives the later of at and the time as it runs. It starts anew only where
// it jumps: what is lost by rounding would add up.
func (c *Steady) reach(at int64, now moment) int64 {
	if !c.since.mono.IsZero() {
		if on := c.at + c.since.to(now).Microseconds(); on >= at {
			return on
		}
	}
	c.at, c.since = at, now
	return at
}
