package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/problem"
)

// patience is how long a socket waits for its client, and a visit for init.
type patience struct {
	// first is how long the first message may take.
	first time.Duration
	// stall is how long a client may take nothing. Long, because a client that is held up by a
	// person in front of a pager is a good one. A client that is gone is told by the kernel: it asks
	// idle connections every few seconds, and gives up on bytes that nobody confirms after a quarter of an hour.
	stall time.Duration
	// quiet is the silence after which a ping is sent: proxies close connections that say nothing.
	quiet time.Duration
	// pong is how long the answer to a ping is waited for, before the next may be sent.
	pong time.Duration
	// last is how long a client may take for the last message when the server stops.
	last time.Duration
}

func usualPatience() patience {
	return patience{first: 10 * time.Second, stall: time.Hour, quiet: 15 * time.Second, pong: 15 * time.Second, last: 5 * time.Second}
}

const (
	// maxControl bounds a text message after the first.
	maxControl = 4 << 10
	maxReason  = 120 // of a close frame: 123 bytes
)

// socket is a WebSocket. One goroutine may read, and any may send.
type socket struct {
	ws *websocket.Conn
	// ctx ends with the connection, and ends it.
	ctx      context.Context
	cancel   context.CancelFunc
	patience patience
	began    time.Time
	// sent is when something was last sent, since began.
	sent atomic.Int64
}

// upgradable answers a request that is none for a WebSocket.
func upgradable(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet && strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return true
	}
	p := problem.New(http.StatusUpgradeRequired, "invalid", "this is asked as a WebSocket (Connection: Upgrade, Upgrade: websocket)")
	p.Headers.Set("Upgrade", "websocket")
	p.Headers.Set("Connection", "Upgrade")
	p.Write(w)
	return false
}

// accept upgrades. An error has been answered.
func (a *API) accept(w http.ResponseWriter, r *http.Request) (*socket, error) {
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil, err
	}
	s := &socket{ws: ws, patience: a.patience, began: time.Now()}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(r.Context()))
	return s, nil
}

// send waits for a client that takes nothing for a long time, but not for ever.
func (s *socket) send(kind websocket.MessageType, b []byte) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.patience.stall)
	defer cancel()
	err := s.ws.Write(ctx, kind, b)
	s.sent.Store(int64(time.Since(s.began)))
	return err
}

func (s *socket) sendJSON(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.send(websocket.MessageText, b)
}

// text reads a message that must be short text; r is of ws.Reader.
func text(kind websocket.MessageType, r io.Reader, most int64) ([]byte, error) {
	if kind != websocket.MessageText {
		return nil, problem.Invalid("message", "is binary where text is expected")
	}
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	switch {
	case err != nil:
		return nil, door.ErrClientGone
	case int64(len(b)) > most:
		return nil, problem.Invalid("message", "has more than %d bytes", most)
	}
	return b, nil
}

// keepAwake sends pings through a connection on which nothing is said, until it ends, and calls
// gone if one cannot be sent. An answer that does not come says nothing: a client that is held up does not read.
// But one that has left while its input waits for the command would not be noticed otherwise.
func (s *socket) keepAwake(gone func()) {
	tick := time.NewTicker(s.patience.quiet)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		if time.Since(s.began)-time.Duration(s.sent.Load()) < s.patience.quiet {
			continue
		}
		ctx, cancel := context.WithTimeout(s.ctx, s.patience.pong)
		err := s.ws.Ping(ctx)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			gone()
			return
		}
	}
}

// end closes with a code, waits a moment for the client to say the same, and breaks the connection then.
func (s *socket) end(code websocket.StatusCode, reason string) {
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	_ = s.ws.Close(code, reason)
	s.cancel()
}

// abort breaks the connection.
func (s *socket) abort() {
	s.cancel()
	_ = s.ws.CloseNow()
}
