package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// load finds the allocations of earlier agents in this directory and goes on with each.
func (a *Agent) load(ctx context.Context) error {
	ids, err := journal.MakeSandboxes(a.cfg.Dir)
	if err != nil {
		return err
	}
	var living []*alloc
	for _, id := range ids {
		al := a.found(id)
		if al == nil {
			a.trash.add(trashItem{id: id, dir: journal.OfAlloc(a.cfg.Dir, id)})
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
		a.spawn(func() { a.live(ctx, al) })
	}
	return nil
}

// found reads one sandbox directory; nil if it is rubbish.
func (a *Agent) found(id muster.AllocID) *alloc {
	al := a.newAlloc(id, nil)
	was, err := al.dir.Read()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			a.log.Error("journal of an allocation", "alloc", id, "error", err)
		}
		return nil
	}
	al.stored, al.found, al.ready = true, true, was.Ready
	switch {
	case was.End != nil:
		al.report, al.ended = was.End, true
		close(al.opened)
		close(al.done)
	case was.Begun != nil:
		// What ran may run, and is reported so until the runtime has been asked. What never got so far is not:
		// a server that was told that it runs would hand out a runner that is none.
		al.report = &wire.AllocReport{ID: id, Status: muster.AllocStarting}
		if ran := max(was.Ran, was.Ready); ran != 0 {
			al.report = &wire.AllocReport{ID: id, Status: muster.AllocRunning, Started: cmp.Or(was.Ran, was.Begun.At), Ready: was.Ready}
		}
	case !was.Whole:
		// Torn by a power cut. It may have begun, so it must not begin again.
		al.report = &wire.AllocReport{ID: id, Status: muster.AllocStarting}
	case was.Spec != nil:
		al.spec, al.exclusive = was.Spec, was.Spec.Exclusive
		al.report = &wire.AllocReport{ID: id, Status: muster.AllocStarting}
		return al
	default:
		return nil
	}
	if !al.ended {
		al.spec = was.Spec
		al.exclusive = was.Spec != nil && was.Spec.Exclusive
	}
	if al.ended && was.Begun == nil {
		return al
	}
	al.begun, al.begins = true, was.Begins
	if !was.Whole {
		al.begins = maxBegins // what the torn line said may be that it ran
	}
	if !al.ended && was.Begun != nil && was.Begun.Image != "" && a.images != nil {
		image, err := a.images.Hold(was.Begun.Image)
		if err != nil {
			// Its layers are in use by its mounts whether we count that or not.
			a.log.Warn("image of a sandbox of an earlier agent", "alloc", id, "image", was.Begun.Image, "error", err)
			image = &contract.Image{Digest: was.Begun.Image}
		}
		al.image = image
	}
	for _, rt := range a.cfg.Runtimes {
		if al.runtime == nil || was.Begun != nil && rt.Name() == was.Begun.Runtime {
			al.runtime = rt
		}
	}
	return al
}

// emptyDir deletes what is left of an allocation. The journal goes first: without
// it a restarted agent takes the rest for rubbish, and not for something to start.
func (a *Agent) emptyDir(ctx context.Context, item trashItem) error {
	if item.calls != nil {
		select {
		case item.calls <- struct{}{}:
			defer func() { <-item.calls }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := item.dir.Disown(); err != nil {
		return err
	}
	runtimes := a.runtimes
	if item.runtime != nil {
		runtimes = []contract.Runtime{item.runtime}
	} else if item.neverBegun {
		runtimes = nil
	}
	for _, rt := range runtimes {
		rctx, cancel := context.WithTimeout(ctx, attachTimeout)
		err := rt.Remove(rctx, string(item.dir))
		cancel()
		if err != nil {
			return fmt.Errorf("runtime %s: %w", rt.Name(), err)
		}
	}
	return item.dir.Remove()
}

// emptyTemp deletes what agents that were killed have left in their temporary
// directory: a runtime's probe may be a sandbox that still runs.
func (a *Agent) emptyTemp(ctx context.Context) error {
	dir := filepath.Join(a.cfg.Dir, journal.TempName)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		for _, rt := range a.cfg.Runtimes {
			if err := rt.Remove(ctx, path); err != nil {
				a.log.Warn("left by an earlier agent", "path", path, "error", err)
			}
		}
		if err := journal.RemoveTree(path); err != nil {
			return err
		}
	}
	return nil
}
