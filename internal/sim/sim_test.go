package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

var (
	first = flag.Uint64("sim.first", 1, "first seed")
	seeds = flag.Uint64("sim.seeds", 12, "how many seeds")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSeeds tells one story per seed. A failing seed prints the end of its
// trace; the whole is written to a file.
func TestSeeds(t *testing.T) {
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := NewStory(seed)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Run(); err != nil {
					trace := s.c.Trace()
					file := filepath.Join(os.TempDir(), fmt.Sprintf("muster-sim-%d.trace", seed))
					if e := os.WriteFile(file, []byte(trace), 0o600); e != nil {
						t.Log(e)
					}
					t.Fatalf("seed %d: %v\nalone: go test ./internal/sim -run TestSeeds -sim.first %d -sim.seeds 1\ntrace (whole in %s):\n%s", seed, err, seed, file, tail(trace, 6000))
				}
				if testing.Verbose() && *seeds == 1 {
					t.Log("\n" + s.c.Trace())
				}
			})
		})
	}
}

func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "…" + s[len(s)-n:]
}
