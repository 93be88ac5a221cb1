package linktest

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/wait"
)

// Blobs is a blob store in memory.
type Blobs struct {
	mu    sync.Mutex
	blobs map[string][]byte
	seen  map[string]time.Time // when a sweep first saw each upload
	fault error
	delay func(key string) time.Duration
}

// Slow makes each Put, once it has read all, take as long as fn says; nil: no time.
func (b *Blobs) Slow(fn func(key string) time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.delay = fn
}

// Fail makes every call fail; nil: as usual.
func (b *Blobs) Fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = err
}

// Put stores what r yields.
func (b *Blobs) Put(ctx context.Context, key string, r io.Reader) (int64, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return 0, err
	}
	b.mu.Lock()
	delay := b.delay
	b.mu.Unlock()
	if delay != nil {
		if !wait.For(ctx, delay(key)) {
			return 0, ctx.Err()
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault != nil {
		return 0, b.fault
	}
	if b.blobs == nil {
		b.blobs, b.seen = map[string][]byte{}, map[string]time.Time{}
	}
	b.blobs[key] = data
	return int64(len(data)), nil
}

// Open reads a blob.
func (b *Blobs) Open(_ context.Context, key string, offset int64) (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	data, ok := b.blobs[key]
	switch {
	case b.fault != nil:
		return nil, b.fault
	case !ok:
		return nil, muster.Faultf(muster.FaultNotFound, "blob %s: not found", key)
	}
	return io.NopCloser(bytes.NewReader(data[min(offset, int64(len(data))):])), nil
}

// List is what is under a prefix, by key.
func (b *Blobs) List(_ context.Context, prefix string) ([]blob.Info, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault != nil {
		return nil, b.fault
	}
	var out []blob.Info
	for key, data := range b.blobs {
		if strings.HasPrefix(key, prefix) {
			out = append(out, blob.Info{Key: key, Size: int64(len(data))})
		}
	}
	slices.SortFunc(out, func(x, y blob.Info) int { return strings.Compare(x.Key, y.Key) })
	return out, nil
}

// Delete deletes one blob.
func (b *Blobs) Delete(_ context.Context, key string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault != nil {
		return b.fault
	}
	delete(b.blobs, key)
	return nil
}

// DeletePrefix deletes what is under a prefix.
func (b *Blobs) DeletePrefix(_ context.Context, prefix string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault != nil {
		return b.fault
	}
	for key := range b.blobs {
		if strings.HasPrefix(key, prefix) {
			delete(b.blobs, key)
		}
	}
	return nil
}

// SweepUploads deletes uploads that a sweep first saw at least age ago and that no job refers to.
func (b *Blobs) SweepUploads(_ context.Context, now time.Time, age time.Duration, referred func(digest string) bool) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault != nil {
		return 0, b.fault
	}
	n := 0
	for key := range b.blobs {
		digest, ok := blob.UploadDigest(key)
		if !ok {
			continue
		}
		if _, known := b.seen[key]; !known {
			b.seen[key] = now
		}
		if now.Sub(b.seen[key]) >= age && !referred(digest) {
			delete(b.blobs, key)
			delete(b.seen, key)
			n++
		}
	}
	return n, nil
}

// Usage is how many bytes are stored.
func (b *Blobs) Usage() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	var n int64
	for _, data := range b.blobs {
		n += int64(len(data))
	}
	return n
}

// Whole is what is stored of a stream, put together.
func (b *Blobs) Whole(prefix string) []byte {
	infos, _ := b.List(context.Background(), prefix)
	var out []byte
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, info := range infos {
		out = append(out, b.blobs[info.Key]...)
	}
	return out
}
