package api

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/musterhq/muster"
)

// Rules of money and of spare nodes: what is wrong is named, and what is left out is filled in.
func TestPoolRules(t *testing.T) {
	for _, x := range []struct {
		at   string // where the problem is; empty: none
		spec PoolSpec
	}{
		{"", PoolSpec{}},
		{"", PoolSpec{Spare: 2, PriceFactor: 1, Budget: BudgetSpec{PerHour: 0.5, PerMonth: 1e9}}},
		{"", PoolSpec{Max: 2, Spare: 2}},
		{"spare", PoolSpec{Spare: -1}},
		{"spare", PoolSpec{Max: 2, Spare: 3}},
		{"price_factor", PoolSpec{PriceFactor: 0.9}},
		{"price_factor", PoolSpec{PriceFactor: -2}},
		{"price_factor", PoolSpec{PriceFactor: math.NaN()}},
		{"price_factor", PoolSpec{PriceFactor: math.Inf(1)}},
		{"budget.per_hour", PoolSpec{Budget: BudgetSpec{PerHour: -1}}},
		{"budget.per_hour", PoolSpec{Budget: BudgetSpec{PerHour: math.NaN()}}},
		{"budget.per_month", PoolSpec{Budget: BudgetSpec{PerMonth: 1e10}}},
	} {
		c := DefaultDevConfig(2, 4*muster.GiB)
		x.spec.Name, x.spec.Provider = "p", ProviderLocal
		c.DataDir, c.Pools = "/d", []PoolSpec{x.spec}
		problems := c.Validate()
		if x.at == "" && len(problems) > 0 || x.at != "" && (len(problems) != 1 || problems[0].Location != "pools[0]."+x.at) {
			t.Errorf("%+v: %v", x.spec, problems)
		}
		if x.at != "" {
			continue
		}
		given := x.spec.PriceFactor
		c.Defaults()
		if got := c.Pools[0].PriceFactor; got != given && (given != 0 || got != DefaultPriceFactor) {
			t.Errorf("%+v: price factor %g", x.spec, got)
		}
		if problems := c.Validate(); len(problems) > 0 {
			t.Errorf("with its defaults %+v: %v", c.Pools[0], problems)
		}
		if b, err := json.Marshal(c.Pools[0]); err != nil || x.spec.Budget == (BudgetSpec{}) && strings.Contains(string(b), "budget") {
			t.Errorf("%s %v", b, err)
		}
	}
}
