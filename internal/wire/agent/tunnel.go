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
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/musterhq/muster"
)

// UpgradeInit is the protocol that POST /v1/allocs/{id}/init upgrades to.
const UpgradeInit = "muster-init"

// HeaderOOMKills is of the answer to that: how many processes of the sandbox the kernel had killed for want of memory
// before anything of this tunnel reached its init.
const HeaderOOMKills = "Muster-Oom-Kills"

// HeaderHandOver on that request says that the agent may answer with the connection to init itself, as a descriptor
// that comes with the answer, instead of carrying bytes; on the answer, that it has done so. Only where both ends of the agent's socket are on
// one machine. The connection to the agent then says no more than that the tunnel is in use: it is in use until that is closed.
const HeaderHandOver = "Muster-Hand-Over"

const (
	// tunnelTimeout bounds the opening of a tunnel.
	tunnelTimeout = 10 * time.Second
	// maxUpgrade bounds what an agent answers to it.
	maxUpgrade = 2 << 20
)

// Tunnel is a connection to the init of a sandbox, through its agent. One goroutine
// may read and any may write: what is given to one Write stays together. Close may be called at any time and ends both.
type Tunnel struct {
	client *Client
	conn   net.Conn
	// agent is the connection to the agent where that is another one: it has handed over the one to init, and knows by this one that it is used.
	// The tunnel ends with it.
	agent net.Conn
	// left: the agent has, before this side closed anything.
	left, closed atomic.Bool
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
// FaultConflict (not started), FaultTooOld (ended), FaultUnavailable.
//
// The request is made by hand. What package http does for it besides, dialling, writing and reading in goroutines
// of their own, took as long as the agent and init together.
func (c *Client) Tunnel(ctx context.Context, id muster.AllocID, first []byte) (*Tunnel, error) {
	path := "/v1/allocs/" + url.PathEscape(string(id)) + "/init"
	opening, cancel := context.WithTimeoutCause(ctx, tunnelTimeout, errStalled)
	defer cancel()
	conn := c.spares.take()
	if conn == nil {
		var err error
		if conn, err = c.dial(opening); err != nil {
			return nil, unreached(path, cause(opening, err))
		}
	}
	unhook := context.AfterFunc(opening, func() { _ = conn.Close() })
	o, err := openTunnel(conn, path, first)
	if !unhook() {
		err = cause(opening, net.ErrClosed)
	}
	if err != nil {
		_ = conn.Close()
		if o.inside != nil {
			_ = o.inside.Close()
		}
		if _, told := err.(*answered); told {
			return nil, errors.Unwrap(err)
		}
		return nil, unreached(path, cause(opening, err))
	}
	t := &Tunnel{client: c, conn: conn, early: o.early, kills: o.kills, ctx: ctx, writing: make(chan struct{}, 1)}
	if o.inside != nil {
		t.conn, t.agent = o.inside, conn
	}
	t.unhook = context.AfterFunc(ctx, func() { _ = t.end() })
	if t.agent != nil {
		go t.watch()
	}
	return t, nil
}

// watch ends the tunnel with the agent: it alone knows that the sandbox is used, and its successor would not.
func (t *Tunnel) watch() {
	var nothing [1]byte
	_, _ = t.agent.Read(nothing[:])
	if !t.closed.Load() {
		t.left.Store(true)
	}
	_ = t.end()
}

// answered is an error that the agent's answer is.
type answered struct{ err error }

func (a *answered) Error() string { return a.err.Error() }
func (a *answered) Unwrap() error { return a.err }

// opened is what an agent answered.
type opened struct {
	// inside is the connection that goes on to init, if that is another one.
	inside net.Conn
	// early came through it already.
	early []byte
	// kills is how many processes the kernel had killed before; -1 if that is not told.
	kills int64
}

// openTunnel asks for the connection to be made a tunnel. What was opened is the caller's also beside an error.
func openTunnel(conn net.Conn, path string, first []byte) (o opened, err error) {
	request := make([]byte, 0, 256+len(first))
	request = fmt.Appendf(request, "POST %s HTTP/1.1\r\nHost: agent\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: %d\r\n", path, UpgradeInit, len(first))
	from := io.Reader(conn)
	given := &handed{fd: -1}
	defer given.drop() // what came with the rest of an answer, which nobody asked for
	if local, ok := conn.(*net.UnixConn); ok {
		given.UnixConn, from = local, given
		request = append(request, HeaderHandOver+": socket\r\n"...)
	}
	request = append(request, "\r\n"...)
	// An agent, or an init, that refuses may do so before it has taken all of it: its answer says more than this error.
	_, werr := conn.Write(append(request, first...))
	in := bufio.NewReaderSize(io.LimitReader(from, maxUpgrade), 1<<10)
	resp, err := http.ReadResponse(in, &http.Request{Method: http.MethodPost, URL: &url.URL{Path: path}})
	var terr error
	o.inside, terr = given.take()
	if err != nil {
		if err == io.ErrUnexpectedEOF || err == io.EOF {
			err = errors.New("the agent closed the connection")
		}
		return o, errors.Join(werr, err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case terr != nil:
		return o, terr
	case resp.StatusCode != http.StatusSwitchingProtocols && resp.StatusCode < 300:
		return o, &answered{muster.Faultf(muster.FaultInternal, "agent: %s: it answered %s and no connection", path, resp.Status)}
	case resp.StatusCode != http.StatusSwitchingProtocols:
		return o, &answered{refused(resp)}
	case resp.Header.Get("Upgrade") != UpgradeInit:
		return o, &answered{muster.Faultf(muster.FaultInternal, "agent: %s: it upgraded to %q", path, resp.Header.Get("Upgrade"))}
	case o.inside == nil && resp.Header.Get(HeaderHandOver) != "":
		return o, &answered{muster.Faultf(muster.FaultInternal, "agent: %s: it handed over nothing", path)}
	}
	// Whoever did not take all of it may have said why: that is there to be read.
	o.early, _ = in.Peek(in.Buffered())
	if o.kills, err = strconv.ParseInt(resp.Header.Get(HeaderOOMKills), 10, 64); err != nil || o.kills < 0 {
		o.kills = -1 // an agent of an earlier version
	}
	return o, nil
}

// OOMKills is how many processes of the sandbox the kernel had killed for want of memory before what was sent through
// this tunnel came there; false: the agent is of a version that does not tell.
func (t *Tunnel) OOMKills() (n int64, known bool) { return max(t.kills, 0), t.kills >= 0 }

// handed reads from an agent on this machine, and keeps a descriptor that comes along.
type handed struct {
	*net.UnixConn
	fd int
}

func (h *handed) Read(p []byte) (int, error) {
	var space [64]byte // for more than the one that is expected, so that none is cut off and left open
	n, oob, _, _, err := h.ReadMsgUnix(p, space[:])
	messages, perr := syscall.ParseSocketControlMessage(space[:oob])
	for i := range messages {
		fds, rerr := syscall.ParseUnixRights(&messages[i])
		perr = errors.Join(perr, rerr)
		for _, fd := range fds {
			h.drop()
			h.fd = fd
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		return n, io.EOF // it was wrapped, and readers compare
	case err != nil:
		return max(n, 0), err // with an error it is -1, which readers take for a defect and panic
	case perr != nil:
		return max(n, 0), perr
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// take is what was handed over; nil if nothing was.
func (h *handed) take() (net.Conn, error) {
	if h.fd < 0 {
		return nil, nil
	}
	f := os.NewFile(uintptr(h.fd), "connection to init")
	h.fd = -1
	defer func() { _ = f.Close() }() // the connection has one of its own
	return net.FileConn(f)
}

// drop closes what was handed over and not taken.
func (h *handed) drop() {
	if h.fd >= 0 {
		_ = syscall.Close(h.fd)
		h.fd = -1
	}
}

// Close ends the connection.
func (t *Tunnel) Close() error {
	t.unhook()
	err := t.end()
	if t.agent != nil {
		t.client.spares.add(t.client.dial)
	}
	return err
}

func (t *Tunnel) end() error {
	t.closed.Store(true) // first: watch looks when it finds the connection closed
	if t.agent != nil {
		_ = t.agent.Close()
	}
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
	case t.left.Load():
		err = errors.New("the agent has ended")
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

// Stats are what one sandbox uses now.
type Stats struct {
	At        muster.Time  `json:"at"`
	CPUMicros int64        `json:"cpu_us"`
	Memory    muster.Bytes `json:"memory"`
	Pids      int          `json:"pids,omitempty"`
	Disk      muster.Bytes `json:"disk,omitempty"`
	// OOMKills is how many of its processes the kernel has killed for want of memory so far.
	OOMKills int64 `json:"oom_kills,omitempty"`
	// The limits that hold, asked for or not; 0: none, or not known.
	PidsMax int          `json:"pids_max,omitempty"`
	DiskMax muster.Bytes `json:"disk_max,omitempty"`
}

// Stats measures one sandbox.
func (c *Client) Stats(ctx context.Context, id muster.AllocID) (Stats, error) {
	var s Stats
	err := c.exchange(ctx, helloTimeout, http.MethodGet, "/v1/allocs/"+url.PathEscape(string(id))+"/stats", nil, &s)
	return s, err
}
