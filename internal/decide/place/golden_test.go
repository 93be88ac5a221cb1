package place

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/state"
)

var update = flag.Bool("update", false, "write what the tests see into their golden files")

const (
	mark      = "--- plan\n"
	explained = "--- explained\n"
)

// Each file is a small cluster and, after the mark, the plan and the
// explanations for it. Write both anew with: go test ./internal/decide/place -update
func TestGolden(t *testing.T) {
	golden(t, "testdata/*.txt", func(t *testing.T, cluster string) string {
		c := fittest.Read(t, cluster)
		d := Plan(c.Snapshot(), everyJob(c.Snapshot()), c.Now(), limits(cluster))
		got := show(c.Snapshot(), d) + explained + explanations(t, c, d)
		if !*update {
			settledAfter(t, c, len(d.Left) > 0)
		}
		return got
	})
}

// golden compares what follows from the input of each file with what stands there after the mark.
func golden(t *testing.T, pattern string, play func(t *testing.T, input string) string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, _ := strings.Cut(string(text), mark)
			got := play(t, input)
			if *update {
				if err := os.WriteFile(file, []byte(input+mark+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
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

// explanations commits the plan job by job, in the order in which the pass serves them, and explains each before its turn, and who
// is blocked once more in the end. What is explained must be what the plan does, as long as it is not bounded and no turns are taken.
func explanations(t *testing.T, c *fittest.Cluster, d Decision) string {
	t.Helper()
	var jobs []*state.Job
	for _, uid := range everyJob(c.Snapshot()) {
		if j := c.Snapshot().JobByUID(uid); j.Waiting() > 0 && j.Parked == "" {
			jobs = append(jobs, j)
		}
	}
	slices.SortFunc(jobs, Order)
	turns := c.Snapshot().Shares() != nil && len(c.Snapshot().Shares().Rules) > 0
	var b strings.Builder
	for _, j := range jobs {
		var mine []state.Placement
		for _, p := range d.Placements {
			if p.UID == j.UID {
				mine = append(mine, p)
			}
		}
		var stops []state.Stop
		for _, st := range d.Stops {
			if st.For == j.UID {
				stops = append(stops, st)
			}
		}
		if slices.Contains(d.Left, j.UID) {
			commit(t, c, mine, stops)
			continue
		}
		e := Explain(c.Snapshot().JobByUID(j.UID), c.Snapshot(), c.Now())
		if len(d.Left) == 0 && !turns {
			agrees(t, &e, mine, stops)
		}
		if len(e.Choices)+len(e.Evictions) > 0 {
			fmt.Fprintf(&b, "%s:\n%s", j.Key, indented(&e))
		}
		commit(t, c, mine, stops)
	}
	for _, w := range d.Blocked {
		e := Explain(c.Snapshot().JobByUID(w.UID), c.Snapshot(), c.Now())
		fmt.Fprintf(&b, "%s, %d waiting:\n%s", c.Snapshot().JobByUID(w.UID).Key, e.Waiting, indented(&e))
	}
	return b.String()
}

// Lines writes an explanation for people. lines_test.go sets it: package explain, which does so, imports this one.
var Lines func(*Explanation) []string

func indented(e *Explanation) string {
	return "  " + strings.Join(Lines(e), "\n  ") + "\n"
}

// agrees fails the test unless an explanation chooses what the plan does.
func agrees(t interface {
	Helper()
	Fatalf(string, ...any)
}, e *Explanation, placed []state.Placement, stops []state.Stop) {
	t.Helper()
	chosen, planned := map[muster.NodeID]int{}, map[muster.NodeID]int{}
	for _, c := range e.Choices {
		chosen[c.Node] += c.Members
	}
	for _, p := range placed {
		planned[p.Node]++
	}
	if !maps.Equal(chosen, planned) {
		t.Fatalf("explained as %v, planned %v", chosen, planned)
	}
	var gone []muster.AllocID
	for _, v := range e.Evictions {
		gone = append(gone, v.Allocs...)
	}
	if !slices.EqualFunc(gone, stops, func(a muster.AllocID, b state.Stop) bool { return a == b.Alloc }) {
		t.Fatalf("%v give way as explained, in the plan %v", gone, stops)
	}
}

// settledAfter looks a second time at the planned state, and must find nothing more to do (L11); if something was left it
// goes on until nothing is.
func settledAfter(t *testing.T, c *fittest.Cluster, left bool) {
	t.Helper()
	for {
		if why := fittest.Overfull(c.Snapshot()); why != "" {
			t.Fatal(why)
		}
		d := Plan(c.Snapshot(), everyJob(c.Snapshot()), c.Now(), Limits{1000, 1 << 20})
		if !left {
			if len(d.Placements)+len(d.Stops) > 0 || len(d.Left) > 0 {
				t.Errorf("planning again on the planned state is not idle:\n%s", show(c.Snapshot(), d))
			}
			return
		}
		commit(t, c, d.Placements, d.Stops)
		left = len(d.Left) > 0
	}
}

func commit(t *testing.T, c *fittest.Cluster, placements []state.Placement, stops []state.Stop) {
	t.Helper()
	if res := c.Apply(&state.PlanCommitted{Placements: placements, Stops: stops}).(*state.PlanResult); len(res.Refused)+len(res.RefusedStops) > 0 {
		t.Fatalf("the state refuses the plan: %+v %+v", res.Refused, res.RefusedStops)
	}
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}
