package verify

import (
	"fmt"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/state"
)

const stopCluster = `
node n1 cpu=2 memory=4GiB
node n2 cpu=1 memory=4GiB
job a count=3 priority=30
job b count=2 priority=60
place a 0 1 n1
`

func stopsOf(words string) (out []state.Stop) {
	for w := range strings.FieldsSeq(words) {
		id, by, _ := strings.Cut(w, ">")
		out = append(out, state.Stop{Alloc: muster.AllocID(id), Reason: muster.StopPreempted, For: muster.JobUID(by)})
	}
	return out
}

func showStops(v Verdict) string {
	var b strings.Builder
	for _, s := range v.Stops {
		fmt.Fprintf(&b, "stop %s\n", s.Alloc)
	}
	for _, r := range v.RefusedStops {
		fmt.Fprintf(&b, "refused stop %s: %s\n", r.Stop.Alloc, r.Reason)
	}
	return b.String()
}

func TestStops(t *testing.T) {
	for _, tc := range []struct {
		name, since, stops, plan string
		whole                    bool
		want                     string
	}{
		{"always fit", "intent n1 hold", "a-0-1>b", "", false, "stop a-0-1\n"},
		{"frees nothing", "", "a-0-1>b a-1-1>b", "b[0]@n1", false,
			"refused b[0] (node): node n1: short of cpu: 1 cpu, 1GiB memory asked, 0 cpu, 2GiB memory free\nstop a-0-1\nstop a-1-1\n"},
		{"twice", "", "a-0-1>b a-0-1>b", "", false, "stop a-0-1\nrefused stop a-0-1: allocation a-0-1 is stopping already\n"},
		{"never equals", "job c count=1 priority=30", "a-0-1>c", "", false,
			"refused stop a-0-1: allocation a-0-1 has priority 30, and job c has 30\n"},
		{"ended meanwhile", "end a 0 succeeded", "a-0-1>b a-1-1>b", "", false, "stop a-1-1\nrefused stop a-0-1: allocation a-0-1 has ended\n"},
		{"for who is stopped", "stop b", "a-0-1>b", "", false, "refused stop a-0-1: job b is ended\n"},
		{"whole", "", "a-0-1>b", "a[2]@n2 b[0]@n1", true,
			"refused b[0] (node): node n1: short of cpu: 1 cpu, 1GiB memory asked, 0 cpu, 2GiB memory free\n"},
		{"whole, a stop does not hold", "end a 0 failed", "a-0-1>b", "b[0]@n2", true, "refused stop a-0-1: allocation a-0-1 has ended\n"},
		{"whole and true", "", "a-0-1>b", "b[0]@n2", true, "n2: b[0]\nstop a-0-1\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := fittest.Read(t, stopCluster)
			c.Do(tc.since)
			l := On(c.Snapshot())
			s := Submission{Stops: stopsOf(tc.stops), Placements: plan(t, tc.plan), Whole: tc.whole}
			v := l.Submission(&s)
			if got := show(c.Snapshot(), v) + showStops(v); got != tc.want {
				t.Errorf("got\n%swant\n%s", got, tc.want)
			}
			if tc.whole && len(v.Refused)+len(v.RefusedStops) > 0 {
				// What was not committed is not counted either.
				if v := l.Submission(&Submission{Stops: stopsOf("a-1-1>b"), Placements: plan(t, "a[2]@n2")}); len(v.Stops) != 1 || len(v.Placements) != 1 {
					t.Errorf("after it: %+v", v)
				}
			}
			res := c.Apply(&state.PlanCommitted{Placements: v.Placements, Stops: v.Stops, Whole: tc.whole}).(*state.PlanResult)
			if len(res.Refused)+len(res.RefusedStops) > 0 {
				t.Errorf("the state refuses what verify found true: %+v", res)
			}
		})
	}
}

// The state and verify refuse the same stops, in the same words.
func TestStopsAsTheStateSees(t *testing.T) {
	c := fittest.Read(t, stopCluster)
	c.Do("end a 1 failed")
	stops := stopsOf("a-0-1>a a-1-1>b a-7-1>b a-0-1>x a-0-1>b a-0-1>b")
	v := On(c.Snapshot()).Submission(&Submission{Stops: stops})
	res := c.Apply(&state.PlanCommitted{Stops: stops}).(*state.PlanResult)
	if fmt.Sprint(v.RefusedStops) != fmt.Sprint(res.RefusedStops) || len(v.Stops) != 1 || res.Stopped != 1 {
		t.Errorf("verify: %+v\nstate: %+v", v.RefusedStops, res.RefusedStops)
	}
}
