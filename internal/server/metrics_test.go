package server

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/metrics"
	"github.com/musterhq/muster/internal/sim"
	"github.com/musterhq/muster/internal/state"
)

// series are the values of one gathering, by name and labels; of histograms their counts.
type series map[string]float64

func gather(t *testing.T, r prometheus.Gatherer) series {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := series{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := f.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			switch f.GetType().String() {
			case "COUNTER":
				out[name] = m.GetCounter().GetValue()
			case "GAUGE":
				out[name] = m.GetGauge().GetValue()
			case "HISTOGRAM":
				out[name] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return out
}

// names are the names of families, as they are asked for: a histogram is three.
func names(t *testing.T, r prometheus.Gatherer) map[string]bool {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, f := range families {
		out[f.GetName()] = true
		if f.GetType().String() == "HISTOGRAM" {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				out[f.GetName()+part] = true
			}
		}
	}
	return out
}

// measured is a simulated cluster with all metrics of a server around it.
type measured struct {
	play     *sim.Play
	stats    loopStats
	times    *times
	registry *prometheus.Registry
}

func newMeasured(t *testing.T, seed uint64) *measured {
	t.Helper()
	scenario, err := sim.Parse(sim.Draw(seed) + "fault destroy: fail transient 30%\nfault list: fail transient 10%\n")
	if err != nil {
		t.Fatal(err)
	}
	s, err := sim.NewPlay(scenario)
	if err != nil {
		t.Fatal(err)
	}
	m := &measured{play: s, times: newTimes([]muster.ProviderName{"fake"})}
	m.registry = metrics.New(metrics.Config{State: s.Cluster().Log, Clock: s.Cluster().Log.Now, Version: "test"}).Registry()
	m.times.register(m.registry)
	m.registry.MustRegister(newCollector(&m.stats, s.Cluster().Log, s.Cluster().Log.Now, []muster.ProviderName{"fake"}), newBreakers(s.Cluster().Log.Latest, s.Cluster().Log.Now))
	return m
}

// run plays it to its end, and gathers all the time: seen are the highest values that there were.
func (m *measured) run(t *testing.T) (seen series) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	loops.Go(func() {
		if err := m.times.follow(ctx, m.play.Cluster().Log); err != nil {
			t.Error(err)
		}
	})
	loops.Go(func() { seen = m.watch(ctx, t) })
	if err := m.play.Run(); err != nil {
		t.Error(err)
	}
	cancel()
	loops.Wait()
	return seen
}

// watch gathers until ctx ends: every few seconds, and less often the longer it takes.
func (m *measured) watch(ctx context.Context, t *testing.T) series {
	seen, last := series{}, series{}
	began, timer := time.Now(), time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return seen
		case <-timer.C:
			timer.Reset(max(4*time.Second, time.Since(began)/30))
		}
		if l := m.play.Cluster().Loops(); l.Fleet != nil { // a new leadership counts anew
			m.stats.set(&loops{broker: l.Broker, schedule: l.Schedule, apply: l.Apply, fleet: l.Fleet, link: l.Link})
		}
		now := gather(t, m.registry)
		for name, v := range now {
			seen[name] = max(seen[name], v)
			if strings.HasPrefix(name, "muster_spend_total") && v < last[name] {
				t.Errorf("%s fell from %g to %g", name, last[name], v)
			}
		}
		for name := range last {
			// Nodes that are forgotten and environments that are deleted take their series along.
			passing := strings.HasPrefix(name, "muster_instances") || strings.HasPrefix(name, "muster_nodes{") || strings.Contains(name, "{environment=")
			if _, there := now[name]; !there && !passing {
				t.Errorf("%s has gone", name)
			}
		}
		last = now
	}
}

// expected are the series that must be there at any time, before anything has happened.
func expected() []string {
	out := []string{
		"muster_nodes_price_per_hour", "muster_jobs_unsettled", "muster_members_running", "muster_log_index", "muster_queue_seconds", "muster_times_missed_total",
		"muster_spot_notices_total", "muster_nodes_overdue", "muster_probe_age_seconds{of=max}", "muster_probe_age_seconds{of=median}",
		"muster_node_agent_seconds{provider=fake}", "muster_node_ready_seconds{provider=fake}", "muster_node_destroy_seconds{provider=fake}",
		"muster_spend_total{pool=p}", "muster_spent_month{part=jobs,pool=p}", "muster_spent_month{part=idle,pool=p}",
		"muster_pool_max{pool=p}", "muster_pool_nodes{pool=p}", "muster_pool_tripped{pool=p}", "muster_pool_budget_alert{pool=p}",
		"muster_pool_budget{per=hour,pool=p}", "muster_pool_budget{per=month,pool=p}",
	}
	for label, values := range map[string][]string{
		"muster_boots_total{outcome=%s}":                                              {"success", "failure", "aborted", "disappeared"},
		"muster_disappearances_total{stage=%s}":                                       {"booting", "adopted", "serving", "draining"},
		"muster_blocks{provider=fake,scope=%s}":                                       {"offering", "zone", "market", "family", "account"},
		"muster_allocations{status=%s}":                                               {"placed", "starting", "running", "ended"},
		"muster_jobs{stage=%s}":                                                       {"live", "stopping", "ended"},
		"muster_provider_operations_total{operation=%s,provider=fake,result=success}": {"create", "list", "destroy"},
	} {
		for _, v := range values {
			out = append(out, fmt.Sprintf(label, v))
		}
	}
	add := func(name, _ string, _ float64) { out = append(out, name) }
	(&reading{}).figures(add, add)
	return out
}

// After a run with many faults every series is there, and what must have
// happened is counted; before it, all counters are there at 0.
func TestMetricsAfterFaults(t *testing.T) {
	sum := series{}
	for seed := uint64(1); seed <= 4; seed++ {
		synctest.Test(t, func(t *testing.T) {
			m := newMeasured(t, seed)
			before := gather(t, m.registry)
			for _, name := range expected() {
				v, ok := before[name]
				switch {
				case !ok:
					t.Errorf("before anything has happened there is no %s", name)
				case v != 0 && (strings.Contains(name, "_total") || strings.Contains(name, "_seconds")):
					t.Errorf("%s begins at %g", name, v)
				}
			}
			for name, v := range m.run(t) {
				sum[name] += v
			}
		})
	}
	for _, name := range []string{
		"muster_boots_total{outcome=success}", "muster_queue_seconds", "muster_node_agent_seconds{provider=fake}", "muster_node_ready_seconds{provider=fake}",
		"muster_node_destroy_seconds{provider=fake}", "muster_spend_total{pool=p}", "muster_spent_month{part=jobs,pool=p}", "muster_spent_month{part=idle,pool=p}",
		"muster_provider_operations_total{operation=create,provider=fake,result=success}", "muster_provider_operations_total{operation=list,provider=fake,result=success}",
		"muster_provider_operations_total{operation=list,provider=fake,result=transient}",
		"muster_provider_operations_total{operation=destroy,provider=fake,result=success}", "muster_provider_operations_total{operation=destroy,provider=fake,result=transient}",
	} {
		if sum[name] <= 0 {
			t.Errorf("%s is %g after faults of four seeds", name, sum[name])
		}
	}
	vanished := 0.0
	for _, name := range slices.Sorted(maps.Keys(sum)) {
		if strings.HasPrefix(name, "muster_disappearances_total") {
			vanished += sum[name]
		}
	}
	if vanished == 0 {
		t.Error("no disappearance was counted")
	}
	for _, of := range []string{"", "_price_per_hour", "_cpu_cores", "_memory_bytes"} {
		for _, o := range []string{"small", "large"} {
			for c, must := range map[string]bool{"inuse": true, "idle": true, "booting": true, "hold": false, "unknown": false} {
				name := fmt.Sprintf("muster_instances%s{category=%s,offering=%s,provider=fake}", of, c, o)
				if v, ok := sum[name]; !ok || must && v == 0 {
					t.Errorf("%s: %g, %v", name, v, ok)
				}
			}
		}
	}
}

// Every metric that the dashboard asks for exists, and the dashboard is one that Grafana reads.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../packaging/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		UID, Title    string
		SchemaVersion int
		Panels        []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, RefID string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	var have map[string]bool
	synctest.Test(t, func(t *testing.T) {
		m := newMeasured(t, 1)
		seen := m.run(t)
		// Of environments there are figures once there is one.
		spec := &api.EnvironmentSpec{Name: "e"}
		spec.Defaults()
		if _, _, err := m.play.Cluster().Log.Propose(t.Context(), &state.EnvironmentSet{Key: muster.EnvironmentKey("default", "e"), UID: "ue", Spec: spec}); err != nil {
			t.Fatal(err)
		}
		have = names(t, m.registry)
		for name := range seen { // of nodes that are forgotten by now
			name, _, _ = strings.Cut(name, "{")
			have[name] = true
		}
	})
	word := regexp.MustCompile(`\bmuster_\w+`)
	asked, ids := map[string]bool{}, map[int]bool{}
	for _, p := range board.Panels {
		if p.Title == "" || p.Type == "" || ids[p.ID] || p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %d %q is not right", p.ID, p.Title)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			found := word.FindAllString(target.Expr, -1)
			if len(found) == 0 {
				t.Errorf("panel %q: %q asks for nothing of ours", p.Title, target.Expr)
			}
			for _, name := range found {
				asked[name] = true
				if !have[name] {
					t.Errorf("panel %q: there is no metric %s", p.Title, name)
				}
			}
		}
	}
	if board.UID == "" || board.Title == "" || board.SchemaVersion == 0 || len(asked) < 30 {
		t.Errorf("dashboard %q asks for %d metrics", board.Title, len(asked))
	}
	// What the fleet is watched by is on it.
	for _, name := range []string{
		"muster_instances", "muster_instances_price_per_hour", "muster_instances_cpu_cores", "muster_instances_memory_bytes", "muster_boots_total", "muster_disappearances_total",
		"muster_provider_operations_total", "muster_node_agent_seconds_bucket", "muster_node_ready_seconds_bucket", "muster_node_destroy_seconds_bucket", "muster_queue_seconds_bucket",
		"muster_probe_age_seconds", "muster_blocks", "muster_spend_total", "muster_spent_month", "muster_pool_tripped", "muster_pool_budget",
	} {
		if !asked[name] {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}

// TestMetricDescriptionsAreAsRecorded compares the name, type, help text and labels of every metric
// of the loops with a file, because dashboards and alerts of users depend on them.
func TestMetricDescriptionsAreAsRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMeasured(t, 1)
		families, err := m.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), "muster_") {
				continue // the Go runtime's
			}
			var labels []string
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels = append(labels, l.GetName())
			}
			fmt.Fprintf(&got, "%s %s %v %s\n", f.GetName(), f.GetType(), labels, f.GetHelp())
		}
		want, err := os.ReadFile("testdata/metrics.golden")
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != string(want) {
			t.Errorf("the metrics are now:\n%s\nand were:\n%s", got.String(), want)
		}
	})
}
