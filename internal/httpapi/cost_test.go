package httpapi

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// dear makes a serving node whose price is such that a second costs 1.
func (b *bench) dear(id muster.NodeID, pool muster.PoolName) {
	b.Helper()
	capacity := muster.Resources{CPU: 4, Memory: 4 << 20}
	b.propose(
		&state.NodeLaunching{ID: id, Token: muster.Token("t-" + id), Pool: pool, Offering: muster.Offering{Provider: "local", Name: "big", Price: 3_600_000_000, Capacity: capacity, Market: muster.OnDemand}},
		&state.NodeLaunched{ID: id, Instance: muster.InstanceID("i-" + id)},
		&state.NodeJoined{ID: id, Capacity: capacity, Agent: "v1"},
	)
}

func near(got, want float64) bool { return math.Abs(got-want) < 1e-3 }

func TestCost(t *testing.T) {
	b := newBench(t, 100)
	none := get[api.Cost](b, "/v1/cost")
	if none.Rows == nil || len(none.Rows) != 0 || none.Total != (api.CostAmount{}) || none.By != "job" {
		t.Errorf("of nothing: %+v", none)
	}
	// Entries come a second apart, from September 2026 on. A member takes a quarter of a node.
	b.dear("n1", "p")
	one, two := b.submit("default", "one", 2), b.submit("team", "two", 1)
	ids := append(b.place(one, "n1", 0, 2), b.place(two, "n1", 0, 1)...) // a second apart
	b.report("n1", succeeded(ids[0]), succeeded(ids[1]))                 // one: 2 × ¼ × 2 s
	b.report("n1", succeeded(ids[2]))                                    // two: ¼ × 2 s
	b.dear("n2", "q")
	b.propose(&state.NodeGone{ID: "n1"}) // 8 s after its launch
	b.propose(&state.NodeGone{ID: "n2"}) // 2 s
	got := get[api.Cost](b, "/v1/cost?since=2026-09")
	if len(got.Rows) != 2 || got.Rows[0].Job != "one" || got.Rows[1].Namespace != "team" || got.Rows[1].Job != "two" || got.More != nil {
		t.Fatalf("%+v", got)
	}
	for what, c := range map[string]struct{ got, want float64 }{
		"one": {got.Rows[0].Cost, 1}, "two": {got.Rows[1].Cost, .5}, "jobs": {got.Jobs.Cost, 1.5}, "total": {got.Total.Cost, 10}, "idle": {got.Idle.Cost, 8.5},
		"hours of one": {got.Rows[0].Hours * 3600, 1}, "hours": {got.Total.Hours * 3600, 10},
	} {
		if !near(c.got, c.want) {
			t.Errorf("%s: %g, want %g in %+v", what, c.got, c.want, got)
		}
	}
	if !got.Since.Equal(time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)) || got.Until.Before(got.Since) || got.Index != b.state.Latest().Index() {
		t.Errorf("%+v", got)
	}

	pools := get[api.Cost](b, "/v1/cost?since=2026-09&by=pool")
	if len(pools.Rows) != 2 || pools.Rows[0].Pool != "p" || !near(pools.Rows[0].Cost, 8) || pools.Rows[0].Idle == nil || !near(pools.Rows[0].Idle.Cost, 6.5) || !near(pools.Rows[1].Idle.Cost, 2) {
		t.Errorf("by pool: %+v", pools.Rows)
	}
	spaces := get[api.Cost](b, "/v1/cost?since=2026-01&by=namespace")
	if len(spaces.Rows) != 2 || spaces.Rows[0].Namespace != "default" || spaces.Rows[0].Job != "" || spaces.Rows[0].Idle != nil || !near(spaces.Rows[0].Cost, 1) {
		t.Errorf("by namespace: %+v", spaces.Rows)
	}
	months := get[api.Cost](b, "/v1/cost?since=2026-01&by=month")
	if len(months.Rows) != 1 || months.Rows[0].Month != "2026-09" || !near(months.Rows[0].Cost, 10) || !near(months.Rows[0].Idle.Cost, 8.5) {
		t.Errorf("by month: %+v", months.Rows)
	}
	first := get[api.Cost](b, "/v1/cost?since=2026-09&limit=1")
	if len(first.Rows) != 1 || first.More == nil || first.More.Rows != 1 || !near(first.More.Cost, .5) || !near(first.Total.Cost, 10) {
		t.Errorf("one row: %+v", first)
	}
	if later := get[api.Cost](b, "/v1/cost?since=2126-01"); len(later.Rows) != 0 || later.Total.Cost != 0 {
		t.Errorf("in a hundred years: %+v", later)
	}
	for _, bad := range []string{"since=2026", "since=2026-13", "since=yesterday", "by=node", "limit=0", "limit=20000"} {
		b.problem(b.do("GET", "/v1/cost?"+bad, ""), http.StatusUnprocessableEntity, "invalid")
	}
}

func succeeded(id muster.AllocID) state.AllocUpdate {
	return state.AllocUpdate{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded}
}

// What lives is counted up to now, and the series of what was spent never falls.
func TestCostMetrics(t *testing.T) {
	b := newBench(t, 100)
	b.propose(&state.PoolsSet{Pools: []state.Pool{{Name: "p", Provider: "local", Max: 7, BudgetHour: 2_500_000, BudgetMonth: 90_000_000}, {Name: "q", Provider: "local", Max: 1}}})
	first := b.scrape()
	b.want(first, map[string]string{
		`muster_spend_total{pool="p"}`: "0", `muster_spent_month{part="idle",pool="q"}`: "0", `muster_pool_max{pool="p"}`: "7", `muster_pool_nodes{pool="p"}`: "0",
		`muster_pool_budget{per="hour",pool="p"}`: "2.5", `muster_pool_budget{per="month",pool="p"}`: "90", `muster_pool_budget{per="month",pool="q"}`: "0",
	})
	b.dear("n1", "p")
	b.dear("n2", "p")
	b.dear("n3", "p")
	b.propose(&state.NodeIntentSet{ID: "n2", Intent: muster.NodeHold})
	b.propose(&state.NodeHealthChanged{ID: "n3", Health: muster.NodeLost})
	b.propose(&state.NodeLaunching{ID: "n4", Token: "t4", Pool: "p", Offering: muster.Offering{Provider: "local", Name: "big", Price: 1_500_000, Capacity: muster.Resources{CPU: 2500, Memory: muster.GiB}}})
	b.place(b.submit("default", "j", 1), "n1", 0, 1)
	labels := func(c string) string { return `{category="` + c + `",offering="big",provider="local"}` }
	got := b.scrape()
	b.want(got, map[string]string{
		"muster_instances" + labels("inuse"): "1", "muster_instances" + labels("hold"): "1", "muster_instances" + labels("unknown"): "1",
		"muster_instances" + labels("booting"): "1", "muster_instances" + labels("idle"): "0",
		"muster_instances_price_per_hour" + labels("booting"): "1.5", "muster_instances_cpu_cores" + labels("booting"): "2.5",
		"muster_instances_memory_bytes" + labels("booting"): "1.073741824e+09", "muster_instances_price_per_hour" + labels("inuse"): "3600",
		`muster_pool_nodes{pool="p"}`: "4",
	})
	last := 0.0
	for range 5 {
		b.propose(&state.NodeHealthChanged{ID: "n3", Health: muster.NodeLost, Reason: fmt.Sprint(last)})
		var spent, jobs, idle float64
		got := b.scrape()
		for name, v := range map[string]*float64{`muster_spend_total{pool="p"}`: &spent, `muster_spent_month{part="jobs",pool="p"}`: &jobs, `muster_spent_month{part="idle",pool="p"}`: &idle} {
			if _, err := fmt.Sscan(got[name], v); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if spent < last || spent <= 0 || jobs <= 0 || idle <= 0 || jobs+idle > spent*(1+1e-9) {
			t.Errorf("spent %g after %g, jobs %g, idle %g", spent, last, jobs, idle)
		}
		last = spent
	}
}

// scrape is every series and its value.
func (b *bench) scrape() map[string]string {
	b.Helper()
	out := map[string]string{}
	for line := range strings.Lines(b.do("GET", "/metrics", "").body) {
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			out[line[:i]] = strings.TrimSpace(line[i:])
		}
	}
	return out
}

func (b *bench) want(got, want map[string]string) {
	b.Helper()
	for k, v := range want {
		if got[k] != v {
			b.Errorf("%s is %q, want %q", k, got[k], v)
		}
	}
}
