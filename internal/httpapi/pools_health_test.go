package httpapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// How a pool's nodes are is seen: sidelined, suspect when more fail than may be, and what they have at hand.
func TestPoolHealthAndLocality(t *testing.T) {
	b := newBench(t, 1000)
	b.log.began = time.Now().Add(-time.Minute)
	b.propose(&state.PoolsSet{Pools: []state.Pool{{Name: "p", Provider: "local", Max: 9, MaxLaunching: 9, IdleTimeout: 60e6, BootTimeout: 300e6, Grace: 60e6}}})
	for i := range 4 {
		b.node(muster.NodeID(fmt.Sprintf("n%d", i)))
	}
	for i := range 2 {
		spec := api.JobSpec{Name: fmt.Sprintf("j%d", i), Namespace: "default", Template: api.Template{Command: []string{"true"}}, Affinity: "set"}
		spec.Defaults()
		uid := muster.JobUID(fmt.Sprintf("warm%d", i))
		b.propose(&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: spec.Name}, UID: uid, Spec: &spec})
		b.place(uid, muster.NodeID(fmt.Sprintf("n%d", i)), 0, 1)
	}
	fail := func(id muster.NodeID) {
		for range state.FlakyFailures {
			b.propose(&state.NodeFailed{ID: id, Reason: "no loop device"})
		}
	}
	fail("n0")
	p := get[api.Pool](b, "/v1/pools/p")
	if p.Nodes.Sidelined != 1 || p.Nodes.Warm != 2 || p.Suspect != nil {
		t.Errorf("%+v", p)
	}
	if !slices.ContainsFunc(p.Locality, func(w api.LocalityKey) bool { return strings.Contains(w.Key, "set") && w.Nodes == 2 }) {
		t.Errorf("%+v", p.Locality)
	}
	n := get[api.Node](b, "/v1/nodes/n0")
	if n.Health != "flaky" || n.Sidelined == nil || len(n.Failures) != 3 || n.Failures[0].What != "no loop device" || len(n.Warm) != 1 || n.WarmAt == nil || n.Schedulable {
		t.Errorf("%+v", n)
	}
	// One of four may be sidelined at once.
	fail("n1")
	p = get[api.Pool](b, "/v1/pools/p")
	if p.Nodes.Sidelined != 1 || p.Suspect == nil || p.Suspect.Most != 1 || !strings.Contains(p.Suspect.Why, "node n1 fails as well: no loop device") {
		t.Errorf("%+v %+v", p.Nodes, p.Suspect)
	}
	if list := get[api.PoolList](b, "/v1/pools"); list.Pools[0].Suspect == nil || list.Pools[0].Nodes.Sidelined != 1 {
		t.Errorf("%+v", list)
	}
	said := false
	for _, ev := range b.events("after=oldest") {
		said = said || ev.Type == "pool.suspect"
	}
	if !said {
		t.Error("no event says that the pool is suspect")
	}
}
