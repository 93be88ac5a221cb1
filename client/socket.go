package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"

	"github.com/coder/websocket"

	"github.com/musterhq/muster/api"
)

// socket is one WebSocket of the API. One goroutine reads; any may write.
type socket struct {
	conn    *websocket.Conn
	ctx     context.Context // its end closes the connection
	cancel  context.CancelFunc
	address string
	buf     []byte // of the message read last
	writing atomic.Int32
	taken   bool // the server has the first message
}

// maxMessage bounds a message of the server.
const maxMessage = 4 << 20

// piece is how much one binary message of ours carries.
const piece = 32 << 10

// socket opens a WebSocket, which lives as long as ctx. What the server refuses
// comes back as *api.Problem. first is the first message of an execution, to go along as a header, or empty. Opening
// is repeated as any read, as long as it has changed nothing.
func (c *caller) socket(ctx context.Context, path, first string) (*socket, error) {
	if c.fresh == nil {
		first = ""
	}
	s := &socket{}
	s.ctx, s.cancel = context.WithCancel(ctx)
	var over error // not to be repeated
	err := c.retry(ctx, request{}, func() error {
		base, token := c.place()
		target := *base
		target.Path, target.RawPath = "", ""
		h := &handshake{base: c.http.Transport}
		header := http.Header{}
		if first != "" {
			h.base = c.fresh
			header.Set(api.ExecFirst, first)
		}
		if !token.IsZero() {
			header.Set("Authorization", "Bearer "+token.Reveal())
		}
		if c.userAgent != "" {
			header.Set("User-Agent", c.userAgent)
		}
		own := *c.http
		own.Transport, own.Timeout = h, 0
		one, cancel := context.WithTimeout(ctx, unaryTimeout)
		defer cancel()
		conn, _, err := websocket.Dial(one, target.String()+base.EscapedPath()+path, &websocket.DialOptions{
			HTTPClient: &own, HTTPHeader: header,
			OnPingReceived: func(context.Context, []byte) bool {
				// While the server takes no bytes of ours, an answer would only wait behind them,
				// and the library gives up the whole connection after five seconds of that.
				return s.writing.Load() == 0
			},
		})
		switch {
		case err == nil:
			conn.SetReadLimit(maxMessage)
			s.conn, s.address, s.taken = conn, base.Host, h.taken
			return nil
		case h.refused != nil:
			err = h.refused
		case ctx.Err() != nil:
			err = ctx.Err()
		default:
			h.taken = first != "" && !isDial(err)
			err = &Unreachable{base.Host, cause(err)}
		}
		if h.taken {
			over = plainProblem(err)
			return nil
		}
		return err
	})
	if err == nil {
		err = over
	}
	if err != nil {
		s.cancel()
		return nil, err
	}
	return s, nil
}

// handshake makes the request that becomes a WebSocket, and reads the whole of a
// refusal: the library shows only how it begins.
type handshake struct {
	base    http.RoundTripper
	refused error
	taken   bool // the server has begun to do what the first message says
}

// isDial reports whether a request failed before any of it was sent.
func isDial(err error) bool {
	var oe *net.OpError
	return errors.As(err, &oe) && oe.Op == "dial"
}

func (h *handshake) RoundTrip(req *http.Request) (*http.Response, error) {
	base := h.base
	if base == nil {
		base = http.DefaultTransport
	}
	resp, err := base.RoundTrip(req)
	h.taken = err == nil && resp.Header.Get(api.ExecFirst) == api.ExecFirstTaken
	if err != nil || resp.StatusCode == http.StatusSwitchingProtocols {
		return resp, err
	}
	h.refused = problem(resp)
	if resp.StatusCode/100 == 2 {
		h.refused = fmt.Errorf("GET %s: the server does not speak WebSocket there: it may be too old", req.URL.Path)
	}
	_ = resp.Body.Close()
	resp.Body = http.NoBody
	return resp, nil
}

// cause takes off what the library says around an error of the network.
func cause(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	var oe *net.OpError
	if errors.As(err, &oe) {
		return oe
	}
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// lost is the error for a connection that broke.
func (s *socket) lost(err error) error {
	if s.ctx.Err() != nil {
		return s.ctx.Err()
	}
	var ce websocket.CloseError
	if errors.As(err, &ce) {
		if ce.Reason != "" {
			return &Unreachable{s.address, fmt.Errorf("it closed the connection: %s", ce.Reason)}
		}
		return &Unreachable{s.address, errors.New("it closed the connection")}
	}
	return &Unreachable{s.address, cause(err)}
}

// read reads one message, which is valid until the next.
func (s *socket) read() (websocket.MessageType, []byte, error) {
	kind, r, err := s.conn.Reader(s.ctx)
	if err != nil {
		return 0, nil, err
	}
	b := s.buf[:0]
	for {
		if len(b) == cap(b) {
			b = append(b, make([]byte, max(piece, cap(b)))...)[:len(b)]
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			s.buf = b
			return kind, b, nil
		}
		if err != nil {
			return 0, nil, err
		}
	}
}

// bytes sends bytes, as many messages as they need.
func (s *socket) binary(p []byte) (int, error) {
	s.writing.Add(1)
	defer s.writing.Add(-1)
	sent := 0
	for len(p) > 0 {
		n := min(len(p), piece)
		if err := s.conn.Write(s.ctx, websocket.MessageBinary, p[:n]); err != nil {
			return sent, s.lost(err)
		}
		sent, p = sent+n, p[n:]
	}
	return sent, nil
}

// text sends a value as a text message.
func (s *socket) text(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > api.ExecMaxText {
		return fmt.Errorf("the message has %d bytes; at most %d are taken", len(b), api.ExecMaxText)
	}
	if err := s.conn.Write(s.ctx, websocket.MessageText, b); err != nil {
		return s.lost(err)
	}
	return nil
}

func (s *socket) close() {
	s.cancel()
	_ = s.conn.CloseNow()
}
