// Package testwait has tests wait for a condition that no channel tells of: what another process or another
// goroutine brings about. Only tests import it. It must never be used for a wait of a fixed time.
package testwait

import (
	"testing"
	"time"
)

// Patience is for how long Until waits. It ends only tests that are broken: nothing that works on a busy machine takes so long.
const Patience = time.Minute

// Until waits until a condition holds, and ends the test if it never does.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	Within(t, Patience, what, holds)
}

// Within is Until for a limit of the caller's.
func Within(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	for began := time.Now(); !holds(); time.Sleep(pause) {
		if time.Since(began) > limit {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// pause is the time between two looks at a condition.
const pause = 2 * time.Millisecond
