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
	spec := &api.JobSpec{Count: count, Priority: &priority, Type: "batch", Resources: api.ResourcesSpec{CPU: 1, Memory: 1}}
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

// Turns, taken several at once, divide room as Divide does.
func TestTurnsDivide(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(rt)
		var rules []state.ShareRule
		var parties []Party
		count := rapid.IntRange(1, 5).Draw(rt, "namespaces")
		for i := range count {
			p := Party{fmt.Sprintf("namespace n%d", i), rapid.IntRange(0, 4).Draw(rt, "weight"), rapid.IntRange(0, 9).Draw(rt, "running"), rapid.IntRange(0, 20).Draw(rt, "waiting")}
			parties = append(parties, p)
			rules = append(rules, state.ShareRule{Match: fmt.Sprintf("n%d", i), Weight: p.Weight})
			r.run(fmt.Sprintf("n%d", i), p.Running)
		}
		r.do(&state.SharesSet{Rules: rules})
		room := rapid.IntRange(0, 60).Draw(rt, "room")
		// A power of two, so that parts of it are exact.
		turns := NewTurns(r.s.Latest(), muster.Resources{CPU: 1 << 20, Memory: muster.TiB})
		for i, p := range parties {
			for left := p.Waiting; left > 0; {
				n := rapid.IntRange(1, left).Draw(rt, "job")
				turns.Add(r.job(fmt.Sprintf("n%d", i), n))
				left -= n
			}
		}
		got := starts(turns, room)
		want := Divide(room, parties)
		have := make([]int, len(want))
		for i := range have {
			have[i] = got[fmt.Sprintf("n%d", i)]
		}
		if !slices.Equal(have, want) {
			rt.Fatalf("room %d, %v: turns give %v, dividing %v", room, parties, have, want)
		}
	})
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
