package present

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// Costs shows what was spent from a month on, up to now. by is what the rows are: job, namespace,
// pool or month. The first limit rows are shown, the most expensive first; the others are added up
// in More. The totals count everything, whatever the limit.
func Costs(snap *state.Snapshot, by string, since state.Month, now muster.Time, limit int) api.Cost {
	b := bill{by: by, rows: map[costKey]*costSum{}}
	snap.Costs(since, now, func(c state.Cost) bool { b.addJob(&c); return true })
	snap.PoolCosts(since, now, func(c state.PoolCost) bool { b.addPool(&c); return true })
	out := api.Cost{
		By: by, Since: since.Start().Std(), Until: now.Std(), Rows: []api.CostRow{},
		Total: amountOf(b.whole), Jobs: amountOf(b.jobs), Idle: amountOf(b.idle), Index: snap.Index(),
	}
	var rest state.Spend
	for _, r := range b.sorted() {
		if len(out.Rows) < limit {
			out.Rows = append(out.Rows, r.row(b.by))
			continue
		}
		// More stays nil, and JSON leaves it out, if all rows are shown.
		if out.More == nil {
			out.More = &api.CostRest{}
		}
		rest = rest.Add(r.spend)
		out.More.Rows++
		out.More.CostAmount = amountOf(rest)
	}
	return out
}

// amountOf shows money in whole units of the operator's currency, and time in hours.
func amountOf(s state.Spend) api.CostAmount {
	return api.CostAmount{Cost: float64(s.Cost) / 1e6, Hours: float64(s.Time) / float64(time.Hour/time.Microsecond)}
}

// costKey identifies a row. Fields by which rows are not told apart are empty, so that their costs
// add up in one row.
type costKey struct {
	namespace, job, pool string
	month                state.Month
}

// costSum is one row before it is shown. idle is the part of spend that no allocation used.
type costSum struct {
	costKey
	spend, idle state.Spend
}

// bill adds up the costs that the state keeps by job and by pool. whole and idle come from the
// records of pools, jobs from those of jobs. The two agree, because the state splits the cost of
// each node into the shares of its allocations and an idle rest.
type bill struct {
	by                string
	rows              map[costKey]*costSum
	whole, jobs, idle state.Spend
}

// row returns the row of a key. It adds an empty one if there is none.
func (b *bill) row(k costKey) *costSum {
	r := b.rows[k]
	if r == nil {
		r = &costSum{costKey: k}
		b.rows[k] = r
	}
	return r
}

// addJob adds the share of the nodes that a job used in a month.
func (b *bill) addJob(c *state.Cost) {
	b.jobs = b.jobs.Add(c.Spend)
	k := costKey{namespace: string(c.Namespace)}
	switch b.by {
	case "job":
		k.job = c.Job
	case "namespace":
	default:
		// Pools and months are shown with everything that their nodes cost, idle time included:
		// addPool has that.
		return
	}
	r := b.row(k)
	r.spend = r.spend.Add(c.Spend)
}

// addPool adds what the nodes of a pool cost in a month, idle time included.
func (b *bill) addPool(c *state.PoolCost) {
	b.whole, b.idle = b.whole.Add(c.Whole), b.idle.Add(c.Idle)
	var k costKey
	switch b.by {
	case "pool":
		k.pool = string(c.Pool)
	case "month":
		k.month = c.Month
	default:
		return
	}
	r := b.row(k)
	r.spend, r.idle = r.spend.Add(c.Whole), r.idle.Add(c.Idle)
}

// sorted returns the rows, the most expensive first. Of rows with equal cost, the one with the most
// time comes first, and then the order is by name, so that the answer is stable. Months are in the
// order of the calendar.
func (b *bill) sorted() []*costSum {
	out := make([]*costSum, 0, len(b.rows))
	for _, r := range b.rows {
		out = append(out, r)
	}
	slices.SortFunc(out, func(x, y *costSum) int {
		if b.by == "month" {
			return cmp.Compare(x.month, y.month)
		}
		return cmp.Or(cmp.Compare(y.spend.Cost, x.spend.Cost), cmp.Compare(y.spend.Time, x.spend.Time),
			strings.Compare(x.namespace, y.namespace), strings.Compare(x.job, y.job), strings.Compare(x.pool, y.pool))
	})
	return out
}

// row shows a sum. Only pools and months have idle time, because no job used it.
func (r *costSum) row(by string) api.CostRow {
	out := api.CostRow{Namespace: r.namespace, Job: r.job, Pool: r.pool, CostAmount: amountOf(r.spend)}
	switch by {
	case "month":
		out.Month = r.month.String()
		fallthrough
	case "pool":
		idle := amountOf(r.idle)
		out.Idle = &idle
	}
	return out
}
