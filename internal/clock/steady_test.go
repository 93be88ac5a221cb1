package clock

import (
	"testing"
	"time"
)

// A machine that was suspended was away: its time goes on for that, and steps do not.
func TestClockOverASuspension(t *testing.T) {
	var away time.Duration
	var offset time.Duration
	c := &Steady{Away: func() time.Duration { return away }, Wall: func() int64 { return time.Now().Add(offset).UnixMicro() }}
	first := c.Next()
	away, offset = 8*time.Hour, 8*time.Hour
	if d := time.Duration(c.Next()-first) * time.Microsecond; d < 8*time.Hour || d > 8*time.Hour+time.Minute {
		t.Errorf("after 8 hours of suspension the time moved by %v", d)
	}
}
