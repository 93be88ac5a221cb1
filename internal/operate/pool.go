package operate

import (
	"cmp"
	"context"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// Pools are the rules by which nodes are made and given up.
type Pools struct{ *desk }

// List lists the pools by name, with what lives by them.
func (s *Pools) List() api.PoolList {
	snap, now := s.cfg.State.Latest(), s.cfg.Clock.Now()
	out := api.PoolList{Pools: []api.Pool{}, Index: snap.Index()}
	sights := map[muster.PoolName]*api.Pool{}
	var order []muster.PoolName
	loops := s.cfg.Loops()
	// All pools of one answer are shown by the same decisions.
	d, blocks := loops.Fleet()
	snap.Pools(func(p *state.Pool) bool {
		shown := s.poolOf(snap, p, loops, d, blocks, now)
		sights[p.Name] = &shown
		order = append(order, p.Name)
		return true
	})
	troubleOf := loops.Troubles()
	snap.LiveNodes(func(n *state.Node) bool {
		if p := sights[n.Pool]; p != nil {
			present.CountNode(p, n, troubleOf)
		}
		return true
	})
	for _, name := range order {
		out.Pools = append(out.Pools, *sights[name])
	}
	return out
}

// Show shows a pool, with the keys that the most of its nodes have data for.
func (s *Pools) Show(name string) (*api.Pool, error) {
	snap, now := s.cfg.State.Latest(), s.cfg.Clock.Now()
	p := snap.Pool(muster.PoolName(name))
	if p == nil {
		return nil, problem.NotFound("pool %s: not found", problem.Clip(name))
	}
	loops := s.cfg.Loops()
	d, blocks := loops.Fleet()
	out := s.poolOf(snap, p, loops, d, blocks, now)
	warm := map[muster.AffinityKey]int{}
	troubleOf := loops.Troubles()
	snap.LiveNodes(func(n *state.Node) bool {
		if n.Pool == p.Name {
			present.CountNode(&out, n, troubleOf)
			for _, k := range n.Warm {
				warm[k]++
			}
		}
		return true
	})
	snap.Offerings(func(o *muster.Offering) bool {
		if o.Provider == p.Provider && p.Covers(o) {
			out.Offers = append(out.Offers, present.PoolOffer(o, blocks, now))
		}
		return true
	})
	slices.SortStableFunc(out.Offers, func(a, b api.PoolOffer) int { return cmp.Compare(a.Price, b.Price) })
	out.Locality = present.Locality(warm)
	out.Warmth = out.Locality
	return &out, nil
}

// Resume lets nodes of a pool be destroyed again after its breaker has tripped, starts the count at
// 0, and has the provider asked again for what it refused.
func (s *Pools) Resume(ctx context.Context, name string, b *api.PoolResume) (*api.Pool, error) {
	if err := checkSaid(b.Reason, b.Who); err != nil {
		return nil, err
	}
	b.Who = cmp.Or(b.Who, anOperator)
	pool := muster.PoolName(name)
	if s.cfg.State.Latest().Pool(pool) == nil {
		return nil, problem.NotFound("pool %s: not found", problem.Clip(name))
	}
	if err := s.propose(ctx, &state.PoolResumed{Pool: pool, Who: b.Who, Reason: b.Reason}); err != nil {
		return nil, err
	}
	// Blocks are not in the state: the fleet has them in memory, and forgets them now.
	ended := s.cfg.Loops().Unblock(pool)
	out, err := s.Show(name)
	if err == nil {
		out.Unblocked = ended
	}
	return out, err
}

// poolOf shows a pool without its nodes, with what the loops know of it: what its provider refuses
// or does not answer, and which members wait although it could launch nodes for them.
func (s *Pools) poolOf(snap *state.Snapshot, p *state.Pool, loops Loops, d *size.Decisions, blocks []size.Block, now muster.Time) api.Pool {
	out := present.Pool(snap, p, now)
	out.Lease = s.lease(p.Name)
	out.Rates = loops.Rates(p.Provider)
	if since, err := loops.Blind(p.Provider); err != nil {
		out.Blind = &api.Blind{Since: since.Std(), Error: err.Error()}
	}
	if since, err := loops.Unsold(p.Provider); err != nil {
		out.Unsold = &api.Blind{Since: since.Std(), Error: err.Error()}
	}
	for i := range blocks {
		if blocksPool(snap, p, &blocks[i]) {
			out.Blocks = append(out.Blocks, present.Block(&blocks[i], now))
		}
	}
	if d == nil {
		// The fleet has decided nothing yet, or this server does not lead.
		return out
	}
	for _, g := range d.Budgets {
		if g.Pool == p.Name {
			out.Budget.Hour, out.Budget.Month, out.Budget.Alert = float64(g.Hour)/1e6, float64(g.Month)/1e6, g.Alert
		}
	}
	// A wait is of a shape of members. Those that no pool is named for may wait for this one, too.
	for _, w := range d.Waits {
		if shape := shapeOf(snap, w.Shape); shape == nil || shape.Pool == "" || shape.Pool == p.Name {
			out.Waiting = append(out.Waiting, present.Wait(&w))
		}
	}
	return out
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
