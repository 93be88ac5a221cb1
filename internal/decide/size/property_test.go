package size

import (
	"fmt"
	"slices"
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
		fmt.Fprintf(&b, "pool p%d min=%d max=%d launching=%d idle=%ds spare=%d factor=%s", i, draw("min", 3), draw("max", 9), 1+draw("launching", 4), 5+draw("idle", 60),
			max(0, draw("spare", 5)-2), rapid.SampledFrom([]string{"0", "1", "1.5", "2", "4"}).Draw(t, "factor"))
		if draw("stop", 2) == 0 {
			fmt.Fprintf(&b, " stop=%d stopfor=%ds", draw("stops", 3), 20+draw("stopfor", 60))
		}
		if draw("hour", 3) == 0 {
			fmt.Fprintf(&b, " hour=%d", 1+draw("hours", 12))
		}
		if draw("month", 3) == 0 {
			fmt.Fprintf(&b, " month=%d", 1+draw("months", 12))
		}
		b.WriteByte('\n')
	}
	offers := 1 + draw("offers", 3)
	for i := range offers {
		fmt.Fprintf(&b, "offer o%d cpu=%d memory=%dGiB price=%d", i, 1+draw("cpu", 8), 1+draw("memory", 8), draw("price", 5))
		if draw("gpu", 3) == 0 {
			b.WriteString(" gpu=yes")
		}
		if draw("family", 2) == 0 {
			b.WriteString(" family=f")
		}
		if draw("cap", 4) == 0 {
			fmt.Fprintf(&b, " cap=%d", draw("most", 8))
		}
		if draw("available", 5) == 0 {
			b.WriteString(" available=no")
		}
		b.WriteByte('\n')
	}
	for i := range draw("nodes", 7) {
		stage := rapid.SampledFrom([]string{"serving", "serving", "booting", "launching", "draining", "terminating", "adopted", "stopped", "stopped", "starting"}).Draw(t, "stage")
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
	if draw("old", 4) == 0 {
		b.WriteString("sleep 6m\n")
	}
	if draw("quota", 3) == 0 {
		fmt.Fprintf(&b, "block family=f until=30s held=%d why=\"quota\"\n", draw("held", 4))
	}
	if draw("paused", 6) == 0 {
		b.WriteString("paused\n")
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
		before := stocks(c.s.Latest())
		if c.paused {
			for _, l := range d.Launch {
				if !strings.HasPrefix(l.Reason, "for the minimum") {
					fatal("the scheduler is paused, and a node is launched %s", l.Reason)
				}
			}
			for _, turn := range append(append([]Turn(nil), d.Drain...), d.Terminate...) {
				if strings.HasPrefix(turn.Reason, "gives way") {
					fatal("the scheduler is paused, and node %s %s", turn.Node, turn.Reason)
				}
			}
		}

		// What is planned can be done.
		for i, l := range d.Launch {
			c.do(&state.NodeLaunching{ID: muster.NodeID(fmt.Sprintf("x%03d", i)), Token: muster.Token(fmt.Sprintf("x%03d", i)), Pool: l.Pool, Offering: l.Offering, Reason: l.Reason})
		}
		for _, turn := range d.Start {
			c.do(&state.NodeStarting{ID: turn.Node, Reason: turn.Reason})
		}
		launched := stocks(c.s.Latest())
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
			if p.BudgetHour > 0 && k.price > p.BudgetHour && k.live > before[name].live {
				fatal("pool %s costs %s an hour, its budget is %s", name, k.price, p.BudgetHour)
			}
			if month := c.s.Latest().Spent(name, c.now) + int64(k.price); p.BudgetMonth > 0 && month > p.BudgetMonth && k.live > before[name].live {
				fatal("pool %s comes to %s in this month, its budget is %s", name, muster.Price(month), muster.Price(p.BudgetMonth))
			}
		}
		for i := range c.blocks {
			b := &c.blocks[i]
			held, was := covered(c.s.Latest(), b), 0
			for _, l := range d.Launch {
				if b.Covers(&l.Offering) {
					was++
				}
			}
			for _, turn := range d.Start {
				if b.Covers(&c.s.Latest().Node(turn.Node).Offering) {
					was++
				}
			}
			switch {
			case was == 0:
			case b.Until > c.now && held > b.Held:
				fatal("launched %d of what %q keeps: there are %d, and may be %d", was, b.Why, held, b.Held)
			case b.Until <= c.now && was > 1:
				fatal("%d at once try whether %q is over", was, b.Why)
			}
		}
		if again := c.plan(); len(again.Launch)+len(again.Start) > 0 {
			fatal("planned again after the launches, it launches more:\n%s", c.text(again))
		}
		for _, turn := range slices.Concat(d.Drain, d.Terminate, d.Stop, d.Start) {
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
		for _, turn := range d.Stop {
			idle[c.s.Latest().Node(turn.Node).Pool] = true
			c.do(&state.NodeStopped{ID: turn.Node, Reason: turn.Reason})
		}
		for _, turn := range d.Drain {
			c.do(&state.NodeDraining{ID: turn.Node, Reason: turn.Reason})
		}
		for _, f := range d.Fail {
			c.do(&state.JobFailed{UID: f.UID, Modified: f.Modified, Reason: f.Reason})
		}
		after := stocks(c.s.Latest())
		for name, k := range after {
			if p := c.s.Latest().Pool(name); p != nil && k.stopped > p.StopMost {
				fatal("pool %s keeps %d stopped, at most %d", name, k.stopped, p.StopMost)
			}
		}
		for name := range idle {
			if p := c.s.Latest().Pool(name); after[name].kept < p.Min {
				fatal("pool %s is left with %d nodes, its minimum is %d", name, after[name].kept, p.Min)
			}
		}
		last := c.plan()
		if len(last.Launch)+len(last.Start) > 0 && len(d.Terminate)+len(d.Drain)+len(d.Stop) == 0 || len(last.Fail) > 0 {
			fatal("planned again after all of it:\n%s", c.text(last))
		}
	})
}

// covered counts the nodes that a block names.
func covered(s *state.Snapshot, b *Block) int {
	k := 0
	s.LiveNodes(func(n *state.Node) bool {
		if b.Covers(&n.Offering) && n.Stage != muster.NodeStopped {
			k++
		}
		return true
	})
	return k
}

type stock struct {
	live, launching, kept int
	// stopped that no operator has held count for nothing else.
	stopped int
	price   muster.Price
}

func stocks(s *state.Snapshot) map[muster.PoolName]stock {
	out := map[muster.PoolName]stock{}
	s.LiveNodes(func(n *state.Node) bool {
		k := out[n.Pool]
		if n.Stage == muster.NodeStopped {
			if n.Intent == muster.NodeRun {
				k.stopped++
			}
			out[n.Pool] = k
			return true
		}
		k.live++
		k.price += n.Offering.AtMost()
		switch n.Stage {
		case muster.NodeLaunching, muster.NodeBooting, muster.NodeStarting:
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

// TestAdvancedIsRebuilt walks a cluster through random changes, some of them
// refused, and plans now and then: the view that is advanced and the one that is built anew must plan
// the same (cluster.plan sees to it), and what is planned is done.
func TestAdvancedIsRebuilt(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCluster(rapidTB{t, rt})
		c.read(randomCluster(rt))
		launched := 0
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			c.step(rt)
			if rapid.IntRange(0, 2).Draw(rt, "plan") > 0 {
				continue
			}
			d := c.plan()
			for _, l := range d.Launch {
				launched++
				id := fmt.Sprintf("x%03d", launched)
				c.do(&state.NodeLaunching{ID: muster.NodeID(id), Token: muster.Token(id), Pool: l.Pool, Offering: l.Offering, Reason: l.Reason})
			}
			for _, x := range d.Drain {
				_ = c.try(&state.NodeDraining{ID: x.Node, Reason: x.Reason})
			}
			for _, x := range d.Terminate {
				_ = c.try(&state.NodeTerminating{ID: x.Node, Reason: x.Reason, IfIdle: x.IfIdle})
			}
			for _, x := range d.Fail {
				_ = c.try(&state.JobFailed{UID: x.UID, Modified: x.Modified, Reason: x.Reason})
			}
		}
		c.plan()
	})
}

// step lets one thing happen, if it can.
func (c *cluster) step(t *rapid.T) {
	pick := func(label string, n int) int { return rapid.IntRange(0, n-1).Draw(t, label) }
	snap := c.s.Latest()
	var nodes []*state.Node
	snap.LiveNodes(func(n *state.Node) bool { nodes = append(nodes, n); return true })
	c.now += muster.Time(pick("ms", 20_000)) * 1000
	if len(nodes) == 0 {
		return
	}
	n := nodes[pick("which", len(nodes))]
	switch pick("what", 12) {
	case 11:
		// Prices move, something is sold out for a while; now and then it is another offering by the same name, or one less.
		provider := n.Offering.Provider
		var sale []muster.Offering
		snap.Offerings(func(o *muster.Offering) bool {
			if o.Provider == provider {
				sale = append(sale, *o)
			}
			return true
		})
		if len(sale) == 0 {
			return
		}
		o := &sale[pick("offering", len(sale))]
		switch pick("offer", 6) {
		case 0:
			o.Available = !o.Available
		case 1:
			o.Capacity.CPU += 1000
		case 2:
			sale = sale[1:]
		default:
			o.Price = muster.Price(1 + pick("price", 3_000_000))
		}
		_ = c.try(&state.OfferingsSeen{Provider: provider, Offerings: sale})
	case 10:
		o := map[string]string{"cpu": fmt.Sprint(1 + pick("cpu", 4)), "count": fmt.Sprint(1 + pick("count", 3))}
		if pick("constraint", 2) == 0 {
			// An attribute that nothing has asked for before tells nodes apart that were alike.
			o[[]string{"kernel", "gpu", "zone", "disk-type"}[pick("name", 4)]] = "6.1"
		}
		if name := fmt.Sprintf("k%d", snap.Index()); snap.Job(muster.JobKey{Namespace: "default", Name: name}) == nil {
			c.job(name, o)
		}
	case 0:
		_ = c.try(&state.NodeLaunched{ID: n.ID, Instance: "i"})
	case 1:
		_ = c.try(&state.NodeJoined{ID: n.ID, Capacity: n.Offering.Capacity, Boot: "b", Attributes: map[string]string{"kernel": []string{"6.1", "5.10"}[pick("kernel", 2)]}})
	case 2:
		_ = c.try(&state.NodeHealthChanged{ID: n.ID, Health: []muster.NodeHealth{muster.NodeGood, muster.NodeLost, muster.NodeUnready, muster.NodeBroken}[pick("health", 4)]})
	case 3:
		_ = c.try(&state.NodeIntentSet{ID: n.ID, Intent: []muster.NodeIntent{muster.NodeRun, muster.NodeHold, muster.NodeDrain}[pick("intent", 3)]})
	case 4:
		_ = c.try(&state.NodeGone{ID: n.ID, Reason: "destroyed"})
	case 5:
		_ = c.try(&state.NodesPurged{IDs: []muster.NodeID{muster.NodeID(fmt.Sprintf("n%d", pick("gone", 7)))}})
	case 6, 7:
		// Whatever fits somewhere: the scheduler's choice is not ours to know.
		snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
			for i := range j.Count() {
				attempt := j.AttemptBase + 1
				if m := snap.Member(j.UID, i); m != nil {
					attempt = m.Attempt + 1
				}
				if pick("place", 2) == 0 {
					_ = c.try(&state.PlanCommitted{Placements: []state.Placement{{UID: j.UID, Version: j.Version, Index: i, Attempt: attempt, Node: n.ID}}})
				}
			}
			return true
		})
	case 8:
		snap.NodeAllocs(n.ID, func(a *state.Alloc) bool {
			u := state.AllocUpdate{ID: a.ID, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded, Output: &state.Output{Stage: state.OutputComplete}}
			switch pick("end", 3) {
			case 0:
				u.Outcome, u.Failure = muster.OutcomeFailed, &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonNodeFault, Message: "disk"}
			case 1:
				u.Output = nil
			}
			_ = c.try(&state.AllocsReported{Node: n.ID, Allocs: []state.AllocUpdate{u}})
			return pick("more", 2) == 0
		})
	case 9:
		key := muster.JobKey{Namespace: "default", Name: fmt.Sprintf("j%d", pick("job", 6))}
		if j := snap.Job(key); j != nil {
			switch pick("act", 3) {
			case 0:
				_ = c.try(&state.JobStopped{Key: key})
			case 1:
				_ = c.try(&state.JobParked{UID: j.UID, Reason: []string{"", "why"}[pick("parked", 2)], Until: c.now + 5e6})
			case 2:
				_ = c.try(&state.JobsPurged{UIDs: []muster.JobUID{j.UID}})
			}
		}
	}
}

// rapidTB lets what fails within a check be made small and told with its seed.
type rapidTB struct {
	testing.TB
	rt *rapid.T
}

func (t rapidTB) Fatal(args ...any)                 { t.rt.Fatal(args...) }
func (t rapidTB) Fatalf(format string, args ...any) { t.rt.Fatalf(format, args...) }
