package source

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/wait"
)

// Times and counts of transfers.
const (
	// tries is how often the same byte is asked for.
	tries = 6
	// FirstPause and longestPause are the pauses between tries.
	FirstPause   = 500 * time.Millisecond
	longestPause = 15 * time.Second
	// enough is how many bytes must come for the tries to begin again: one byte per connection is
	// no progress.
	enough = 1 << 20

	// maxWindow is how much memory one frame of zstd may ask for.
	maxWindow = 64 << 20
)

// Transfer reads the compressed bytes of a layer. It opens a connection that breaks again where it
// broke, so that its reader sees one stream.
type Transfer struct {
	ctx   context.Context
	src   Source
	blob  Layer
	gauge *Gauge
	log   *slog.Logger
	// pace is the first pause between tries.
	pace time.Duration

	// body is the connection; nil: none is open. at is how many bytes have come, and sum their
	// digest.
	body io.ReadCloser
	at   int64
	sum  hash.Hash
	// failed is how many tries have failed since enough came. since is where the tries began.
	failed int
	since  int64
	// err is what Read said last. It says so again.
	err error
}

// Gauge is how far a layer is, for other goroutines to read. Total stays 0 for a layer that is on
// this node.
type Gauge struct{ Done, Total atomic.Int64 }

// NewTransfer begins to read a layer. The gauge shows how far it is. pace is the first pause
// between tries.
func NewTransfer(ctx context.Context, src Source, blob Layer, g *Gauge, log *slog.Logger, pace time.Duration) *Transfer {
	g.Done.Store(0)
	return &Transfer{ctx: ctx, src: src, blob: blob, gauge: g, log: log, pace: pace, sum: sha256.New()}
}

// Broke is why it broke off before its end; nil if it did not.
func (t *Transfer) Broke() error {
	if t.err == io.EOF {
		return nil
	}
	return t.err
}

// Read reads some bytes. It waits and tries again while the source is out of order.
func (t *Transfer) Read(p []byte) (int, error) {
	if t.err != nil {
		return 0, t.err
	}
	for {
		left := t.blob.Descriptor.Size - t.at
		if left == 0 {
			t.err = io.EOF
			return 0, io.EOF
		}
		if t.body == nil {
			if t.err = t.open(); t.err != nil {
				return 0, t.err
			}
		}
		n, err := t.body.Read(p[:min(int64(len(p)), left)])
		t.sum.Write(p[:n])
		t.at += int64(n)
		t.gauge.Done.Store(t.at)
		// It goes on well, so that earlier failures no longer count.
		if t.at-t.since > enough {
			t.failed, t.since = 0, t.at
		}
		// The next bytes come over a new connection.
		if err != nil && t.at < t.blob.Descriptor.Size {
			t.drop()
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			if err = t.again(t.src.Broken(t.ctx, err)); err != nil {
				t.err = err
				return n, err
			}
		}
		if n > 0 {
			return n, nil
		}
	}
}

// open opens the blob where the last connection broke.
func (t *Transfer) open() error {
	for {
		body, err := t.src.Blob(t.ctx, t.blob.Descriptor, t.at)
		if err == nil {
			t.body = body
			return nil
		}
		if err := t.again(err); err != nil {
			return err
		}
	}
}

// again waits for the next try, or says why there is none.
func (t *Transfer) again(err error) error {
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	t.failed++
	if t.failed >= tries || !failure.Is(err, muster.FailureOutside) {
		return err
	}
	t.log.Warn("layer transfer broke, goes on", "layer", t.blob.Descriptor.Digest, "at", t.at, "of", t.blob.Descriptor.Size, "error", err)
	return pause(t.ctx, t.pace, t.failed, err)
}

// pause waits before the next try: longer each time, or for as long as the registry asked. A pause
// that is too long is the answer instead, so that others may go first.
func pause(ctx context.Context, first time.Duration, failed int, err error) error {
	d := min(first<<min(failed-1, 10), longestPause)
	// Not all nodes shall come back at the same moment.
	d = d/2 + rand.N(d/2+1)
	var p pauseError
	if errors.As(err, &p) {
		if p.pause > longestPause {
			return err
		}
		d = max(d, p.pause)
	}
	if !wait.For(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}

// drop closes the connection.
func (t *Transfer) drop() {
	if t.body != nil {
		_ = t.body.Close()
		t.body = nil
	}
}

// Close ends the transfer.
func (t *Transfer) Close() { t.drop() }

// Verify reads what is left and compares the digest. It answers ErrDigest if the bytes are others.
// It says nothing about a layer of which only the diff id is known.
func (t *Transfer) Verify() error {
	if _, err := io.Copy(io.Discard, t); err != nil {
		return err
	}
	if got := hex.EncodeToString(t.sum.Sum(nil)); !t.blob.DiffOnly && got != t.blob.Descriptor.Digest.Hex {
		return ErrDigest
	}
	return nil
}

// ErrDigest is the error for bytes that are not those of their digest.
var ErrDigest = errors.New("its bytes are not those of its digest")

// Decompress gives the plain bytes. It goes by what the stream itself begins with, because media
// types are often wrong about it, and the diff id is checked in any case. The caller closes it.
func Decompress(r io.Reader) (plain io.ReadCloser, compressed bool, err error) {
	b := bufio.NewReaderSize(r, 256<<10)
	head, err := b.Peek(4)
	if err != nil && err != io.EOF {
		return nil, false, err
	}
	switch {
	case len(head) >= 2 && head[0] == 0x1f && head[1] == 0x8b:
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, true, err
		}
		return ahead(z), true, nil
	case len(head) == 4 && string(head) == "\x28\xb5\x2f\xfd",
		len(head) == 4 && head[0]&0xf0 == 0x50 && string(head[1:]) == "\x2a\x4d\x18":
		// A frame may ask for any window, which is memory of ours: what it gets is bounded.
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, true, err
		}
		return ahead(z.IOReadCloser()), true, nil
	}
	return io.NopCloser(b), false, nil
}

// ahead decompresses in a goroutine of its own, because unpacking is about as much work. Closing it
// ends the goroutine and waits for it.
func ahead(z io.ReadCloser) io.ReadCloser {
	pr, pw := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := io.CopyBuffer(writeOnly{pw}, readOnly{z}, make([]byte, 256<<10))
		pw.CloseWithError(err)
		_ = z.Close()
	}()
	return &aheadReader{PipeReader: pr, done: done}
}

// aheadReader is the reader of ahead. done is closed when its goroutine has ended.
type aheadReader struct {
	*io.PipeReader
	done chan struct{}
}

// Close ends the goroutine.
func (a *aheadReader) Close() error {
	_ = a.PipeReader.Close()
	<-a.done
	return nil
}

// The two hide WriteTo and ReadFrom, so that pieces have the size of the buffer.
type (
	writeOnly struct{ io.Writer }
	readOnly  struct{ io.Reader }
)
