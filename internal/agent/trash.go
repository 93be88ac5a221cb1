package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/wait"
)

// trashItem is the directory of a forgotten allocation.
type trashItem struct {
	id  muster.AllocID
	dir journal.AllocDir
	// runtime made its sandbox; nil if that is not known, or with neverBegun if there was none.
	runtime    contract.Runtime
	neverBegun bool
	// calls is the allocation's token for calls to the runtime; nil if nobody else can have it.
	calls chan struct{}
}

// rubbish is what is to be deleted of an allocation that has ended.
func (al *allocation) rubbish() trashItem {
	al.mu.Lock()
	defer al.mu.Unlock()
	item := trashItem{id: al.id, dir: al.dir, neverBegun: !al.begun, calls: al.calls}
	if al.begun {
		item.runtime = al.runtime
	}
	return item
}

const (
	trashWorkers = 2
	trashRetry   = 30 * time.Second
)

// trash deletes the directories of forgotten allocations in the background. It tries again what
// could not be deleted. The next agent deletes what is left when this one ends.
type trash struct {
	empty func(context.Context, trashItem) error
	log   *slog.Logger
	wake  chan struct{}

	mu    sync.Mutex
	items []trashItem
	// pending are closed and removed when the directory of an id is gone.
	pending map[muster.AllocID]chan struct{}
}

func newTrash(empty func(context.Context, trashItem) error, log *slog.Logger) *trash {
	return &trash{empty: empty, log: log, wake: make(chan struct{}, trashWorkers), pending: map[muster.AllocID]chan struct{}{}}
}

// add takes directories to delete.
func (t *trash) add(items ...trashItem) {
	if len(items) == 0 {
		return
	}
	t.mu.Lock()
	t.items = append(t.items, items...)
	for _, item := range items {
		if t.pending[item.id] == nil {
			t.pending[item.id] = make(chan struct{})
		}
	}
	t.mu.Unlock()
	for range trashWorkers {
		wait.Poke(t.wake)
	}
}

// gone is closed when the directory of an id may be used again; nil if it may be used now.
func (t *trash) gone(id muster.AllocID) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pending[id]
}

// next takes one directory off the list.
func (t *trash) next() (trashItem, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.items) == 0 {
		t.items = nil
		return trashItem{}, false
	}
	item := t.items[0]
	t.items[0] = trashItem{}
	t.items = t.items[1:]
	return item, true
}

// run starts the goroutines that delete, until ctx ends.
func (t *trash) run(ctx context.Context, spawn func(func()) bool) {
	for range trashWorkers {
		spawn(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-t.wake:
				}
				for item, ok := t.next(); ok && ctx.Err() == nil; item, ok = t.next() {
					t.one(ctx, item, spawn)
				}
			}
		})
	}
}

// one deletes one directory, or puts it back on the list for later.
func (t *trash) one(ctx context.Context, item trashItem, spawn func(func()) bool) {
	err := t.empty(ctx, item)
	if err == nil {
		t.mu.Lock()
		close(t.pending[item.id])
		delete(t.pending, item.id)
		t.mu.Unlock()
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	t.log.Warn("forgotten allocation cannot be deleted yet", "alloc", item.id, "error", err)
	spawn(func() {
		if wait.For(ctx, trashRetry) {
			t.add(item)
		}
	})
}

// emptyDir deletes what is left of an allocation. The journal goes first: a restarted agent then
// takes the rest for rubbish, and not for something to start.
func (n *node) emptyDir(ctx context.Context, item trashItem) error {
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
	runtimes := n.runtimes
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

// emptyTemp deletes what killed agents have left in the temporary directory. A runtime's probe
// there may be a sandbox that still runs, so the runtimes are asked to remove it first.
func (n *node) emptyTemp(ctx context.Context) error {
	dir := filepath.Join(n.cfg.Dir, journal.TempName)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		for _, rt := range n.cfg.Runtimes {
			if err := rt.Remove(ctx, path); err != nil {
				n.log.Warn("left by an earlier agent", "path", path, "error", err)
			}
		}
		if err := journal.RemoveTree(path); err != nil {
			return err
		}
	}
	return nil
}
