package output

import (
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/system"
	"github.com/musterhq/muster/internal/wait"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// lastRead bounds what is read of a source after CutOff. A pipe holds no more.
const lastRead = 1 << 20

// Chunk is a buffer for a frame of output: room for the frame's head, then N bytes.
type Chunk struct {
	buffer [initwire.HeadSize + initwire.MaxBytes]byte
	N      int
}

// Room is where the bytes go, at most initwire.MaxBytes.
func (b *Chunk) Room() []byte { return b.buffer[initwire.HeadSize:] }

// Frame is the frame whose bytes are the first N of Room; the caller writes its head.
func (b *Chunk) Frame() []byte { return b.buffer[:initwire.HeadSize+b.N] }

// Pool keeps the buffers of a sandbox for reuse. The zero value is one.
type Pool struct{ pool sync.Pool }

// Get is a buffer, to be given back by Put.
func (p *Pool) Get() *Chunk {
	if b, ok := p.pool.Get().(*Chunk); ok {
		return b
	}
	return new(Chunk)
}

// Put gives a buffer back.
func (p *Pool) Put(b *Chunk) { p.pool.Put(b) }

// Source is init's end of one stream that an execution prints to. One goroutine reads it.
type Source struct {
	pool     *Pool
	Endpoint *system.Endpoint
	// cut is closed when only what is in the pipe by then is still read.
	cut chan struct{}
	// last is how many bytes may still be read then.
	last int
}

// NewSource takes init's end of a pipe or a terminal, which must not block. The name is for errors
// only.
func NewSource(fd int, name string, pool *Pool, brief system.Gate) (*Source, error) {
	l, err := system.NewEndpoint(fd, name, brief)
	if err != nil {
		return nil, err
	}
	return &Source{pool: pool, Endpoint: l, cut: make(chan struct{}), last: lastRead}, nil
}

// Read waits for what comes next. Any error is the end. The caller releases what it returns. A
// source has a buffer only while there is something to read, because hundreds of them may wait.
func (r *Source) Read() (*Chunk, error) {
	var b *Chunk
	var n int
	var err error
	try := func(fd uintptr) bool {
		if b == nil {
			b = r.pool.Get()
		}
		if n, err = system.RawRead(fd, b.Room()); err == syscall.EAGAIN {
			r.pool.Put(b)
			b = nil
			return false
		}
		return true
	}
	if waited := r.Endpoint.WhenReadable(try); waited != nil {
		if !wait.Closed(r.cut) || r.last <= 0 {
			return nil, waited
		}
		err = syscall.EAGAIN
		if wrong := r.Endpoint.Control(func(fd uintptr) { try(fd) }); wrong != nil {
			return nil, wrong
		}
		r.last -= max(n, 0)
	}
	if err == nil && n > 0 {
		b.N = n
		return b, nil
	}
	if b != nil {
		r.pool.Put(b)
	}
	if err == nil {
		err = io.EOF
	}
	return nil, err
}

// Release gives a buffer back.
func (r *Source) Release(b *Chunk) { r.pool.Put(b) }

// CutOff ends the waiting for more output. Call it once.
func (r *Source) CutOff() {
	close(r.cut)
	_ = r.Endpoint.SetReadDeadline(time.Unix(1, 0))
}
