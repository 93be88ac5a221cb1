package server

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// loopStats shows the counters of the present leadership's loops as metrics.
// They begin at 0 with each leadership, as counters of a restarted process do.
type loopStats struct{ now atomic.Pointer[loops] }

func (s *loopStats) set(l *loops) { s.now.Store(l) }

// figure is one metric read off the loops.
type figure struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*loops) float64
}

func gauge(name, help string, of func(*loops) float64) figure {
	return figure{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, of}
}

func counter(name, help string, of func(*loops) float64) figure {
	return figure{prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, of}
}

func figures() []figure {
	return []figure{
		gauge("muster_evals_ready", "Evaluations that wait for a scheduling worker.", func(l *loops) float64 { return float64(l.broker.Stats().Ready) }),
		gauge("muster_evals_out", "Evaluations that are out with a scheduling worker.", func(l *loops) float64 { return float64(l.broker.Stats().Out) }),
		gauge("muster_evals_delayed", "Evaluations that wait for a time.", func(l *loops) float64 { return float64(l.broker.Stats().Delayed) }),
		gauge("muster_evals_blocked", "Evaluations that wait for room.", func(l *loops) float64 { return float64(l.broker.Stats().Blocked) }),
		gauge("muster_evals_parked", "Evaluations parked by a fact.", func(l *loops) float64 { return float64(l.broker.Stats().Parked) }),
		counter("muster_evals_delivered_total", "Evaluations handed to scheduling workers.", func(l *loops) float64 { return float64(l.broker.Stats().Delivered) }),
		counter("muster_evals_nacked_total", "Evaluations given back, time-outs included.", func(l *loops) float64 { return float64(l.broker.Stats().Nacked) }),
		counter("muster_plans_total", "Plans answered by the applier.", func(l *loops) float64 { return float64(l.apply.Stats().Plans) }),
		counter("muster_plans_partial_total", "Plans of which some was refused.", func(l *loops) float64 { return float64(l.apply.Stats().Partial) }),
		counter("muster_plans_refused_total", "Plans of which all was refused.", func(l *loops) float64 { return float64(l.apply.Stats().Refused) }),
		counter("muster_plan_batches_total", "Log entries that plans were committed in.", func(l *loops) float64 { return float64(l.apply.Stats().Batches) }),
		counter("muster_placements_total", "Members placed.", func(l *loops) float64 { return float64(l.apply.Stats().Placements) }),
		counter("muster_plan_wait_seconds_total", "Time that plans waited for the log, summed.", func(l *loops) float64 { return l.apply.Stats().Waits.Seconds() }),
		counter("muster_planning_seconds_total", "Time spent planning, summed over workers.", func(l *loops) float64 { return l.schedule.Stats().Planning.Seconds() }),
		gauge("muster_links", "Nodes that the server keeps a link to.", func(l *loops) float64 { return float64(l.link.Stats().Nodes) }),
		gauge("muster_links_up", "Links that are up.", func(l *loops) float64 { return float64(l.link.Stats().Up) }),
		counter("muster_link_dials_total", "Connections opened to agents.", func(l *loops) float64 { return float64(l.link.Stats().Dials) }),
		counter("muster_agent_starts_total", "Agents started again.", func(l *loops) float64 { return float64(l.link.Stats().AgentStarts) }),
		counter("muster_reports_total", "Reports received from agents.", func(l *loops) float64 { return float64(l.link.Stats().Reports) }),
		counter("muster_output_shipped_bytes_total", "Output brought from nodes to the blob store.", func(l *loops) float64 { return float64(l.link.Stats().ShippedBytes) }),
		counter("muster_output_ship_faults_total", "Tries to ship output that did not succeed.", func(l *loops) float64 { return float64(l.link.Stats().ShipFaults) }),
	}
}

// collector is loopStats for prometheus.
type collector struct {
	stats   *loopStats
	figures []figure
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range c.figures {
		ch <- f.desc
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	l := c.stats.now.Load()
	for _, f := range c.figures {
		v := 0.0
		if l != nil {
			v = f.of(l)
		}
		ch <- prometheus.MustNewConstMetric(f.desc, f.kind, v)
	}
}
