package server

import (
	"context"
	"io"
	"sync/atomic"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/link"
	"github.com/musterhq/muster/internal/state"
)

// liveOutput reads output that is still on its node, through the link of the
// present leadership.
type liveOutput struct{ link atomic.Pointer[link.Link] }

// OpenOutput is link.Link's while this server leads.
func (o *liveOutput) OpenOutput(ctx context.Context, a *state.Alloc, stream string, offset int64, follow bool) (io.ReadCloser, int64, error) {
	l := o.link.Load()
	if l == nil {
		return nil, 0, muster.Faultf(muster.FaultUnavailable, "the server has no links to nodes now")
	}
	return l.OpenOutput(ctx, a, stream, offset, follow)
}
