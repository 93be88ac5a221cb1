package size

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// randomCluster draws a cluster in the words of newCluster.
func randomCluster(t *rapid.T) string {
	var b strings.Builder
	draw := func(label string, n int) int { return rapid.IntRange(0, n-1).Draw(t, label) }
	for i := range 1 + draw("pools", 2) {
		fmt.Fprintf(&b, "pool p%d min=%d max=%d launching=%d idle=%ds\n", i, draw("min", 3), draw("max", 9), 1+draw("launching", 4), 5+draw("idle", 60))
	}
	offers := 1 + draw("offers", 3)
	for i := range offers {
		fmt.Fprintf(&b, "offer o%d cpu=%d memory=%dGiB price=%d", i, 1+draw("cpu", 8), 1+draw("memory", 8), draw("price", 5))
		if draw("gpu", 3) == 0 {
			b.WriteString(" gpu=yes")
		}
		if draw("available", 5) == 0 {
			b.WriteString(" available=no")
		}
		b.WriteByte('\n')
	}
	for i := range draw("nodes", 7) {
		stage := rapid.SampledFrom([]string{"serving", "serving", "booting", "launching", "draining", "terminating", "adopted"}).Draw(t, "stage")
		fmt.Fprintf(&b, "node n%d pool=p%d offer=o%d stage=%s", i, draw("pool", 2), draw("offer", offers), stage)
		if stage == "serving" && draw("health", 4) == 0 {
			b.WriteString(" health=" + rapid.SampledFrom([]string{"lost", "unready", "broken", "flaky"}).Draw(t, "h"))
		}
		if draw("intent", 4) == 0 {
			b.WriteString(" intent=" + rapid.SampledFrom([]string{"hold", "drain"}).Draw(t, "i"))
		}
		fmt.Fprintf(&b, "\nsleep %ds\n", draw("sleep", 30))
	}
	for i := range draw("jobs", 6) {
		fmt.Fprintf(&b, "job j%d count=%d cpu=%d memory=%dGiB prio=%d", i, 1+draw("count", 6), 1+draw("jcpu", 9), 1+draw("jmemory", 8), 40+10*draw("prio", 3))
		if draw("where", 4) == 0 {
			fmt.Fprintf(&b, " pool=p%d", draw("jpool", 2))
		}
		if draw("constraint", 4) == 0 {
			b.WriteString(rapid.SampledFrom([]string{" gpu=yes", " kernel=6.1"}).Draw(t, "c"))
		}
		b.WriteByte('\n')
	}
	if draw("block", 3) == 0 {
		fmt.Fprintf(&b, "block offering=o%d until=%ds why=\"no capacity\"\n", draw("blocked", offers), 30*draw("until", 2))
	}
	return b.String()
}

func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := randomCluster(rt)
		c := newCluster(t)
		c.read(text)
		d := c.plan()
		fatal := func(format string, args ...any) {
			rt.Fatalf("%s\n%splanned:\n%s", fmt.Sprintf(format, args...), text, c.text(d))
		}
		if again := c.plan(); c.text(again) != c.text(d) {
			fatal("the same input planned something else:\n%s", c.text(again))
		}
		before := counts(c.s.Latest())

		// What is planned can be done.
		for i, l := range d.Launch {
			c.do(&state.NodeLaunching{ID: muster.NodeID(fmt.Sprintf("x%03d", i)), Token: muster.Token(fmt.Sprintf("x%03d", i)), Pool: l.Pool, Offering: l.Offering, Reason: l.Reason})
		}
		launched := counts(c.s.Latest())
		for name, k := range launched {
			p := c.s.Latest().Pool(name)
			if p == nil {
				continue
			}
			if k.live > p.Max && k.live > before[name].live {
				fatal("pool %s has %d nodes, its maximum is %d", name, k.live, p.Max)
			}
			if k.launching > p.MaxLaunching && k.launching > before[name].launching {
				fatal("pool %s launches %d at once, it may %d", name, k.launching, p.MaxLaunching)
			}
		}
		if again := c.plan(); len(again.Launch) > 0 {
			fatal("planned again after the launches, it launches more:\n%s", c.text(again))
		}
		for _, turn := range append(append([]Turn(nil), d.Drain...), d.Terminate...) {
			n := c.s.Latest().Node(turn.Node)
			if n.Intent == muster.NodeHold {
				fatal("held node %s is touched", n.ID)
			}
			if n.LiveAllocs > 0 && !turn.IfIdle && n.Stage == muster.NodeServing {
				fatal("busy node %s is ended", n.ID)
			}
		}
		idle := map[muster.PoolName]bool{}
		for _, turn := range d.Terminate {
			if strings.HasPrefix(turn.Reason, "idle") {
				idle[c.s.Latest().Node(turn.Node).Pool] = true
			}
			c.do(&state.NodeTerminating{ID: turn.Node, Reason: turn.Reason, IfIdle: turn.IfIdle})
		}
		for _, turn := range d.Drain {
			c.do(&state.NodeDraining{ID: turn.Node, Reason: turn.Reason})
		}
		for _, f := range d.Fail {
			c.do(&state.JobFailed{UID: f.UID, Modified: f.Modified, Reason: f.Reason})
		}
		after := counts(c.s.Latest())
		for name := range idle {
			if p := c.s.Latest().Pool(name); after[name].kept < p.Min {
				fatal("pool %s is left with %d nodes, its minimum is %d", name, after[name].kept, p.Min)
			}
		}
		last := c.plan()
		if len(last.Launch) > 0 && len(d.Terminate)+len(d.Drain) == 0 || len(last.Fail) > 0 {
			fatal("planned again after all of it:\n%s", c.text(last))
		}
	})
}

type tally struct{ live, launching, kept int }

func counts(s *state.Snapshot) map[muster.PoolName]tally {
	out := map[muster.PoolName]tally{}
	s.LiveNodes(func(n *state.Node) bool {
		k := out[n.Pool]
		k.live++
		switch n.Stage {
		case muster.NodeLaunching:
			k.launching++
			k.kept++
		case muster.NodeTerminating, muster.NodeDraining:
		default:
			k.kept++
		}
		out[n.Pool] = k
		return true
	})
	return out
}

// TestManyMembers: the cost of a pass follows shapes, jobs and nodes, not members.
func TestManyMembers(t *testing.T) {
	c := newCluster(t)
	c.read("pool p max=3\noffer small cpu=2 memory=4GiB price=1\njob a count=1000000 cpu=1")
	if got := testing.AllocsPerRun(5, func() { c.plan() }); got > 200 {
		t.Errorf("a pass over one job of a million members makes %.0f allocations", got)
	}
	if d := c.plan(); len(d.Launch) != 3 || d.Waits[0].Members != 1_000_000-6 {
		t.Errorf("planned:\n%s", c.text(d))
	}
}

func BenchmarkPlan(b *testing.B) {
	for _, size := range []struct{ jobs, nodes int }{{1000, 2}, {10_000, 2}, {1000, 1000}} {
		b.Run(fmt.Sprintf("jobs=%d,nodes=%d", size.jobs, size.nodes), func(b *testing.B) {
			c := newCluster(b)
			var text strings.Builder
			fmt.Fprintf(&text, "pool p max=%d\noffer small cpu=2 memory=4GiB price=1\njob first count=%d cpu=2\n", size.nodes, size.nodes)
			for i := range size.nodes {
				fmt.Fprintf(&text, "node n%d offer=small\nplace first %d n%d\n", i, i, i)
			}
			for i := range size.jobs {
				fmt.Fprintf(&text, "job j%d cpu=1\n", i)
			}
			c.read(text.String())
			b.ReportAllocs()
			for b.Loop() {
				c.plan()
			}
		})
	}
}
