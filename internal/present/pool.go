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

// Block shows which requests the server does not make of a provider for a while, because the
// provider refused one. Over says that the time has passed at now: the next launch asks again.
func Block(b *size.Block, now muster.Time) api.Block {
	return api.Block{
		Provider: string(b.Scope.Provider), Offering: string(b.Scope.Offering), Zone: b.Scope.Zone, Market: string(b.Scope.Market), Family: b.Scope.Family,
		Until: b.Until.Std(), Over: b.Until <= now, Why: b.Why,
	}
}

// PoolOffer shows an offering with the first block that covers it.
func PoolOffer(o *muster.Offering, blocks []size.Block, now muster.Time) api.PoolOffer {
	out := api.PoolOffer{
		Provider: string(o.Provider), Offering: string(o.Name), Zone: o.Zone, Market: string(o.Market),
		CPU: float64(o.Capacity.CPU) / 1000, Memory: api.Size(o.Capacity.Memory), Disk: api.Size(o.Capacity.Disk),
		Price: float64(o.Price) / 1e6, Available: o.Available,
	}
	if out.CPU > 0 {
		out.PerCore = out.Price / out.CPU
	}
	if out.Memory > 0 {
		out.PerGiB = out.Price / (float64(out.Memory) / float64(muster.GiB))
	}
	for i := range blocks {
		if b := &blocks[i]; b.Covers(o) {
			block := Block(b, now)
			out.Blocked, out.Available = &block, out.Available && block.Over
			break
		}
	}
	return out
}

// Wait shows waiting members of one shape and priority for which the fleet launches nothing more.
func Wait(w *size.Wait) api.Wait {
	return api.Wait{Priority: w.Priority, Members: w.Members, Reason: w.Reason}
}

// maxTroubles bounds the nodes whose failing provider calls are shown with a pool. When a provider
// fails, all of its nodes have the same trouble, and the answer should stay small.
const maxTroubles = 20

// maxLocalityKeys bounds the keys that are shown with a pool. Jobs choose keys freely, so there may be
// any number.
const maxLocalityKeys = 20

// Pool shows a pool without its nodes, and without what only the loops know: internal/operate adds
// that. Lists are empty and not nil, so that JSON has them as []. Money is in whole units of the
// operator's currency; rows have millionths.
func Pool(snap *state.Snapshot, p *state.Pool, now muster.Time) api.Pool {
	out := api.Pool{
		Name: string(p.Name), Provider: string(p.Provider), Offerings: []string{}, Min: p.Min, Max: p.Max, MaxLaunching: p.MaxLaunching,
		Spare: p.Spare, PriceFactor: p.PriceFactor, Budget: api.PoolBudget{PerHour: float64(p.BudgetHour) / 1e6, PerMonth: float64(p.BudgetMonth) / 1e6},
		StopMost: p.StopMost, StopTimeout: lasting(p.StopTime), IdleTimeout: lasting(p.IdleTimeout), BootTimeout: lasting(p.BootTimeout), Grace: lasting(p.Grace),
		Blocks: []api.Block{}, Waiting: []api.Wait{}, Index: snap.Index(),
	}
	// Spent is a pointer in the API, so that 0 is shown: it says that the month has cost nothing
	// yet.
	spent := float64(snap.Spent(p.Name, now)) / 1e6
	out.Spent = &spent
	for _, o := range p.Offerings {
		out.Offerings = append(out.Offerings, string(o))
	}
	if b := snap.Breaker(p.Name); b != nil {
		out.Breaker = api.Breaker{Unexplained: b.Unexplained(now), Tripped: Time(b.Tripped), Reason: b.Reason, Resumed: Time(b.Resumed), Who: b.Who}
	}
	// A pool that never had trouble has no breaker. IsSuspect accepts nil.
	if b := snap.Breaker(p.Name); b.IsSuspect(now) {
		out.Suspect = &api.Suspect{Since: b.Suspect.Std(), Why: b.SuspectWhy, Most: state.MaySideline(snap.Tally(p.Name).Serving)}
	}
	return out
}

// lasting converts a duration for the API. Rows have durations in microseconds, like moments.
func lasting(micros muster.Time) api.Duration {
	return api.Duration(time.Duration(micros) * time.Microsecond)
}

// Locality shows the keys for which the most nodes have data cached, and how many nodes those are.
// Keys with equally many nodes are sorted by name, so that the answer is stable.
func Locality(nodes map[muster.AffinityKey]int) (out []api.LocalityKey) {
	keys := slices.SortedFunc(maps.Keys(nodes), func(a, b muster.AffinityKey) int {
		return cmp.Or(cmp.Compare(nodes[b], nodes[a]), cmp.Compare(a, b))
	})
	for _, k := range keys[:min(len(keys), maxLocalityKeys)] {
		out = append(out, api.LocalityKey{Key: string(k), Nodes: nodes[k]})
	}
	return out
}

// CountNode adds a live node to the counts of its pool. A caller shows many pools with one walk
// over the nodes. troubleOf says which call for a node its provider keeps failing; "" if none. The
// prices add up to what the live nodes of the pool cost per hour.
func CountNode(p *api.Pool, n *state.Node, troubleOf func(*state.Node) string) {
	if len(p.Troubles) < maxTroubles {
		if why := troubleOf(n); why != "" {
			p.Troubles = append(p.Troubles, api.NodeTrouble{Node: string(n.ID), Error: why})
		}
	}
	c := &p.Nodes
	c.Live++
	if n.Stage != muster.NodeStopped {
		p.Price += float64(n.Offering.Price) / 1e6
	}
	switch n.Stage {
	case muster.NodeLaunching:
		c.Launching++
	case muster.NodeStopped:
		c.Stopped++
	case muster.NodeStarting:
		c.Starting++
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
	// Bad health counts only where capacity is missing for it. A booting node is not ready in any
	// case, and a node that is being destroyed usually has no contact.
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
