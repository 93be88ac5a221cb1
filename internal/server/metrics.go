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

// reading is what one scrape reads of the loops. It reads each loop once, because that takes the
// loop's locks. A server that does not lead shows the zero values, so that a series does not vanish
// when leadership moves.
type reading struct {
	broker   broker.Stats
	apply    apply.Stats
	schedule schedule.Stats
	runners  runners.Stats
	link     link.Stats
	fleet    fleet.Stats
	decided  *size.Decisions
}

func read(l *loops) *reading {
	if l == nil {
		return &reading{}
	}
	r := &reading{
		broker: l.broker.Stats(), apply: l.apply.Stats(), schedule: l.schedule.Stats(),
		link: l.link.Stats(), fleet: l.fleet.Stats(), decided: l.fleet.Decisions(),
	}
	if l.runners != nil { // as in tests
		r.runners = l.runners.Stats()
	}
	return r
}

// send takes one metric without labels.
type send = func(name, help string, v float64)

// figures passes on the loops' metrics without labels.
func (r *reading) figures(gauge, counter send) {
	for _, loop := range []interface{ Metrics(gauge, counter send) }{&r.broker, &r.apply, &r.schedule, &r.runners, &r.link, &r.fleet} {
		loop.Metrics(gauge, counter)
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
	r.MustRegister(newCollector(&s.stats, s.state, s.raft.Now, names))
}

// collector collects the metrics of the loops for Prometheus. Scrapes may overlap: its fields never
// change.
type collector struct {
	stats *loopStats
	state source
	clock clock.Clock // the log's
	// providers are those of the configuration. Their counters are shown from the start, at 0: an
	// alert on an increase needs the first value.
	providers []muster.ProviderName
	// descs describe the metrics without labels, by name.
	descs map[string]*prometheus.Desc
}

func newCollector(stats *loopStats, src source, now clock.Clock, providers []muster.ProviderName) *collector {
	c := &collector{stats, src, now, providers, map[string]*prometheus.Desc{}}
	describe := func(name, help string, _ float64) { c.descs[name] = prometheus.NewDesc(name, help, nil, nil) }
	(&reading{}).figures(describe, describe)
	return c
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
	for _, d := range []*prometheus.Desc{descBoots, descDisappeared, descOperations, descBlocks, descProbeAge, descBudgetAlert, rolloutsDesc, descPaceRate, descPaceWaited} {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	now := c.stats.now.Load()
	r := read(now)
	of := func(kind prometheus.ValueType) send {
		return func(name, _ string, v float64) { ch <- prometheus.MustNewConstMetric(c.descs[name], kind, v) }
	}
	r.figures(of(prometheus.GaugeValue), of(prometheus.CounterValue))
	c.collectFleet(ch, &r.fleet, r.decided)
	c.collectProbes(ch, r.link.Heard)
	collectRollouts(ch, c.state.Latest())
	collectPaces(ch, now)
}

var (
	descBoots       = prometheus.NewDesc("muster_boots_total", "Finished boots of instances, by outcome: one for each instance.", []string{"outcome"}, nil)
	descDisappeared = prometheus.NewDesc("muster_disappearances_total", "Instances that disappeared without a request, by the stage of their node.", []string{"stage"}, nil)
	descOperations  = prometheus.NewDesc("muster_provider_operations_total", "Calls to providers, by result; creates and destroys count instances.", []string{"provider", "operation", "result"}, nil)
	descBlocks      = prometheus.NewDesc("muster_blocks", "Scopes that a provider refused and that are not requested for a while, by the narrowest part that they name.", []string{"provider", "scope"}, nil)
	descProbeAge    = prometheus.NewDesc("muster_probe_age_seconds", "Time since the last message of agents of serving and draining nodes: the median and the worst.", []string{"of"}, nil)
	descBudgetAlert = prometheus.NewDesc("muster_pool_budget_alert", "80 or 100 when that percentage of one of the pool's budgets is used, else 0.", []string{"pool"}, nil)
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
	// A server that does not lead reads them in the log.
	if meta := c.state.Latest().Meta(); meta.LogFormat() >= state.FormatProviders {
		st.Blocks = size.BlocksOf(c.state.Latest())
	}
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
// silence of its predecessor. heard has the linked nodes; nil while this server does not lead.
func (c *collector) collectProbes(ch chan<- prometheus.Metric, heard map[muster.NodeID]muster.Time) {
	snap, now := c.state.Latest(), c.clock.Now()
	var ages []time.Duration
	if heard != nil {
		snap.LiveNodes(func(n *state.Node) bool {
			if n.Stage != muster.NodeServing && n.Stage != muster.NodeDraining {
				return true
			}
			since := max(snap.Meta().LeaderSince, n.Joined, heard[n.ID])
			ages = append(ages, max(now.Sub(since), 0))
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
