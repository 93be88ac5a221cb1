package size

import (
	"fmt"
	"time"

	"github.com/musterhq/muster"
)

// Budget is how a pool stands against what it may cost.
type Budget struct {
	Pool muster.PoolName
	// Hour is the price of what lives and what this pass launches, at most; HourLimit 0: there is none.
	Hour, HourLimit muster.Price
	// Month is what was spent in this month (UTC) and what an hour more of all that comes to.
	Month, MonthLimit int64
	// Alert is 80 or 100 when so much in a hundred of either is reached, else 0.
	Alert int
}

// overBudget says whether a node more would take a pool over its budget. What
// is spot counts with the most that it may come to cost.
func (p *planner) overBudget(q *pool, o *muster.Offering) obstacle {
	n := &p.counts[q.at]
	price := o.AtMost()
	// A price is for an hour: an hour of it is the same number.
	month := n.spent + int64(n.price) + int64(price)
	if q.BudgetMonth > 0 && month > q.BudgetMonth {
		p.wakeAt(nextMonth(p.now))
	}
	switch {
	case q.BudgetHour > 0 && price > q.BudgetHour:
		return obstacle{kind: byMarket, why: fmt.Sprintf("offering %s costs %s an hour, more than all of pool %s may (%s)", o.Name, price, q.Name, q.BudgetHour)}
	case q.BudgetMonth > 0 && month > q.BudgetMonth:
		return obstacle{kind: byMarket, why: fmt.Sprintf("pool %s has reached its budget: %s of %s are spent in this month, and running nodes cost %s an hour",
			q.Name, muster.Price(n.spent), muster.Price(q.BudgetMonth), n.price)}
	case q.BudgetHour > 0 && n.price+price > q.BudgetHour:
		return obstacle{kind: byBudget, why: fmt.Sprintf("pool %s has reached its budget: %s of %s an hour are in use, and offering %s costs %s",
			q.Name, n.price, q.BudgetHour, o.Name, price)}
	case n.reserved != "":
		return obstacle{kind: byMarket, why: n.reserved}
	}
	return obstacle{}
}

func nextMonth(now muster.Time) muster.Time {
	t := now.Std()
	return muster.At(time.Date(t.Year(), t.Month()+1, 1, 0, 0, 0, 0, time.UTC))
}

// reserve keeps what is left of hourly budgets for one that has waited for long:
// else the small would take each piece of it that becomes free, for ever.
func (p *planner) reserve(d *demand, choices []choice) {
	for i := range choices {
		c := &choices[i]
		n := &p.counts[c.pool.at]
		if p.obstacle(c).kind != byBudget || n.reserved != "" {
			continue
		}
		if due := d.since().Add(Patience); due > p.now {
			p.wakeAt(due)
			continue
		}
		n.reserved = fmt.Sprintf("the rest of the budget of pool %s is reserved for %s at priority %d, first in the queue", c.pool.Name, members(d.left, d.shape.Shape), d.priority)
		p.planGen++
	}
}

// since is when the oldest job of a group was submitted.
func (g *group) since() muster.Time {
	oldest, _ := g.parts.Min()
	return oldest.waiter.row.Submitted
}

// tellBudgets says how the pools stand.
func (p *planner) tellBudgets() {
	for i, q := range p.pools {
		if q.BudgetHour == 0 && q.BudgetMonth == 0 {
			continue
		}
		n := &p.counts[i]
		b := Budget{Pool: q.Name, Hour: n.price, HourLimit: q.BudgetHour, Month: n.spent + int64(n.price), MonthLimit: q.BudgetMonth}
		if q.BudgetMonth == 0 {
			b.Month = 0
		}
		for _, percent := range [...]int{80, 100} {
			if reached(int64(b.Hour), int64(b.HourLimit), percent) || reached(b.Month, b.MonthLimit, percent) {
				b.Alert = percent
			}
		}
		p.out.Budgets = append(p.out.Budgets, b)
	}
}

// reached reports whether so many percent of a limit are; without overflow.
func reached(used, limit int64, percent int) bool {
	return limit > 0 && float64(used) >= float64(limit)*float64(percent)/100
}
