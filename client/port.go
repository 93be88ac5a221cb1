package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Ports lists the TCP ports on which something inside an allocation's sandbox listens.
func (c SandboxAPI) Ports(ctx context.Context, id muster.AllocID) (*api.PortList, error) {
	return fetch[api.PortList](ctx, c.caller, request{method: http.MethodGet, path: allocPath(id, "ports")})
}

// DialPort connects to a TCP port inside an allocation's sandbox. The connection
// has CloseWrite, as a TCP connection has. A deadline that passes ends it for good. Ctx is for the dialling only.
func (c SandboxAPI) DialPort(ctx context.Context, id muster.AllocID, port int) (net.Conn, error) {
	// The connection outlives ctx, as with any dialler.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	release := context.AfterFunc(ctx, stop)
	s, err := c.socket(life, allocPath(id, "ports", strconv.Itoa(port)), "")
	if !release() && err == nil {
		s.close()
		err = ctx.Err()
	}
	if err != nil {
		stop()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	return &portConn{s: s, stop: stop, local: portAddr(c.Address()), remote: portAddr(fmt.Sprintf("%s:%d", id, port))}, nil
}

// portConn is a TCP connection to a port inside, carried by a WebSocket.
type portConn struct {
	s             *socket
	stop          context.CancelFunc
	local, remote portAddr

	reading sync.Mutex // held while a message is waited for; Read is for one goroutine at a time
	rest    []byte     // of a message that was not read whole
	over    bool       // nothing more comes

	mu           sync.Mutex
	readTimer    *time.Timer
	writeTimer   *time.Timer
	readExpired  bool
	writeExpired bool
	shut         bool // we have said close-write
}

type portAddr string

func (a portAddr) Network() string { return "muster" }

func (a portAddr) String() string { return string(a) }

func (p *portConn) Read(b []byte) (int, error) {
	p.reading.Lock()
	defer p.reading.Unlock()
	for len(p.rest) == 0 {
		if p.over {
			return 0, io.EOF
		}
		if len(b) == 0 {
			return 0, nil
		}
		kind, m, err := p.s.read()
		if err != nil {
			return 0, p.broken(err, &p.readExpired)
		}
		if kind == websocket.MessageBinary {
			p.rest = m
			continue
		}
		var c api.PortControl
		if json.Unmarshal(m, &c) == nil && c.Type == api.PortCloseWrite {
			p.over = true
		}
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// broken is the error for a message that could not be read or written.
func (p *portConn) broken(err error, expired *bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case *expired:
		return os.ErrDeadlineExceeded
	case p.s.ctx.Err() != nil:
		return net.ErrClosed
	case websocket.CloseStatus(err) == websocket.StatusNormalClosure:
		return io.EOF
	}
	var u *Unreachable
	if errors.As(err, &u) {
		return err
	}
	return p.s.lost(err)
}

func (p *portConn) Write(b []byte) (int, error) {
	p.mu.Lock()
	shut := p.shut
	p.mu.Unlock()
	if shut {
		return 0, net.ErrClosed
	}
	n, err := p.s.binary(b)
	if err != nil {
		err = p.broken(err, &p.writeExpired)
	}
	return n, err
}

// CloseWrite says that nothing more is written; what comes can still be read.
func (p *portConn) CloseWrite() error {
	p.mu.Lock()
	was := p.shut
	p.shut = true
	p.mu.Unlock()
	if was {
		return nil
	}
	return p.s.text(api.PortControl{Type: api.PortCloseWrite})
}

func (p *portConn) Close() error {
	_ = p.SetDeadline(time.Time{})
	p.s.close()
	p.stop()
	return nil
}

func (p *portConn) LocalAddr() net.Addr  { return p.local }
func (p *portConn) RemoteAddr() net.Addr { return p.remote }

func (p *portConn) SetDeadline(t time.Time) error {
	return errors.Join(p.SetReadDeadline(t), p.SetWriteDeadline(t))
}

func (p *portConn) SetReadDeadline(t time.Time) error {
	p.deadline(&p.readTimer, &p.readExpired, t)
	return nil
}

func (p *portConn) SetWriteDeadline(t time.Time) error {
	p.deadline(&p.writeTimer, &p.writeExpired, t)
	return nil
}

// deadline ends the connection at a time, unless it is set anew before.
func (p *portConn) deadline(timer **time.Timer, expired *bool, t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if *timer != nil {
		(*timer).Stop()
		*timer = nil
	}
	if t.IsZero() {
		return
	}
	var own *time.Timer
	own = time.AfterFunc(time.Until(t), func() {
		p.mu.Lock()
		valid := *timer == own
		if valid {
			*expired = true
		}
		p.mu.Unlock()
		if valid {
			p.s.cancel()
		}
	})
	*timer = own
}
