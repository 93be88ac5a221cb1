package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/musterhq/muster"
)

const (
	// tunnelTimeout bounds the opening of a tunnel.
	tunnelTimeout = 10 * time.Second
	// maxUpgrade bounds what an agent answers to it.
	maxUpgrade = 2 << 20
)

// Tunnel is a connection to the init of a sandbox, through its agent. One goroutine
// may read and any may write: what is given to one Write stays together. Close may be called at any time and ends both.
type Tunnel struct {
	conn net.Conn
	// early has come with the agent's answer and is not yet read.
	early []byte
	// kills is what the agent said of those for want of memory; -1: it said nothing.
	kills int64
	// writing holds a token of whoever writes: not every way to a node keeps large writes apart.
	writing chan struct{}
	// ctx ends the connection, and its cause is what a reader is told then.
	ctx    context.Context
	unhook func() bool
}

// Tunnel connects to the init of an allocation's sandbox, and sends first there, which may be
// empty: whoever has the whole request already saves the way to the node and back.
// Without an error it is not known what init makes of it; with one, it may have had it, unless the agent
// refused. The connection ends with ctx. Faults: FaultNotFound (no such sandbox there),
// FaultConflict (it has none that listens: not started, or ended), FaultUnavailable.
//
// The request is made by hand. What package http does for it besides, dialling, writing and reading in goroutines
// of their own, took as long as the agent and init together.
func (c *Client) Tunnel(ctx context.Context, id muster.AllocID, first []byte) (*Tunnel, error) {
	path := "/v1/allocs/" + url.PathEscape(string(id)) + "/init"
	opening, cancel := context.WithTimeoutCause(ctx, tunnelTimeout, errStalled)
	defer cancel()
	conn, err := c.dial(opening)
	if err != nil {
		return nil, unreached(path, cause(opening, err))
	}
	unhook := context.AfterFunc(opening, func() { _ = conn.Close() })
	early, kills, err := openTunnel(conn, path, first)
	if !unhook() {
		err = cause(opening, net.ErrClosed)
	}
	if err != nil {
		_ = conn.Close()
		if _, told := err.(*answered); told {
			return nil, errors.Unwrap(err)
		}
		return nil, unreached(path, cause(opening, err))
	}
	t := &Tunnel{conn: conn, early: early, kills: kills, ctx: ctx, writing: make(chan struct{}, 1)}
	t.unhook = context.AfterFunc(ctx, func() { _ = conn.Close() })
	return t, nil
}

// answered is an error that the agent's answer is.
type answered struct{ err error }

func (a *answered) Error() string { return a.err.Error() }
func (a *answered) Unwrap() error { return a.err }

// openTunnel asks for the connection to be made a tunnel, and gives what came through it already, and how many
// processes the kernel had killed before; -1 if that is not told.
func openTunnel(conn net.Conn, path string, first []byte) (early []byte, kills int64, err error) {
	request := make([]byte, 0, 256+len(first))
	request = fmt.Appendf(request, "POST %s HTTP/1.1\r\nHost: agent\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: %d\r\n\r\n", path, UpgradeInit, len(first))
	// An agent, or an init, that refuses may do so before it has taken all of it: its answer says more than this error.
	_, werr := conn.Write(append(request, first...))
	in := bufio.NewReaderSize(io.LimitReader(conn, maxUpgrade), 1<<10)
	resp, err := http.ReadResponse(in, &http.Request{Method: http.MethodPost, URL: &url.URL{Path: path}})
	if err != nil {
		if err == io.ErrUnexpectedEOF || err == io.EOF {
			err = errors.New("the agent closed the connection")
		}
		return nil, 0, errors.Join(werr, err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode != http.StatusSwitchingProtocols && resp.StatusCode < 300:
		return nil, 0, &answered{muster.Faultf(muster.FaultInternal, "agent: %s: it answered %s and no connection", path, resp.Status)}
	case resp.StatusCode != http.StatusSwitchingProtocols:
		return nil, 0, &answered{refused(resp)}
	case resp.Header.Get("Upgrade") != UpgradeInit:
		return nil, 0, &answered{muster.Faultf(muster.FaultInternal, "agent: %s: it upgraded to %q", path, resp.Header.Get("Upgrade"))}
	}
	// Whoever did not take all of it may have said why: that is there to be read.
	early, _ = in.Peek(in.Buffered())
	if kills, err = strconv.ParseInt(resp.Header.Get(HeaderOOMKills), 10, 64); err != nil || kills < 0 {
		kills = -1 // an agent of an earlier version
	}
	return early, kills, nil
}

// OOMKills is how many processes of the sandbox the kernel had killed for want of memory before what was sent through
// this tunnel came there; false: the agent is of a version that does not tell.
func (t *Tunnel) OOMKills() (n int64, known bool) { return max(t.kills, 0), t.kills >= 0 }

// Close ends the connection.
func (t *Tunnel) Close() error {
	t.unhook()
	return t.conn.Close()
}

// Read reads what init sent. After the end of the context the error is its cause.
func (t *Tunnel) Read(p []byte) (int, error) {
	if len(t.early) > 0 {
		n := copy(p, t.early)
		if t.early = t.early[n:]; len(t.early) == 0 {
			t.early = nil
		}
		return n, nil
	}
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
