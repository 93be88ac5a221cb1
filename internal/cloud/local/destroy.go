package local

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/boot"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/agent/teardown"
	"github.com/musterhq/muster/internal/cloud"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

const (
	startGrace = 10 * time.Second
	offAfter   = 5 * time.Second
)

// powered reports whether an instance is on; its turn is held.
func (p *Provider) powered(ctx context.Context, i *instance) (bool, error) {
	r, err := journal.ReadRecord(i.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return p.quietFor(i.id) < p.startGrace, nil
	}
	if err != nil {
		return false, err
	}
	if r.Alive() {
		p.heard(i.id)
		return true, nil
	}
	if r.Kernel != boot.ID() {
		return false, nil
	}
	living, killed, err := sandboxes(ctx, i)
	switch {
	case err != nil:
		return false, err
	case living:
		p.heard(i.id)
		return true, nil
	case killed:
		return false, nil
	}
	return p.quietFor(i.id) < p.offAfter, nil
}

// quietFor is how long the instance has been seen without a living process.
func (p *Provider) quietFor(id muster.InstanceID) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	since, ok := p.quiet[id]
	if !ok {
		since = time.Now()
		p.quiet[id] = since
	}
	return time.Since(since)
}

func (p *Provider) heard(id muster.InstanceID) {
	p.mu.Lock()
	delete(p.quiet, id)
	p.mu.Unlock()
}

// sandboxes looks at the sandboxes of an instance whose agent is dead: does a process of one
// live, and was one killed in the middle of its work?
func sandboxes(ctx context.Context, i *instance) (living, killed bool, err error) {
	dirs, err := journal.SandboxDirs(i.dir)
	if err != nil {
		return false, false, err
	}
	for _, dir := range dirs {
		if err := ctx.Err(); err != nil {
			return false, false, err
		}
		if unended, err := journal.AllocDir(dir).Unended(); err != nil || !unended {
			if err != nil {
				return false, false, err
			}
			continue
		}
		members, err := initbox.Members(dir)
		if err != nil {
			return false, false, err
		}
		if len(members) > 0 {
			return true, false, nil
		}
		dead, err := died(dir)
		if err != nil {
			return false, false, err
		}
		killed = killed || dead
	}
	return false, killed, nil
}

// died reports whether a sandbox without processes was ended in the middle of its
// work. One whose start an agent did not live to finish is not that: its init ended by itself.
func died(dir string) (bool, error) {
	words, err := initwire.ReadRecord(filepath.Join(dir, initwire.InitRecord))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return words.Command != nil && words.Result == nil && words.Failed == nil, nil
}

// Destroy ends instances, all at once.
func (p *Provider) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	errs := make([]error, len(ids))
	var wg sync.WaitGroup
	for n, id := range ids {
		wg.Go(func() { errs[n] = p.destroy(ctx, id) })
	}
	wg.Wait()
	return errs
}

func (p *Provider) destroy(ctx context.Context, id muster.InstanceID) error {
	done, err := p.turn(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	i, err := p.read(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return transient(err, "instance %s", id)
	case i.Tags.Owner != p.cfg.Owner:
		return muster.Faultf(muster.FaultNotFound, "instance %s is not of owner %s", id, p.cfg.Owner)
	}
	if err := p.clear(ctx, i); err != nil {
		return transient(err, "destroy instance %s", id)
	}
	p.log.Info("instance destroyed", "instance", id, "node", i.Tags.Node)
	return nil
}

// SetTags is cloud.Provider's.
func (p *Provider) SetTags(ctx context.Context, id muster.InstanceID, tags cloud.Tags) error {
	done, err := p.turn(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	i, err := p.mine(id)
	switch {
	case err != nil:
		return err
	case i.Destroying:
		return muster.Faultf(muster.FaultNotFound, "instance %s is being destroyed", id)
	case tags.Owner != i.Tags.Owner || tags.Token != i.Tags.Token:
		return muster.Faultf(muster.FaultInvalid, "instance %s: its owner and its token are for ever", id)
	case tags == i.Tags:
		return nil
	}
	i.Tags = tags
	if err := i.write(); err != nil {
		return transient(err, "instance %s", id)
	}
	return nil
}

// clear ends every process of an instance and then deletes its directory; its
// turn is held. When it returns nil nothing of it is left. Whatever interrupts it, it is found and done again.
func (p *Provider) clear(ctx context.Context, i *instance) error {
	if !i.Destroying {
		i.Destroying = true
		if err := i.write(); err != nil {
			return err
		}
	}
	if err := p.killChildren(ctx, i.id); err != nil {
		return err
	}
	gone := filepath.Join(p.cfg.Dir, gonePrefix+string(i.id))
	if err := teardown.Do(ctx, teardown.Place{Dir: i.dir, Cgroup: cgroupOf(i.id), Gone: gone}); err != nil {
		return err
	}
	p.heard(i.id)
	return nil
}
