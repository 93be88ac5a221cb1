package present

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// Weights returns the weights of the classes that use or want something, by name. Only those
// compete for capacity now, so only they count for a namespace's share. A caller that shows many
// namespaces computes the weights once.
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

// Namespace shows what a namespace uses and wants, its limits, and its share of capacity (0 to 1)
// by the weights that Weights returns. A namespace that was never used is shown empty. All
// namespaces together, *, have no class and no share. Limits of CPU are in cores; a limit of 0 is
// no limit.
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
		// The row has the priority plus one, so that its zero value stands for the default.
		if l.MaxPriority > 0 {
			p := l.Highest()
			out.Limits.MaxPriority = &p
		}
		out.LimitSet, out.LimitWho, out.LimitWhy = Time(l.Set), l.Who, l.Reason
	}
	return out
}
