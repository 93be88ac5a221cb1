package operation

import (
	"io"
	"time"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

const (
	// StallTime is how long a client may leave an answer unread. It is minutes, because the client
	// at the far end of the tunnel may be a person's terminal that is held up.
	StallTime = 10 * time.Minute
	// firstRead is the room for what a client sends. It grows to a whole frame only for clients who
	// send so much.
	firstRead = 512
)

// Conn is one connection whose operation is more than a question and an answer. It has left the
// loop: a goroutine of its own serves it to the end.
//
// Only one goroutine may read at a time. Any may write: a frame goes out by one Write of the
// endpoint, and those do not mix.
type Conn struct {
	// Endpoint is the connection.
	Endpoint *system.Endpoint
	// Hold is what its goroutine holds, unless it waits for the client; nil: nothing.
	Hold Holder
	// in[from:] has come and is not yet read; at first, what came with the request.
	in   []byte
	from int
}

// Holder is what the goroutine of an operation holds and others may need: a slot of a gate, a
// thread with the rights of a user.
type Holder interface {
	// Release gives it up, before the goroutine waits for the client.
	Release()
	// Acquire takes it again. After an error the operation must do nothing more.
	Acquire() error
}

// New makes one of a connection that has left the loop. early is what came behind the request.
func New(endpoint *system.Endpoint, early []byte) *Conn {
	return &Conn{Endpoint: endpoint, in: early}
}

// Pause gives up what the goroutine holds, before it waits for the client.
func (o *Conn) Pause() {
	if o.Hold != nil {
		o.Hold.Release()
	}
}

// Resume takes it again. After an error the operation must do nothing more.
func (o *Conn) Resume() error {
	if o.Hold != nil {
		return o.Hold.Acquire()
	}
	return nil
}

// Early is what has come and is not yet read. It is the caller's from then on.
func (o *Conn) Early() []byte {
	early := o.in[o.from:]
	o.in, o.from = nil, 0
	return early
}

// ReadFrame is the next frame after the request. What it returns is overwritten by the next read.
// io.EOF means that the client has nothing more to say, or has left. It waits as long as the client
// is silent, unless there is a deadline on conn.
func (o *Conn) ReadFrame() (initwire.Kind, []byte, error) {
	for {
		kind, payload, whole, err := initwire.CutFrame(o.in[o.from:], initwire.MaxFrame)
		if err != nil {
			return 0, nil, err
		}
		if whole {
			o.from += initwire.HeadSize + len(payload)
			return kind, payload, nil
		}
		o.makeRoom()
		o.Pause()
		n, err := o.Endpoint.Read(o.in[len(o.in):cap(o.in)])
		if resumed := o.Resume(); resumed != nil {
			return 0, nil, resumed
		}
		o.in = o.in[:len(o.in)+n]
		if n > 0 {
			continue
		}
		if err == io.EOF && len(o.in) > o.from {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
}

// makeRoom moves what is left to the front, and grows if that is not enough.
func (o *Conn) makeRoom() {
	left := len(o.in) - o.from
	switch {
	case cap(o.in)-left >= firstRead/2 && o.from > 0:
		copy(o.in, o.in[o.from:])
		o.in = o.in[:left]
	case cap(o.in) == len(o.in):
		size := min(max(firstRead, 4*cap(o.in)), initwire.MaxFrame+initwire.HeadSize)
		grown := make([]byte, left, max(size, left+firstRead))
		copy(grown, o.in[o.from:])
		o.in = grown
	default:
		return
	}
	o.from = 0
}

// WriteFrame sends a frame, and gives up on a client that takes nothing for StallTime.
func (o *Conn) WriteFrame(kind initwire.Kind, payload []byte) error {
	_ = o.Endpoint.SetWriteDeadline(time.Now().Add(StallTime))
	return initwire.WriteFrame(o.Endpoint, kind, payload)
}

// Done answers that it is done.
func (o *Conn) Done() error { return o.WriteFrame(initwire.KindDone, nil) }

// Refuse answers that it is not done, and why.
func (o *Conn) Refuse(why string) {
	_ = o.WriteFrame(initwire.KindRefused, initwire.TextFields(why))
}

// Fail answers why a program was not started, or is not there.
func (o *Conn) Fail(failed *initwire.Failed) {
	_ = o.WriteFrame(initwire.KindFailed, failed.Fields())
}
