package agent

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/musterhq/muster"
)

// tunnelTimeout bounds the opening of a tunnel.
const tunnelTimeout = 10 * time.Second

// Tunnel is a connection to the init of a sandbox, through its agent. One goroutine
// may read and any may write: what is given to one Write stays together. Close may be called at any time and ends both.
type Tunnel struct {
	conn io.ReadWriteCloser
	// writing holds a token of whoever writes: not every way to a node keeps large writes apart.
	writing chan struct{}
	// ctx ends the connection, and its cause is what a reader is told then.
	ctx    context.Context
	unhook func() bool
}

// Tunnel connects to the init of an allocation's sandbox. The connection ends
// with ctx. Faults: FaultNotFound (no such sandbox there), FaultConflict (it
// has none that listens: not started, or ended), FaultUnavailable.
func (c *Client) Tunnel(ctx context.Context, id muster.AllocID) (*Tunnel, error) {
	path := "/v1/allocs/" + url.PathEscape(string(id)) + "/init"
	opening, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(tunnelTimeout, func() { cancel(errStalled) })
	defer timer.Stop()
	// Of no account once the connection is handed over: the transport lets go of it.
	defer cancel(nil)
	req, err := http.NewRequestWithContext(opening, http.MethodPost, "http://agent"+path, nil)
	if err != nil {
		return nil, muster.Faultf(muster.FaultInvalid, "agent: %s: %v", path, err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", UpgradeInit)
	// Not sent: it tells the transport that this may be tried again on another
	// connection, if the agent has just closed the one that lay idle.
	req.Header["Idempotency-Key"] = nil
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, unreached(path, cause(opening, err))
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode < 300 {
			return nil, muster.Faultf(muster.FaultInternal, "agent: %s: it answered %s and no connection", path, resp.Status)
		}
		return nil, refused(resp)
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || resp.Header.Get("Upgrade") != UpgradeInit {
		_ = resp.Body.Close()
		return nil, muster.Faultf(muster.FaultInternal, "agent: %s: it upgraded to %q", path, resp.Header.Get("Upgrade"))
	}
	t := &Tunnel{conn: conn, ctx: ctx, writing: make(chan struct{}, 1)}
	t.unhook = context.AfterFunc(ctx, func() { _ = conn.Close() })
	return t, nil
}

// Close ends the connection.
func (t *Tunnel) Close() error {
	t.unhook()
	return t.conn.Close()
}

// Read reads what init sent. After the end of the context the error is its cause.
func (t *Tunnel) Read(p []byte) (int, error) {
	n, err := t.conn.Read(p)
	return n, t.because(err)
}

// Write sends to init. After an error there may still be something to read.
func (t *Tunnel) Write(p []byte) (int, error) {
	select {
	case t.writing <- struct{}{}:
		defer func() { <-t.writing }()
	case <-t.ctx.Done():
		return 0, context.Cause(t.ctx)
	}
	n, err := t.conn.Write(p)
	return n, t.because(err)
}

func (t *Tunnel) because(err error) error {
	switch {
	case err == nil, err == io.EOF:
		return err
	case t.ctx.Err() != nil:
		return context.Cause(t.ctx)
	}
	return unreached("connection to init", err)
}

// CloseWrite says that nothing more is sent, and leaves reading open. An error
// if the way to the node cannot tell that.
func (t *Tunnel) CloseWrite() error {
	half, ok := t.conn.(interface{ CloseWrite() error })
	if !ok {
		return http.ErrNotSupported
	}
	return half.CloseWrite()
}

// Stats measures one sandbox.
func (c *Client) Stats(ctx context.Context, id muster.AllocID) (Stats, error) {
	var s Stats
	err := c.exchange(ctx, helloTimeout, http.MethodGet, "/v1/allocs/"+url.PathEscape(string(id))+"/stats", nil, &s)
	return s, err
}
