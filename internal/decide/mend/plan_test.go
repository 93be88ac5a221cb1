package mend

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

var update = flag.Bool("update", false, "rewrite golden files")

// cluster is a state and what its fleet has seen and done, driven by text:
//
//	pool p [static]          boot 5m, grace 1m
//	node n1 launching|booting|adopted|serving|draining|terminating [lost] [hold] [broken] [busy] [exclusive]
//	lost n1 / good n1 / terminate n1 / gone n1
//	creating n1 / tried n1 / destroying n1 / destroyed n1 / notbefore n1 10s
//	unexplained p xxx        so many were destroyed for lost contact
//	trip / resume            the breaker trips / an operator resumes the pool
//	denied n1 / noboot n1 why / holdfor n1 1h / drainfor n1 10m
//	busy n1 / drain n1       one more allocation runs there / it drains
//	due n1 10s               so long from now what runs on it is to have ended
//	notice n1 2m             the cloud takes it then
//	leader                   another leader begins
//	list n1 n2 / cut n1      a complete list with the instances of n1 and n2 / one that is not complete
//	sleep 10s
//	plan                     prints what is planned
type cluster struct {
	t     fataler
	s     *state.State
	index uint64
	now   muster.Time
	term  uint64
	sight *Sight
	mem   Memory
	out   strings.Builder
	jobs  int
}

type fataler interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func newCluster(t fataler) *cluster {
	s, err := state.New(64)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, s: s, now: muster.At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), sight: &Sight{Provider: "fake"}}
	c.mem = Memory{Creating: map[muster.NodeID]bool{}, Destroying: map[muster.NodeID]bool{}, Tried: map[muster.NodeID]muster.Time{},
		Destroyed: map[muster.NodeID]muster.Time{}, NotBefore: map[muster.NodeID]muster.Time{},
		Due: map[muster.AllocID]muster.Time{}, Notices: map[muster.NodeID]Notice{}}
	c.lead()
	return c
}

func (c *cluster) lead() {
	c.term++
	c.do(&state.TermBegan{Term: c.term, Cluster: "c"})
}

func (c *cluster) do(f state.Fact) {
	c.t.Helper()
	b, err := c.s.Encode(f)
	if err != nil {
		c.t.Fatal(err)
	}
	c.index++
	if err, refused := c.s.Apply(c.index, c.term, int64(c.now), [][]byte{b})[0].(error); refused {
		c.t.Fatalf("%T: %v", f, err)
	}
}

var room = muster.Resources{CPU: 8000, Memory: muster.GiB}

func (c *cluster) node(id muster.NodeID, stage muster.NodeStage, flags ...string) {
	c.t.Helper()
	o := muster.Offering{Provider: "fake", Name: "o", Capacity: room}
	if stage == muster.NodeAdopted {
		c.do(&state.NodeAdopted{ID: id, Token: muster.Token("t" + id), Pool: "p", Offering: o, Instance: muster.InstanceID("i" + id)})
	} else {
		c.do(&state.NodeLaunching{ID: id, Token: muster.Token("t" + id), Pool: "p", Offering: o})
	}
	unmade := slices.Contains(flags, "unmade")
	if stage != muster.NodeLaunching && stage != muster.NodeAdopted && !unmade {
		c.do(&state.NodeLaunched{ID: id, Instance: muster.InstanceID("i" + id)})
	}
	if !unmade && (stage == muster.NodeServing || stage == muster.NodeDraining || stage == muster.NodeTerminating) {
		c.do(&state.NodeJoined{ID: id, Capacity: room, Boot: "b"})
	}
	if slices.Contains(flags, "busy") || slices.Contains(flags, "exclusive") {
		c.busy(id, flags...)
	}
	switch stage {
	case muster.NodeDraining:
		c.do(&state.NodeDraining{ID: id, Reason: "surplus"})
	case muster.NodeTerminating:
		c.do(&state.NodeTerminating{ID: id, Reason: "not wanted"})
	}
	for _, f := range flags {
		switch f {
		case "lost", "broken":
			c.do(&state.NodeHealthChanged{ID: id, Health: muster.NodeHealth(f), Reason: f})
		case "hold":
			c.do(&state.NodeIntentSet{ID: id, Intent: muster.NodeHold})
		}
	}
}

// busy puts one more allocation on a node.
func (c *cluster) busy(id muster.NodeID, flags ...string) {
	c.t.Helper()
	c.jobs++
	name := fmt.Sprintf("j%d", c.jobs)
	p := 50
	c.do(&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: name}, UID: muster.JobUID(name), Spec: &api.JobSpec{
		Name: name, Namespace: "default", Type: "batch", Count: 1, Template: api.Template{Priority: &p, Command: []string{"true"}, Resources: api.ResourcesSpec{CPU: 1, Memory: 1}}, Exclusive: slices.Contains(flags, "exclusive")}})
	c.do(&state.PlanCommitted{Placements: []state.Placement{{UID: muster.JobUID(name), Version: 1, Index: 0, Attempt: 1, Node: id}}})
}

func (c *cluster) list(complete bool, ids ...string) {
	l := &List{Asked: c.now, Complete: complete}
	for _, id := range ids {
		l.Instances = append(l.Instances, Instance{ID: muster.InstanceID("i" + id), Token: muster.Token("t" + id), Node: muster.NodeID(id), Pool: "p", Offering: "o"})
	}
	c.sight.Take(l, c.s.Latest())
	strays, adopt := Reconcile(c.s.Latest(), "fake", l)
	for _, s := range strays {
		fmt.Fprintf(&c.out, "stray %s: %s\n", s.Instance, s.Reason)
	}
	for _, a := range adopt {
		fmt.Fprintf(&c.out, "adopt %s as %q in %s\n", a.Instance, a.Node, a.Pool)
	}
}

func (c *cluster) plan() *Decisions {
	return Plan(c.s.Latest(), map[muster.ProviderName]*Sight{"fake": c.sight}, &c.mem, c.now)
}

func (c *cluster) line(line string) {
	c.t.Helper()
	words := strings.Fields(line)
	if len(words) == 0 || words[0] == "#" {
		return
	}
	id := func() muster.NodeID { return muster.NodeID(words[1]) }
	switch words[0] {
	case "pool":
		p := state.Pool{Name: "p", Provider: "fake", Max: 10, BootTimeout: 300e6, Grace: 60e6}
		p.Static = slices.Contains(words, "static")
		c.do(&state.PoolsSet{Pools: []state.Pool{p}})
	case "node":
		c.node(id(), muster.NodeStage(words[2]), words[3:]...)
	case "lost", "good":
		c.do(&state.NodeHealthChanged{ID: id(), Health: muster.NodeHealth(words[0]), Reason: "r"})
	case "terminate":
		c.do(&state.NodeTerminating{ID: id(), Reason: "not wanted"})
	case "denied":
		c.do(&state.NodeHealthChanged{ID: id(), Health: muster.NodeLost, Reason: "r", Denied: true})
	case "noboot":
		c.do(&state.NodeHealthChanged{ID: id(), Health: muster.NodeUnready, Reason: strings.Join(words[2:], " ")})
	case "trip":
		c.do(&state.PoolTripped{Pool: "p", Reason: "r"})
	case "holdfor":
		d, _ := time.ParseDuration(words[2])
		c.do(&state.NodeIntentSet{ID: id(), Intent: muster.NodeHold, Until: c.now.Add(d)})
	case "drainfor":
		d, _ := time.ParseDuration(words[2])
		c.do(&state.NodeIntentSet{ID: id(), Intent: muster.NodeDrain, Until: c.now.Add(d)})
	case "gone":
		c.do(&state.NodeGone{ID: id()})
	case "purge":
		c.do(&state.NodesPurged{IDs: []muster.NodeID{id()}})
	case "creating":
		c.mem.Creating[id()] = true
	case "tried":
		delete(c.mem.Creating, id())
		c.mem.Tried[id()] = c.now
	case "destroying":
		c.mem.Destroying[id()] = true
	case "destroyed":
		delete(c.mem.Destroying, id())
		c.mem.Destroyed[id()] = c.now
	case "notbefore":
		d, _ := time.ParseDuration(words[2])
		c.mem.NotBefore[id()] = c.now.Add(d)
	case "unexplained":
		for i := range len(words[2]) {
			id := muster.NodeID(fmt.Sprintf("unexplained%d", i))
			c.node(id, muster.NodeServing, "lost")
			c.do(&state.NodeTerminating{ID: id, Unexplained: true})
			c.do(&state.NodeGone{ID: id})
			c.do(&state.NodesPurged{IDs: []muster.NodeID{id}})
		}
	case "busy":
		c.busy(id())
	case "drain":
		c.do(&state.NodeDraining{ID: id()})
	case "due":
		d, _ := time.ParseDuration(words[2])
		c.s.Latest().NodeAllocs(id(), func(a *state.Alloc) bool { c.mem.Due[a.ID] = c.now.Add(d); return true })
	case "notice":
		d, _ := time.ParseDuration(words[2])
		c.mem.Notices[id()] = Notice{Heard: c.now, At: c.now.Add(d)}
	case "resume":
		c.do(&state.PoolResumed{Pool: "p"})
	case "leader":
		c.lead()
	case "list":
		c.list(true, words[1:]...)
	case "cut":
		c.list(false, words[1:]...)
	case "sleep":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			c.t.Fatal(err)
		}
		c.now = c.now.Add(d)
	case "plan":
		c.print(c.plan())
	default:
		c.t.Fatalf("line %q", line)
	}
}

func (c *cluster) print(d *Decisions) {
	before := c.out.Len()
	for _, f := range d.Launched {
		fmt.Fprintf(&c.out, "launched %s %s\n", f.Node, f.Instance)
	}
	for _, id := range d.Create {
		fmt.Fprintf(&c.out, "create %s\n", id)
	}
	for _, id := range d.Destroy {
		fmt.Fprintf(&c.out, "destroy %s\n", id)
	}
	for _, t := range d.Drain {
		fmt.Fprintf(&c.out, "drain %s: %s\n", t.Node, t.Reason)
	}
	for _, t := range d.Overdue {
		fmt.Fprintf(&c.out, "overdue %s: %s\n", t.Node, t.Reason)
	}
	for _, t := range d.Terminate {
		giveUp := ""
		if t.GiveUp {
			giveUp = "; its work is given up"
		}
		fmt.Fprintf(&c.out, "terminate %s: %s%s\n", t.Node, t.Reason, giveUp)
	}
	for _, t := range d.Gone {
		fmt.Fprintf(&c.out, "gone %s: %s\n", t.Node, t.Reason)
	}
	for _, l := range d.Looks {
		fmt.Fprintf(&c.out, "list %s in %s\n", l.Provider, l.At.Sub(c.now))
	}
	for _, p := range d.Tripped {
		fmt.Fprintf(&c.out, "tripped %s: %s\n", p.Pool, p.Reason)
	}
	for _, r := range d.Release {
		fmt.Fprintf(&c.out, "release %s, held until %s ago\n", r.Node, c.now.Sub(r.Until))
	}
	for _, r := range d.Evict {
		fmt.Fprintf(&c.out, "evict %s, due %s ago\n", r.Node, c.now.Sub(r.Until))
	}
	if d.Wake != 0 {
		fmt.Fprintf(&c.out, "wake in %s\n", d.Wake.Sub(c.now))
	}
	if c.out.Len() == before {
		c.out.WriteString("nothing\n")
	}
}

// TestPlan reads testdata/plan.txt: each line that begins with ">" is what came of the lines before it.
func TestPlan(t *testing.T) {
	const file = "testdata/plan.txt"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, part := range strings.Split(string(data), "== ")[1:] {
		name, rest, _ := strings.Cut(part, "\n")
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			got := "== " + name + "\n"
			for _, line := range strings.Split(strings.TrimSpace(rest), "\n") {
				if strings.HasPrefix(line, ">") {
					continue
				}
				got += line + "\n"
				c.line(line)
				for _, said := range strings.Split(strings.TrimSpace(c.out.String()), "\n") {
					if said != "" {
						got += "> " + said + "\n"
					}
				}
				c.out.Reset()
			}
			all.WriteString(got + "\n")
			if want := "== " + strings.TrimSpace(part) + "\n"; got != want && !*update {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
	if *update {
		if err := os.WriteFile(file, []byte(strings.TrimSpace(all.String())+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGoneOnlyWhenConfirmed: whatever lists come, complete or cut, with or
// without the instance, a node is declared gone only after all complete lists
// for a second, and for ten if work is on it, asked for after the last sign of life, did not have it.
func TestGoneOnlyWhenConfirmed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t)
		c.line("pool p")
		apart := Apart
		if rapid.Bool().Draw(t, "busy") {
			c.line("node n1 serving busy")
			apart = Agreement
		} else {
			c.line("node n1 serving")
		}
		type seen struct {
			at   muster.Time
			here bool
		}
		var lists []seen
		var lostAt muster.Time
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			c.now = c.now.Add(time.Duration(rapid.IntRange(0, int(apart.Milliseconds())*9/10).Draw(t, "ms")) * time.Millisecond)
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0:
				if c.s.Latest().Node("n1").Health == muster.NodeGood {
					// Never in the microsecond of a list that was asked for while it was lost before.
					c.now = c.now.Add(time.Microsecond)
					c.line("lost n1")
					lostAt, lists = c.now, nil
				}
			case 1:
				if c.s.Latest().Node("n1").Health == muster.NodeLost {
					c.line("good n1")
				}
			case 2:
				c.list(true, "n1")
				lists = append(lists, seen{c.now, true})
			case 3, 4, 5:
				c.list(true)
				lists = append(lists, seen{c.now, false})
			case 6:
				c.list(false)
			}
			d := c.plan()
			confirmed := false
			if c.s.Latest().Node("n1").Health == muster.NodeLost && len(lists) > 0 {
				first := muster.Time(0)
				for _, l := range lists {
					if l.here {
						first = 0
					} else if first == 0 && l.at >= lostAt {
						first = l.at
					}
				}
				confirmed = first != 0 && lists[len(lists)-1].at.Sub(first) >= apart
			}
			if (len(d.Gone) > 0) != confirmed {
				t.Fatalf("gone %v, confirmed %v: lost at %d, lists %v", d.Gone, confirmed, lostAt, lists)
			}
		}
	})
}

// TestShortNotice: of a notice of 30 s the work keeps two thirds.
func TestShortNotice(t *testing.T) {
	for _, c := range []struct{ lead, last time.Duration }{
		{2 * time.Minute, 20 * time.Second}, {time.Minute, 20 * time.Second}, {30 * time.Second, 10 * time.Second}, {0, 0}, {-time.Second, 0},
	} {
		if n := (Notice{Heard: 1e9, At: muster.Time(1e9).Add(c.lead)}); n.last() != c.last {
			t.Errorf("of %s the last %s, want %s", c.lead, n.last(), c.last)
		}
	}
}
