package place

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/state"
)

// dump is all of a view that decides anything.
func dump(v *View) string {
	var b strings.Builder
	var ids []muster.NodeID
	for id := range v.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		s := v.nodes[id]
		fmt.Fprintf(&b, "%s: %v %q in %d trees", id, s.space.Resources, s.space.Taken, len(s.trees))
		if len(s.trees) > 0 {
			fmt.Fprintf(&b, " %q %v %q", s.class.key, s.group.fresh, s.group.taken)
		}
		b.WriteByte('\n')
	}
	var groups []string
	for key, g := range v.groups {
		if g.nodes == 0 {
			continue
		}
		line := fmt.Sprintf("group %q %q %v:", key.class.key, key.taken, key.fresh)
		n := 0
		g.tight.each(func(s *seat) bool { line += " " + string(s.row.ID); n++; return true })
		if n != g.nodes {
			line += fmt.Sprintf(" (%d counted)", g.nodes)
		}
		groups = append(groups, line)
	}
	slices.Sort(groups)
	fmt.Fprintf(&b, "%s\nrunning %v\n", strings.Join(groups, "\n"), v.running)
	return b.String()
}

// checkTrees holds the order and the sums of every tree.
func checkTrees(t interface {
	Helper()
	Fatalf(string, ...any)
}, v *View) {
	var walk func(l *leaf) muster.Resources
	walk = func(l *leaf) muster.Resources {
		if l == nil {
			return muster.Resources{}
		}
		m := most(l.seat.space.Resources, most(walk(l.left), walk(l.right)))
		// A negative room is no less than none here.
		if l.left == nil && l.right == nil {
			m = l.seat.space.Resources
		}
		if l.left != nil && !l.left.before(l) || l.right != nil && !l.before(l.right) {
			t.Fatalf("node %s is out of order", l.seat.row.ID)
		}
		if !m.Fits(l.most) {
			t.Fatalf("below node %s there is %v, its sum says %v", l.seat.row.ID, m, l.most)
		}
		return m
	}
	for _, g := range v.groups {
		walk(g.tight.root)
		walk(g.worth.root)
	}
}

// A view that has followed the feed is the one that is built anew, and plans the same, whatever is out meanwhile.
func TestAdvancedIsRebuilt(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := fittest.New(t, 1000)
		draw(rt, c)
		v := NewView(c.Snapshot())
		var out []state.Placement
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			switch rapid.IntRange(0, 6).Draw(rt, "step") {
			case 6:
				c.Apply(&state.OfferingsSeen{Provider: "other", Offerings: []muster.Offering{{Provider: "other", Name: "o", Market: muster.Spot,
					Price: muster.Price(rapid.IntRange(1, 1000).Draw(rt, "price")), Capacity: muster.Resources{CPU: 1000, Memory: muster.GiB}, Available: true}}})
			case 0, 1: // plan, and let it be out
				d := v.Plan(c.Snapshot(), everyJob(c.Snapshot()), c.Now(), Limits{rapid.IntRange(1, 9).Draw(rt, "limit"), 1000})
				v.Return(d.Placements) // another worker's are never of the same jobs
				if rapid.Bool().Draw(rt, "commit") {
					for i := range d.Placements {
						p := &d.Placements[i]
						v.promise(p.Alloc(), promise{p.Node, c.Snapshot().JobByUID(p.UID).Run, p.Grant})
					}
					for _, s := range v.nodes {
						v.stir(s)
					}
					v.reseat()
					res := c.Apply(&state.PlanCommitted{Placements: d.Placements}).(*state.PlanResult)
					for _, r := range res.Refused {
						out = append(out, r.Placement)
					}
				}
			case 2:
				c.Do(fmt.Sprintf("job k%d count=2 cpu=0.5 memory=100MiB priority=%d", c.Now(), rapid.IntRange(0, 90).Draw(rt, "priority")))
			case 3:
				n := rapid.IntRange(0, 8).Draw(rt, "node")
				line := rapid.SampledFrom([]string{"health n%d lost", "health n%d good", "intent n%d hold", "intent n%d run", "drain n%d", "gone n%d", "rejoin n%d cpu=4 memory=8GiB zone=z1"}).Draw(rt, "event")
				facts, err := c.Facts(fmt.Sprintf(line, n))
				if err == nil {
					c.Apply(facts[0]) // may be refused
				}
			default:
				var live []*state.Alloc
				c.Snapshot().LiveAllocs(func(a *state.Alloc) bool { live = append(live, a); return true })
				if len(live) > 0 {
					a := live[rapid.IntRange(0, len(live)-1).Draw(rt, "which")]
					c.Do(fmt.Sprintf("end %s %d %s", a.UID, a.Index, rapid.SampledFrom([]string{"succeeded", "outside", "node-fault"}).Draw(rt, "how")))
				}
			}
			if rapid.Bool().Draw(rt, "follow") {
				follow(rt, v, c)
			}
		}
		v.Return(out)
		follow(rt, v, c)
		checkTrees(rt, v)
		anew := NewView(c.Snapshot())
		// It tells nodes apart by what the other has learned to ask for, also for shapes that it has forgotten since.
		asked := &fit.Shape{Keys: slices.Sorted(maps.Keys(v.warm))}
		for _, name := range v.names {
			asked.Constraints = append(asked.Constraints, muster.Constraint{Attribute: name})
		}
		anew.name(asked)
		if got, want := dump(v), dump(anew); got != want {
			rt.Fatalf("advanced\n%sanew\n%s", got, want)
		}
		if v.Out() != 0 {
			rt.Fatalf("%d are out", v.Out())
		}
		got := v.Plan(c.Snapshot(), everyJob(c.Snapshot()), c.Now(), Limits{50, 1000})
		want := Plan(c.Snapshot(), everyJob(c.Snapshot()), c.Now(), Limits{50, 1000})
		if a, b := show(c.Snapshot(), got), show(c.Snapshot(), want); a != b {
			rt.Fatalf("advanced it plans\n%sanew\n%s", a, b)
		}
	})
}

func follow(t *rapid.T, v *View, c *fittest.Cluster) {
	for {
		changes, last, err := c.State.Feed().After(v.Position(), 3)
		if err != nil {
			t.Fatal(err)
		}
		if len(changes) < 3 {
			if !v.Advance(changes, last) {
				v.Rebuild(c.Snapshot())
			}
			return
		}
		if !v.Advance(changes, changes[2].Index) {
			v.Rebuild(c.Snapshot())
			return
		}
		v.At(changes[2].Position())
	}
}

// What one worker has planned is not planned for again by the next, before and
// after it is committed; what was refused is.
func TestOutIsCountedIn(t *testing.T) {
	c := fittest.Read(t, "node n1 cpu=2 memory=8GiB\nnode n2 cpu=1 memory=8GiB\njob a count=2\njob b count=2\njob d")
	snap := c.Snapshot()
	v := NewView(snap)
	limits := Limits{100, 100}
	a := v.Plan(snap, []muster.JobUID{"a"}, c.Now(), limits)
	b := v.Plan(snap, []muster.JobUID{"b"}, c.Now(), limits)
	if got := show(snap, a) + show(snap, b); got != "n1: a[0]\nn2: a[1]\ndone: a\nn1: b[0]\nblocked: b, 1 waiting\n" {
		t.Fatalf("got\n%s", got)
	}
	v.Return(b.Placements)
	if got := show(snap, v.Plan(snap, []muster.JobUID{"d"}, c.Now(), limits)); got != "n1: d[0]\ndone: d\n" {
		t.Fatalf("got\n%s", got)
	}
	c.Apply(&state.PlanCommitted{Placements: a.Placements})
	changes, last, _ := c.State.Feed().After(v.Position(), 100)
	v.Advance(changes, last)
	if v.Out() != 1 || v.nodes["n1"].space.CPU != 0 {
		t.Fatalf("%d out, %v free", v.Out(), v.nodes["n1"].space)
	}
	if s := fit.SpaceOf(c.Snapshot().Node("n1")); s.CPU != 1000 {
		t.Fatalf("the state has %v", s)
	}
}

// each calls fn in order until it returns false.
func (t *tree) each(fn func(*seat) bool) { each(t.root, fn) }

func each(t *leaf, fn func(*seat) bool) bool {
	return t == nil || each(t.left, fn) && fn(t.seat) && each(t.right, fn)
}
