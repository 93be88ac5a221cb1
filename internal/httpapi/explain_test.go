package httpapi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// kinds makes two large nodes in zone a, of which one is held, and a small one in zone b.
func kinds(b *bench) {
	b.Helper()
	for i, zone := range []string{"a", "a", "b"} {
		id := muster.NodeID(fmt.Sprintf("n%d", i+1))
		capacity := muster.Resources{CPU: 4000, Memory: 8 * muster.GiB}
		if zone == "b" {
			capacity.CPU = 2000
		}
		b.propose(
			&state.NodeLaunching{ID: id, Token: muster.Token("t-" + id), Pool: "p", Offering: muster.Offering{Provider: "local", Name: "kind", Zone: zone, Capacity: capacity, Market: muster.OnDemand}},
			&state.NodeLaunched{ID: id, Instance: muster.InstanceID("i-" + id)},
			&state.NodeJoined{ID: id, Capacity: capacity, Agent: "v1"},
		)
	}
	b.propose(&state.NodeIntentSet{ID: "n2", Intent: muster.NodeHold})
}

const preview = `{"spec": {"name": "new", "count": 7, "command": ["true"], "priority": 60, "resources": {"cpu": 1, "memory": "1GiB"},
	"affinities": [{"attribute": "zone", "value": "b", "weight": 40}]}}`

// A preview tells by class what stands between a member and each node, what decides, and what those would wait for that find no room; and changes nothing.
func TestValidatePlan(t *testing.T) {
	b := newBench(t, 1000)
	kinds(b)
	before := b.state.Latest().Index()
	ask := func(body string) *api.JobPlan {
		t.Helper()
		v := as[api.JobValidation](b, b.do("POST", "/v1/jobs/validate?plan=true", body))
		if v.Plan == nil {
			t.Fatalf("no plan: %+v", v)
		}
		return v.Plan
	}
	p := ask(preview)
	if p.Placed != 6 || p.Waiting != 1 || p.More || len(p.Nodes) != 2 || p.Nodes[0].Node != "n3" || p.Nodes[0].Members != 2 || p.Nodes[1].Node != "n1" || p.Nodes[1].Members != 4 {
		t.Errorf("%+v", p)
	}
	if p.Nodes[0].Terms != "preference +40.0 (zone = b +40), tightness 0.31" {
		t.Errorf("terms %q", p.Nodes[0].Terms)
	}
	want := api.ScoreTerm{Name: "preference", Value: 40, Text: "preference +40.0"}
	if got := p.Nodes[0].Score; len(got) != 2 || got[0].Name != want.Name || got[0].Value != want.Value || got[0].Text != want.Text ||
		len(got[0].Of) != 1 || got[0].Of[0] != (api.ScorePart{Name: "zone = b", Value: 40, Text: "zone = b +40"}) || got[1].Name != "tightness" {
		t.Errorf("score %+v", got)
	}
	if !strings.Contains(p.Why, "2 short of cpu (1 asked, at most 0 free), 1 on hold") {
		t.Errorf("why %q", p.Why)
	}
	c := p.Considered
	if c.Nodes != 3 || c.Fitting != 2 || len(c.Classes) != 2 || c.Classes[0].Class != "p/kind, zone a, 4 cpu, 8GiB" || c.Classes[0].Nodes != 2 || c.Classes[0].Fitting != 1 ||
		len(c.Classes[0].Closed) != 1 || c.Classes[0].Closed[0] != (api.ConsiderCount{What: "on hold", Nodes: 1}) || c.Classes[1].Nodes != 1 {
		t.Errorf("%+v", c)
	}
	if len(p.Ranked) != 2 || p.Ranked[0].Node != "n3" || p.Ranked[1].Node != "n1" || p.Ranked[1].Class != c.Classes[0].Class {
		t.Errorf("%+v", p.Ranked)
	}
	says(t, p.Text, "Nodes: 3 nodes considered: 2 fitting, 1 on hold.", "NODES  CLASS", "2  p/kind, zone a, 4 cpu, 8GiB     1  1 on hold", "1. n3 (p/kind, zone b, 2 cpu, 8GiB): preference +40.0 (zone = b +40), tightness 0.31")
	if b.state.Latest().Index() != before {
		t.Error("something has changed")
	}

	// Who would give way, and why it is they.
	low := b.submit("default", "low", 1)
	b.place(low, "n3", 0, 1)
	p = ask(strings.Replace(strings.Replace(preview, `"count": 7`, `"count": 1`, 1), `"memory": "1GiB"}`, `"memory": "8GiB"}, "constraints": [{"attribute": "zone", "value": "b"}]`, 1))
	if p.Placed != 0 || p.Waiting != 1 || len(p.GiveWay) != 1 || len(p.Evictions) != 1 || p.Evictions[0].Node != "n3" || len(p.Evictions[0].Allocs) != 1 || p.Evictions[0].Allocs[0] != p.GiveWay[0] ||
		!strings.HasPrefix(p.Evictions[0].Terms, "1 allocation, of priority 50, ") || len(p.Evictions[0].Score) != 3 {
		t.Errorf("%+v", p)
	}
	if s := p.Considered.Short; len(s) != 1 || s[0].Resource != "memory" || s[0].Asked != 8*float64(muster.GiB) || s[0].Most >= s[0].Asked || len(p.Considered.Filtered) != 1 {
		t.Errorf("%+v", p.Considered)
	}

	// A limit is told, whatever room there is.
	b.propose(&state.NamespaceLimited{Limits: state.NamespaceLimits{Name: "default", Allocs: 2}})
	if p = ask(preview); p.Placed != 1 || p.Waiting != 6 || p.Why != "namespace default may have 2 allocations and has 2" {
		t.Errorf("%d placed, %d wait: %q", p.Placed, p.Waiting, p.Why)
	}
}

// A member that has an allocation is explained as if it had none, and the explanation says so; one that waits, as it is; one that has ended is not.
func TestExplainMember(t *testing.T) {
	b := newBench(t, 1000)
	kinds(b)
	uid := b.submit("default", "j", 4)
	b.place(uid, "n1", 0, 1)
	explain := func(member int) api.JobExplanation {
		t.Helper()
		return get[api.JobExplanation](b, fmt.Sprintf("/v1/jobs/default/j/explain?member=%d", member))
	}
	e := explain(0)
	says(t, e.Text, "Member 0 of job j is on node n1: allocation "+string(muster.NewAllocID(uid, 0, 1))+", placed", "are not recorded. The following shows where it would be placed now if it were unplaced.",
		"Member 0 would be placed on the first of these", "1. n3", "Currently on n1, which now ranks lower: tightness 0.00.")
	if e.Member == nil || *e.Member != 0 || e.Present == nil || e.Present.Node != "n1" || e.Present.Obstacle != "" || len(e.Present.Score) != 1 || len(e.Ranked) != 2 || e.Ranked[0].Node != "n3" ||
		e.Considered.Fitting != 2 || len(e.Considered.Classes) != 2 {
		t.Errorf("%+v", e)
	}
	b.propose(&state.NodeIntentSet{ID: "n1", Intent: muster.NodeDrain})
	e = explain(0)
	says(t, e.Text, "Member 0 would be placed on n3: tightness 0.00.", "Currently on n1, which would not be chosen now: it is set to drain.")
	if e.Present.Obstacle != "it is set to drain" || e.Present.Terms != "" || e.Considered.Fitting != 1 {
		t.Errorf("%+v", e)
	}
	e = explain(3)
	says(t, e.Text, "Member 3 of job j, which has priority 50, was not placed yet.", "Member 3 would be placed on n3", "`muster explain j` shows")
	if e.Present != nil || *e.Member != 3 {
		t.Errorf("%+v", e)
	}
	whole := get[api.JobExplanation](b, "/v1/jobs/default/j/explain")
	says(t, whole.Text, "Of 4 members, 3 wait", "Ignoring queue order, 3 members of it would be placed now:", "3 on n3: tightness 0.00", "A member may be placed at any moment.")
	if whole.Member != nil || len(whole.Nodes) != 1 || whole.Nodes[0].Members != 3 || len(whole.Nodes[0].Score) != 1 {
		t.Errorf("%+v", whole)
	}

	b.report("n1", state.AllocUpdate{ID: muster.NewAllocID(uid, 0, 1), Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded, Output: &state.Output{Stage: state.OutputComplete}})
	e = explain(0)
	says(t, e.Text, "Member 0 of job j has ended: succeeded.")
	if e.Considered != nil {
		t.Errorf("%+v", e.Considered)
	}
	b.problem(b.do("GET", "/v1/jobs/default/j/explain?member=4", ""), 404, "not-found")
	b.problem(b.do("GET", "/v1/jobs/default/nope/explain?member=0", ""), 404, "not-found")

	// When nothing of it waits, it is told where another would go.
	b.place(uid, "n3", 1, 3)
	e = get[api.JobExplanation](b, "/v1/jobs/default/j/explain")
	says(t, e.Text, "No member of job j waits", "where another member would be placed now", "Another member would be placed on n3")
}
