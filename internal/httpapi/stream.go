package httpapi

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

var errClientGone = errors.New("the client does not take the answer")

var copyBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// send sends bytes to their end, with one buffer however slow the client is. Each piece is flushed if asked; then sent, which may
// be nil, is told how much of it the client took. The error is errClientGone, or the source's.
func send(w http.ResponseWriter, from io.Reader, flush bool, sent func(n int)) error {
	buf := copyBuffers.Get().(*[32 << 10]byte)
	defer copyBuffers.Put(buf)
	for {
		n, err := from.Read(buf[:])
		if n > 0 {
			taken, werr := write(w, buf[:n], flush)
			if sent != nil {
				sent(taken)
			}
			if werr != nil {
				return errClientGone
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

func write(w http.ResponseWriter, b []byte, flush bool) (int, error) {
	extendWrite(w)
	n, err := w.Write(b)
	if err == nil && flush {
		err = http.NewResponseController(w).Flush()
		if errors.Is(err, http.ErrNotSupported) {
			err = nil
		}
	}
	return n, err
}

// abort breaks an answer off. What was written goes out first, or the client
// would ask for the same again and get no further.
func abort(w http.ResponseWriter) {
	extendWrite(w)
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// extendWrite gives the next write of a stream a time of its own.
func extendWrite(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(stall))
}

// endWrite takes the time away again: the connection may serve other requests.
func endWrite(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
}
