package fit_test

import (
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/state"
)

func TestAllowance(t *testing.T) {
	c := fittest.Read(t, "node n1 cpu=8 memory=8GiB\njob a count=4 cpu=1 memory=1GiB\nplace a 0 n1")
	ask := c.Snapshot().JobByUID("a").Run.Ask
	if a := fit.NewAllowance(c.Snapshot()); a != nil {
		t.Fatal("an allowance without limits")
	}
	if n, b := (*fit.Allowance)(nil).Of("default", ask, 7); n != 7 || b.Namespace != "" {
		t.Errorf("without limits: %d, %+v", n, b)
	}
	for _, tc := range []struct {
		limits []state.NamespaceLimits
		n      int
		by     muster.Namespace
		why    string
	}{
		{[]state.NamespaceLimits{{Name: "default", Allocs: 3}}, 2, "default", "namespace default may have 3 allocations and has 1"},
		{[]state.NamespaceLimits{{Name: "default", CPU: 2500}}, 1, "default", "may have 2.5 cores and has 1"},
		{[]state.NamespaceLimits{{Name: "default", Memory: 2 * muster.GiB}}, 1, "default", "may have 2GiB of memory"},
		{[]state.NamespaceLimits{{Name: "default", Allocs: 4}, {Name: muster.AllNamespaces, Allocs: 2}}, 1, muster.AllNamespaces, "all namespaces together may have 2 allocations"},
		{[]state.NamespaceLimits{{Name: "default", Allocs: 1, CPU: 500}}, 0, "default", "may have 1 allocation and has 1"},
		{[]state.NamespaceLimits{{Name: "default", Jobs: 1}, {Name: "x", Allocs: 1}}, 4, "", ""},
	} {
		for i := range tc.limits {
			c.Apply(&state.NamespaceLimited{Limits: tc.limits[i]})
		}
		a := fit.NewAllowance(c.Snapshot())
		n, bound := a.Of("default", ask, 4)
		if n != tc.n || bound.Namespace != tc.by || !strings.Contains(bound.Why, tc.why) {
			t.Errorf("%+v: %d, %+v", tc.limits, n, bound)
		}
		a.Take("default", ask, n)
		if left, _ := a.Of("default", ask, 4-n); tc.by != "" && left != 0 {
			t.Errorf("%+v: %d are left after all were taken", tc.limits, left)
		}
		a.Take("default", ask, -n)
		if again, _ := a.Of("default", ask, 4); again != n {
			t.Errorf("%+v: %d after they were given back", tc.limits, again)
		}
		for i := range tc.limits {
			c.Apply(&state.NamespaceLimited{Limits: state.NamespaceLimits{Name: tc.limits[i].Name}})
		}
	}
}
