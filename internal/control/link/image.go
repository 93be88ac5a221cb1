package link

import (
	"context"
	"fmt"
	"iter"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Granter makes rights to pull images out of the server's credentials.
type Granter interface {
	// Grant is the right to pull one image, or with Failure set why there is none.
	// It may take as long as a registry does; the same answer may be given again.
	Grant(ctx context.Context, ref string) wire.Grant
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
		for p, err := range nl.client.PullImage(ctx, ref) {
			if !yield(p, ofNode(id, err)) {
				return
			}
		}
	}
}

func ofNode(id muster.NodeID, err error) error {
	if err == nil {
		return nil
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
				sleep(ctx, pushRetry)
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
	g := s.n.l.cfg.Grants.Grant(ctx, ref)
	if ctx.Err() != nil {
		return ctx.Err() // what it says of that is no word on the image
	}
	g.Ref = ref
	if err := s.n.client.PutGrant(ctx, g); err != nil {
		return err
	}
	s.n.l.stats.grants.Add(1)
	return nil
}
