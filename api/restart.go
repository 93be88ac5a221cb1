package api

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/validate"
)

// RestartOn says which ends of a member's attempt are tried again. The zero
// value matches none.
type RestartOn struct {
	codes                             [4]uint64 // bit n: exit code n
	any, timeout, outOfMemory, signal bool
}

// ParseRestartOn reads the values of restart.on: exit codes ("1"), ranges
// ("2-5"), and the words any, timeout, out-of-memory, signal.
func ParseRestartOn(values []string) (RestartOn, error) {
	var r RestartOn
	for i, v := range values {
		if err := r.add(v); err != nil {
			return RestartOn{}, fmt.Errorf("restart.on[%d]: %w", i, err)
		}
	}
	return r, nil
}

func (r *RestartOn) add(v string) error {
	switch v {
	case "any":
		r.any = true
		return nil
	case "timeout":
		r.timeout = true
		return nil
	case "out-of-memory":
		r.outOfMemory = true
		return nil
	case "signal":
		r.signal = true
		return nil
	}
	first, last, ranged := strings.Cut(v, "-")
	if !ranged {
		last = first
	}
	lo, ok1 := exitCode(first)
	hi, ok2 := exitCode(last)
	switch {
	case !ok1 || !ok2:
		return fmt.Errorf("%s is none of an exit code from 1 to 255, a range as 2-5, any, timeout, out-of-memory, signal", validate.Quote(v))
	case lo == 0 || hi == 0:
		return fmt.Errorf("%s names exit code 0, which is success; codes are from 1 to 255", validate.Quote(v))
	case lo > hi:
		return fmt.Errorf("%s runs backwards; write %d-%d", validate.Quote(v), hi, lo)
	}
	for c := lo; c <= hi; c++ {
		r.codes[c/64] |= 1 << (c % 64)
	}
	return nil
}

func exitCode(s string) (int, bool) {
	if s == "" || len(s) > 3 || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil && n <= 255
}

// Matches reports whether an attempt that ended for this reason, with this exit
// code if the reason is exit, is tried again. Reasons that the same command
// would meet again wherever it runs (command not found, a missing work directory, …) never match.
func (r RestartOn) Matches(reason muster.Reason, exitCode int) bool {
	switch reason {
	case muster.ReasonExit:
		return r.any || exitCode > 0 && exitCode <= 255 && r.codes[exitCode/64]&(1<<(exitCode%64)) != 0
	case muster.ReasonTimeout:
		return r.any || r.timeout
	case muster.ReasonOutOfMemory:
		return r.any || r.outOfMemory
	case muster.ReasonSignal:
		return r.any || r.signal
	case muster.ReasonOutputMissing:
		return r.any
	}
	return false
}
