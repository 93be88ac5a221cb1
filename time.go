package muster

import "time"

// Time is a moment in microseconds since 1970 UTC. Zero is "never". State and
// decisions use it instead of time.Time: eight bytes, no location, equal
// moments are equal values.
type Time int64

// At converts from the standard library.
func At(t time.Time) Time {
	if t.IsZero() {
		return 0
	}
	return Time(t.UnixMicro())
}

// Std converts to the standard library, in UTC; the zero Time is the zero time.Time.
func (t Time) Std() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(t)).UTC()
}

// Add moves a moment by a duration.
func (t Time) Add(d time.Duration) Time { return t + Time(d/time.Microsecond) }

// Sub is the duration from o to t.
func (t Time) Sub(o Time) time.Duration { return time.Duration(t-o) * time.Microsecond }
