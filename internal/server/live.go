package server

import (
	"context"
	"io"
	"iter"
	"sync/atomic"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/link"
	"github.com/musterhq/muster/internal/httpapi"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// nodes reaches output, sandboxes and images on nodes, through the links of the
// present leadership.
type nodes struct {
	link atomic.Pointer[link.Link]
}

func (n *nodes) links() (*link.Link, error) {
	if l := n.link.Load(); l != nil {
		return l, nil
	}
	return nil, muster.Faultf(muster.FaultUnavailable, "the server has no links to nodes now")
}

// OpenOutput is link.Link's while this server leads, as are all that follow.
func (n *nodes) OpenOutput(ctx context.Context, a *state.Alloc, stream string, offset int64, follow bool) (io.ReadCloser, int64, error) {
	l, err := n.links()
	if err != nil {
		return nil, 0, err
	}
	return l.OpenOutput(ctx, a, stream, offset, follow)
}

func (n *nodes) Tunnel(ctx context.Context, a *state.Alloc, first []byte) (httpapi.Conn, error) {
	l, err := n.links()
	if err != nil {
		return nil, err
	}
	t, err := l.Tunnel(ctx, a, first)
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (n *nodes) AllocStats(ctx context.Context, a *state.Alloc) (wire.Stats, error) {
	l, err := n.links()
	if err != nil {
		return wire.Stats{}, err
	}
	return l.AllocStats(ctx, a)
}

func (n *nodes) Images(ctx context.Context, id muster.NodeID) (wire.ImageList, error) {
	l, err := n.links()
	if err != nil {
		return wire.ImageList{}, err
	}
	return l.Images(ctx, id)
}

func (n *nodes) PruneImages(ctx context.Context, id muster.NodeID, all bool) (wire.Pruned, error) {
	l, err := n.links()
	if err != nil {
		return wire.Pruned{}, err
	}
	return l.PruneImages(ctx, id, all)
}

func (n *nodes) PullImage(ctx context.Context, id muster.NodeID, ref string) iter.Seq2[wire.PullProgress, error] {
	l, err := n.links()
	if err != nil {
		return func(yield func(wire.PullProgress, error) bool) { yield(wire.PullProgress{}, err) }
	}
	return l.PullImage(ctx, id, ref)
}
