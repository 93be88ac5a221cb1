package api

import (
	"testing"

	"github.com/musterhq/muster"
)

func TestRestartOn(t *testing.T) {
	for _, tt := range []struct {
		on     []string
		reason muster.Reason
		code   int
		want   bool
	}{
		{nil, muster.ReasonExit, 1, false},
		{[]string{"1"}, muster.ReasonExit, 1, true},
		{[]string{"1"}, muster.ReasonExit, 2, false},
		{[]string{"2-5", "255"}, muster.ReasonExit, 5, true},
		{[]string{"2-5", "255"}, muster.ReasonExit, 255, true},
		{[]string{"2-5", "255"}, muster.ReasonExit, 6, false},
		{[]string{"63-65"}, muster.ReasonExit, 64, true},
		{[]string{"1-255"}, muster.ReasonExit, 0, false},
		{[]string{"1-255"}, muster.ReasonExit, 256, false},
		{[]string{"1-255"}, muster.ReasonExit, -1, false},
		{[]string{"1-255"}, muster.ReasonTimeout, 0, false},
		{[]string{"any"}, muster.ReasonExit, 77, true},
		{[]string{"any"}, muster.ReasonTimeout, 0, true},
		{[]string{"any"}, muster.ReasonOutOfMemory, 0, true},
		{[]string{"any"}, muster.ReasonSignal, 0, true},
		{[]string{"any"}, muster.ReasonOutputMissing, 0, true},
		{[]string{"any"}, muster.ReasonCommandNotFound, 127, false},
		{[]string{"any"}, muster.ReasonStopped, 0, false},
		{[]string{"timeout"}, muster.ReasonTimeout, 0, true},
		{[]string{"timeout"}, muster.ReasonOutOfMemory, 0, false},
		{[]string{"out-of-memory"}, muster.ReasonOutOfMemory, 137, true},
		{[]string{"signal"}, muster.ReasonSignal, 139, true},
		{[]string{"signal"}, muster.ReasonExit, 139, false},
	} {
		on, err := ParseRestartOn(tt.on)
		if err != nil {
			t.Fatal(err)
		}
		if got := on.Matches(tt.reason, tt.code); got != tt.want {
			t.Errorf("on %v, ended by %s %d: %v", tt.on, tt.reason, tt.code, got)
		}
	}
}

func TestRestartOnRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"0":    `restart.on[1]: "0" names exit code 0, which is success; codes are from 1 to 255`,
		"0-5":  `restart.on[1]: "0-5" names exit code 0, which is success; codes are from 1 to 255`,
		"9-3":  `restart.on[1]: "9-3" runs backwards; write 3-9`,
		"256":  `restart.on[1]: "256" is none of an exit code from 1 to 255, a range as 2-5, any, timeout, out-of-memory, signal`,
		"":     `restart.on[1]: "" is none of an exit code from 1 to 255, a range as 2-5, any, timeout, out-of-memory, signal`,
		"1-2-": `restart.on[1]: "1-2-" is none of an exit code from 1 to 255, a range as 2-5, any, timeout, out-of-memory, signal`,
		"-1":   `restart.on[1]: "-1" is none of an exit code from 1 to 255, a range as 2-5, any, timeout, out-of-memory, signal`,
	} {
		if _, err := ParseRestartOn([]string{"any", in}); err == nil || err.Error() != want {
			t.Errorf("%q: %v", in, err)
		}
	}
}
