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
			got := show(c.Snapshot(), d)
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
	for _, uid := range d.Done {
		fmt.Fprintf(&b, "done: %s\n", name(uid))
	}
	for _, w := range d.Blocked {
		fmt.Fprintf(&b, "blocked: %s, %d waiting: %s\n", name(w.UID), w.Waiting, w.Why)
	}
	for _, uid := range d.Left {
		fmt.Fprintf(&b, "left: %s\n", name(uid))
	}
	return b.String()
}

// settledAfter commits the decision: the state must take all of it, and a
// second look must find nothing more to do (L11).
func settledAfter(t *testing.T, c *fittest.Cluster, d Decision) {
	t.Helper()
	for {
		res := c.Apply(&state.PlanCommitted{Placements: d.Placements}).(*state.PlanResult)
		if len(res.Refused) > 0 {
			t.Fatalf("the state refuses the plan: %+v", res.Refused)
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
	if len(d.Placements) > 0 || len(d.Left) > 0 {
		t.Errorf("planning again on the planned state is not idle:\n%s", show(c.Snapshot(), d))
	}
}
