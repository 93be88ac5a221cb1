package verify_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

// Work ahead of a plan keeps from it what it would not get otherwise, and nothing else.
func TestPlanYieldsWhatWorkAheadNeeds(t *testing.T) {
	const nodes = "node n1 cpu=4 memory=4GiB\nnode n2 cpu=4 memory=4GiB\nnode n3 cpu=2 memory=4GiB zone=z\n"
	for _, tc := range []struct {
		name, cluster string
		plan          string // node by node how many members of low
		ahead         string // jobs, the highest first
		want          string // nodes that must be left
	}{
		{"another node has room", "", "n1=4", "job high priority=90 cpu=4", ""},
		{"beside the plan", "", "n1=2,n2=2", "job high priority=90 count=2 cpu=2", ""},
		{"no other room", "", "n1=4,n2=4", "job high priority=90 cpu=4", "n1"},
		{"two of them", "", "n1=4,n2=4", "job high priority=90 count=2 cpu=4", "n1 n2"},
		{"more than fit", "", "n1=4,n2=4,n3=2", "job high priority=90 count=9 cpu=4", "n1 n2"},
		{"fits nowhere", "", "n1=4,n2=4", "job high priority=90 cpu=5", ""},
		{"each alone would fit beside, not both", "", "n1=4,n2=2,n3=2", "job high priority=90 cpu=2\njob mid priority=80 cpu=1 memory=1GiB", "n1"},
		{"cannot use it", "", "n1=4,n2=4,n3=2", "job high priority=90 cpu=1 needs zone = z", "n3"},
		{"its node is closed", "health n3 lost", "n1=4,n2=4", "job high priority=90 cpu=1 needs zone = z", ""},
		{"the first part is enough", "", "n1=1,n2=4,n3=2", "job high priority=90 cpu=3", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := fittest.Read(t, nodes+tc.cluster+"\njob low priority=10 count=20 cpu=1 memory=1MiB\n"+tc.ahead)
			snap := c.Snapshot()
			var plan []state.Placement
			for part := range strings.SplitSeq(tc.plan, ",") {
				node, n, _ := strings.Cut(part, "=")
				for range n[0] - '0' {
					plan = append(plan, state.Placement{UID: "low", Version: 1, Index: len(plan), Attempt: 1, Node: muster.NodeID(node)})
				}
			}
			rest, refused := verify.On(snap).Yield(plan, needs(snap, tc.ahead))
			var left []string
			for _, r := range refused {
				if id := string(r.Placement.Node); len(left) == 0 || left[len(left)-1] != id {
					left = append(left, id)
				}
				if !r.NodeFault || !strings.Contains(r.Reason, "comes first") {
					t.Errorf("%+v", r)
				}
			}
			if got := strings.Join(left, " "); got != tc.want || len(rest)+len(refused) != len(plan) {
				t.Errorf("left %q with %d of %d, want %q", got, len(rest), len(plan), tc.want)
			}
		})
	}
}

func needs(snap *state.Snapshot, jobs string) (out []verify.Need) {
	for line := range strings.Lines(jobs) {
		j := snap.JobByUID(muster.JobUID(strings.Fields(line)[1]))
		out = append(out, verify.Need{Shape: fit.ShapeOf(j.Run), Priority: j.Run.Priority(), Members: j.Waiting()})
	}
	return out
}

// What of the work ahead is on its way already needs nothing more.
func TestWorkAheadInFlightNeedsNothingMore(t *testing.T) {
	c := fittest.Read(t, "node n1 cpu=2 memory=4GiB\njob high priority=90 cpu=1 memory=1MiB\njob low priority=10 cpu=1 memory=1MiB")
	low := []state.Placement{{UID: "low", Version: 1, Attempt: 1, Node: "n1"}}
	ahead := needs(c.Snapshot(), "job high")
	for _, counted := range []bool{false, true} {
		l := verify.On(c.Snapshot())
		free := "1 cpu is left for it"
		if counted {
			l.Count([]state.Placement{{UID: "high", Version: 1, Attempt: 1, Node: "n1"}})
			free = "it is counted in"
		}
		if rest, _ := l.Yield(low, ahead); len(rest) != 1 {
			t.Errorf("%s, and the plan yields", free)
		}
	}
	ahead[0].Members = 2
	l := verify.On(c.Snapshot())
	l.Count([]state.Placement{{UID: "high", Version: 1, Attempt: 1, Node: "n1"}})
	if rest, _ := l.Yield(low, ahead); len(rest) != 0 {
		t.Errorf("another one of them wants the last core: %s", fmt.Sprint(rest))
	}
}
