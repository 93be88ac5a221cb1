package httpapi

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// visit is an operation in a sandbox that may take as long as it goes on. It ends with the request, when the
// server stops, and when init neither says nor takes anything for too long: what runs in the
// sandbox may have it stopped, and must not hold a handler and a tunnel by that.
type visit struct {
	Conn
	ctx context.Context
	al  *state.Alloc

	silence *time.Timer
	allowed time.Duration
	cancel  func()
}

// visit begins one. Its end must be called.
func (a *API) visit(ctx context.Context, in *AllocPath) (*visit, error) {
	ctx, done := a.streaming(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	al, conn, err := a.enter(ctx, in)
	if err != nil {
		cancel(nil)
		done()
		return nil, err
	}
	v := &visit{Conn: conn, ctx: ctx, al: al, allowed: a.patience.silence, cancel: func() { cancel(nil); done() }}
	v.silence = time.AfterFunc(v.allowed, func() {
		cancel(muster.Faultf(muster.FaultUnavailable, "nothing was heard from the sandbox of allocation %s for %s", al.ID, v.allowed))
	})
	return v, nil
}

// heard says that init does something. Not bytes count, but what makes sense: one now and then would be enough else.
func (v *visit) heard() { v.silence.Reset(v.allowed) }

// Write counts as well, once all was taken.
func (v *visit) Write(b []byte) (int, error) {
	n, err := v.Conn.Write(b)
	if err == nil {
		v.heard()
	}
	return n, err
}

// end closes the connection, if it is not yet.
func (v *visit) end() {
	v.silence.Stop()
	v.cancel()
}
