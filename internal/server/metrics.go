package server

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/control/apply"
	"github.com/musterhq/muster/internal/control/broker"
	"github.com/musterhq/muster/internal/control/fleet"
	"github.com/musterhq/muster/internal/control/link"
	"github.com/musterhq/muster/internal/control/runners"
	"github.com/musterhq/muster/internal/control/schedule"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/state"
)

// loopStats points to the loops of the present leadership; nil while there is none. Services and
// metrics reach the loops through it, without a lock. Only lead and turn set it.
//
// The loops' counters begin at 0 with each turn, as the counters of a restarted process do;
// Prometheus handles that.
type loopStats struct{ now atomic.Pointer[loops] }

func (s *loopStats) set(l *loops) { s.now.Store(l) }

// figure is one metric of the loops without labels.
type figure struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*readings) float64
}

func gauge(name, help string, of func(*readings) float64) figure {
	return figure{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, of}
}

func counter(name, help string, of func(*readings) float64) figure {
	return figure{prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, of}
}

// readings are the counters of all loops, read once for a scrape: some loops lock a part of every
// node for them.
type readings struct {
	broker   broker.Stats
	apply    apply.Stats
	schedule schedule.Stats
	runners  runners.Stats
	link     link.Stats
}

func readingsOf(l *loops) *readings {
	r := &readings{broker: l.broker.Stats(), apply: l.apply.Stats(), schedule: l.schedule.Stats(), link: l.link.Stats()}
	// Tests have servers without a loop that hands out runners.
	if l.runners != nil {
		r.runners = l.runners.Stats()
	}
	return r
}

// figures are the metrics of the loops without labels. A server that does not lead shows all of
// them as 0, so that a series does not vanish when leadership moves.
func figures() []figure {
	return []figure{
		gauge("muster_evals_ready", "Evaluations that wait for a scheduling worker.", func(r *readings) float64 { return float64(r.broker.Ready) }),
		gauge("muster_evals_out", "Evaluations that are out with a scheduling worker.", func(r *readings) float64 { return float64(r.broker.Out) }),
		gauge("muster_evals_delayed", "Evaluations that wait for a time.", func(r *readings) float64 { return float64(r.broker.Delayed) }),
		gauge("muster_evals_blocked", "Evaluations that wait for room.", func(r *readings) float64 { return float64(r.broker.Blocked) }),
		gauge("muster_evals_parked", "Evaluations parked by a fact.", func(r *readings) float64 { return float64(r.broker.Parked) }),
		counter("muster_evals_delivered_total", "Evaluations handed to scheduling workers.", func(r *readings) float64 { return float64(r.broker.Delivered) }),
		counter("muster_evals_nacked_total", "Evaluations given back, time-outs included.", func(r *readings) float64 { return float64(r.broker.Nacked) }),
		counter("muster_evals_woken_total", "Blocked evaluations woken because room grew.", func(r *readings) float64 { return float64(r.broker.Woken) }),
		counter("muster_eval_wait_seconds_total", "Time that evaluations waited for a worker, summed.", func(r *readings) float64 { return r.broker.Waited.Seconds() }),
		counter("muster_eval_run_seconds_total", "Time that evaluations were out with a worker, summed.", func(r *readings) float64 { return r.broker.Ran.Seconds() }),
		counter("muster_reservations_total", "Times that room was reserved for work that others had passed for too long.", func(r *readings) float64 { return float64(r.broker.Reserved) }),
		counter("muster_placements_yielded_total", "Placements refused because work of higher priority comes first.", func(r *readings) float64 { return float64(r.apply.Yielded) }),
		counter("muster_placements_refused_total", "Placements and stops refused, for any reason.", func(r *readings) float64 { return float64(r.apply.Refusals) }),
		counter("muster_plan_parts_odd_total", "Parts of plans that a node refused although nothing had changed there.", func(r *readings) float64 { return float64(r.apply.Odd) }),
		counter("muster_plans_total", "Plans answered by the applier.", func(r *readings) float64 { return float64(r.apply.Plans) }),
		counter("muster_plans_partial_total", "Plans of which some was refused.", func(r *readings) float64 { return float64(r.apply.Partial) }),
		counter("muster_plans_refused_total", "Plans of which all was refused.", func(r *readings) float64 { return float64(r.apply.Refused) }),
		counter("muster_plan_batches_total", "Log entries that plans were committed in.", func(r *readings) float64 { return float64(r.apply.Batches) }),
		counter("muster_placements_total", "Members placed.", func(r *readings) float64 { return float64(r.apply.Placements) }),
		counter("muster_plan_wait_seconds_total", "Time that plans waited for the log, summed.", func(r *readings) float64 { return r.apply.Waits.Seconds() }),
		counter("muster_planning_seconds_total", "Time spent planning, summed over workers.", func(r *readings) float64 { return r.schedule.Planning.Seconds() }),
		counter("muster_claims_total", "Claims of runners that were answered.", func(r *readings) float64 { return float64(r.runners.Claims) }),
		counter("muster_claims_hit_total", "Claims that found a runner warm.", func(r *readings) float64 { return float64(r.runners.Hits) }),
		counter("muster_claims_refused_total", "Claims that found none, at once or within their wait.", func(r *readings) float64 { return float64(r.runners.Refused) }),
		counter("muster_claim_wait_seconds_total", "Time that answered claims took, summed.", func(r *readings) float64 { return r.runners.Wait.Sum }),
		counter("muster_runner_starts_seconds_total", "Time from placement to warm, summed over runners.", func(r *readings) float64 { return r.runners.Start.Sum }),
		gauge("muster_links", "Nodes that the server keeps a link to.", func(r *readings) float64 { return float64(r.link.Nodes) }),
		gauge("muster_links_up", "Links that are up.", func(r *readings) float64 { return float64(r.link.Up) }),
		counter("muster_link_dials_total", "Connections opened to agents.", func(r *readings) float64 { return float64(r.link.Dials) }),
		counter("muster_agent_starts_total", "Agents started again.", func(r *readings) float64 { return float64(r.link.AgentStarts) }),
		counter("muster_reports_total", "Reports received from agents.", func(r *readings) float64 { return float64(r.link.Reports) }),
		counter("muster_output_shipped_bytes_total", "Output brought from nodes to the blob store.", func(r *readings) float64 { return float64(r.link.ShippedBytes) }),
		counter("muster_output_ship_faults_total", "Tries to ship output that did not succeed.", func(r *readings) float64 { return float64(r.link.ShipFaults) }),
	}
}

// measure registers the metrics of the loops and of how long steps take. It runs before there are
// loops; the providers are those of the configuration at the start.
func (s *Server) measure(r prometheus.Registerer) {
	var names []muster.ProviderName
	for i := range s.cfg.Providers {
		names = append(names, muster.ProviderName(s.cfg.Providers[i].Name))
	}
	s.times = newTimes(names)
	s.times.register(r)
	r.MustRegister(&collector{&s.stats, figures(), s.state, s.raft.Now, names})
}

// collector collects the metrics of the loops for Prometheus. Scrapes may overlap: it has no data
// of its own.
type collector struct {
	stats   *loopStats
	figures []figure
	state   source
	clock   clock.Clock // the log's
	// providers are those of the configuration. Their counters are shown from the start, at 0: an
	// alert on an increase needs the first value.
	providers []muster.ProviderName
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range c.figures {
		ch <- f.desc
	}
	for _, d := range []*prometheus.Desc{descBoots, descDisappeared, descOperations, descBlocks, descNotices, descOverdue, descProbeAge, descBudgetAlert, rolloutsDesc} {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	l := c.stats.now.Load()
	r := &readings{}
	if l != nil {
		r = readingsOf(l)
	}
	for _, f := range c.figures {
		ch <- prometheus.MustNewConstMetric(f.desc, f.kind, f.of(r))
	}
	// Without loops the zero values are sent.
	var st fleet.Stats
	var decided *size.Decisions
	var contact func(muster.NodeID) (link.Usage, bool)
	if l != nil {
		st, decided, contact = l.fleet.Stats(), l.fleet.Decisions(), l.link.Usage
	}
	c.collectFleet(ch, &st, decided)
	c.collectProbes(ch, contact)
	collectRollouts(ch, c.state.Latest())
}

var (
	descBoots       = prometheus.NewDesc("muster_boots_total", "Boots of instances that are over, by outcome: one for each instance.", []string{"outcome"}, nil)
	descDisappeared = prometheus.NewDesc("muster_disappearances_total", "Instances that were gone without being asked to, by the stage of their node.", []string{"stage"}, nil)
	descOperations  = prometheus.NewDesc("muster_provider_operations_total", "What providers were asked, by result; creates and destroys by instance.", []string{"provider", "operation", "result"}, nil)
	descBlocks      = prometheus.NewDesc("muster_blocks", "Scopes of which a provider has said no, and which are not asked for now, by the narrowest part that they name.", []string{"provider", "scope"}, nil)
	descNotices     = prometheus.NewDesc("muster_spot_notices_total", "Notices that the cloud is about to take an instance.", nil, nil)
	descOverdue     = prometheus.NewDesc("muster_nodes_overdue", "Nodes whose destroying takes too long.", nil, nil)
	descProbeAge    = prometheus.NewDesc("muster_probe_age_seconds", "How long nothing has come from the agents of nodes that serve or drain: of the median one, and of the worst.", []string{"of"}, nil)
	descBudgetAlert = prometheus.NewDesc("muster_pool_budget_alert", "80 or 100 if so much in a hundred of one of the pool's budgets is used, else 0.", []string{"pool"}, nil)
)

// scopes are the parts that a block may name, the narrowest first; account if it names none.
func scopes() []string { return []string{"offering", "zone", "market", "family", "account"} }

func scopeOf(s muster.Scope) string {
	for i, named := range []bool{s.Offering != "", s.Zone != "", s.Market != "", s.Family != ""} {
		if named {
			return scopes()[i]
		}
	}
	return "account"
}

// collectFleet sends what the fleet has counted. st and decided are zero while this server does not
// lead.
func (c *collector) collectFleet(ch chan<- prometheus.Metric, st *fleet.Stats, decided *size.Decisions) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	for _, o := range fleet.BootOutcomes() {
		send(descBoots, prometheus.CounterValue, float64(st.Boots[o]), string(o))
	}
	for _, s := range []muster.NodeStage{muster.NodeBooting, muster.NodeAdopted, muster.NodeServing, muster.NodeDraining} {
		send(descDisappeared, prometheus.CounterValue, float64(st.Disappeared[s]), string(s))
	}
	send(descNotices, prometheus.CounterValue, float64(st.Notices))
	send(descOverdue, prometheus.GaugeValue, float64(st.Overdue))

	// Labels that have no count yet are sent as 0, so the counts are collected here first.
	type series struct {
		provider muster.ProviderName
		op       cloud.Op
		result   string
	}
	counts := map[series]uint64{}
	blocks := map[muster.ProviderName]map[string]int{}
	for _, p := range c.providers {
		blocks[p] = map[string]int{}
		for _, op := range []cloud.Op{cloud.OpCreate, cloud.OpList, cloud.OpDestroy} {
			counts[series{p, op, resultOf(cloud.Succeeded)}] = 0
		}
	}
	for _, o := range st.Operations {
		counts[series{o.Provider, o.Op, resultOf(o.Result)}] += o.N
	}
	for s, n := range counts {
		send(descOperations, prometheus.CounterValue, float64(n), string(s.provider), string(s.op), s.result)
	}
	now := c.clock.Now()
	for _, b := range st.Blocks {
		// A block of a provider that a reload added has no series until the next start.
		if b.Until > now && blocks[b.Scope.Provider] != nil {
			blocks[b.Scope.Provider][scopeOf(b.Scope)]++
		}
	}
	for p, by := range blocks {
		for _, s := range scopes() {
			send(descBlocks, prometheus.GaugeValue, float64(by[s]), string(p), s)
		}
	}
	alerts := map[muster.PoolName]int{}
	c.state.Latest().Pools(func(p *state.Pool) bool { alerts[p.Name] = 0; return true })
	// Every pool has a series, at 0 unless the fleet's last decision has an alert.
	if decided != nil {
		for _, b := range decided.Budgets {
			alerts[b.Pool] = b.Alert
		}
	}
	for pool, alert := range alerts {
		send(descBudgetAlert, prometheus.GaugeValue, float64(alert), string(pool))
	}
}

func resultOf(kind muster.FaultKind) string { return cmp.Or(string(kind), "success") }

// collectProbes sends how long ago agents were heard from. Silence of an agent that this server
// never heard from counts from the start of the leadership: a new leader must not report the
// silence of its predecessor.
func (c *collector) collectProbes(ch chan<- prometheus.Metric, contact func(muster.NodeID) (link.Usage, bool)) {
	snap, now := c.state.Latest(), c.clock.Now()
	var ages []time.Duration
	if contact != nil {
		snap.LiveNodes(func(n *state.Node) bool {
			if n.Stage != muster.NodeServing && n.Stage != muster.NodeDraining {
				return true
			}
			heard := max(snap.Meta().LeaderSince, n.Joined)
			if u, ok := contact(n.ID); ok {
				heard = max(heard, u.Heard)
			}
			ages = append(ages, max(now.Sub(heard), 0))
			return true
		})
	}
	var median, worst time.Duration
	if len(ages) > 0 {
		slices.Sort(ages)
		median, worst = ages[len(ages)/2], ages[len(ages)-1]
	}
	ch <- prometheus.MustNewConstMetric(descProbeAge, prometheus.GaugeValue, median.Seconds(), "median")
	ch <- prometheus.MustNewConstMetric(descProbeAge, prometheus.GaugeValue, worst.Seconds(), "max")
}
