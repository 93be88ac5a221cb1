//go:build soak

package oci

import (
	"testing"
	"time"
)

// TestSoak: a thousand starts with random kills of agent, program and init; then nothing is left.
func TestSoak(t *testing.T) {
	for _, program := range programs(t) {
		t.Run(program, func(t *testing.T) {
			for n := 0; n < 1000; {
				n += killRounds(t, program, 20, 3*time.Second)
			}
		})
	}
}
