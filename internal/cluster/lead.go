package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/musterhq/muster/internal/peers"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// admit decides about a server that wants to join. Only the leader can admit one; others say who leads.
func (c *Cluster) admit(ctx context.Context, r *peers.JoinRequest) (*peers.Admission, error) {
	l := c.log.Load()
	if l == nil {
		return nil, errors.New("it is starting; try again")
	}
	if !l.IsLeader() {
		leader, ok := l.Leader()
		if !ok || leader.ID == l.Self() {
			return nil, errors.New("the cluster has no leader now; try again when a majority of its servers runs")
		}
		return &peers.Admission{Elsewhere: leader.Address}, nil
	}
	snap := l.state.Latest()
	meta := snap.Meta()
	if has := int(meta.LogFormat()); r.Reads < has {
		return nil, fmt.Errorf("it reads log format %d at most, and the cluster has format %d; join with version %s or a newer one", r.Reads, has, cmp.Or(meta.FormatBy, c.cfg.Version))
	}
	if meta.LogFormat() < state.FormatServers {
		return nil, fmt.Errorf("the cluster still has log format %d and cannot take others before it has %d; wait until it leads, or upgrade its servers", meta.LogFormat(), state.FormatServers)
	}
	if r.Name == "" || len(r.Name) > 60 || strings.ContainsFunc(r.Name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("its name %q is no name: 1 to 60 visible ASCII characters without spaces", r.Name)
	}
	members := l.Members()
	if _, known := c.member(r.Server); !known && len(members) >= MaxMembers {
		return nil, fmt.Errorf("the cluster has %d servers, which is the most", len(members))
	}
	for _, m := range members {
		if m.ID == r.Server {
			continue
		}
		row, _ := state.ServerOf(snap, m.ID)
		if row.Name == r.Name {
			return nil, fmt.Errorf("the cluster has another server of the name %s; choose another cluster.name, or remove that one first (`muster servers remove %s`)", r.Name, r.Name)
		}
		if m.Address == r.Address {
			return nil, fmt.Errorf("server %s has the address %s; give this one its own cluster.address, or remove that one first (`muster servers remove %s`)", cmp.Or(row.Name, m.ID), r.Address, cmp.Or(row.Name, m.ID))
		}
	}
	secrets, err := c.cfg.Secrets()
	if err != nil {
		return nil, fmt.Errorf("its secrets cannot be read: %w", err)
	}
	// The name is taken first. Without the member it is forgotten again by the leader.
	if _, _, err := l.proposer.Propose(ctx, &state.ServerSeen{Server: state.Server{ID: r.Server, Name: r.Name, Version: r.Version, Reads: state.Format(r.Reads)}}); err != nil {
		return nil, err
	}
	if err := l.AddMember(ctx, r.Server, r.Address); err != nil {
		return nil, err
	}
	c.cfg.Logger.Info("server admitted to the cluster; it votes when it has the log", "server", r.Server, "name", r.Name, "address", r.Address)
	return &peers.Admission{Secrets: secrets}, nil
}

// Lead does what the leader does for the cluster, until ctx ends: it asks the other servers for their state,
// records it, promotes those that have caught up, and calls raise in each round, which raises the log format
// once the records allow it.
func (c *Cluster) Lead(ctx context.Context, raise func(context.Context) error) error {
	l := c.log.Load()
	c.mu.Lock()
	c.heard = map[string]heard{}
	c.mu.Unlock()
	for before := uint64(0); ; {
		applied := l.Applied()
		c.record(ctx, l, c.status(l))
		for id, s := range c.askAll(ctx, l) {
			if s.err != nil {
				continue
			}
			c.record(ctx, l, s.Status)
			// It has what this server had a round ago, so it keeps up.
			if m, ok := c.member(id); ok && !m.Votes && before > 0 && s.Applied >= before {
				if err := l.Promote(ctx, id); err != nil {
					c.cfg.Logger.Warn("a server that has caught up could not be given its vote; it is tried again", "server", id, "error", err)
				} else {
					c.cfg.Logger.Info("server votes now", "server", id, "name", s.Name)
				}
			}
		}
		c.forget(ctx, l)
		if ctx.Err() == nil {
			if err := raise(ctx); err != nil && ctx.Err() == nil {
				c.cfg.Logger.Warn("the log format could not be raised; it is tried again", "error", err)
			}
		}
		before = applied
		if !wait.For(ctx, lookEvery) {
			return nil
		}
	}
}

// askAll asks all other members at once and notes their answers.
func (c *Cluster) askAll(ctx context.Context, l *attached) map[string]heard {
	within, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var wg sync.WaitGroup
	for _, m := range l.Members() {
		if m.ID == l.Self() {
			continue
		}
		wg.Go(func() {
			s, err := c.ask(within, m.ID)
			if err == nil && s.ID != m.ID {
				err = fmt.Errorf("it says that it is server %s", s.ID)
			}
			if ctx.Err() == nil {
				c.note(m, s, err)
			}
		})
	}
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]heard{}
	for id, h := range c.heard {
		out[id] = h
	}
	return out
}

// record writes what a server says of itself, if it has changed. Before the log has the format for it,
// nothing is written: a server alone needs no record of itself.
func (c *Cluster) record(ctx context.Context, l *attached, s Status) {
	snap := l.state.Latest()
	meta := snap.Meta()
	row, _ := state.ServerOf(snap, s.ID)
	next := state.Server{ID: s.ID, Name: s.Name, Version: s.Version, Reads: state.Format(s.Reads), API: s.API}
	if row == next || meta.LogFormat() < state.FormatServers {
		return
	}
	if _, _, err := l.proposer.Propose(ctx, &state.ServerSeen{Server: next}); err != nil && ctx.Err() == nil {
		c.cfg.Logger.Warn("what a server says of itself could not be recorded", "server", s.ID, "name", s.Name, "error", err)
	}
}

// forget removes the records of servers that are no members.
func (c *Cluster) forget(ctx context.Context, l *attached) {
	for _, row := range state.ServersOf(l.state.Latest()) {
		if _, ok := c.member(row.ID); ok || len(l.Members()) == 0 {
			continue
		}
		if _, _, err := l.proposer.Propose(ctx, &state.ServerRemoved{ID: row.ID}); err != nil && ctx.Err() == nil {
			c.cfg.Logger.Warn("a server that was removed is still recorded; it is tried again", "server", row.ID, "error", err)
		}
		c.mu.Lock()
		delete(c.heard, row.ID)
		c.mu.Unlock()
	}
}

// note notes an answer, and logs when a server stops to answer and when it answers again.
func (c *Cluster) note(m raftlog.Member, s Status, err error) {
	c.mu.Lock()
	h, known := c.heard[m.ID]
	was := h.err
	if h.err = err; err == nil {
		h = heard{Status: s, at: time.Now()}
	}
	c.heard[m.ID] = h
	c.mu.Unlock()
	row, _ := state.ServerOf(c.log.Load().state.Latest(), m.ID)
	switch {
	case err != nil && was == nil:
		c.cfg.Logger.Warn("server does not answer", "server", m.ID, "name", row.Name, "address", m.Address, "error", err)
	case err == nil && was != nil && known:
		c.cfg.Logger.Info("server answers again", "server", m.ID, "name", row.Name)
	}
}
