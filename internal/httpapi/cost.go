package httpapi

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

func (a *API) costRoutes() {
	register(a, operation(http.MethodGet, "/v1/cost", "get-cost", tagCost, "Show what was spent",
		"Every node's cost is split into the shares of the allocations that it had, and what was idle. An allocation's share is the mean of its parts of the node's cores and memory, "+
			"from when it was placed to its end. Nodes and allocations that live are counted up to now. Cost is kept by calendar month (UTC)."), a.showCost)
}

type costIn struct {
	By    string `query:"by" enum:"job,namespace,pool,month" default:"job" doc:"What the rows are."`
	Since string `query:"since" pattern:"^[0-9]{4}-(0[1-9]|1[0-2])$" doc:"The first month that is counted, as 2026-09. Default: this month."`
	Limit int    `query:"limit" minimum:"1" maximum:"10000" default:"1000" doc:"How many rows at most; the others are added up in more."`
}

type costOut struct{ Body api.Cost }

func (a *API) showCost(_ context.Context, in *costIn) (*costOut, error) {
	snap := a.cfg.State.Latest()
	now := max(a.cfg.Clock.Now(), snap.Meta().Time)
	since := state.MonthOf(now)
	if in.Since != "" {
		at, err := time.Parse("2006-01", in.Since)
		if err != nil {
			return nil, problem.Invalid("query.since", "%q is not a month as 2026-09", problem.Clip(in.Since))
		}
		since = state.MonthOf(muster.At(at))
	}
	b := bill{by: in.By, rows: map[costKey]*costSum{}}
	snap.Costs(since, now, func(c state.Cost) bool { b.addJob(&c); return true })
	snap.PoolCosts(since, now, func(c state.PoolCost) bool { b.addPool(&c); return true })
	out := &costOut{api.Cost{
		By: in.By, Since: since.Start().Std(), Until: now.Std(), Rows: []api.CostRow{},
		Total: amountOf(b.whole), Jobs: amountOf(b.jobs), Idle: amountOf(b.idle), Index: snap.Index(),
	}}
	var rest state.Spend
	for _, r := range b.sorted() {
		if len(out.Body.Rows) < in.Limit {
			out.Body.Rows = append(out.Body.Rows, r.row(b.by))
			continue
		}
		if out.Body.More == nil {
			out.Body.More = &api.CostRest{}
		}
		rest = rest.Add(r.spend)
		out.Body.More.Rows++
		out.Body.More.CostAmount = amountOf(rest)
	}
	return out, nil
}

func amountOf(s state.Spend) api.CostAmount {
	return api.CostAmount{Cost: float64(s.Cost) / 1e6, Hours: float64(s.Time) / float64(time.Hour/time.Microsecond)}
}

// costKey is what rows are told apart by; parts that do not matter are empty.
type costKey struct {
	namespace, job, pool string
	month                state.Month
}

type costSum struct {
	costKey
	spend, idle state.Spend
}

// bill adds rows of cost up by what was asked for.
type bill struct {
	by                string
	rows              map[costKey]*costSum
	whole, jobs, idle state.Spend
}

func (b *bill) row(k costKey) *costSum {
	r := b.rows[k]
	if r == nil {
		r = &costSum{costKey: k}
		b.rows[k] = r
	}
	return r
}

func (b *bill) addJob(c *state.Cost) {
	b.jobs = b.jobs.Add(c.Spend)
	k := costKey{namespace: string(c.Namespace)}
	switch b.by {
	case "job":
		k.job = c.Job
	case "namespace":
	default:
		return // of pools and months the whole is known, and is more
	}
	r := b.row(k)
	r.spend = r.spend.Add(c.Spend)
}

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

// sorted are the dearest first, of those that cost the same the longest; months in their order.
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
