package operate

import (
	"context"
	"iter"
	"net/http"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Images are those in the caches of nodes.
type Images struct{ *desk }

// reach finds a node that there is, and the link to it.
func (s *Images) reach(id string) (muster.NodeID, Link, error) {
	n, err := s.node(id)
	if err != nil {
		return "", nil, err
	}
	if !n.Stage.Live() {
		return "", nil, problem.New(http.StatusGone, api.CodeEnded, "node "+string(n.ID)+" is gone")
	}
	l, err := s.cfg.Link()
	return n.ID, l, err
}

// List lists the images on a node.
func (s *Images) List(ctx context.Context, node string) (wire.ImageList, error) {
	id, l, err := s.reach(node)
	if err != nil {
		return wire.ImageList{}, err
	}
	return l.Images(ctx, id)
}

// Pull pulls an image to a node, ahead of its use. The last progress has the digest.
func (s *Images) Pull(ctx context.Context, node, ref string) (iter.Seq2[wire.PullProgress, error], error) {
	if ref == "" || len(ref) > 1024 {
		return nil, problem.Invalid("body.ref", "is %q; name an image, as python:3.13", problem.Clip(ref))
	}
	id, l, err := s.reach(node)
	if err != nil {
		return nil, err
	}
	return l.PullImage(ctx, id, ref), nil
}

// Prune deletes images from a node: those that no sandbox uses, and that were not used lately; or with all every unused one.
func (s *Images) Prune(ctx context.Context, node string, all bool) (wire.Pruned, error) {
	id, l, err := s.reach(node)
	if err != nil {
		return wire.Pruned{}, err
	}
	return l.PruneImages(ctx, id, all)
}
