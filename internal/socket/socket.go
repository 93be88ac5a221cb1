package socket

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

	"github.com/musterhq/muster/internal/problem"
)

// Patience is how long a socket waits for its client.
type Patience struct {
	// First is how long the first message may take.
	First time.Duration
	// Stall is how long a client may take nothing. Long, because a client that is held up by a
	// person in front of a pager is a good one. A client that is gone is told by the kernel: it
	// asks idle connections every few seconds, and gives up on bytes that nobody confirms after a
	// quarter of an hour.
	Stall time.Duration
	// Quiet is the silence after which a ping is sent: proxies close connections that say nothing.
	Quiet time.Duration
	// Pong is how long the answer to a ping is waited for, before the next may be sent.
	Pong time.Duration
	// Last is how long a client may take for the last message when the server stops.
	Last time.Duration
}

// Usual is the patience with clients of the API.
func Usual() Patience {
	return Patience{First: 10 * time.Second, Stall: time.Hour, Quiet: 15 * time.Second, Pong: 15 * time.Second, Last: 5 * time.Second}
}

const (
	// MaxControl bounds a text message after the first.
	MaxControl = 4 << 10
	maxReason  = 120 // of a close frame: 123 bytes
)

// Socket is a WebSocket. One goroutine may read, and any may send.
type Socket struct {
	*websocket.Conn
	// Ctx ends with the connection, and ends it.
	Ctx      context.Context
	cancel   context.CancelFunc
	patience Patience
	began    time.Time
	// sent is when something was last sent, since began.
	sent atomic.Int64
}

// Upgradable reports whether a request is one for a WebSocket. One that is not has been answered.
func Upgradable(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet && strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return true
	}
	p := problem.New(http.StatusUpgradeRequired, "invalid", "this is asked as a WebSocket (Connection: Upgrade, Upgrade: websocket)")
	p.Headers.Set("Upgrade", "websocket")
	p.Headers.Set("Connection", "Upgrade")
	p.Write(w)
	return false
}

// Accept upgrades. An error has been answered. The socket outlives the request's context; End or
// Abort must be called.
func Accept(w http.ResponseWriter, r *http.Request, p Patience) (*Socket, error) {
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil, err
	}
	s := &Socket{Conn: ws, patience: p, began: time.Now()}
	s.Ctx, s.cancel = context.WithCancel(context.WithoutCancel(r.Context()))
	return s, nil
}

// Send waits for a client that takes nothing for a long time, but not for ever.
func (s *Socket) Send(kind websocket.MessageType, b []byte) error {
	ctx, cancel := context.WithTimeout(s.Ctx, s.patience.Stall)
	defer cancel()
	err := s.Conn.Write(ctx, kind, b)
	s.sent.Store(int64(time.Since(s.began)))
	return err
}

// SendJSON sends a message of text.
func (s *Socket) SendJSON(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.Send(websocket.MessageText, b)
}

// Text reads a message that must be text of so many bytes at most; r is of Reader. Errors are
// problem.ErrClientGone and problems with the field message.
func Text(kind websocket.MessageType, r io.Reader, most int64) ([]byte, error) {
	if kind != websocket.MessageText {
		return nil, problem.Invalid("message", "is binary where text is expected")
	}
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	switch {
	case err != nil:
		return nil, problem.ErrClientGone
	case int64(len(b)) > most:
		return nil, problem.Invalid("message", "has more than %d bytes", most)
	}
	return b, nil
}

// KeepAwake sends pings through a connection on which nothing is said, until it ends, and calls
// gone if one cannot be sent. An answer that does not come says nothing: a client that is held up
// does not read. But one that has left while its input waits for the command would not be noticed
// otherwise.
func (s *Socket) KeepAwake(gone func()) {
	tick := time.NewTicker(s.patience.Quiet)
	defer tick.Stop()
	for {
		select {
		case <-s.Ctx.Done():
			return
		case <-tick.C:
		}
		if time.Since(s.began)-time.Duration(s.sent.Load()) < s.patience.Quiet {
			continue
		}
		ctx, cancel := context.WithTimeout(s.Ctx, s.patience.Pong)
		err := s.Conn.Ping(ctx)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			gone()
			return
		}
	}
}

// End closes with a code, waits a moment for the client to say the same, and breaks the connection
// then.
func (s *Socket) End(code websocket.StatusCode, reason string) {
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	_ = s.Conn.Close(code, reason)
	s.cancel()
}

// Abort breaks the connection.
func (s *Socket) Abort() {
	s.cancel()
	_ = s.Conn.CloseNow()
}
