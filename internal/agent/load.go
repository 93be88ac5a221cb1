package agent

import (
	"context"
	"fmt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/journal"
)

// load finds the allocations of earlier agents in this directory and goes on with each.
func (a *Agent) load(ctx context.Context) error {
	ids, err := journal.MakeSandboxes(a.cfg.Dir)
	if err != nil {
		return err
	}
	var living []*allocation
	for _, id := range ids {
		al := findAllocation(a.node, id)
		if al == nil {
			a.node.trash.add(trashItem{id: id, dir: journal.OfAlloc(a.cfg.Dir, id)})
			continue
		}
		a.allocs[al.id] = al
		if !al.ended {
			living = append(living, al)
		}
	}
	if err := a.restoreNetworks(ctx); err != nil {
		return err
	}
	for _, al := range living {
		a.node.crew.spawn(func() { al.live(ctx) })
	}
	return nil
}

// restoreNetworks deletes those of sandboxes that earlier agents have not brought to run.
func (a *Agent) restoreNetworks(ctx context.Context) error {
	if a.cfg.Networks == nil {
		return nil
	}
	var keep []muster.AllocID
	for id, al := range a.allocs {
		// Of one whose spec is lost it is not known whether it has one.
		if al.begun && !al.ended && (al.spec == nil || isolated(al.spec)) {
			keep = append(keep, id)
		}
	}
	if err := a.cfg.Networks.Restore(ctx, keep); err != nil {
		return fmt.Errorf("networks of sandboxes: %w", err)
	}
	return nil
}
