package config

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Rules of money and of spare nodes: what is wrong is named, and what is left out is filled in.
func TestPoolRules(t *testing.T) {
	for _, x := range []struct {
		at   string // where the problem is; empty: none
		spec api.PoolSpec
	}{
		{"", api.PoolSpec{}},
		{"", api.PoolSpec{Spare: 2, PriceFactor: 1, Budget: api.BudgetSpec{PerHour: 0.5, PerMonth: 1e9}}},
		{"", api.PoolSpec{Max: 2, Spare: 2}},
		{"spare", api.PoolSpec{Spare: -1}},
		{"spare", api.PoolSpec{Max: 2, Spare: 3}},
		{"price_factor", api.PoolSpec{PriceFactor: 0.9}},
		{"price_factor", api.PoolSpec{PriceFactor: -2}},
		{"price_factor", api.PoolSpec{PriceFactor: math.NaN()}},
		{"price_factor", api.PoolSpec{PriceFactor: math.Inf(1)}},
		{"budget.per_hour", api.PoolSpec{Budget: api.BudgetSpec{PerHour: -1}}},
		{"budget.per_hour", api.PoolSpec{Budget: api.BudgetSpec{PerHour: math.NaN()}}},
		{"budget.per_month", api.PoolSpec{Budget: api.BudgetSpec{PerMonth: 1e10}}},
		{"", api.PoolSpec{Volumes: map[string]api.PoolVolume{"data": {Path: "/srv/data"}, "out": {Path: "/srv/out", Writable: true}}}},
		{"volumes.Data", api.PoolSpec{Volumes: map[string]api.PoolVolume{"Data": {Path: "/srv/data"}}}},
		{"volumes.tmpfs", api.PoolSpec{Volumes: map[string]api.PoolVolume{"tmpfs": {Path: "/srv/data"}}}},
		{"volumes.a.path", api.PoolSpec{Volumes: map[string]api.PoolVolume{"a": {Path: "/"}}}},
		{"volumes.a.path", api.PoolSpec{Volumes: map[string]api.PoolVolume{"a": {Path: "srv"}}}},
		{"volumes.a.path", api.PoolSpec{Volumes: map[string]api.PoolVolume{"a": {Path: "/srv/../etc"}}}},
		{"volumes.a.path", api.PoolSpec{Volumes: map[string]api.PoolVolume{"a": {Path: "/dev/shm"}}}},
	} {
		c := Dev(2, 4*muster.GiB)
		x.spec.Name, x.spec.Provider = "p", api.ProviderLocal
		c.DataDir, c.Pools = "/d", []api.PoolSpec{x.spec}
		problems := Validate(&c)
		if x.at == "" && len(problems) > 0 || x.at != "" && (len(problems) != 1 || problems[0].Location != "pools[0]."+x.at) {
			t.Errorf("%+v: %v", x.spec, problems)
		}
		if x.at != "" {
			continue
		}
		given := x.spec.PriceFactor
		Defaults(&c)
		if got := c.Pools[0].PriceFactor; got != given && (given != 0 || got != defaultPriceFactor) {
			t.Errorf("%+v: price factor %g", x.spec, got)
		}
		if problems := Validate(&c); len(problems) > 0 {
			t.Errorf("with its defaults %+v: %v", c.Pools[0], problems)
		}
		if b, err := json.Marshal(c.Pools[0]); err != nil || x.spec.Budget == (api.BudgetSpec{}) && strings.Contains(string(b), "budget") {
			t.Errorf("%s %v", b, err)
		}
	}
}
