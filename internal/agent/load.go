package agent

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
)

// load finds the allocations of earlier agents in this directory and goes on with each.
func (a *Agent) load(ctx context.Context) error {
	ids, err := journal.MakeSandboxes(a.cfg.Dir)
	if err != nil {
		return err
	}
	if err := a.endForgotten(ctx, ids); err != nil {
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

// endForgotten ends sandboxes whose directories somebody has deleted. No report names them, so the
// server places their members again: none of them may still run by then.
func (a *Agent) endForgotten(ctx context.Context, known []muster.AllocID) error {
	for _, rt := range a.cfg.Runtimes {
		s, ok := rt.(contract.Sweeper)
		if !ok {
			continue
		}
		n, err := s.EndForgotten(ctx, filepath.Join(a.cfg.Dir, journal.SandboxesName), known)
		if n > 0 {
			a.log.Warn("ended sandboxes whose directories have been deleted", "runtime", rt.Name(), "sandboxes", n)
		}
		if err != nil {
			return fmt.Errorf("end sandboxes whose directories have been deleted: %w", err)
		}
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
