package present

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/state"
)

// Block shows what the server does not ask of a provider for a while, because the provider refused
// it. Over says that the time has passed at now; the next launch asks again.
func Block(b *size.Block, now muster.Time) api.Block {
	return api.Block{
		Provider: string(b.Scope.Provider), Offering: string(b.Scope.Offering), Zone: b.Scope.Zone, Market: string(b.Scope.Market), Family: b.Scope.Family,
		Until: b.Until.Std(), Over: b.Until <= now, Why: b.Why,
	}
}

// Wait shows waiting members of one shape and priority for which the fleet launches nothing more.
func Wait(w *size.Wait) api.Wait {
	return api.Wait{Priority: w.Priority, Members: w.Members, Reason: w.Reason}
}

// maxTroubles bounds the nodes whose trouble is shown with a pool: when a provider fails, all of
// its nodes have the same trouble.
const maxTroubles = 20

// maxWarmth bounds the keys that are shown with a pool. Jobs may make any number of keys.
const maxWarmth = 20

// Pool shows a pool without its nodes, and without what only the loops know: a service adds that.
// Lists are empty and not nil, as JSON should have them as []. Money is in whole units of the
// operator's currency; rows have millionths.
func Pool(snap *state.Snapshot, p *state.Pool, now muster.Time) api.Pool {
	out := api.Pool{
		Name: string(p.Name), Provider: string(p.Provider), Offerings: []string{}, Min: p.Min, Max: p.Max, MaxLaunching: p.MaxLaunching,
		Spare: p.Spare, PriceFactor: p.PriceFactor, Budget: api.PoolBudget{PerHour: float64(p.BudgetHour) / 1e6, PerMonth: float64(p.BudgetMonth) / 1e6},
		IdleTimeout: lasting(p.IdleTimeout), BootTimeout: lasting(p.BootTimeout), Grace: lasting(p.Grace),
		Blocks: []api.Block{}, Waiting: []api.Wait{}, Index: snap.Index(),
	}
	spent := float64(snap.Spent(p.Name, now)) / 1e6
	out.Spent = &spent
	for _, o := range p.Offerings {
		out.Offerings = append(out.Offerings, string(o))
	}
	if b := snap.Breaker(p.Name); b != nil {
		out.Breaker = api.Breaker{Unexplained: b.Unexplained(now), Tripped: Time(b.Tripped), Reason: b.Reason, Resumed: Time(b.Resumed), Who: b.Who}
	}
	// A pool that never had trouble has no breaker; IsSuspect takes nil.
	if b := snap.Breaker(p.Name); b.IsSuspect(now) {
		out.Suspect = &api.Suspect{Since: b.Suspect.Std(), Why: b.SuspectWhy, Most: state.MaySideline(snap.Tally(p.Name).Serving)}
	}
	return out
}

// lasting is a duration for the API. Rows have durations in microseconds, as they have moments.
func lasting(micros muster.Time) api.Duration {
	return api.Duration(time.Duration(micros) * time.Microsecond)
}

// Warmth shows the keys for which the most nodes have data cached, and how many nodes those are.
// Keys with as many nodes are in the order of their names.
func Warmth(nodes map[muster.AffinityKey]int) (out []api.Warmth) {
	keys := slices.SortedFunc(maps.Keys(nodes), func(a, b muster.AffinityKey) int {
		return cmp.Or(cmp.Compare(nodes[b], nodes[a]), cmp.Compare(a, b))
	})
	for _, k := range keys[:min(len(keys), maxWarmth)] {
		out = append(out, api.Warmth{Key: string(k), Nodes: nodes[k]})
	}
	return out
}

// CountNode adds a live node to what is shown of its pool. A caller shows many pools with one walk
// over the nodes. troubleOf says which call for a node its provider keeps failing; "" if none.
func CountNode(p *api.Pool, n *state.Node, troubleOf func(*state.Node) string) {
	if len(p.Troubles) < maxTroubles {
		if why := troubleOf(n); why != "" {
			p.Troubles = append(p.Troubles, api.NodeTrouble{Node: string(n.ID), Error: why})
		}
	}
	c := &p.Nodes
	c.Live++
	p.Price += float64(n.Offering.Price) / 1e6
	switch n.Stage {
	case muster.NodeLaunching:
		c.Launching++
	case muster.NodeBooting:
		c.Booting++
	case muster.NodeAdopted:
		c.Adopted++
	case muster.NodeServing:
		c.Serving++
		if !n.Busy() {
			c.Idle++
		}
	case muster.NodeDraining:
		c.Draining++
	case muster.NodeTerminating:
		c.Terminating++
	}
	// Health is shown where it means that capacity is missing: a node that boots is not ready in
	// any case, and one that is being destroyed is out of contact as a rule.
	serving := n.Stage == muster.NodeServing
	switch {
	case n.Health == muster.NodeLost && n.Stage != muster.NodeTerminating:
		c.Lost++
	case n.Health == muster.NodeBroken:
		c.Broken++
	case n.Health == muster.NodeFlaky && serving:
		c.Sidelined++
	case n.Health == muster.NodeUnready && serving:
		c.Unready++
	}
	if serving && len(n.Warm) > 0 {
		c.Warm++
	}
	if n.Intent == muster.NodeHold {
		c.Held++
	}
}
