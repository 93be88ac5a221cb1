// Package clock is the time by which the server's loops decide: one for all of them, and the one that is written into
// the log. A loop that took the system's clock instead would come too late, or never, once that was set back.
package clock

import (
	"time"

	"github.com/musterhq/muster"
)

// Clock tells the time; it never goes back. Nil is the system's clock, for tests of single loops.
type Clock func() muster.Time

// Now is the time.
func (c Clock) Now() muster.Time {
	if c == nil {
		return muster.At(time.Now())
	}
	return c()
}
