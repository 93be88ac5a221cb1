package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"sync"

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/socket"
)

// portHandlers handle TCP ports in sandboxes.
type portHandlers struct{ *API }

func (a portHandlers) routes() {
	register(a.API, sandboxOperation(http.MethodGet, "/ports", "list-ports", "List listening TCP ports", "Those on which something inside the sandbox listens now."), a.listPorts)

	open := sandboxOperation(http.MethodGet, "/ports/{port}", "open-port", "Connect to a TCP port",
		"A WebSocket that is one TCP connection to the port, on the sandbox's own loopback. Binary messages are its bytes, cut anywhere; "+
			"a PortControl `close-write` as text, from either side, says that no more come from there. 502 with the code no-listener if nothing listens.", http.StatusUpgradeRequired)
	open.DefaultStatus = http.StatusSwitchingProtocols
	open.Responses = a.upgrades(reflect.TypeFor[api.PortControl]())
	register(a.API, open, a.openPort)
}

type portListOut struct{ Body api.PortList }

func (a portHandlers) listPorts(ctx context.Context, in *AllocPath) (*portListOut, error) {
	list, err := a.cfg.Inside.Ports.List(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &portListOut{api.PortList{Ports: list}}, nil
}

type openPortIn struct {
	AllocPath
	Port int `path:"port" minimum:"1" maximum:"65535" doc:"The port."`
}

func (a portHandlers) openPort(ctx context.Context, in *openPortIn) (*huma.StreamResponse, error) {
	if _, err := in.find(a.cfg.State.Latest()); err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		if !socket.Upgradable(w, r) {
			return
		}
		inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		defer cancel(nil)
		defer context.AfterFunc(a.cfg.Stopping, func() { cancel(problem.ErrStopping) })()
		conn, err := a.cfg.Inside.Ports.Connect(inner, in.ID, in.Port)
		if err != nil {
			a.fail(ctx, "open-port", err).Write(w)
			return
		}
		defer func() { _ = conn.Close() }()
		s, err := socket.Accept(w, r, a.patience)
		if err != nil {
			return
		}
		p := &portSocket{s: s, conn: conn, inner: inner, cancel: cancel, halved: make(chan struct{})}
		p.run()
	}}, nil
}

// portSocket is a TCP connection and its client. One goroutine carries each direction, with one
// buffer, so a slow side slows the other down.
type portSocket struct {
	s      *socket.Socket
	conn   inside.Conn
	inner  context.Context
	cancel context.CancelCauseFunc
	// halved is closed when the client has said that it sends no more. The goroutine of receive
	// owns the field and sets it to nil then.
	halved chan struct{}
}

func (p *portSocket) run() {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer p.s.Abort()
	// Ends the goroutine that waits for the sandbox; Abort, which runs after it, ends those that
	// wait for the client.
	defer func() { p.cancel(problem.ErrClientGone); _ = p.conn.Close() }()
	p.s.SetReadLimit(-1) // passed on as it comes
	received, sent, halved := make(chan error, 1), make(chan error, 1), p.halved
	wg.Go(func() { p.s.KeepAwake(func() { p.cancel(problem.ErrClientGone) }) })
	wg.Go(func() { received <- p.receive() })
	wg.Go(func() { sent <- p.forward() })

	for halved != nil || sent != nil {
		var err error
		select {
		case err = <-received:
		case err = <-sent:
			sent = nil
		case <-halved:
			halved = nil
		}
		if err == nil {
			continue
		}
		// The first error is the reason. Errors of the other direction follow from the end of the
		// first, and are dropped.
		stopping := errors.Is(context.Cause(p.inner), problem.ErrStopping)
		p.cancel(err)
		_ = p.conn.Close()
		switch {
		case errors.Is(err, problem.ErrClientGone):
		case stopping:
			p.s.End(websocket.StatusGoingAway, problem.ErrStopping.Error())
		default:
			p.s.End(websocket.StatusInternalError, problem.Printable(err.Error()))
		}
		return
	}
	p.s.End(websocket.StatusNormalClosure, "")
}

// forward carries bytes from the sandbox to the client. At their end it tells the client
// close-write.
func (p *portSocket) forward() error {
	buf := door.Buffers.Get().(*[32 << 10]byte)
	defer door.Buffers.Put(buf)
	for {
		n, err := p.conn.Read(buf[:])
		if n > 0 {
			if p.s.Send(websocket.MessageBinary, buf[:n]) != nil {
				return problem.ErrClientGone
			}
		}
		switch {
		case err == io.EOF:
			if p.s.SendJSON(api.PortControl{Type: api.PortCloseWrite}) != nil {
				return problem.ErrClientGone
			}
			return nil
		case err != nil:
			return err
		}
	}
}

// receive carries bytes from the client to the sandbox. It returns problem.ErrClientGone when the
// client has left, a problem if the client breaks the protocol, or the error of the connection.
func (p *portSocket) receive() error {
	for {
		kind, r, err := p.s.Reader(p.s.Ctx)
		if err != nil {
			return problem.ErrClientGone
		}
		if kind == websocket.MessageText {
			err = p.closeWrite(kind, r)
		} else {
			err = p.write(r)
		}
		if err != nil {
			return err
		}
	}
}

// write passes a message on piece by piece.
func (p *portSocket) write(r io.Reader) error {
	buf := door.Buffers.Get().(*[32 << 10]byte)
	defer door.Buffers.Put(buf)
	for {
		n, err := r.Read(buf[:])
		if n > 0 {
			if p.halved == nil {
				return problem.Invalid("message", "comes after %s", api.PortCloseWrite)
			}
			if _, err := p.conn.Write(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return problem.ErrClientGone
		}
	}
}

func (p *portSocket) closeWrite(kind websocket.MessageType, r io.Reader) error {
	raw, err := socket.Text(kind, r, socket.MaxControl)
	if err != nil {
		return err
	}
	var c api.PortControl
	if json.Unmarshal(raw, &c) != nil || c.Type != api.PortCloseWrite {
		return problem.Invalid("message.type", "is %q; it is %s", problem.Clip(c.Type), api.PortCloseWrite)
	}
	if p.halved == nil {
		return nil
	}
	if err := p.conn.CloseWrite(); err != nil {
		return err
	}
	close(p.halved)
	p.halved = nil
	return nil
}
