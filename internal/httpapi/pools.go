package httpapi

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

func (a *API) poolRoutes() {
	register(a, operation(http.MethodGet, "/v1/pools", "list-pools", tagPools, "List pools", "By name, with what lives by them."), a.listPools)

	one := operation(http.MethodGet, "/v1/pools/{name}", "get-pool", tagPools, "Show a pool", "")
	one.Errors = append(one.Errors, http.StatusNotFound)
	register(a, one, func(_ context.Context, in *PoolPath) (*poolOut, error) { return a.showPool(in) })

	resume := operation(http.MethodPost, "/v1/pools/{name}/resume", "resume-pool", tagPools, "Resume a pool",
		"Lets nodes be destroyed again after the pool's breaker has tripped, and starts its count at 0. Ends the pool's blocks: the provider is asked again for what it refused, as after its credentials were corrected.")
	resume.Errors = append(resume.Errors, http.StatusNotFound, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.PoolResume](a, &resume, false)
	register(a, resume, a.resumePool)
}

// PoolPath names a pool in the path.
type PoolPath struct {
	Name string `path:"name" maxLength:"200" doc:"Name of the pool."`
}

type (
	poolOut     struct{ Body api.Pool }
	poolListOut struct{ Body api.PoolList }
)

func (a *API) listPools(context.Context, *struct{}) (*poolListOut, error) {
	snap, now := a.cfg.State.Latest(), a.cfg.Clock.Now()
	out := &poolListOut{api.PoolList{Pools: []api.Pool{}, Index: snap.Index()}}
	sights := map[muster.PoolName]*api.Pool{}
	var order []muster.PoolName
	d, blocks := a.cfg.Insight.Fleet()
	snap.Pools(func(p *state.Pool) bool {
		shown := a.poolOf(snap, p, d, blocks, now)
		sights[p.Name] = &shown
		order = append(order, p.Name)
		return true
	})
	troubleOf := a.cfg.Insight.Troubles()
	snap.LiveNodes(func(n *state.Node) bool {
		if p := sights[n.Pool]; p != nil {
			countNode(p, n, troubleOf)
		}
		return true
	})
	for _, name := range order {
		out.Body.Pools = append(out.Body.Pools, *sights[name])
	}
	return out, nil
}

func (a *API) showPool(in *PoolPath) (*poolOut, error) {
	snap, now := a.cfg.State.Latest(), a.cfg.Clock.Now()
	p := snap.Pool(muster.PoolName(in.Name))
	if p == nil {
		return nil, problem.NotFound("pool %s: not found", problem.Clip(in.Name))
	}
	d, blocks := a.cfg.Insight.Fleet()
	out := &poolOut{a.poolOf(snap, p, d, blocks, now)}
	warm := map[muster.AffinityKey]int{}
	troubleOf := a.cfg.Insight.Troubles()
	snap.LiveNodes(func(n *state.Node) bool {
		if n.Pool == p.Name {
			countNode(&out.Body, n, troubleOf)
			for _, k := range n.Warm {
				warm[k]++
			}
		}
		return true
	})
	out.Body.Warmth = warmthOf(warm)
	return out, nil
}

// maxTroubles bounds the nodes that an answer names.
const maxTroubles = 20

// maxWarmth bounds the keys that an answer names.
const maxWarmth = 20

// warmthOf are the keys that the most nodes have at hand.
func warmthOf(nodes map[muster.AffinityKey]int) (out []api.Warmth) {
	keys := slices.SortedFunc(maps.Keys(nodes), func(a, b muster.AffinityKey) int {
		return cmp.Or(cmp.Compare(nodes[b], nodes[a]), cmp.Compare(a, b))
	})
	for _, k := range keys[:min(len(keys), maxWarmth)] {
		out = append(out, api.Warmth{Key: string(k), Nodes: nodes[k]})
	}
	return out
}

type resumeIn struct {
	PoolPath
	RequestBody
}

func (a *API) resumePool(ctx context.Context, in *resumeIn) (*poolOut, error) {
	var b api.PoolResume
	if len(in.JSON) > 0 {
		if p := door.Decode(in.JSON, &b); p != nil {
			return nil, p
		}
	}
	if err := checkSaid(b.Reason, b.Who); err != nil {
		return nil, err
	}
	if b.Who == "" {
		b.Who = anOperator
	}
	name := muster.PoolName(in.Name)
	if a.cfg.State.Latest().Pool(name) == nil {
		return nil, problem.NotFound("pool %s: not found", problem.Clip(in.Name))
	}
	if _, _, err := a.cfg.Proposer.Propose(ctx, &state.PoolResumed{Pool: name, Who: b.Who, Reason: b.Reason}); err != nil {
		return nil, err
	}
	ended := 0
	if a.cfg.Unblock != nil {
		ended = a.cfg.Unblock(name)
	}
	out, err := a.showPool(&in.PoolPath)
	if err == nil {
		out.Body.Unblocked = ended
	}
	return out, err
}

// poolOf shows a pool, but for its nodes.
func (a *API) poolOf(snap *state.Snapshot, p *state.Pool, d *size.Decisions, blocks []size.Block, now muster.Time) api.Pool {
	out := api.Pool{
		Name: string(p.Name), Provider: string(p.Provider), Offerings: []string{}, Min: p.Min, Max: p.Max, MaxLaunching: p.MaxLaunching,
		Spare: p.Spare, PriceFactor: p.PriceFactor, Budget: api.PoolBudget{PerHour: float64(p.BudgetHour) / 1e6, PerMonth: float64(p.BudgetMonth) / 1e6},
		IdleTimeout: lasting(p.IdleTimeout), BootTimeout: lasting(p.BootTimeout), Grace: lasting(p.Grace), Lease: a.lease(p.Name),
		Blocks: []api.Block{}, Waiting: []api.Wait{}, Index: snap.Index(),
	}
	spent := float64(snap.Spent(p.Name, now)) / 1e6
	out.Spent = &spent
	for _, o := range p.Offerings {
		out.Offerings = append(out.Offerings, string(o))
	}
	if b := snap.Breaker(p.Name); b != nil {
		out.Breaker = api.Breaker{Unexplained: b.Unexplained(now), Tripped: present.Time(b.Tripped), Reason: b.Reason, Resumed: present.Time(b.Resumed), Who: b.Who}
	}
	if b := snap.Breaker(p.Name); b.IsSuspect(now) {
		out.Suspect = &api.Suspect{Since: b.Suspect.Std(), Why: b.SuspectWhy, Most: state.MaySideline(snap.Tally(p.Name).Serving)}
	}
	if since, err := a.cfg.Insight.Blind(p.Provider); err != nil {
		out.Blind = &api.Blind{Since: since.Std(), Error: err.Error()}
	}
	if since, err := a.cfg.Insight.Unsold(p.Provider); err != nil {
		out.Unsold = &api.Blind{Since: since.Std(), Error: err.Error()}
	}
	for i := range blocks {
		if blocksPool(snap, p, &blocks[i]) {
			out.Blocks = append(out.Blocks, present.Block(&blocks[i], now))
		}
	}
	if d == nil {
		return out
	}
	for _, g := range d.Budgets {
		if g.Pool == p.Name {
			out.Budget.Hour, out.Budget.Month, out.Budget.Alert = float64(g.Hour)/1e6, float64(g.Month)/1e6, g.Alert
		}
	}
	for _, w := range d.Waits {
		if shape := shapeOf(snap, w.Shape); shape == nil || shape.Pool == "" || shape.Pool == p.Name {
			out.Waiting = append(out.Waiting, present.Wait(&w))
		}
	}
	return out
}

func lasting(micros muster.Time) api.Duration {
	return api.Duration(time.Duration(micros) * time.Microsecond)
}

// shapeOf finds a shape among the jobs that wait for something; nil if none has it any more.
func shapeOf(snap *state.Snapshot, id state.ShapeID) (found *fit.Shape) {
	snap.Unsettled(func(j *state.Job) bool {
		if j.Run.Shape == id {
			found = fit.ShapeOf(j.Run)
		}
		return found == nil
	})
	return found
}

// blocksPool reports whether a block is of something that the pool could launch.
func blocksPool(snap *state.Snapshot, p *state.Pool, b *size.Block) bool {
	if b.Scope.Provider != "" && b.Scope.Provider != p.Provider {
		return false
	}
	covers := false
	snap.Offerings(func(o *muster.Offering) bool {
		covers = p.Covers(o) && b.Covers(o)
		return !covers
	})
	return covers
}

// countNode adds a live node to what is shown of its pool.
func countNode(p *api.Pool, n *state.Node, troubleOf func(*state.Node) string) {
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
