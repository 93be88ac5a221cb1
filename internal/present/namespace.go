package present

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// Weights returns the weights of the classes that have or want something, by name. Only those share
// the capacity now, so only they count for a namespace's share.
func Weights(snap *state.Snapshot) map[string]int {
	weights := map[string]int{}
	shares := snap.Shares()
	snap.Uses(func(u *state.NamespaceUse) bool {
		if u.Name != muster.AllNamespaces && u.Allocs+u.Waiting > 0 {
			class, weight := shares.Class(u.Name)
			weights[class] = weight
		}
		return true
	})
	return weights
}

// Namespace shows what a namespace has and wants, its limits, and its share of capacity, 0 to 1, by
// the weights that Weights returns. One that nobody has used is shown empty. All namespaces
// together, as *, have no class and no share.
func Namespace(snap *state.Snapshot, ns muster.Namespace, weights map[string]int) api.Namespace {
	u := snap.Use(ns)
	out := api.Namespace{Name: string(ns), Jobs: u.Jobs, Waiting: u.Waiting, Allocs: u.Allocs, Used: Resources(u.Used)}
	if ns != muster.AllNamespaces {
		out.Class, out.Weight = snap.Shares().Class(ns)
		sum := 0
		for _, w := range weights {
			sum += w
		}
		if w, counts := weights[out.Class]; counts && sum > 0 {
			out.Share = float64(w) / float64(sum)
		}
	}
	if l := snap.Limits(ns); l != nil {
		out.Limits = api.NamespaceLimits{Jobs: l.Jobs, Allocs: l.Allocs, CPU: float64(l.CPU) / 1000, Memory: api.Size(l.Memory)}
		// A row has the priority plus one; 0 is the default for every namespace.
		if l.MaxPriority > 0 {
			p := l.Highest()
			out.Limits.MaxPriority = &p
		}
		out.LimitSet, out.LimitWho, out.LimitWhy = Time(l.Set), l.Who, l.Reason
	}
	return out
}
