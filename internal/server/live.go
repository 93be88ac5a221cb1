package server

import (
	"context"
	"iter"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// images are those in the caches of nodes, through the link of the present leadership.
type images struct{ *Server }

func (n images) Images(ctx context.Context, id muster.NodeID) (wire.ImageList, error) {
	l, err := n.nodes()
	if err != nil {
		return wire.ImageList{}, err
	}
	return l.Images(ctx, id)
}

func (n images) PruneImages(ctx context.Context, id muster.NodeID, all bool) (wire.Pruned, error) {
	l, err := n.nodes()
	if err != nil {
		return wire.Pruned{}, err
	}
	return l.PruneImages(ctx, id, all)
}

func (n images) PullImage(ctx context.Context, id muster.NodeID, ref string) iter.Seq2[wire.PullProgress, error] {
	l, err := n.nodes()
	if err != nil {
		return func(yield func(wire.PullProgress, error) bool) { yield(wire.PullProgress{}, err) }
	}
	return l.PullImage(ctx, id, ref)
}
