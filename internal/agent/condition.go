package agent

import (
	"cmp"
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
	// checkedFor is for how long a check of the runtimes holds, if no allocation failed by the
	// node's fault since.
	checkedFor = 10 * time.Second
)

// look is the condition of the node, as far as it can be told quickly. It writes one small file to
// try the disk.
func (n *node) look() wire.Condition {
	for _, path := range []string{filepath.Join(n.cfg.Dir, journal.BrokenName), n.cfg.Broken} {
		if why, there := readBroken(path); there {
			return wire.Condition{Broken: why}
		}
	}
	touch := filepath.Join(n.cfg.Dir, journal.TempName, "touch")
	switch err := os.WriteFile(touch, []byte("."), 0o600); {
	case err == nil:
		_ = os.Remove(touch)
	// A disk that fails does not come back by itself; one that is full may.
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EIO):
		return wire.Condition{Broken: fmt.Sprintf("its disk cannot be written: %v", err)}
	default:
		return wire.Condition{Unready: fmt.Sprintf("its disk cannot be written: %v", err)}
	}
	if free, floor := journal.FreeDisk(n.cfg.Dir), journal.DiskFloor(n.cfg.Dir); free < floor {
		return wire.Condition{Unready: fmt.Sprintf("its disk is nearly full: %s free where sandboxes are kept, at least %s are needed", muster.Bytes(free), muster.Bytes(floor))}
	}
	return wire.Condition{Unready: n.devices.Missing()}
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
	why = cmp.Or(why, "no reason is given")
	return path + " says: " + why, true
}

// notice looks at the node, and tells readers what changed.
func (n *node) notice() { n.reporter.noticed(n.look(), n.imageNames()) }

// imageNames are the references and digests of the images that are here, the last used first. There
// are at most wire.MaxImages.
func (n *node) imageNames() []string {
	if n.images == nil {
		return nil
	}
	list := n.images.List().Images
	names := make([]string, 0, min(2*len(list), wire.MaxImages))
	add := func(name string) {
		if name != "" && len(names) < wire.MaxImages && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for i := range list {
		add(list[i].Ref)
	}
	// A job may name an image by its digest.
	for i := range list {
		add(list[i].Digest)
	}
	return names
}

// probe finds out whether the node is ready. It runs once at a time: a second caller waits, within
// its own time.
func (n *node) probe(ctx context.Context, p wire.Probe) wire.ProbeAnswer {
	select {
	case n.probing <- struct{}{}:
		defer func() { <-n.probing }()
	case <-ctx.Done():
		return wire.ProbeAnswer{Why: "another probe of it goes on"}
	}
	if off := time.Since(p.Now.Std()); p.Now != 0 && off.Abs() > clockNear {
		return wire.ProbeAnswer{Why: fmt.Sprintf("its clock is %s off the server's", off.Abs().Round(time.Second))}
	}
	switch c := n.look(); {
	case c.Broken != "":
		return wire.ProbeAnswer{Why: c.Broken, Broken: true}
	case c.Unready != "":
		return wire.ProbeAnswer{Why: c.Unready}
	}
	if why := n.recheck(ctx); why != "" {
		return wire.ProbeAnswer{Why: why}
	}
	return n.ask(ctx, p)
}

// recheck checks the runtimes that worked when the agent started, all at once. It returns what is
// wrong, or nothing.
func (n *node) recheck(ctx context.Context) string {
	n.mu.Lock()
	fresh := time.Since(n.checked) < checkedFor
	n.mu.Unlock()
	if fresh {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	errs := make([]error, len(n.runtimes))
	var wg sync.WaitGroup
	for i, rt := range n.runtimes {
		wg.Go(func() { errs[i] = rt.Check(ctx) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return fmt.Sprintf("runtime %s does not work any more: %v", n.runtimes[i].Name(), err)
		}
	}
	n.mu.Lock()
	n.checked = time.Now()
	n.mu.Unlock()
	return ""
}
