package verify

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/state"
)

// plan reads placements as "a[0]@n1 a[1]#2@n2"; version 1.
func plan(t testing.TB, text string) []state.Placement {
	t.Helper()
	var out []state.Placement
	for word := range strings.FieldsSeq(text) {
		p := state.Placement{Version: 1, Attempt: 1}
		var name, rest string
		name, rest, _ = strings.Cut(word, "[")
		if _, err := fmt.Sscanf(rest, "%d", &p.Index); err != nil {
			t.Fatal(err)
		}
		if _, a, ok := strings.Cut(rest, "#"); ok {
			if _, err := fmt.Sscanf(a, "%d", &p.Attempt); err != nil {
				t.Fatal(err)
			}
		}
		_, node, _ := strings.Cut(rest, "@")
		p.UID, p.Node = fittest.UID(name), muster.NodeID(node)
		out = append(out, p)
	}
	return out
}

func show(snap *state.Snapshot, v Verdict) string {
	var b strings.Builder
	b.WriteString(fittest.Placements(snap, v.Placements))
	for _, r := range v.Refused {
		whose := "member"
		if r.NodeFault {
			whose = "node"
		}
		fmt.Fprintf(&b, "refused %s[%d] (%s): %s\n", r.Placement.UID, r.Placement.Index, whose, r.Reason)
	}
	return b.String()
}

const threeNodes = `
node n1 cpu=2 memory=4GiB
node n2 cpu=2 memory=4GiB os=linux
node n3 cpu=2 memory=4GiB
job a count=6
job b count=2 memory=2GiB
`

func TestVerify(t *testing.T) {
	for _, tc := range []struct{ name, since, plan, want string }{
		{"holds", "", "a[0]@n1 a[1]@n1 a[2]@n2", "n1: a[0] a[1]\nn2: a[2]\n"},
		{
			"the second node is too small by now", "place b 0 n2\njob c count=1 memory=2GiB cpu=0.5\nplace c 0 n2", "a[0]@n1 a[1]@n2",
			"n1: a[0]\nrefused a[1] (node): node n2: short of cpu: 1 cpu, 1GiB memory asked, 0.5 cpu, 0B memory free\n",
		},
		{
			"a node's part is whole or not at all", "place b 0 n1", "a[0]@n1 a[1]@n1 a[2]@n2",
			"n2: a[2]\nrefused a[0] (node): node n1: short of cpu: 1 cpu, 1GiB memory asked, 0 cpu, 1GiB memory free\n" +
				"refused a[1] (node): node n1: short of cpu: 1 cpu, 1GiB memory asked, 0 cpu, 1GiB memory free\n",
		},
		{"missing node", "", "a[0]@n9", "refused a[0] (node): node n9: not found\n"},
		{"lost node", "health n1 lost", "a[0]@n1", "refused a[0] (node): node n1 is lost\n"},
		{"unready node", "health n1 unready", "a[0]@n1", "refused a[0] (node): node n1 is unready\n"},
		{"held node", "intent n1 hold", "a[0]@n1 a[1]@n2", "n2: a[1]\nrefused a[0] (node): node n1 is on hold\n"},
		{"draining node", "drain n1", "a[0]@n1", "refused a[0] (node): node n1 is draining\n"},
		{"node gone", "gone n1", "a[0]@n1", "refused a[0] (node): node n1 is gone\n"},
		{
			"told to stop counts until it ended", "job old count=2\nplace old 0 1 n1\nstop old", "a[0]@n1",
			"refused a[0] (node): node n1: short of cpu: 1 cpu, 1GiB memory asked, 0 cpu, 2GiB memory free\n",
		},
		{"and no longer", "job old count=2\nplace old 0 1 n1\nstop old\nend old 0 stopped", "a[0]@n1", "n1: a[0]\n"},
		{"the job was stopped", "stop a", "a[0]@n1 b[0]@n1", "n1: b[0]\nrefused a[0] (member): job a is ended\n"},
		{"the job was replaced", "replace a count=3 cpu=0.5", "a[0]@n1", "refused a[0] (member): job a is at version 2, planned at 1\n"},
		{"no such job", "", "c[0]@n1", "refused c[0] (member): job with uid c: not found\n"},
		{"placed by another plan meanwhile", "place a 0 n2", "a[0]@n1 a[1]@n1", "n1: a[1]\nrefused a[0] (member): job a: member 0 is placed or final already\n"},
		{"the same member twice", "", "a[0]@n1 a[0]@n2", "n1: a[0]\nrefused a[0] (member): job a: member 0 is planned twice or out of order\n"},
		{"a retry twice", "place a 0 n2\nend a 0 outside", "a[0]#2@n1 a[0]#2@n3", "n1: a[0]#2\nrefused a[0] (member): job a: member 0 is placed or final already\n"},
		{"an attempt too far", "", "a[0]#2@n1", "refused a[0] (member): job a: attempt 2 of member 0 is not the next one\n"},
		{"a retry where it failed", "place a 0 n2\nend a 0 node-fault", "a[0]#2@n2", "refused a[0] (member): job a: member 0 failed on node n2 before\n"},
		{"an old attempt", "place a 0 n2\nend a 0 outside", "a[0]#1@n1", "refused a[0] (member): job a: attempt 1 of member 0 is not the next one\n"},
		{"no such member", "", "a[6]@n1", "refused a[6] (member): job a has no member 6\n"},
		{"a gap is no fault", "", "a[0]@n1 a[3]@n2", "n1: a[0]\nn2: a[3]\n"},
		{
			"the node changed its mind about itself", "job l needs os = linux\nrejoin n2 cpu=2 memory=4GiB os=plan9", "l[0]@n2 a[0]@n2",
			"n2: a[0]\nrefused l[0] (member): job l: node n2 does not meet os = linux\n",
		},
		{"nothing", "", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := fittest.Read(t, threeNodes)
			c.Do(tc.since)
			v := On(c.Snapshot()).Plan(plan(t, tc.plan))
			if got := show(c.Snapshot(), v); got != tc.want {
				t.Errorf("got\n%swant\n%s", got, tc.want)
			}
			if v.Refresh != c.Snapshot().Index() {
				t.Errorf("refresh is %d, the refusing state %d", v.Refresh, c.Snapshot().Index())
			}
			res := c.Apply(&state.PlanCommitted{Placements: v.Placements}).(*state.PlanResult)
			if len(res.Refused) > 0 {
				t.Errorf("the state refuses what verify found true: %+v", res.Refused)
			}
		})
	}
}

// Plans are verified with those before them counted in, and with those in
// flight, whether or not a snapshot has them already.
func TestPlansInFlightAreCounted(t *testing.T) {
	c := fittest.Read(t, threeNodes)
	first, second := plan(t, "a[0]@n1 a[1]@n1 b[0]@n2"), plan(t, "b[1]@n1")
	const short = "refused b[1] (node): node n1: short of cpu: 1 cpu, 2GiB memory asked, 0 cpu, 2GiB memory free\n"
	l := On(c.Snapshot())
	l.Plan(first)
	if got := show(c.Snapshot(), l.Plan(second)); got != short {
		t.Errorf("after another plan: %s", got)
	}
	l = On(c.Snapshot())
	l.Count(first)
	if got := show(c.Snapshot(), l.Plan(second)); got != short {
		t.Errorf("with one in flight: %s", got)
	}
	if got := show(c.Snapshot(), l.Plan(plan(t, "a[1]@n3 a[2]@n3 b[1]@n2"))); got != "n2: b[1]\nn3: a[2]\nrefused a[1] (member): job a: member 1 is planned twice or out of order\n" {
		t.Errorf("with its members counted in: %s", got)
	}
	c.Do("place a 0 1 n1\nplace b 0 n2")
	l = On(c.Snapshot())
	l.Count(first)
	if got := show(c.Snapshot(), l.Plan(plan(t, "b[1]@n2"))); got != "n2: b[1]\n" {
		t.Errorf("counted twice: %s", got)
	}
}

// The same GPU, core or port twice is refused by its name, whether the state or a plan before has it, and so by the state.
func TestSameNameTwiceIsRefused(t *testing.T) {
	c := fittest.Read(t, `
node n1 cpu=8 memory=8GiB gpu=A:2:shared gpu=B:1
job held cores=1 gpu=0.6:A port=80 memory=1GiB
place held 0 n1
job whole gpu=1 count=3 memory=1MiB
job half gpu=0.5 count=3 memory=1MiB
job pin cores=1 count=3 memory=1MiB
job web port=80 memory=1MiB
job b gpu=1:B memory=1MiB cpu=0.1
`)
	with := func(name string, index int, g muster.Grant) []state.Placement {
		return []state.Placement{{UID: fittest.UID(name), Version: 1, Index: index, Attempt: 1, Node: "n1", Grant: g}}
	}
	devices := func(d ...int) muster.Grant { return muster.Grant{Devices: d} }
	l := On(c.Snapshot())
	for _, tc := range []struct {
		plan []state.Placement
		want string // "": it holds
	}{
		{with("whole", 0, devices(0)), "node n1: gpu 0 is taken"},
		{with("half", 0, devices(0)), "node n1: gpu 0 is taken"},
		{with("half", 0, devices(1)), ""},
		{with("whole", 0, devices(1)), "node n1: gpu 1 is taken"},
		{with("half", 1, devices(1)), ""},
		{with("half", 2, devices(1)), "node n1: gpu 1 is taken"},
		{with("half", 2, devices(2)), "node n1: gpu 2 is no gpu"},
		{with("whole", 0, devices(3)), "node n1: there is no device 3"},
		{with("b", 0, devices(2)), ""},
		{with("pin", 0, muster.Grant{Cores: []int{0}}), "node n1: core 0 is taken"},
		{with("pin", 0, muster.Grant{Cores: []int{3}}), ""},
		{with("pin", 1, muster.Grant{Cores: []int{3}}), "node n1: core 3 is taken"},
		{with("web", 0, muster.Grant{}), "node n1: port 80 is taken"},
	} {
		v := l.Plan(tc.plan)
		if tc.want == "" && len(v.Refused) == 0 {
			continue
		}
		if len(v.Refused) != 1 || v.Refused[0].Reason != tc.want || !v.Refused[0].NodeFault {
			t.Errorf("%+v: %+v, want %q", tc.plan[0].Grant, v.Refused, tc.want)
		}
		if tc.plan[0].UID != "whole" || tc.plan[0].Grant.Devices[0] != 0 {
			continue
		}
		if res := c.Apply(&state.PlanCommitted{Placements: tc.plan}).(*state.PlanResult); len(res.Refused) != 1 || res.Refused[0].Reason != tc.want {
			t.Errorf("the state: %+v", res)
		}
	}
}

// A part that is refused leaves nothing of itself in the ledger.
func TestRefusedPartIsNotCounted(t *testing.T) {
	c := fittest.Read(t, threeNodes)
	c.Do("place a 0 n2\nend a 0 outside")
	l := On(c.Snapshot())
	if v := l.Plan(plan(t, "a[0]#2@n1 a[1]@n1 b[0]@n1")); len(v.Refused) != 3 || len(v.Placements) != 0 {
		t.Fatalf("three members on two cores: %+v", v)
	}
	if got := show(c.Snapshot(), l.Plan(plan(t, "a[0]#2@n1 a[1]@n1"))); got != "n1: a[0]#2 a[1]\n" {
		t.Errorf("again: %s", got)
	}
}

// Whatever happened since, what verify lets through the state takes, and
// no node is ever over capacity.
func TestAnyNewerStateTakesWhatVerifyAllows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := fittest.Read(t, threeNodes)
		n := rapid.IntRange(0, 3)
		var old []state.Placement
		for range rapid.IntRange(1, 25).Draw(rt, "plan") {
			old = append(old, state.Placement{UID: muster.JobUID(rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "job")), Version: 1,
				Index: rapid.IntRange(0, 6).Draw(rt, "index"), Attempt: rapid.IntRange(1, 2).Draw(rt, "attempt"), Node: muster.NodeID(fmt.Sprintf("n%d", n.Draw(rt, "node")))})
		}
		for range rapid.IntRange(0, 15).Draw(rt, "since") {
			lines := []string{"health n1 lost", "health n1 good", "intent n2 hold", "intent n2 run", "stop b", "wait 3s",
				fmt.Sprintf("place a %d n%d", rapid.IntRange(0, 5).Draw(rt, "i"), 1+n.Draw(rt, "node")),
				fmt.Sprintf("end a %d %s", rapid.IntRange(0, 5).Draw(rt, "i"), rapid.SampledFrom([]string{"outside", "node-fault", "stopped", "succeeded"}).Draw(rt, "how"))}
			line := rapid.SampledFrom(lines).Draw(rt, "line")
			if strings.HasPrefix(line, "end") {
				var i int
				_, _ = fmt.Sscanf(line, "end a %d", &i)
				if m := c.Snapshot().Member("a", i); m == nil || c.Snapshot().Alloc(m.Alloc()) == nil {
					continue
				}
			}
			facts, err := c.Facts(line)
			if err != nil {
				rt.Fatal(err)
			}
			for _, f := range facts {
				c.Apply(f) // may be refused
			}
		}
		l := On(c.Snapshot())
		inFlight := old[:rapid.IntRange(0, len(old)).Draw(rt, "in flight")]
		first := l.Plan(inFlight)
		second := l.Plan(old[len(inFlight):])
		if len(first.Placements)+len(first.Refused)+len(second.Placements)+len(second.Refused) != len(old) {
			rt.Fatalf("%d placements, verdicts %+v and %+v", len(old), first, second)
		}
		for _, v := range []Verdict{first, second} {
			res := c.Apply(&state.PlanCommitted{Placements: v.Placements}).(*state.PlanResult)
			if len(res.Refused) > 0 {
				rt.Fatalf("the state refuses what verify found true: %+v", res.Refused)
			}
		}
		if why := fittest.Overfull(c.Snapshot()); why != "" {
			rt.Fatal(why)
		}
	})
}
