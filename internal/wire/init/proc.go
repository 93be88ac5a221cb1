package initwire

import (
	"strconv"
	"strings"
)

// statFields are the fields of /proc/PID/stat after the name, which may hold anything.
func statFields(stat string) []string {
	i := strings.LastIndexByte(stat, ')')
	if i < 0 {
		return nil
	}
	return strings.Fields(stat[i+1:])
}

// Stat is what a line of /proc/PID/stat says.
type Stat struct {
	State   byte
	Parent  int
	Group   int
	Session int
	// Ticks are clock ticks of its own, Reaped those of the children that it has reaped.
	Ticks, Reaped int64
	Start         uint64
	Threads       int
	// Pages is its resident size.
	Pages int64
}

// ParseStat reads /proc/PID/stat.
func ParseStat(stat string) (s Stat, ok bool) {
	f := statFields(stat)
	if len(f) < 22 {
		return s, false
	}
	n := func(field int) int64 { // as numbered in proc(5)
		v, _ := strconv.ParseInt(f[field-3], 10, 64)
		return v
	}
	s = Stat{
		State: f[0][0], Parent: int(n(4)), Group: int(n(5)), Session: int(n(6)),
		Ticks: n(14) + n(15), Reaped: n(16) + n(17), Threads: int(n(20)), Pages: n(24),
	}
	s.Start, _ = strconv.ParseUint(f[22-3], 10, 64)
	return s, s.Start > 0
}

// Dead reports whether a process with this state only waits to be reaped. Not
// so one whose first thread ended before the others: it still runs, or is still ending.
func (s Stat) Dead() bool { return (s.State == 'Z' || s.State == 'X') && s.Threads <= 1 }
