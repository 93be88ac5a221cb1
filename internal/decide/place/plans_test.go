package place

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

const (
	since   = "--- since\n"
	verdict = "--- verdict\n"
)

// What becomes of plans that are old when they are applied. Each file is a small cluster; lines "# worker JOB…" say who plans what on it,
// each without knowledge of the others, and "# whole" that a plan holds as a whole or not at all; without them one worker plans all jobs. After
// the first mark comes what happens until the plans are applied, one after the other; then follow the plans, the verdicts, and the
// explanations of who waits then. Write them anew with: go test ./internal/decide/place -run TestPlans -update
func TestPlans(t *testing.T) { golden(t, "testdata/plans/*.txt", plans) }

func plans(t *testing.T, input string) string {
	cluster, later, _ := strings.Cut(input, since)
	c := fittest.Read(t, cluster)
	old := c.Snapshot()
	workers, whole := workersOf(old, cluster)
	var b strings.Builder
	var made []Decision
	for _, jobs := range workers {
		d := Plan(old, jobs, c.Now(), limits(""))
		made = append(made, d)
		b.WriteString(show(old, d))
	}
	c.Do(later)
	b.WriteString(verdict)
	ledger := verify.On(c.Snapshot())
	for i, d := range made {
		if len(made) > 1 {
			fmt.Fprintf(&b, "plan %d: ", i+1)
		}
		rest, yielded := ledger.Yield(d.Placements, ahead(c.Snapshot(), workers[i]))
		v := ledger.Submission(&verify.Submission{Index: d.Index, Placements: rest, Stops: d.Stops, Whole: whole})
		v.Refused = slices.Concat(yielded, v.Refused)
		fmt.Fprintf(&b, "%d hold, %d are refused\n", len(v.Placements)+len(v.Stops), len(v.Refused)+len(v.RefusedStops))
		b.WriteString(fittest.Placements(c.Snapshot(), v.Placements))
		for _, r := range v.Refused {
			fmt.Fprintf(&b, "refused %s[%d]: %s\n", c.Snapshot().JobByUID(r.Placement.UID).Key, r.Placement.Index, r.Reason)
		}
		made[i].Placements, made[i].Stops = v.Placements, v.Stops
	}
	b.WriteString(explained)
	for _, d := range made {
		commit(t, c, d.Placements, d.Stops)
	}
	for _, uid := range everyJob(c.Snapshot()) {
		if j := c.Snapshot().JobByUID(uid); j.Waiting() > 0 && j.Stage == muster.JobLive {
			e := Explain(j, c.Snapshot(), c.Now())
			fmt.Fprintf(&b, "%s, %d waiting:\n%s", j.Key, j.Waiting(), indented(&e))
		}
	}
	return b.String()
}

// workersOf is what each worker plans.
func workersOf(snap *state.Snapshot, text string) (workers [][]muster.JobUID, whole bool) {
	for line := range strings.Lines(text) {
		if names, ok := strings.CutPrefix(line, "# worker "); ok {
			var jobs []muster.JobUID
			for _, name := range strings.Fields(names) {
				jobs = append(jobs, fittest.UID(name))
			}
			workers = append(workers, jobs)
		}
		whole = whole || line == "# whole\n"
	}
	if workers == nil {
		workers = [][]muster.JobUID{everyJob(snap)}
	}
	return workers, whole
}

// ahead is the work that comes before a plan of the jobs.
func ahead(snap *state.Snapshot, planned []muster.JobUID) (out []verify.Need) {
	highest := 0
	for _, uid := range planned {
		if j := snap.JobByUID(uid); j != nil {
			highest = max(highest, j.Priority())
		}
	}
	for _, uid := range everyJob(snap) {
		if j := snap.JobByUID(uid); j.Stage == muster.JobLive && j.Waiting() > 0 && j.Priority() > highest && !slices.Contains(planned, uid) {
			out = append(out, verify.Need{Shape: fit.ShapeOf(j.Run), Priority: j.Priority(), Members: j.Waiting()})
		}
	}
	slices.SortFunc(out, func(a, b verify.Need) int { return b.Priority - a.Priority })
	return out
}
