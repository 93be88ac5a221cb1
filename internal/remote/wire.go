package remote

import (
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// wire is the byte stream below SSH: each read and each write must move within the limit.
type wire struct {
	net.Conn
	limit time.Duration
	raw   syscall.RawConn // nil: not TCP

	// broken: a read or write has failed, or it was closed. Set before the one who
	// sees it is told, so that the end of a channel can be told from the end of everything.
	broken atomic.Bool
}

func newWire(c net.Conn, limit time.Duration) *wire {
	w := &wire{Conn: c, limit: limit}
	if t, ok := c.(*net.TCPConn); ok {
		if raw, err := t.SyscallConn(); err == nil {
			w.raw = raw
		}
	}
	return w
}

func (w *wire) Read(p []byte) (int, error) {
	if err := w.SetReadDeadline(time.Now().Add(w.limit)); err != nil {
		w.broken.Store(true)
		return 0, err
	}
	n, err := w.Conn.Read(p)
	if err != nil {
		w.broken.Store(true)
	}
	if n > 0 && w.raw != nil {
		quickAck(w.raw)
	}
	return n, err
}

func (w *wire) Write(p []byte) (int, error) {
	if err := w.SetWriteDeadline(time.Now().Add(w.limit)); err != nil {
		w.broken.Store(true)
		return 0, err
	}
	n, err := w.Conn.Write(p)
	if err != nil {
		w.broken.Store(true)
	}
	return n, err
}

func (w *wire) Close() error {
	w.broken.Store(true)
	return w.Conn.Close()
}
