package roll_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/roll"
	"github.com/musterhq/muster/internal/state"
)

var update = flag.Bool("update", false, "write what the tests see into their golden files")

// Each file is a script: lines of fittest, and "plan" (members that want it are placed), "roll" (all jobs are decided
// about, and it is committed). What each says stands after it, behind bars. Write them anew with:
// go test ./internal/decide/roll -update
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("got\n%s\nwant\n%s", got, text)
			}
		})
	}
}

func play(t *testing.T, script string) string {
	c := fittest.Read(t, "")
	var out strings.Builder
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, "|") {
			continue
		}
		out.WriteString(line)
		if strings.HasPrefix(line, "--") {
			continue
		}
		says := ""
		switch strings.TrimSpace(line) {
		case "roll":
			says = rollOnce(t, c)
		case "plan":
			d := planned(t, c)
			says = fittest.Placements(c.Snapshot(), d.Placements)
		default:
			c.Do(line)
		}
		for l := range strings.Lines(says) {
			out.WriteString("| " + l)
		}
		if err := c.Snapshot().Check(); err != nil {
			t.Fatalf("after %s%v", line, err)
		}
	}
	return out.String()
}

// planned places what wants to be.
func planned(t tester, c *fittest.Cluster) place.Decision {
	t.Helper()
	var jobs []muster.JobUID
	c.Snapshot().Jobs(muster.JobKey{}, func(j *state.Job) bool { jobs = append(jobs, j.UID); return true })
	d := place.Plan(c.Snapshot(), jobs, c.Now(), place.Limits{Placements: 1000, Looks: 1 << 20})
	if res := c.Apply(&state.PlanCommitted{Placements: d.Placements}).(*state.PlanResult); len(res.Refused) > 0 {
		t.Fatalf("the state refuses the plan: %+v", res.Refused)
	}
	return d
}

// rollOnce decides about every job and commits it.
func rollOnce(t tester, c *fittest.Cluster) string {
	t.Helper()
	var b strings.Builder
	now := c.Now()
	c.Snapshot().StandingJobs(func(j *state.Job) bool {
		v := roll.Plan(c.Snapshot(), j, now)
		b.WriteString(j.Key.Name + ": ")
		switch {
		case v.Size != nil:
			fmt.Fprintf(&b, "%d members, without %v\n", v.Size.Count, v.Size.Drop)
			commit(t, c, v.Size)
			return true
		case v.Stage != "":
			fmt.Fprintf(&b, "%s%s\n", v.Stage, because(v.Reason))
			commit(t, c, &state.RolloutMoved{UID: j.UID, Version: j.Version, Stage: v.Stage, Reason: v.Reason})
			return true
		case v.Revert != nil:
			fmt.Fprintf(&b, "back to version %d\n", v.Revert.Version)
			commit(t, c, roll.Revert(j, v.Revert, "it failed"))
			return true
		case len(v.Stops) == 0:
			fmt.Fprintf(&b, "%s", roll.ProgressOf(c.Snapshot(), j, now))
			if v.Wake != 0 {
				fmt.Fprintf(&b, "; looks again in %s", v.Wake.Sub(now))
			}
			b.WriteString("\n")
			return true
		}
		for _, st := range v.Stops {
			a := c.Snapshot().Alloc(st.Alloc)
			fmt.Fprintf(&b, "%s[%d] on %s, %s;", a.Run.Key.Name, a.Index, a.Node, st.Why)
		}
		b.WriteString("\n")
		commit(t, c, &state.PlanCommitted{Stops: v.Stops})
		return true
	})
	return b.String()
}

func commit(t tester, c *fittest.Cluster, f state.Fact) {
	t.Helper()
	switch v := c.Apply(f).(type) {
	case error:
		t.Fatalf("%T: %v", f, v)
	case *state.PlanResult:
		if len(v.RefusedStops) > 0 {
			t.Fatalf("refused: %+v", v.RefusedStops)
		}
	}
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// tester is what tests and properties have in common.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
}
