package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/journal"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// clockNear is how far the node's clock may be off the server's.
	clockNear = time.Minute
	// checkedFor is how long ago the runtimes may have been found to work, if nothing failed since.
	checkedFor = 10 * time.Second
)

// look is what can be told of the node at a glance. It writes one small file.
func (a *Agent) look() wire.Condition {
	for _, path := range []string{filepath.Join(a.cfg.Dir, journal.BrokenName), a.cfg.Broken} {
		if why, there := readBroken(path); there {
			return wire.Condition{Broken: why}
		}
	}
	touch := filepath.Join(a.cfg.Dir, journal.TempName, "touch")
	switch err := os.WriteFile(touch, []byte("."), 0o600); {
	case err == nil:
		_ = os.Remove(touch)
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EIO):
		return wire.Condition{Broken: fmt.Sprintf("its disk cannot be written: %v", err)}
	default:
		return wire.Condition{Unready: fmt.Sprintf("its disk cannot be written: %v", err)}
	}
	if free, floor := journal.FreeDisk(a.cfg.Dir), journal.DiskFloor(a.cfg.Dir); free < floor {
		return wire.Condition{Unready: fmt.Sprintf("its disk is nearly full: %s free where sandboxes are kept, at least %s are needed", muster.Bytes(free), muster.Bytes(floor))}
	}
	return wire.Condition{}
}

// readBroken reads an operator's file that says that the node is broken.
func readBroken(path string) (why string, there bool) {
	if path == "" {
		return "", false
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	why, _, _ = strings.Cut(strings.TrimSpace(string(b[:min(len(b), 1024)])), "\n")
	if why == "" {
		why = "no reason is given"
	}
	return path + " says: " + why, true
}

// notice looks, and tells readers what changed.
func (a *Agent) notice() {
	now, names := a.look(), a.imageNames()
	a.mu.Lock()
	if a.condition != now {
		defer a.log.Info("condition", "unready", now.Unready, "broken", now.Broken) // without the lock
		a.condition = now
		for rd := range a.readers {
			rd.condition = true
			rd.poke()
		}
	}
	if !slices.Equal(a.atHand, names) {
		a.atHand = names
		a.atHandGen++
	}
	a.mu.Unlock()
}

// imageNames are the images that are at hand, the last used first.
func (a *Agent) imageNames() []string {
	if a.images == nil {
		return nil
	}
	list := a.images.List().Images
	names := make([]string, 0, min(2*len(list), wire.MaxImages))
	add := func(name string) {
		if name != "" && len(names) < wire.MaxImages && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for i := range list {
		add(list[i].Ref)
	}
	// Work that names them by what they are finds them too.
	for i := range list {
		add(list[i].Digest)
	}
	return names
}

// probe proves whether the node is ready. One at a time: a second caller waits, within its own time.
func (a *Agent) probe(ctx context.Context, p wire.Probe) wire.ProbeAnswer {
	select {
	case a.probing <- struct{}{}:
		defer func() { <-a.probing }()
	case <-ctx.Done():
		return wire.ProbeAnswer{Why: "another probe of it goes on"}
	}
	if off := time.Since(p.Now.Std()); p.Now != 0 && off.Abs() > clockNear {
		return wire.ProbeAnswer{Why: fmt.Sprintf("its clock is %s off the server's", off.Abs().Round(time.Second))}
	}
	switch c := a.look(); {
	case c.Broken != "":
		return wire.ProbeAnswer{Why: c.Broken, Broken: true}
	case c.Unready != "":
		return wire.ProbeAnswer{Why: c.Unready}
	}
	if why := a.recheck(ctx); why != "" {
		return wire.ProbeAnswer{Why: why}
	}
	return a.ask(ctx, p)
}

// recheck tries the runtimes that worked when the agent started, all at once.
func (a *Agent) recheck(ctx context.Context) string {
	a.mu.Lock()
	fresh := time.Since(a.checked) < checkedFor
	a.mu.Unlock()
	if fresh {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	errs := make([]error, len(a.runtimes))
	var wg sync.WaitGroup
	for i, rt := range a.runtimes {
		wg.Go(func() { errs[i] = rt.Check(ctx) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return fmt.Sprintf("runtime %s does not work any more: %v", a.runtimes[i].Name(), err)
		}
	}
	a.mu.Lock()
	a.checked = time.Now()
	a.mu.Unlock()
	return ""
}
