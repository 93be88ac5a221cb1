package faults

import "testing"

// scale is how large a test is: small with -short, full with -tags soak.
func scale(small, usual, full int) int {
	switch {
	case soak:
		return full
	case testing.Short():
		return small
	}
	return usual
}
