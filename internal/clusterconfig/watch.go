package clusterconfig

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// Watch calls changed after each change of what Running returns, until ctx ends. It logs what has
// changed, and what an operator should know of this server's file. Calls of changed do not overlap;
// several changes may be one call.
func (k *Keeper) Watch(ctx context.Context, changed func(ctx context.Context)) error {
	feed := k.cfg.State.Feed()
	sub := feed.Subscribe(state.Topic{Config: true})
	defer sub.Close()
	g, ctx := errgroup.WithContext(ctx)
	last, told := k.view(), (*view)(nil)
	g.Go(func() error {
		for pos := state.AfterIndex(feed.Last()); sub.Wait(ctx, pos) == nil; pos = state.AfterIndex(feed.Last()) {
			wait.Poke(k.wake)
		}
		return nil
	})
	g.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-k.wake:
			}
			v := k.view()
			if !k.settled.Load() && k.cfg.Alone() {
				// It reads its log: these are configurations of the past.
				last = v
				continue
			}
			if v != last {
				if k.logChanges(last, v) {
					changed(ctx)
				}
				last = v
			}
			// A server that leads has settled which configuration counts, or is about to. The others
			// learn of each leader's term here, at the latest.
			if v != told && !k.cfg.Leads() {
				k.warn(v)
				told = v
			}
		}
	})
	return g.Wait()
}

// logChanges logs how what the server runs with has changed, and reports whether it has.
func (k *Keeper) logChanges(last, v *view) bool {
	if v.err != nil {
		k.log.Error("configuration: the one in force cannot be used, the server goes on with its file", "error", v.err)
		return true
	}
	changes, err := config.Changes(last.running, v.running)
	if err != nil {
		k.log.Error("configuration: changes cannot be told", "error", err)
		return true
	}
	version := uint64(0)
	if v.inForce != nil {
		version = v.inForce.Version
	}
	for _, c := range changes {
		k.log.Info("configuration changed", "version", version, "field", c.Field, "from", c.From, "to", c.To)
		if c.Warning != "" {
			k.log.Warn("configuration: effects", "field", c.Field, "warning", c.Warning)
		}
	}
	return len(changes) > 0
}

// warn logs what keeps a server that does not lead from being like the others.
func (k *Keeper) warn(v *view) {
	k.warnOfDifferences(v)
	if v.inForce == nil || v.err != nil {
		return
	}
	if v.unknown != "" {
		k.log.Warn("configuration: the one in force has a field that this version of muster does not know; upgrade this server", "field", v.unknown)
	}
	for _, p := range config.Validate(v.running) {
		k.log.Warn("configuration: this server could not lead with the one in force; correct its file and reload it", "field", p.Location, "problem", p.Message)
	}
}
