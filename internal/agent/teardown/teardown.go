// Package teardown takes apart what an agent has left on a host: its sandboxes
// with all their processes, its cgroup, its networks and its directory.
//
// Providers whose instances are directories of a host call it, and muster-node
// clear on a host that is reached over SSH. It must never touch what is outside of
// the directory and of what is named by it, and never end before nothing of it runs.
package teardown

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/agent/network"
	"github.com/musterhq/muster/internal/agent/userns"
)

// killers is how many sandboxes are ended at once.
const killers = 16

// Place is what to take apart.
type Place struct {
	// Dir is the agent's directory.
	Dir string
	// Cgroup is that below which its sandboxes have theirs, where this is root.
	Cgroup string
	// Gone is where the directory is put in one step before it is deleted, on the same file system.
	Gone string
}

// Do ends everything and deletes it. When it returns nil nothing is left. Whatever interrupts it,
// it may be called again.
func Do(ctx context.Context, p Place) error {
	// With the lock no agent can start a sandbox any more, also none that is only about to begin.
	lock, err := journal.TakeLock(ctx, p.Dir, false)
	if err != nil {
		return err
	}
	defer lock.Release()
	dirs, err := journal.SandboxDirs(p.Dir)
	if err != nil {
		return err
	}
	if err := destroyAll(ctx, dirs); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := cgroup.RemoveParent(p.Cgroup); err != nil {
			return err
		}
	}
	// Of an ordinary user, the networks go with the process that keeps its namespaces.
	user, err := endNamespaces(p)
	if err != nil {
		return err
	}
	networks := filepath.Join(p.Dir, journal.NetworksName)
	if _, err := os.Lstat(networks); !user && !errors.Is(err, fs.ErrNotExist) {
		if err := network.RemoveAll(network.Name(p.Dir), networks); err != nil {
			return err
		}
	}
	// In one step, and with the lock still held: an agent that was about to start finds neither
	// directory nor lock, and does not make them.
	if err := journal.RemoveTree(p.Gone); err != nil {
		return err
	}
	if err := os.Rename(p.Dir, p.Gone); err != nil {
		return err
	}
	return journal.RemoveTree(p.Gone)
}

// endNamespaces ends what keeps the namespaces of an ordinary user's agent. user: it was one.
func endNamespaces(p Place) (user bool, err error) {
	if os.Geteuid() == 0 {
		return false, nil
	}
	if dir := userns.Cgroup(p.Dir); dir != "" && p.Cgroup != "" {
		if err := cgroup.RemoveBelow(dir, p.Cgroup); err != nil {
			return true, err
		}
	}
	return true, userns.End(p.Dir)
}

func destroyAll(ctx context.Context, dirs []string) error {
	errs := make([]error, len(dirs))
	tokens := make(chan struct{}, killers)
	var wg sync.WaitGroup
	for n, dir := range dirs {
		tokens <- struct{}{}
		wg.Go(func() {
			errs[n] = initbox.Destroy(ctx, dir)
			<-tokens
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
