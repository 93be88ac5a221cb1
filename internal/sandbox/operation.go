package sandbox

import (
	"io"
	"runtime"
	"strconv"
	"time"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

const (
	// maxOperations is how many operations go on at once; more are refused.
	maxOperations = 512
	// stallTime is how long a client may leave an answer unread. Minutes, because the client at
	// the far end of the tunnel may be a person's terminal that is held up.
	stallTime = 10 * time.Minute
	// firstRead is the room for what a client sends; it grows to a whole frame only for those who send so much.
	firstRead = 512
)

// operation is one connection whose operation is more than a question and an
// answer. It has left the loop: a goroutine of its own serves it to the end.
//
// Only one goroutine may read at a time. Any may write: a frame goes out by one Write, and those do not mix.
type operation struct {
	s *sandbox
	// conn is the connection.
	conn *system.Endpoint
	// in[from:] has come and is not yet read; at first, what came with the request.
	in   []byte
	from int
	// slot is the gate that its goroutine has entered, unless it waits for the client; nil: none.
	slot system.Gate
	// as is whose rights its thread has meanwhile, and mine those that it had before; nil: its own.
	as   *rights
	mine rights
}

// pause gives up what others may need, before its goroutine waits for the client.
func (o *operation) pause() {
	o.giveBack()
	o.slot.Leave()
}

// resume takes it again. After an error the operation must do nothing more.
func (o *operation) resume() error {
	o.slot.Enter()
	return o.assume()
}

// longer reports whether an operation takes a goroutine of its own.
func longer(kind initwire.Kind) bool { return kind >= initwire.KindExec && kind < 72 }

// limit of the request's size: a command line may be long.
func (c *conn) limit() int {
	if len(c.in) > 4 && initwire.Kind(c.in[4]) == initwire.KindExec {
		return initwire.MaxStart
	}
	return initwire.MaxFrame
}

// handOver takes a connection out of the loop.
func (s *sandbox) handOver(c *conn, kind initwire.Kind, fields, rest []byte) {
	if s.operations.Add(1) > maxOperations {
		s.operations.Add(-1)
		s.refuse(c, strconv.Itoa(maxOperations)+" operations are going on in this sandbox, more are not served at once")
		return
	}
	if !s.serving {
		s.serving = true
		if runtime.GOMAXPROCS(0) < system.Processors {
			runtime.GOMAXPROCS(system.Processors)
		}
		s.execs.open()
	}
	conn, err := system.NewEndpoint(c.fd, "operation", s.gates.Brief)
	c.fd = -1
	if err != nil {
		s.operations.Add(-1)
		return
	}
	o := &operation{s: s, conn: conn, in: rest}
	go func() {
		defer s.operations.Add(-1)
		defer func() { _ = conn.Close() }()
		o.serve(kind, fields)
	}()
	// It goes first, on this thread: waking another for it costs a twentieth of an execution's start.
	runtime.Gosched()
}

// serve is the whole operation.
func (o *operation) serve(kind initwire.Kind, fields []byte) {
	switch {
	case kind < initwire.KindFileList:
		o.serveExec(kind, fields)
	case kind < initwire.KindConnect:
		o.serveFile(kind, fields)
	case kind <= initwire.KindPorts:
		o.servePort(kind, fields)
	default:
		o.refuse("no operation of kind " + strconv.Itoa(int(kind)))
	}
}

// read is the next frame after the request. What it returns is overwritten by the next read. io.EOF
// means that the client has nothing more to say, or has left. It waits as long as the client is silent, unless
// there is a deadline on conn.
func (o *operation) read() (initwire.Kind, []byte, error) {
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
		o.pause()
		n, err := o.conn.Read(o.in[len(o.in):cap(o.in)])
		if resumed := o.resume(); resumed != nil {
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
func (o *operation) makeRoom() {
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

// write sends a frame, and gives up on a client that takes nothing for stallTime.
func (o *operation) write(kind initwire.Kind, payload []byte) error {
	_ = o.conn.SetWriteDeadline(time.Now().Add(stallTime))
	return initwire.WriteFrame(o.conn, kind, payload)
}

// done answers that it is done.
func (o *operation) done() error { return o.write(initwire.KindDone, nil) }

// refuse answers that it is not done, and why.
func (o *operation) refuse(why string) { _ = o.write(initwire.KindRefused, initwire.TextFields(why)) }
