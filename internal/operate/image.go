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

// Images are the images in the caches of nodes. Nodes pull by themselves what they need: operators
// pull ahead of that, and make room.
type Images struct{ *desk }

// reach finds a node and the link. A node that is gone has no cache: that has a status of its own,
// so that clients do not wait for it.
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

// List lists the images on a node, and how much of its disk they have and may have, in bytes.
func (s *Images) List(ctx context.Context, node string) (*api.ImageList, error) {
	id, l, err := s.reach(node)
	if err != nil {
		return nil, err
	}
	list, err := l.Images(ctx, id)
	if err != nil {
		return nil, err
	}
	out := &api.ImageList{Images: []api.Image{}, Used: int64(list.UsedBytes), Limit: int64(list.Limit)}
	for i := range list.Images {
		m := &list.Images[i]
		out.Images = append(out.Images, api.Image{
			Ref: m.Ref, Digest: m.Digest, Size: int64(m.Size), Layers: m.Layers, InUse: m.InUse, Used: m.LastUsed.Std().UTC(),
		})
	}
	return out, nil
}

// Pull pulls an image to a node, ahead of its use, with the credentials of a namespace if one is
// named. The last progress has the digest, or a problem if the image cannot be pulled. An error of
// the sequence is the way to the node's, and ends it.
func (s *Images) Pull(ctx context.Context, node string, want api.ImagePull) (iter.Seq2[api.ImageProgress, error], error) {
	if ref := want.Ref; ref == "" || len(ref) > 1024 {
		return nil, problem.Invalid("body.ref", "is %q; name an image, as python:3.13", problem.Clip(ref))
	}
	if ns := want.Namespace; ns != "" && muster.CheckName(ns) != nil {
		return nil, problem.Invalid("body.namespace", "is %q; name a namespace, as web", problem.Clip(ns))
	}
	id, l, err := s.reach(node)
	if err != nil {
		return nil, err
	}
	return func(yield func(api.ImageProgress, error) bool) {
		for p, err := range l.PullImage(ctx, id, want.Ref, muster.Namespace(want.Namespace)) {
			line := api.ImageProgress{Done: p.Done, Total: p.Total, Layers: p.Layers, LayersDone: p.LayersDone, Digest: p.Digest}
			if err == nil && p.Failure != nil {
				line.Problem = &imageProblem(p).Problem
			}
			if !yield(line, err) {
				return
			}
		}
	}, nil
}

// Prune deletes images from a node: those that no sandbox uses, and that were not used lately; or
// with all every unused one.
func (s *Images) Prune(ctx context.Context, node string, all bool) (*api.ImagesPruned, error) {
	id, l, err := s.reach(node)
	if err != nil {
		return nil, err
	}
	p, err := l.PruneImages(ctx, id, all)
	if err != nil {
		return nil, err
	}
	return &api.ImagesPruned{Freed: int64(p.Freed)}, nil
}

// imageProblem is the problem of an image that could not be pulled. The text is the registry's or
// the node's, and not trusted.
func imageProblem(p wire.PullProgress) *problem.Problem {
	f := p.Failure
	switch {
	case f.Reason == muster.ReasonImageNotFound:
		return problem.New(http.StatusNotFound, api.CodeImageNotFound, problem.Printable(f.Message))
	case f.Class == muster.FailureUser:
		return problem.New(http.StatusUnprocessableEntity, string(muster.FaultInvalid), problem.Printable(f.Message))
	}
	return problem.New(http.StatusServiceUnavailable, string(muster.FaultUnavailable), problem.Printable(f.Message))
}
