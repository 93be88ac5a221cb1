package apply

import (
	"context"
	"time"

	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

// strange notes nodes that refused their part of a plan although nothing had changed since it was made. Who
// plans and who verifies go by one rule, so that something is wrong with what is known of such a node: it would get
// plans and refuse them for ever. At the limit a fact tells health, and the count begins anew. Plans that came
// too late, or gave way, are not counted: those are how things should go.
func (a *Applier) strange(ctx context.Context, odd []verify.OddNode) {
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
		a.telling.Go(func() {
			if _, _, err := a.cfg.Proposer.Propose(ctx, fact); err != nil && ctx.Err() == nil {
				a.log.Warn("health was not told of a node that refuses plans", "node", fact.ID, "error", err)
			}
		})
	}
	// Nodes come and go; what is old is forgotten with the next strange thing.
	for id, at := range a.odd {
		if now.Sub(at[len(at)-1]) > a.cfg.OddWindow {
			delete(a.odd, id)
		}
	}
}
