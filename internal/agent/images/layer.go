package images

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/agent/images/source"
	"github.com/musterhq/muster/internal/agent/images/unpack"
	"github.com/musterhq/muster/internal/wait"
)

// fetch is one layer on its way, for all pulls that wait for it.
type fetch struct {
	blob   source.Layer
	by     access
	gauge  source.Gauge
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}

	waiters int    // guarded by Store.mu
	layer   *layer // valid after done
	err     error  // valid after done
}

// key is what fetches that can be one have in common.
func (f *fetch) key() fetchKey { return keyOfFetch(f.blob.Diff.String(), f.by) }

func keyOfFetch(diff string, by access) fetchKey { return fetchKey{diff, by.use, by.give, by.whole} }

// acquire gives a layer, in use, from the cache or the source. begun is called with the gauge of
// what is fetched, if anything is.
func (s *Store) acquire(ctx context.Context, src source.Source, blob source.Layer, by access, begun func(*source.Gauge)) (*layer, error) {
	diff := blob.Diff.String()
	for {
		s.mu.Lock()
		usable := by.usableLocked(s.current[diff])
		if usable != nil && usable.checked {
			usable.refs++
			s.mu.Unlock()
			return usable, nil
		}
		f := s.fetches[keyOfFetch(diff, by)]
		mine := f == nil
		if mine {
			f = &fetch{blob: blob, by: by, done: make(chan struct{})}
			f.ctx, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
			s.fetches[f.key()] = f
			if usable == nil {
				f.gauge.Total.Store(blob.Descriptor.Size)
			}
			go s.runFetch(f, src)
		}
		f.waiters++
		s.mu.Unlock()
		begun(&f.gauge)
		l, err := s.await(ctx, f)
		if err == nil || mine || ctx.Err() != nil {
			return l, err
		}
		// It was another pull's source that did not have it: ours may.
	}
}

// await waits for a fetch. Who leaves last ends it, and waits for its end.
func (s *Store) await(ctx context.Context, f *fetch) (*layer, error) {
	select {
	case <-f.done:
		return f.layer, f.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	f.waiters--
	last := f.waiters == 0
	if last && s.fetches[f.key()] == f {
		delete(s.fetches, f.key())
	}
	ended := wait.Closed(f.done)
	s.mu.Unlock()
	switch {
	case ended && f.layer != nil: // it came in the same moment, and this waiter was counted as a user
		s.release(nil, []*layer{f.layer})
	case last && !ended:
		f.cancel()
		<-f.done
	}
	return nil, context.Cause(ctx)
}

func (s *Store) runFetch(f *fetch, src source.Source) {
	defer f.cancel()
	l, err := s.bring(f, src)
	s.mu.Lock()
	if s.fetches[f.key()] == f {
		delete(s.fetches, f.key())
	}
	f.layer, f.err = l, err
	waiters := f.waiters
	if l != nil && waiters > 0 { // the use that bring gave becomes that of one of them
		l.refs += waiters - 1
	}
	close(f.done)
	s.mu.Unlock()
	if l != nil && waiters == 0 {
		s.release(nil, []*layer{l})
	}
}

// bring finds the layer on the disk and compares it, or fetches it. It comes back in use.
func (s *Store) bring(f *fetch, src source.Source) (*layer, error) {
	s.mu.Lock()
	l := f.by.usableLocked(s.current[f.blob.Diff.String()])
	if l != nil {
		l.refs++
	}
	s.mu.Unlock()
	if l != nil {
		whole, err := s.check(f.ctx, l)
		if whole && err == nil {
			return l, nil
		}
		if err == nil {
			s.retire(l)
			f.gauge.Total.Store(f.blob.Descriptor.Size)
		}
		s.release(nil, []*layer{l})
		if err != nil {
			return nil, err
		}
	}
	select {
	case s.fetchers <- struct{}{}:
		defer func() { <-s.fetchers }()
	case <-f.ctx.Done():
		return nil, context.Cause(f.ctx)
	}
	l, err := s.fetchLayer(f, src)
	if errors.Is(err, source.ErrDigest) {
		s.Logger.Warn("image layer came with other bytes than its digest says, tried once more", "layer", f.blob.Descriptor.Digest)
		if l, err = s.fetchLayer(f, src); errors.Is(err, source.ErrDigest) {
			err = source.LocalError(failure.Outside("its bytes are not those of its digest"))
			if _, ok := src.(*source.Registry); ok {
				err = failure.Outside("the registry sends other bytes than the digest says, twice")
			}
		}
	}
	return l, failure.Naming("layer "+f.blob.Descriptor.Digest.String(), err)
}

// check compares a layer with its record; who calls holds it. Not being able to look is an error.
func (s *Store) check(ctx context.Context, l *layer) (whole bool, err error) {
	select {
	case s.checkers <- struct{}{}:
		defer func() { <-s.checkers }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	sum, err := unpack.Measure(ctx, s.layerPath(l))
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if err != nil || sum != l.record.Tree {
		s.Logger.Error("image layer is not what it was", "layer", l.record.Diff, "path", s.layerPath(l),
			"was", l.record.Tree, "is", sum, "error", err)
		return false, nil
	}
	s.mu.Lock()
	l.checked = true
	s.mu.Unlock()
	return true, nil
}

// retire takes a bad layer out of use for new sandboxes; who calls holds it. It goes when the last
// one that has it lets go.
func (s *Store) retire(l *layer) {
	s.mu.Lock()
	if s.current[l.record.Diff] == l {
		delete(s.current, l.record.Diff)
	}
	l.record.Bad = true
	l.checked = false
	record := l.record
	used := l.refs > 1
	s.mu.Unlock()
	if !used {
		return
	}
	s.Logger.Warn("sandboxes use an image layer that is not what it was", "layer", record.Diff, "path", s.layerPath(l))
	if err := s.writeRecord(s.path(recordsDir, l.name), record); err != nil {
		s.Logger.Error("image layer's record not written", "layer", record.Diff, "error", err)
	}
}

// fetchLayer pulls, checks and unpacks a layer and puts it into place. It comes back in use. The
// error is source.ErrDigest if the bytes are not those of the digest.
func (s *Store) fetchLayer(f *fetch, src source.Source) (_ *layer, err error) {
	res := &reservation{s: s}
	defer res.end()
	dir, err := os.MkdirTemp(s.path(tmpDir), "layer-")
	if err != nil {
		return nil, failure.Node("image store: %v", err)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	if err := s.pour(f, src, dir, res); err != nil {
		return nil, err
	}
	sum, err := unpack.Measure(f.ctx, dir)
	if err != nil {
		return nil, failure.Node("image store: %v", err)
	}
	// Another scope may have it already. It has the same diff id, so one copy is enough.
	if l := f.same(s); l != nil {
		if err := os.RemoveAll(dir); err != nil {
			s.Logger.Error("image layer not deleted", "path", dir, "error", err)
		}
		return l, nil
	}
	l := &layer{name: rand.Text()[:12], checked: true, refs: 1, used: time.Now(), scopes: map[string]bool{f.by.give: true}, repos: map[string]bool{f.by.from: true},
		record: layerRecord{Version: recordVersion, Diff: f.blob.Diff.String(), Shift: s.Shift, Tree: sum, Repo: f.by.from, Scope: f.by.give}}
	// Into place first, its record last: without one it is rubbish.
	if err := os.Rename(dir, s.layerPath(l)); err != nil {
		return nil, failure.Node("image store: %v", err)
	}
	dir = s.layerPath(l)
	if err := s.writeRecord(s.path(recordsDir, l.name), l.record); err != nil {
		return nil, failure.Node("image store: %v", err)
	}
	s.mu.Lock()
	s.layers[l.name] = l
	s.current[l.record.Diff] = l
	s.used += sum.Bytes
	s.mu.Unlock()
	res.end()
	return l, nil
}

// same is the layer that was here when the same was fetched for another scope, in use and for that
// scope too; nil if there is none that is good.
func (f *fetch) same(s *Store) *layer {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.current[f.blob.Diff.String()]
	if l == nil || !l.checked {
		return nil
	}
	l.refs++
	l.giveLocked(right{f.by.from, f.by.give})
	return l
}

// pour streams a layer from its source into a directory.
func (s *Store) pour(f *fetch, src source.Source, dir string, res *reservation) error {
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	t := source.NewTransfer(ctx, src, f.blob, &f.gauge, s.Logger, s.resolver.Pace)
	defer t.Close()
	plain, _, err := source.Decompress(t)
	if err != nil {
		if t.Broke() != nil {
			return t.Broke()
		}
		return failure.Unusable("it cannot be decompressed: %s", failure.Bounded(err.Error()))
	}
	sum := sha256.New()
	stream := &meter{r: io.TeeReader(plain, sum), left: s.Limit + unpack.MaxTrailing}
	notes, err := unpack.Unpack(ctx, dir, stream, s.Shift, res, s.evictOne)
	if err == nil {
		// Writers pad the end; the diff id is of the padding too.
		stream.left = min(stream.left, unpack.MaxTrailing)
		_, err = io.Copy(io.Discard, stream)
	}
	if f := (*muster.Failure)(nil); err != nil && (errors.As(err, &f) || failure.IsSystem(err) || ctx.Err() != nil) {
		cancel() // what reads ahead need not wait for more
	}
	_ = plain.Close()
	switch {
	case f.ctx.Err() != nil:
		return context.Cause(f.ctx)
	case err == nil:
	case t.Broke() != nil && ctx.Err() == nil:
		return t.Broke() // the layer broke off because the transfer did
	case failure.IsSystem(err):
		return failure.Node("unpacking into the image store: %v", err)
	default:
		return s.whyNot(err, t)
	}
	if err := t.Verify(); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != f.blob.Diff.Hex {
		return failure.Unusable("its content has the diff id sha256:%s where the image's configuration says %s", got, f.blob.Diff)
	}
	if notes != (unpack.Notes{}) {
		s.Logger.Info("image layer unpacked, not all as it says", "layer", f.blob.Diff,
			"devices left out", notes.Devices, "attributes dropped", notes.Attributes, "owners out of range", notes.Owners)
	}
	return nil
}

// whyNot tells a layer that is wrong from bytes that came wrong.
func (s *Store) whyNot(err error, t *source.Transfer) error {
	var f *muster.Failure
	if errors.As(err, &f) {
		return f
	}
	if e := t.Verify(); e != nil {
		return e
	}
	var bad *unpack.EntryError
	switch {
	case errors.As(err, &bad):
		return failure.Unusable("it cannot be unpacked safely: %s", bad.Why)
	case errors.Is(err, tar.ErrHeader), errors.Is(err, io.ErrUnexpectedEOF):
		return failure.Unusable("it is not a whole tar: %v", err)
	}
	return failure.Unusable("it cannot be unpacked: %s", failure.Bounded(err.Error()))
}

// meter ends a stream that never ends.
type meter struct {
	r    io.Reader
	left int64
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if m.left -= int64(n); m.left < 0 {
		return n, failure.Node("it has more than the image store of this node may hold")
	}
	return n, err
}
