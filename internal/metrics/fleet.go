package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// category is what a node that is not gone is good for now.
type category string

// Categories, in the order in which they are decided: each node has one.
const (
	categoryHold    category = "hold"    // held by an operator
	categoryUnknown category = "unknown" // out of contact, or found and not yet probed
	categoryBooting category = "booting" // not yet in service
	categoryInUse   category = "inuse"   // has live allocations
	categoryStopped category = "stopped" // its machine is switched off
	categoryIdle    category = "idle"    // has none: it waits for work, or for its end
)

// categories lists them all, for series that should be there at 0.
func categories() []category {
	return []category{categoryHold, categoryUnknown, categoryBooting, categoryStopped, categoryInUse, categoryIdle}
}

// categoryOf finds the category of a node that is not gone. An operator's hold counts first:
// whatever else the node does, nobody waits for it.
func categoryOf(n *state.Node) category {
	switch {
	case n.Intent == muster.NodeHold:
		return categoryHold
	case n.Health == muster.NodeLost, n.Unheard, n.Stage == muster.NodeAdopted:
		return categoryUnknown
	case n.Stage == muster.NodeLaunching, n.Stage == muster.NodeStarting, n.Stage == muster.NodeBooting:
		return categoryBooting
	case n.Stage == muster.NodeStopped:
		return categoryStopped
	case n.Busy():
		return categoryInUse
	}
	return categoryIdle
}

// offeringLabels name what was bought, and from whom.
type offeringLabels struct {
	provider muster.ProviderName
	offering muster.OfferingName
}

// instanceLabels tell nodes apart in the metrics of instances.
type instanceLabels struct {
	category category
	offeringLabels
}

// instanceSum is what nodes of one category and offering come to.
type instanceSum struct {
	nodes  int
	price  muster.Price
	cpu    muster.MilliCPU
	memory muster.Bytes
}

// instances sums nodes up by category and offering. Every offering that a pool names, or of which a
// node is remembered, is there in each category: one that has no nodes any more must be seen to
// fall to 0.
func instances(snap *state.Snapshot) map[instanceLabels]instanceSum {
	out := map[instanceLabels]instanceSum{}
	seen := map[offeringLabels]bool{}
	show := func(o offeringLabels) {
		if !seen[o] {
			seen[o] = true
			for _, c := range categories() {
				out[instanceLabels{c, o}] = instanceSum{}
			}
		}
	}
	snap.Pools(func(p *state.Pool) bool {
		for _, o := range p.Offerings {
			show(offeringLabels{p.Provider, o})
		}
		return true
	})
	snap.Nodes("", func(n *state.Node) bool {
		o := offeringLabels{n.Offering.Provider, n.Offering.Name}
		show(o)
		if n.Stage.Live() {
			l := instanceLabels{categoryOf(n), o}
			s := out[l]
			s.nodes++
			if n.Stage != muster.NodeStopped {
				s.price += n.Offering.Price
			}
			s.cpu += n.Capacity.CPU
			s.memory += n.Capacity.Memory
			out[l] = s
		}
		return true
	})
	return out
}

var (
	descInstances      = desc("muster_instances", "Nodes that are not gone, by what they are good for now.", "category", "provider", "offering")
	descInstancePrice  = desc("muster_instances_price_per_hour", "Their list price, in the operator's currency.", "category", "provider", "offering")
	descInstanceCPU    = desc("muster_instances_cpu_cores", "Their cores.", "category", "provider", "offering")
	descInstanceMemory = desc("muster_instances_memory_bytes", "Their memory.", "category", "provider", "offering")
	descPoolMax        = desc("muster_pool_max", "How many nodes the pool may have.", "pool")
	descPoolNodes      = desc("muster_pool_nodes", "How many nodes that are not gone the pool has.", "pool")
	descBudget         = desc("muster_pool_budget", "What the pool may cost per hour and per calendar month, in the operator's currency; 0: it has no such limit.", "pool", "per")
	descSpend          = desc("muster_spend_total", "What the pool's nodes have cost, in the operator's currency.", "pool")
	descSpentMonth     = desc("muster_spent_month", "What they have cost in this calendar month (UTC), by what it went to.", "pool", "part")
)

// fleetDescs are the metrics of nodes, pools and money.
func fleetDescs() []*prometheus.Desc {
	return []*prometheus.Desc{
		descInstances, descInstancePrice, descInstanceCPU, descInstanceMemory, descPoolMax, descPoolNodes, descBudget, descSpend, descSpentMonth,
	}
}

// spending keeps the counter of money from falling. A scrape may count a node up to a moment later
// than that at which the log ends it: the counter remembers what it has shown, so that it never
// falls.
type spending struct {
	mu    sync.Mutex
	shown map[muster.PoolName]int64
}

// total is what to show of a pool that has spent so much, in millionths of the operator's currency.
func (p *spending) total(pool muster.PoolName, spent int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown == nil {
		p.shown = map[muster.PoolName]int64{}
	}
	p.shown[pool] = max(p.shown[pool], spent)
	return p.shown[pool]
}

// collectFleet sends what is known of nodes, pools and money.
func (c *stateCollector) collectFleet(s *sums, snap *state.Snapshot, out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	for l, i := range s.instances {
		labels := []string{string(l.category), string(l.provider), string(l.offering)}
		send(descInstances, prometheus.GaugeValue, float64(i.nodes), labels...)
		send(descInstancePrice, prometheus.GaugeValue, float64(i.price)/1e6, labels...)
		send(descInstanceCPU, prometheus.GaugeValue, float64(i.cpu)/1e3, labels...)
		send(descInstanceMemory, prometheus.GaugeValue, float64(i.memory), labels...)
	}
	// The clock may be behind the log for a moment after a start. A month must not come again.
	now := c.cfg.Clock.Now()
	month := state.MonthOf(max(now, snap.Meta().Time))
	whole, this := map[muster.PoolName]int64{}, map[muster.PoolName]state.PoolCost{}
	snap.PoolCosts(0, now, func(pc state.PoolCost) bool {
		whole[pc.Pool] += pc.Whole.Cost
		if pc.Month == month {
			this[pc.Pool] = pc
		}
		return true
	})
	snap.Pools(func(p *state.Pool) bool {
		name := string(p.Name)
		whole[p.Name] += 0 // a pool that has cost nothing is shown too
		send(descPoolMax, prometheus.GaugeValue, float64(p.Max), name)
		send(descPoolNodes, prometheus.GaugeValue, float64(s.pools[p.Name]), name)
		send(descBudget, prometheus.GaugeValue, float64(p.BudgetHour)/1e6, name, "hour")
		send(descBudget, prometheus.GaugeValue, float64(p.BudgetMonth)/1e6, name, "month")
		return true
	})
	// Pools that are in no configuration any more are in the books, and stay in the counters.
	for pool, spent := range whole {
		t := this[pool]
		send(descSpend, prometheus.CounterValue, float64(c.spending.total(pool, spent))/1e6, string(pool))
		send(descSpentMonth, prometheus.GaugeValue, float64(t.Whole.Cost-t.Idle.Cost)/1e6, string(pool), "jobs")
		send(descSpentMonth, prometheus.GaugeValue, float64(t.Idle.Cost)/1e6, string(pool), "idle")
	}
}
