package share

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// rig is a state with jobs of one-core members in namespaces.
type rig struct {
	t rapid.TB
	s *state.State
	n uint64
}

func newRig(t rapid.TB) *rig {
	s, err := state.New(64)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, s: s}
}

func (r *rig) do(f state.Fact) {
	b, err := r.s.Encode(f)
	if err != nil {
		r.t.Fatal(err)
	}
	r.n++
	if err, bad := r.s.Apply(r.n, 1, int64(r.n), [][]byte{b})[0].(error); bad {
		r.t.Fatalf("%T: %v", f, err)
	}
}

func (r *rig) job(ns string, count int) *state.Job {
	priority := 50
	spec := &api.JobSpec{Count: count, Template: api.Template{Priority: &priority, Resources: api.ResourcesSpec{CPU: 1, Memory: 1}}, Type: "batch"}
	uid := muster.JobUID(fmt.Sprintf("%s-%d", ns, r.n))
	r.do(&state.JobSubmitted{Key: muster.JobKey{Namespace: muster.Namespace(ns), Name: string(uid)}, UID: uid, Spec: spec})
	return r.s.Latest().JobByUID(uid)
}

// run places so many one-core members of a namespace on a node of its own.
func (r *rig) run(ns string, count int) {
	if count == 0 {
		return
	}
	j := r.job(ns, count)
	node := muster.NodeID("n" + string(j.UID))
	room := muster.Resources{CPU: muster.MilliCPU(count) * 1000, Memory: muster.GiB}
	r.do(&state.NodeLaunching{ID: node, Token: muster.Token(node), Offering: muster.Offering{Capacity: room}})
	r.do(&state.NodeLaunched{ID: node, Instance: "i"})
	r.do(&state.NodeJoined{ID: node, Capacity: room})
	r.do(&state.NodeHealthChanged{ID: node, Health: muster.NodeGood})
	var ps []state.Placement
	for i := range count {
		ps = append(ps, state.Placement{UID: j.UID, Version: 1, Index: i, Attempt: 1, Node: node})
	}
	r.do(&state.PlanCommitted{Placements: ps})
	if got := r.s.Latest().JobByUID(j.UID).Placed; got != count {
		r.t.Fatalf("%d of %d are placed", got, count)
	}
}

// starts takes turns until there is no more room.
func starts(t *Turns, room int) map[string]int {
	out := map[string]int{}
	left := map[muster.JobUID]int{}
	for room > 0 {
		j, n := t.Next()
		if j == nil {
			break
		}
		if _, seen := left[j.UID]; !seen {
			left[j.UID] = j.Waiting()
		}
		n = min(n, left[j.UID], room)
		left[j.UID] -= n
		room -= n
		out[string(j.Key.Namespace)] += n
		t.Placed(n, left[j.UID] == 0)
	}
	return out
}

// party is one namespace, each a class of its own, all of whose members have one core.
type party struct{ weight, running, waiting int }

// oneByOne gives room one by one to the party that, with one more, has the least for its weight; the
// heavier first, then the first. Those without a weight divide evenly what is left.
func oneByOne(room int, parties []party) []int {
	starts := make([]int, len(parties))
	for range room {
		best := -1
		for i := range parties {
			p := &parties[i]
			if starts[i] >= p.waiting {
				continue
			}
			if best < 0 {
				best = i
				continue
			}
			b := &parties[best]
			switch {
			case p.weight == 0 && b.weight > 0:
			case p.weight > 0 && b.weight == 0:
				best = i
			default:
				wp, wb := max(p.weight, 1), max(b.weight, 1)
				l, r := (p.running+starts[i]+1)*wb, (b.running+starts[best]+1)*wp
				if l < r || l == r && wp > wb {
					best = i
				}
			}
		}
		if best < 0 {
			break
		}
		starts[best]++
	}
	return starts
}

// divide has turns give room to the parties; split says how many of the members that a party still wants are one job.
func divide(t rapid.TB, room int, parties []party, split func(left int) int) []int {
	r := newRig(t)
	name := func(i int) string { return fmt.Sprintf("n%d", i) }
	var rules []state.ShareRule
	for i, p := range parties {
		rules = append(rules, state.ShareRule{Match: name(i), Weight: p.weight})
		r.run(name(i), p.running)
	}
	r.do(&state.SharesSet{Rules: rules})
	// A power of two, so that parts of it are exact.
	turns := NewTurns(r.s.Latest(), muster.Resources{CPU: 1 << 20, Memory: muster.TiB})
	for i, p := range parties {
		for left := p.waiting; left > 0; {
			n := split(left)
			turns.Add(r.job(name(i), n))
			left -= n
		}
	}
	got := starts(turns, room)
	have := make([]int, len(parties))
	for i := range have {
		have[i] = got[name(i)]
	}
	return have
}

// Turns, taken several at once, divide room as giving it one by one does: all room is used while somebody waits, and nobody
// gets more than it waits for.
func TestTurnsDivide(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		parties := make([]party, rapid.IntRange(1, 5).Draw(rt, "namespaces"))
		for i := range parties {
			parties[i] = party{rapid.IntRange(0, 4).Draw(rt, "weight"), rapid.IntRange(0, 9).Draw(rt, "running"), rapid.IntRange(0, 20).Draw(rt, "waiting")}
		}
		room := rapid.IntRange(0, 60).Draw(rt, "room")
		have := divide(rt, room, parties, func(left int) int { return rapid.IntRange(1, left).Draw(rt, "job") })
		if want := oneByOne(room, parties); !slices.Equal(have, want) {
			rt.Fatalf("room %d, %v: turns give %v, one by one %v", room, parties, have, want)
		}
	})
}

func TestTurnsDivideExamples(t *testing.T) {
	for name, tc := range map[string]struct {
		room    int
		parties []party
		want    []int
	}{
		"those below their share come first": {290,
			[]party{{30, 200, 290}, {25, 300, 230}, {20, 0, 150}, {15, 100, 150}, {10, 110, 90}, {0, 0, 328}}, []int{94, 0, 150, 46, 0, 0}},
		"an unused share is lent": {290,
			[]party{{30, 200, 10}, {25, 300, 230}, {20, 0, 0}, {15, 100, 50}, {10, 110, 90}, {0, 0, 328}}, []int{10, 157, 0, 50, 73, 0}},
		"capacity for one":                   {1, []party{{1, 5, 3}, {1, 5, 3}, {1, 0, 0}}, []int{1, 0, 0}},
		"without a weight: what is left":     {10, []party{{1, 0, 4}, {0, 0, 9}, {0, 2, 9}}, []int{4, 4, 2}},
		"without a weight: nothing is left":  {3, []party{{1, 0, 4}, {0, 0, 9}}, []int{3, 0}},
		"without a weight: divided evenly":   {5, []party{{0, 0, 9}, {0, 0, 9}}, []int{3, 2}},
		"no capacity":                        {0, []party{{1, 0, 4}}, []int{0}},
		"less capacity than is used already": {-5, []party{{1, 0, 4}}, []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := divide(t, tc.room, tc.parties, func(left int) int { return left }); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// Namespaces of one class share its weight, and are served first come, first served.
func TestTurnsOfOneClass(t *testing.T) {
	r := newRig(t)
	r.do(&state.SharesSet{Rules: []state.ShareRule{{Match: "t*", Class: "teams", Weight: 1}, {Match: "*", Weight: 1}}})
	turns := NewTurns(r.s.Latest(), muster.Resources{CPU: 1 << 20, Memory: muster.TiB})
	for _, ns := range []string{"t1", "t2", "solo"} {
		turns.Add(r.job(ns, 10))
	}
	got := starts(turns, 12)
	if got["t1"] != 6 || got["t2"] != 0 || got["solo"] != 6 {
		t.Errorf("got %v", got)
	}
}
