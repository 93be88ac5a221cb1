package door

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/musterhq/muster/internal/problem"
)

// stall is how long a client may keep a transfer waiting.
const stall = time.Minute

// Patient reads a body that may take hours as a whole. Each read has a minute, so that a client
// that has gone does not hold its handler.
type Patient struct {
	r       io.Reader
	control *http.ResponseController

	mu  sync.Mutex
	cut bool
}

// Read waits for the next bytes, but not longer than a minute.
func (p *Patient) Read(b []byte) (int, error) {
	p.deadline(time.Now().Add(stall))
	n, err := p.r.Read(b)
	p.deadline(time.Time{})
	return n, err
}

// deadline sets the time of a read, unless the body was cut off: that must not be taken back.
func (p *Patient) deadline(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cut {
		_ = p.control.SetReadDeadline(t)
	}
}

// CutOff ends a read that waits, and lets no later one wait. It is called when the rest of the body
// is not wanted, possibly by another goroutine than the one that reads.
func (p *Patient) CutOff() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	_ = p.control.SetReadDeadline(time.Unix(1, 0))
}

// NewPatient makes a Patient of the body of a request that is answered by w.
func NewPatient(w http.ResponseWriter, r *http.Request) *Patient {
	return &Patient{r: r.Body, control: http.NewResponseController(w)}
}

// ClientBody is a body whose errors are problems, so that whoever reads it can return them as they
// are.
type ClientBody struct{ *Patient }

// Read is the Patient's.
func (b ClientBody) Read(p []byte) (int, error) {
	n, err := b.Patient.Read(p)
	if err != nil && err != io.EOF {
		err = BrokenBody(err, stall)
	}
	return n, err
}

// Buffers are for copying streams: a stream that waits keeps one, however many bytes it moves. Each
// is a pointer to an array of 32 KiB.
var Buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// Send sends bytes to their end, with one buffer however slow the client is: what the client does
// not take is not read either. With flush each piece leaves at once. sent, which may be nil, is
// told how much of each piece was taken. The error is problem.ErrClientGone, or the source's.
func Send(w http.ResponseWriter, from io.Reader, flush bool, sent func(n int)) error {
	buf := Buffers.Get().(*[32 << 10]byte)
	defer Buffers.Put(buf)
	for {
		n, err := from.Read(buf[:])
		if n > 0 {
			taken, werr := Write(w, buf[:n], flush)
			if sent != nil {
				sent(taken)
			}
			if werr != nil {
				return problem.ErrClientGone
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

// Write writes a piece of an answer and gives the client a minute to take it.
func Write(w http.ResponseWriter, b []byte, flush bool) (int, error) {
	ExtendWrite(w)
	n, err := w.Write(b)
	if err == nil && flush {
		err = http.NewResponseController(w).Flush()
		if errors.Is(err, http.ErrNotSupported) {
			err = nil
		}
	}
	return n, err
}

// Abort breaks an answer off, by a panic that the HTTP server knows. What was written goes out
// first: a client that asks again from the offset reached would get no further otherwise.
func Abort(w http.ResponseWriter) {
	ExtendWrite(w)
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// ExtendWrite gives the client a minute for the next write of a stream.
func ExtendWrite(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(stall))
}

// EndWrite takes the deadline of the last write away again: the connection may serve other
// requests.
func EndWrite(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
}

// Download answers with bytes; their headers are set already. If they cannot be had to their end,
// the connection breaks off, so that no client takes a part for the whole. It closes from.
func (d *Door) Download(w http.ResponseWriter, r *http.Request, status int, from io.ReadCloser) {
	defer func() { _ = from.Close() }()
	if status != http.StatusOK {
		w.WriteHeader(status)
	}
	if r.Method == http.MethodHead {
		return
	}
	if err := Send(w, from, false, nil); err != nil {
		d.cfg.Logger.DebugContext(r.Context(), "answer broken off", "path", problem.Clip(r.URL.Path), "error", err)
		Abort(w)
	}
	EndWrite(w)
}
