package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// cached returns how to open a blob of an image that the node was granted from the cache and still
// has a use for; nil if there is none.
func (n *nodeLink) cached(digest string) opener {
	cache := n.l.cfg.ImageCache
	if cache == nil {
		return nil
	}
	for _, im := range n.pulls.Cached(n.l.cfg.Clock.Now()) {
		if cache.Part(im.Ref, im.Digest, digest) && n.mayPull(im.Ref, im.Namespace) {
			return func(ctx context.Context) (io.ReadCloser, error) {
				return cache.Open(ctx, im.Ref, im.Namespace, im.Digest, digest)
			}
		}
	}
	return nil
}

// Images lists the image cache of a node.
func (l *Link) Images(ctx context.Context, id muster.NodeID) (wire.ImageList, error) {
	nl, err := l.reach(id)
	if err != nil {
		return wire.ImageList{}, err
	}
	list, err := nl.client.Images(ctx)
	return list, ofNode(id, err)
}

// PruneImages deletes images that no sandbox on a node uses; with all also those used lately.
func (l *Link) PruneImages(ctx context.Context, id muster.NodeID, all bool) (wire.Pruned, error) {
	nl, err := l.reach(id)
	if err != nil {
		return wire.Pruned{}, err
	}
	p, err := nl.client.PruneImages(ctx, all)
	return p, ofNode(id, err)
}

// puller is for whom a member of a namespace pulls an image.
func (l *Link) puller(ref string, ns muster.Namespace) (by wire.Puller) {
	if l.cfg.Grants != nil {
		if scope := l.cfg.Grants.Scope(ref, ns); scope != "" {
			by = wire.Puller{Namespace: ns, Scope: scope}
		}
	}
	return by
}

// PullImage has a node pull an image, with the credentials that a namespace has, and yields the
// progress. An empty namespace has those that are for all. The last item has a digest or a failure,
// or the last pair has an error.
func (l *Link) PullImage(ctx context.Context, id muster.NodeID, ref string, ns muster.Namespace) iter.Seq2[wire.PullProgress, error] {
	return func(yield func(wire.PullProgress, error) bool) {
		nl, err := l.reach(id)
		if err != nil {
			yield(wire.PullProgress{}, err)
			return
		}
		want := wire.PullImage{Ref: state.LoadedImagesOf(l.cfg.State.Latest()).Ref(ref)}
		want.Puller = l.puller(want.Ref, ns)
		defer nl.pulls.Ask(wire.GrantNeed(ref, want.Namespace))()
		for p, err := range nl.client.PullImage(ctx, want) {
			if !yield(p, ofNode(id, err)) {
				return
			}
		}
	}
}

// ofNode adds the node to an error of its agent. An answer that makes no sense, or that the agent
// reports as its own defect, is a failure of the node and not of the server: FaultUnavailable.
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
	// grantsAtOnce bounds the credentials in creation on all nodes together.
	grantsAtOnce = 64
	// maxAsked bounds how much one agent may have requested at a time.
	maxAsked = 1024
	// maxNeed is longer than any reference that a registry accepts with a namespace, in bytes.
	maxNeed = 1024 + 64
)

// grant hands over the pull credentials that the agent asks for. Each has one goroutine at a time.
func (s *session) grant(ctx context.Context, needs []string) {
	if s.n.l.cfg.Grants == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, need := range needs {
		if s.granting[need] || need == "" || len(need) > maxNeed || len(s.granting) >= maxAsked {
			continue
		}
		s.granting[need] = true
		s.g.Go(func() error {
			if err := s.grantOne(ctx, need); err != nil && ctx.Err() == nil {
				s.n.log.Warn("right to pull an image not handed over", "image", need, "error", err)
				// The agent repeats its request with each heartbeat.
				wait.For(ctx, pushRetry)
			}
			s.mu.Lock()
			delete(s.granting, need)
			s.mu.Unlock()
			return nil
		})
	}
}

// grantOne creates one credential and sends it. A node without a use for it gets a failure.
func (s *session) grantOne(ctx context.Context, need string) error {
	ref, ns := wire.CutNeed(need)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case s.n.l.grants <- struct{}{}:
		defer func() { <-s.n.l.grants }()
	}
	if !s.n.mayPull(ref, ns) {
		s.n.log.Debug("right to pull an image refused: nothing on the node needs it", "image", need)
		return s.n.client.PutGrant(ctx, wire.PullGrant{Ref: ref, Namespace: ns, Failure: &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonImage,
			Message: fmt.Sprintf("image %s: the server gives no right to pull it: no live allocation on node %s has it, and nobody has it pulled there", ref, s.n.id)}})
	}
	g, ok := wire.PullGrant{}, false
	if cache := s.n.l.cfg.ImageCache; cache != nil && s.takesImages {
		g, ok = cache.Grant(ctx, ref, ns)
	}
	if !ok {
		// The node asks again for what it got: its registry may not accept it any more.
		if before := s.n.pulls.Authorization(need); before != "" {
			s.n.l.cfg.Grants.Refused(ref, ns, before)
		}
		g = s.n.l.cfg.Grants.Grant(ctx, ref, ns)
	}
	if ctx.Err() != nil {
		// The answer may be due to the end of ctx and say nothing about the image.
		return ctx.Err()
	}
	g.Ref, g.Namespace = ref, ns
	if err := s.n.client.PutGrant(ctx, g); err != nil {
		return err
	}
	s.n.pulls.Granted(g, s.n.l.cfg.Clock.Now())
	s.n.l.stats.grants.Add(1)
	return nil
}

// mayPull reports whether the node has a use for an image: a live allocation there has it, or an
// operator has it pulled there. If the node names a namespace, only uses of that count: others may
// have no right to the image. For any other image a node gets no credentials.
func (n *nodeLink) mayPull(ref string, ns muster.Namespace) bool {
	full := n.l.cfg.Grants.FullName(ref)
	// tried avoids the work for the many allocations that share an image.
	tried := map[string]bool{"": true}
	same := func(other string) bool {
		if tried[other] {
			return false
		}
		tried[other] = true
		return n.l.cfg.Grants.FullName(other) == full
	}
	found := false
	n.l.cfg.State.Latest().NodeAllocs(n.id, func(a *state.Alloc) bool {
		found = a.Live() && (ns == "" || a.Run.Key.Namespace == ns) && same(a.Run.Spec.Image)
		return !found
	})
	if found {
		return true
	}
	return slices.ContainsFunc(n.pulls.Asked(), func(need string) bool {
		other, by := wire.CutNeed(need)
		return by == ns && same(other)
	})
}
