package place

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/state"
)

var update = flag.Bool("update", false, "write what the tests see into their golden files")

const mark = "--- plan\n"

// Each file is a small cluster and, after the mark, the plan and the
// explanations for it. Write both anew with: go test ./internal/decide/place -update
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
			cluster, want, _ := strings.Cut(string(text), mark)
			c := fittest.Read(t, cluster)
			d := Plan(c.Snapshot(), everyJob(c.Snapshot()), c.Now(), limits(cluster))
			got := show(c.Snapshot(), d) + reasons(t, c, d)
			if *update {
				if err := os.WriteFile(file, []byte(cluster+mark+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
			settledAfter(t, c, d)
		})
	}
}

// limits of a golden file: a line "# limit placements N" or "# limit looks N" lowers one.
func limits(text string) Limits {
	l := Limits{Placements: 1000, Looks: 1 << 20}
	for line := range strings.Lines(text) {
		_, _ = fmt.Sscanf(line, "# limit placements %d", &l.Placements)
		_, _ = fmt.Sscanf(line, "# limit looks %d", &l.Looks)
	}
	return l
}

func everyJob(snap *state.Snapshot) []muster.JobUID {
	var out []muster.JobUID
	snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
		out = append(out, j.UID)
		return true
	})
	return out
}

func show(snap *state.Snapshot, d Decision) string {
	var b strings.Builder
	b.WriteString(fittest.Placements(snap, d.Placements))
	name := func(uid muster.JobUID) string { return snap.JobByUID(uid).Key.String() }
	for _, st := range d.Stops {
		a := snap.Alloc(st.Alloc)
		fmt.Fprintf(&b, "gives way on %s: %s[%d]: %s\n", a.Node, a.Run.Key, a.Index, st.Why)
	}
	for _, uid := range d.Done {
		fmt.Fprintf(&b, "done: %s\n", name(uid))
	}
	for _, w := range d.Blocked {
		fmt.Fprintf(&b, "blocked: %s, %d waiting%s\n", name(w.UID), w.Waiting, because(w.Bound.Why))
	}
	for _, uid := range d.Left {
		fmt.Fprintf(&b, "left: %s\n", name(uid))
	}
	return b.String()
}

// reasons are the explanations for who is blocked, once the plan is committed.
func reasons(t *testing.T, c *fittest.Cluster, d Decision) string {
	t.Helper()
	if len(d.Blocked) == 0 {
		return ""
	}
	if res := c.Apply(&state.PlanCommitted{Placements: d.Placements, Stops: d.Stops}).(*state.PlanResult); len(res.Refused)+len(res.RefusedStops) > 0 {
		t.Fatalf("the state refuses the plan: %+v %+v", res.Refused, res.RefusedStops)
	}
	var b strings.Builder
	for _, w := range d.Blocked {
		j := c.Snapshot().JobByUID(w.UID)
		fmt.Fprintf(&b, "%s: %s\n", j.Key, Explain(j, c.Snapshot(), c.Now()))
	}
	return b.String()
}

// settledAfter commits the decision: the state must take all of it, and a
// second look must find nothing more to do (L11).
func settledAfter(t *testing.T, c *fittest.Cluster, d Decision) {
	t.Helper()
	for {
		if len(d.Blocked) == 0 || len(d.Left) > 0 {
			if res := c.Apply(&state.PlanCommitted{Placements: d.Placements, Stops: d.Stops}).(*state.PlanResult); len(d.Blocked) == 0 && len(res.Refused) > 0 {
				t.Fatalf("the state refuses the plan: %+v", res.Refused)
			}
		}
		if why := fittest.Overfull(c.Snapshot()); why != "" {
			t.Fatal(why)
		}
		more := d.Left
		d = Plan(c.Snapshot(), everyJob(c.Snapshot()), c.Now(), Limits{Placements: 1000, Looks: 1 << 20})
		if len(more) == 0 {
			break
		}
	}
	if len(d.Placements)+len(d.Stops) > 0 || len(d.Left) > 0 {
		t.Errorf("planning again on the planned state is not idle:\n%s", show(c.Snapshot(), d))
	}
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}
