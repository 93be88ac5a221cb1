package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

var (
	first  = flag.Uint64("sim.first", 1, "first seed")
	seeds  = flag.Uint64("sim.seeds", 12, "how many seeds")
	replay = flag.Int("sim.replay", 20, "how often TestOneSeedOneTrace plays each of its seeds")
	file   = flag.String("sim.file", "", "scenario for TestFile")
	// As the scenario says, which a seed draws from 1 to 3, unless it is given.
	workers = flag.Int("sim.workers", 0, "workers of the scheduler in every scenario; 0: as each says")
)

func TestMain(m *testing.M) {
	// What lives at one time is little, and much is made: the default would spend a quarter of the time on collections.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(300)
	}
	goleak.VerifyTestMain(m)
}

// play plays a scenario in a bubble. When it fails it says how to play it again, and shows the end of its
// trace; the whole, and the scenario, are written to files.
func play(t *testing.T, name, text, again string) (trace string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if *workers > 0 {
			s.Config.Workers = *workers
			again += fmt.Sprintf(" -sim.workers %d", *workers)
		}
		p, err := NewPlay(s)
		if err != nil {
			t.Fatal(err)
		}
		err = p.Run()
		trace = p.Cluster().Trace()
		if err != nil {
			kept := filepath.Join(os.TempDir(), "muster-sim-"+name)
			for suffix, content := range map[string]string{".txt": text, ".trace": trace} {
				if e := os.WriteFile(kept+suffix, []byte(content), 0o600); e != nil {
					t.Log(e)
				}
			}
			t.Fatalf("%s: %v\nalone: %s\nscenario (in %s.txt):\n%s\ntrace (whole in %s.trace):\n%s", name, err, again, kept, text, kept, tail(trace, 6000))
		}
	})
	return trace
}

func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "…" + s[len(s)-n:]
}

// TestSeeds plays what each of some seeds draws.
func TestSeeds(t *testing.T) {
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			trace := play(t, fmt.Sprint(seed), Draw(seed), fmt.Sprintf("go test ./internal/sim -run TestSeeds -sim.first %d -sim.seeds 1 -v", seed))
			if testing.Verbose() && *seeds == 1 {
				t.Log("\n" + Draw(seed) + "\n" + trace)
			}
		})
	}
}

// TestScenarios plays the files in testdata.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".txt")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			play(t, name, string(text), "go test ./internal/sim -run TestScenarios/"+name+" -v")
		})
	}
}

// TestFile plays a scenario that is somewhere else, with its trace.
func TestFile(t *testing.T) {
	if *file == "" {
		t.Skip("no -sim.file")
	}
	text, err := os.ReadFile(*file)
	if err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + play(t, filepath.Base(*file), string(text), "go test ./internal/sim -run TestFile -sim.file "+*file+" -v"))
}

// TestOneSeedOneTrace plays each of some seeds again and again: every time the same happens at the same
// moments. Without that a seed that failed could not be looked at.
func TestOneSeedOneTrace(t *testing.T) {
	for seed := *first; seed < *first+3; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			var one string
			times := *replay
			if testing.Short() {
				times = min(times, 3)
			}
			for i := range times {
				trace := play(t, fmt.Sprint(seed), Draw(seed), "the same")
				if i == 0 {
					one = trace
				}
				if at, is, was := difference(one, trace); at > 0 {
					t.Fatalf("time %d differs from the first in line %d of its trace:\n%s\nand the first time\n%s", i+1, at, is, was)
				}
			}
		})
	}
}

// difference is the first line, from 1, in which two traces differ, with some lines before it; 0: none.
func difference(a, b string) (line int, is, was string) {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(x), len(y)) {
		if i >= len(x) || i >= len(y) || x[i] != y[i] {
			part := func(s []string) string { return strings.Join(s[max(0, min(i-8, len(s))):min(i+4, len(s))], "\n") }
			return i + 1, part(y), part(x)
		}
	}
	return 0, "", ""
}
