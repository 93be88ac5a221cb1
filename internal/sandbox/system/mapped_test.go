package system

import (
	"math"
	"testing"
)

func TestIDsOfAMap(t *testing.T) {
	for text, want := range map[string]uint64{
		"         0       1000          1\n": 1,
		"0 1000 1\n1 100000 65536\n":         65537,
		"0 0 4294967295\n":                   math.MaxUint32,
		"something else\n":                   math.MaxUint32,
		"":                                   0,
	} {
		if got := idsOf(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
