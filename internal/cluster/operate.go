package cluster

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/state"
)

// NewToken makes a join token, good for TokenLife.
func (c *Cluster) NewToken() (api.JoinToken, error) {
	end := time.Now().Add(TokenLife)
	token, err := c.identity.NewToken(end)
	return api.JoinToken{Token: token.Reveal(), Expires: end.UTC().Truncate(time.Second), Address: c.cfg.Spec.Address}, err
}

// find is the member that an operator means by a name or an id.
func (c *Cluster) find(name string) (raftlog.Member, state.Server, error) {
	l := c.log.Load()
	snap := l.state.Latest()
	for _, m := range l.Members() {
		row, _ := state.ServerOf(snap, m.ID)
		if m.ID == name || row.Name == name && name != "" {
			return m, row, nil
		}
	}
	return raftlog.Member{}, state.Server{}, muster.Faultf(muster.FaultNotFound, "server %s: the cluster has none of this name; `muster servers list` shows all", name)
}

// List is all servers, by name.
func (c *Cluster) List() api.ServerList {
	l := c.log.Load()
	snap := l.state.Latest()
	meta := snap.Meta()
	out := api.ServerList{Format: int(meta.LogFormat()), Reads: int(c.Readable())}
	leader, _ := l.Leader()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range l.Members() {
		row, _ := state.ServerOf(snap, m.ID)
		s := api.ServerMember{
			ID: m.ID, Name: row.Name, Role: api.RoleLearner, Address: m.Address, API: row.API, Version: row.Version, Reads: int(row.Reads),
		}
		switch {
		case m.ID == leader.ID:
			s.Role = api.RoleLeader
		case m.Votes:
			s.Role = api.RoleVoter
		}
		if h, ok := c.heard[m.ID]; ok && m.ID != l.Self() {
			s.Applied = h.Applied
			if !h.at.IsZero() {
				at := h.at.UTC()
				s.Heard = &at
			}
			if h.err != nil {
				s.Problem = h.err.Error()
			}
		}
		if m.ID == l.Self() {
			own := c.status(l)
			now := time.Now().UTC()
			s.Name, s.Version, s.Reads, s.API, s.Applied, s.Heard = own.Name, own.Version, own.Reads, own.API, own.Applied, &now
		}
		out.Servers = append(out.Servers, s)
	}
	slices.SortFunc(out.Servers, func(a, b api.ServerMember) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// errNotLeading is for changes that only the leader can make.
func errNotLeading() error {
	return &muster.Fault{Kind: muster.FaultUnavailable, Message: "this server does not lead the cluster", After: time.Second}
}

// Transfer hands leadership to a server.
func (c *Cluster) Transfer(ctx context.Context, name string) error {
	l := c.log.Load()
	m, _, err := c.find(name)
	switch {
	case err != nil:
		return err
	case !l.IsLeader():
		return errNotLeading()
	case m.ID == l.Self():
		return nil
	case !m.Votes:
		return muster.Faultf(muster.FaultConflict, "server %s is a learner: it cannot lead before it has caught up and votes", name)
	case !c.alive(m.ID):
		return muster.Faultf(muster.FaultConflict, "server %s does not answer, so it cannot lead", name)
	}
	return fault(l.Transfer(ctx, m.ID))
}

// HandOver gives leadership to one of the others that answers, if there is one: for a leader that stops.
func (c *Cluster) HandOver(ctx context.Context) {
	l := c.log.Load()
	if !l.IsLeader() {
		return
	}
	// It may not have led for long enough to know who answers.
	c.askAll(ctx, l)
	var best raftlog.Member
	var most uint64
	c.mu.Lock()
	for _, m := range l.Members() {
		if h := c.heard[m.ID]; m.ID != l.Self() && m.Votes && h.err == nil && !h.at.IsZero() && h.Applied >= most {
			best, most = m, h.Applied
		}
	}
	c.mu.Unlock()
	if best.ID == "" {
		return
	}
	if err := l.Transfer(ctx, best.ID); err != nil {
		c.cfg.Logger.Info("leadership was not handed over; the others elect a leader when they miss this one", "error", err)
	}
}

// alive reports whether a server answered the leader lately.
func (c *Cluster) alive(id string) bool {
	if id == c.log.Load().Self() {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h, ok := c.heard[id]
	return ok && time.Since(h.at) < aliveFor
}

// Remove takes a server out of the cluster. It is refused if fewer than a majority of those that stay answer.
func (c *Cluster) Remove(ctx context.Context, name string) error {
	l := c.log.Load()
	m, _, err := c.find(name)
	if err != nil {
		return err
	}
	if !l.IsLeader() {
		return errNotLeading()
	}
	voters, answering := 0, 0
	for _, other := range l.Members() {
		if other.ID == m.ID || !other.Votes {
			continue
		}
		voters++
		if c.alive(other.ID) {
			answering++
		}
	}
	switch {
	case voters == 0 && m.Votes:
		return muster.Faultf(muster.FaultConflict, "server %s is the only one of the cluster that votes; it cannot be removed", name)
	case m.Votes && answering <= voters/2:
		return muster.Faultf(muster.FaultConflict, "without server %s, %d servers would vote and only %d of them answer, which is no majority; start the others first", name, voters, answering)
	}
	c.leaving.Store(m.ID, m)
	defer c.leaving.Delete(m.ID)
	if err := fault(l.RemoveMember(ctx, m.ID)); err != nil {
		return err
	}
	c.cfg.Logger.Info("server removed from the cluster", "server", m.ID, "name", name)
	if m.ID == l.Self() {
		c.onRemove.Do(func() { close(c.removed) })
		return nil
	}
	// It is told, if it runs, so that it can end with a sentence. One that is off finds out at its next start.
	tell, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if err := c.call(tell, http.MethodPost, m.ID, removedPath, nil); err != nil {
		c.cfg.Logger.Debug("the removed server was not told", "server", m.ID, "error", err)
	}
	c.node.Drop(m.ID)
	if _, _, err := l.proposer.Propose(ctx, &state.ServerRemoved{ID: m.ID}); err != nil {
		c.cfg.Logger.Warn("the removed server is still in the list of names; the leader removes it later", "server", m.ID, "error", err)
	}
	return nil
}

// fault gives the errors of the log their kinds.
func fault(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftlog.ErrNotLeader):
		return errNotLeading()
	case errors.Is(err, raftlog.ErrAmbiguous):
		return &muster.Fault{Kind: muster.FaultAmbiguous, Err: err}
	}
	return &muster.Fault{Kind: muster.FaultConflict, Err: err}
}
