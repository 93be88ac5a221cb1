package apply

import (
	"context"
	"time"

	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

// countOdd counts the nodes that refused their part of a plan although nothing had changed since it
// was made. Workers and the applier use one rule, so something must be wrong with what is known
// about such a node: it would get plans and refuse them for ever. At the limit a fact records that,
// for the node's health, and the count starts again. Plans that were late or had to yield do not
// count: that is normal.
func (a *Applier) countOdd(ctx context.Context, odd []verify.OddNode) {
	if len(odd) == 0 || a.cfg.OddLimit < 0 {
		return
	}
	now := time.Now()
	a.count(func(s *Stats) { s.Odd += uint64(len(odd)) })
	for _, n := range odd {
		at := append(a.odd[n.ID], now)
		for now.Sub(at[0]) > a.cfg.OddWindow {
			at = at[1:]
		}
		if a.odd[n.ID] = at; len(at) < a.cfg.OddLimit {
			continue
		}
		delete(a.odd, n.ID)
		a.log.Warn("a node refuses plans again and again", "node", n.ID, "times", len(at), "within", a.cfg.OddWindow, "reason", n.Reason)
		fact := &state.NodePlansRefused{ID: n.ID, Count: len(at), Reason: n.Reason}
		// In a goroutine, since the next batch must not wait for this fact.
		a.telling.Go(func() {
			if _, _, err := a.cfg.Proposer.Propose(ctx, fact); err != nil && ctx.Err() == nil {
				a.log.Warn("a node that refuses plans was not reported to health", "node", fact.ID, "error", err)
			}
		})
	}
	// Forget what is old, such as nodes that are gone.
	for id, at := range a.odd {
		if now.Sub(at[len(at)-1]) > a.cfg.OddWindow {
			delete(a.odd, id)
		}
	}
}
