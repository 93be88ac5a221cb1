package link

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Granter makes rights to pull images out of the server's credentials.
type Granter interface {
	// Grant is the right to pull one image, or with Failure set why there is none.
	// It may take as long as a registry does; the same answer may be given again.
	Grant(ctx context.Context, ref string) wire.Grant
	// Refused takes in that a node asks again for what it was given this authorization
	// for: its registry may not take that any more, so it is not to be given again.
	Refused(ref, authorization string)
	// FullName is the same for all ways to write one reference.
	FullName(ref string) string
}

// Images lists a node's cache.
func (l *Link) Images(ctx context.Context, id muster.NodeID) (wire.ImageList, error) {
	nl, err := l.reach(id)
	if err != nil {
		return wire.ImageList{}, err
	}
	list, err := nl.client.Images(ctx)
	return list, ofNode(id, err)
}

// PruneImages deletes images that no sandbox on a node uses; all: also those used lately.
func (l *Link) PruneImages(ctx context.Context, id muster.NodeID, all bool) (wire.Pruned, error) {
	nl, err := l.reach(id)
	if err != nil {
		return wire.Pruned{}, err
	}
	p, err := nl.client.PruneImages(ctx, all)
	return p, ofNode(id, err)
}

// PullImage has a node pull an image and yields how it goes: the last item has
// a digest or a failure, or the last pair an error.
func (l *Link) PullImage(ctx context.Context, id muster.NodeID, ref string) iter.Seq2[wire.PullProgress, error] {
	return func(yield func(wire.PullProgress, error) bool) {
		nl, err := l.reach(id)
		if err != nil {
			yield(wire.PullProgress{}, err)
			return
		}
		defer nl.pulls(ref)()
		for p, err := range nl.client.PullImage(ctx, ref) {
			if !yield(p, ofNode(id, err)) {
				return
			}
		}
	}
}

// ofNode names the node whose agent an error came from. An answer that makes no sense, or that its agent calls a defect of its own, is a
// failure of the node and not of the server: FaultUnavailable.
func ofNode(id muster.NodeID, err error) error {
	switch {
	case err == nil:
		return nil
	case muster.IsKind(err, muster.FaultInternal), errors.As(err, new(*wire.Refusal)):
		return &muster.Fault{Kind: muster.FaultUnavailable, Message: fmt.Sprintf("node %s", id), Err: err}
	}
	return fmt.Errorf("node %s: %w", id, err)
}

const (
	// grantsAtOnce bounds the grants in making on all nodes together.
	grantsAtOnce = 64
	// maxAsked bounds what one agent may ask for at a time.
	maxAsked = 1024
	// maxRef is longer than any reference that a registry takes.
	maxRef = 1024
)

// grant hands over rights to pull that the agent asks for, each made by one at a time.
func (s *session) grant(ctx context.Context, refs []string) {
	if s.n.l.cfg.Grants == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range refs {
		if s.granting[ref] || ref == "" || len(ref) > maxRef || len(s.granting) >= maxAsked {
			continue
		}
		s.granting[ref] = true
		s.g.Go(func() error {
			if err := s.grantOne(ctx, ref); err != nil && ctx.Err() == nil {
				s.n.log.Warn("right to pull an image not handed over", "image", ref, "error", err)
				// The agent asks with each heartbeat until it gives up.
				wait.For(ctx, pushRetry)
			}
			s.mu.Lock()
			delete(s.granting, ref)
			s.mu.Unlock()
			return nil
		})
	}
}

func (s *session) grantOne(ctx context.Context, ref string) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case s.n.l.grants <- struct{}{}:
		defer func() { <-s.n.l.grants }()
	}
	if !s.n.mayPull(ref) {
		s.n.log.Debug("right to pull an image refused: nothing on the node needs it", "image", ref)
		return s.n.client.PutGrant(ctx, wire.Grant{Ref: ref, Failure: &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonImage,
			Message: fmt.Sprintf("image %s: the server gives no right to pull it: no live allocation on node %s has it, and nobody has it pulled there", ref, s.n.id)}})
	}
	if before := s.n.authorizationFor(ref); before != "" {
		s.n.l.cfg.Grants.Refused(ref, before)
	}
	g := s.n.l.cfg.Grants.Grant(ctx, ref)
	if ctx.Err() != nil {
		return ctx.Err() // what it says of that is no word on the image
	}
	g.Ref = ref
	if err := s.n.client.PutGrant(ctx, g); err != nil {
		return err
	}
	s.n.granted(g)
	s.n.l.stats.grants.Add(1)
	return nil
}

// mayPull says whether the node has a use for an image: that of a live allocation
// there, or of a pull under way. A node that names any other gets no right out of credentials.
func (n *nodeLink) mayPull(ref string) bool {
	full := n.l.cfg.Grants.FullName(ref)
	tried := map[string]bool{"": true} // commonly many allocations have one image
	same := func(other string) bool {
		if tried[other] {
			return false
		}
		tried[other] = true
		return n.l.cfg.Grants.FullName(other) == full
	}
	found := false
	n.l.cfg.State.Latest().NodeAllocs(n.id, func(a *state.Alloc) bool {
		found = a.Live() && same(a.Run.Spec.Image)
		return !found
	})
	if found {
		return true
	}
	n.mu.Lock()
	pulling := slices.Collect(maps.Keys(n.pulling))
	n.mu.Unlock()
	return slices.ContainsFunc(pulling, same)
}

// pulls notes a pull that was asked for, until done is called.
func (n *nodeLink) pulls(ref string) (done func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pulling[ref]++
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.pulling[ref]--; n.pulling[ref] == 0 {
			delete(n.pulling, ref)
		}
	}
}

// granted notes what the node was given, to know it again if the node asks once more.
func (n *nodeLink) granted(g wire.Grant) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.grants, g.Ref)
	if g.Authorization == "" {
		return
	}
	if len(n.grants) >= maxAsked {
		now := n.l.cfg.Clock.Now()
		maps.DeleteFunc(n.grants, func(_ string, old wire.Grant) bool { return old.Until < now })
	}
	if len(n.grants) < maxAsked {
		n.grants[g.Ref] = g
	}
}

// authorizationFor is what the node was given last for an image; empty: nothing.
func (n *nodeLink) authorizationFor(ref string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.grants[ref].Authorization
}
