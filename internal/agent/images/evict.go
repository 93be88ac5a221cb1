package images

import (
	"context"
	"crypto/rand"
	"math"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/agent/images/unpack"
)

// floor is how much of the disk stays free: 1 GiB, on small disks 5 %.
const floor = 1 << 30

// rubbish is what was taken out of the tables under the lock and is deleted without it.
type rubbish struct {
	files []string
	dirs  []string
	bytes int64
}

// removeLayerLocked takes a layer that nobody uses out of the tables, and the images that are not
// whole without it.
func (s *Store) removeLayerLocked(l *layer, out *rubbish) {
	delete(s.layers, l.name)
	if s.current[l.record.Diff] == l {
		delete(s.current, l.record.Diff)
	}
	s.used -= l.record.Tree.Bytes
	out.bytes += l.record.Tree.Bytes
	for _, im := range s.images {
		if im.refs == 0 && im.record.Shift == l.record.Shift && slices.Contains(im.record.Layers, l.record.Diff) && !s.wholeLocked(im) {
			s.removeImageLocked(im, out)
		}
	}
	// The record goes first: a layer without one is rubbish, a record without its layer too.
	out.files = append(out.files, s.path(recordsDir, l.name))
	out.dirs = append(out.dirs, s.layerPath(l))
}

// wholeLocked says whether all layers of an image are here. A pull may hold one that is not, while
// it brings what is missing.
func (s *Store) wholeLocked(im *image) bool {
	for _, diff := range im.record.Layers {
		have := im.record.Shift == s.Shift && s.current[diff] != nil
		if have {
			continue
		}
		for _, l := range s.layers {
			have = have || l.record.Diff == diff && l.record.Shift == im.record.Shift
		}
		if !have {
			return false
		}
	}
	return true
}

// removeImageLocked forgets an image, its references and the documents that no other image has.
func (s *Store) removeImageLocked(im *image, out *rubbish) {
	delete(s.images, keyOf(im.record))
	out.files = append(out.files, s.path(imagesDir, imageName(im.record)))
	if im.record.Shift == s.Shift {
		for ref, r := range s.refs {
			if r.Digest == im.record.Digest {
				delete(s.refs, ref)
				out.files = append(out.files, s.path(refsDir, refName(ref)))
			}
		}
	}
	for _, digest := range []string{im.record.Manifest, im.record.Config} {
		shared := false
		for _, other := range s.images {
			shared = shared || other.record.Manifest == digest || other.record.Config == digest
		}
		if !shared {
			out.files = append(out.files, s.path(blobsDir, hexOf(digest)))
		}
	}
}

// delete deletes what was taken out of the tables. A directory leaves its place by a rename first,
// so that a killed process leaves no half layer in it.
func (s *Store) delete(out *rubbish) {
	for _, f := range out.files {
		_ = os.Remove(f)
	}
	for _, d := range out.dirs {
		away := s.path(tmpDir, "gone-"+rand.Text())
		if err := os.Rename(d, away); err != nil {
			s.Logger.Error("image layer not deleted", "path", d, "error", err)
			continue
		}
		if err := os.RemoveAll(away); err != nil {
			s.Logger.Error("image layer not deleted", "path", away, "error", err)
		}
	}
}

// uselessLocked: no new sandbox can have it.
func (s *Store) uselessLocked(l *layer) bool { return s.current[l.record.Diff] != l }

// evictOne deletes the layer that is worth least: one that no sandbox can have any more, else the
// least recently used. False if all are in use or pinned.
func (s *Store) evictOne() bool {
	s.mu.Lock()
	var worst *layer
	pinned := pinnedLocked(s)
	for _, l := range s.layers {
		if l.refs > 0 || pinned[l] {
			continue
		}
		if worst == nil || s.worseLocked(l, worst) {
			worst = l
		}
	}
	if worst == nil {
		s.mu.Unlock()
		return false
	}
	var out rubbish
	s.removeLayerLocked(worst, &out)
	s.mu.Unlock()
	s.Logger.Info("image layer evicted", "layer", worst.record.Diff, "bytes", out.bytes, "last used", worst.used)
	s.delete(&out)
	return true
}

func (s *Store) worseLocked(a, b *layer) bool {
	if ua, ub := s.uselessLocked(a), s.uselessLocked(b); ua != ub {
		return ua
	}
	if c := a.used.Compare(b.used); c != 0 {
		return c < 0
	}
	return a.name < b.name
}

// sweep deletes useless layers that nobody uses, and more if the limit is passed.
func (s *Store) sweep() {
	for {
		var out rubbish
		s.mu.Lock()
		for _, l := range s.layers {
			if l.refs == 0 && s.uselessLocked(l) {
				s.removeLayerLocked(l, &out)
			}
		}
		over := s.used+s.pending > s.Limit
		s.mu.Unlock()
		s.delete(&out)
		if !over || !s.evictOne() {
			return
		}
	}
}

// Prune deletes what is of no use and not in use: layers without an image, and images that no
// reference means any more; with all, everything that is not in use. Pinned images stay.
func (s *Store) Prune(ctx context.Context, all bool) (freed int64, err error) {
	var out rubbish
	s.mu.Lock()
	meant := map[string]bool{}
	for _, r := range s.refs {
		meant[r.Digest] = true
	}
	pinned := pinnedLocked(s)
	for _, im := range s.images {
		if im.record.Pinned && im.record.Shift == s.Shift {
			continue
		}
		if im.refs == 0 && (all || !meant[im.record.Digest] || im.record.Shift != s.Shift) {
			s.removeImageLocked(im, &out)
		}
	}
	needed := map[layerKey]bool{}
	for _, im := range s.images {
		for _, diff := range im.record.Layers {
			needed[layerKey{diff, im.record.Shift}] = true
		}
	}
	for _, l := range s.layers {
		if l.refs == 0 && !pinned[l] && (all || s.uselessLocked(l) || !needed[layerKey{l.record.Diff, l.record.Shift}]) {
			s.removeLayerLocked(l, &out)
		}
	}
	s.mu.Unlock()
	s.delete(&out)
	return out.bytes, ctx.Err()
}

// release gives back what was taken from the tables.
func (s *Store) release(im *image, layers []*layer) {
	now := time.Now()
	sweep := false
	var out rubbish
	s.mu.Lock()
	if im != nil {
		im.refs--
		im.used = now
		if im.refs == 0 && s.images[keyOf(im.record)] == im && !s.wholeLocked(im) {
			s.removeImageLocked(im, &out)
		}
	}
	for _, l := range layers {
		l.refs--
		l.used = now
		sweep = sweep || l.refs == 0 && s.uselessLocked(l)
	}
	sweep = sweep || s.used+s.pending > s.Limit
	s.mu.Unlock()
	s.delete(&out)
	if sweep {
		s.sweep()
	}
}

// reservation is the room of a layer that is being unpacked.
type reservation struct {
	s     *Store
	total int64
}

// Reserve takes bytes from what the store may have and from what the disk has free, and evicts
// layers for them. It fails if all that is left is in use.
func (r *reservation) Reserve(ctx context.Context, n int64) error {
	s := r.s
	if r.total+n > s.Limit {
		return failure.Unusable("it needs more than the %d MiB that the image store of this node may have", s.Limit>>20)
	}
	for taken := false; ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.mu.Lock()
		if !taken && s.used+s.pending+n <= s.Limit {
			s.pending += n
			r.total += n
			taken = true
		}
		s.mu.Unlock()
		fits, err := s.fits(n, r.Piece())
		switch {
		case err != nil:
			return failure.Node("image store: %v", err)
		case taken && fits:
			return nil
		case s.evictOne():
		case taken:
			return failure.NodeFull("the disk of the image store is nearly full, and no image can be evicted: all that are left are in use or pinned")
		default:
			return failure.NodeFull("the image store of this node is full: its %d MiB are in use by sandboxes and other pulls, or pinned", s.Limit>>20)
		}
	}
}

// Piece is how much room is asked for at a time.
func (r *reservation) Piece() int64 { return max(min(r.s.Limit/64, unpack.RoomPiece), 64<<10) }

// end gives the room back; the layer counts from now on by what it has.
func (r *reservation) end() {
	r.s.mu.Lock()
	r.s.pending -= r.total
	r.s.mu.Unlock()
	r.total = 0
}

// fits reports whether the disk has room for n more bytes of a layer.
func (s *Store) fits(n, piece int64) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.Dir, &st); err != nil {
		return false, err
	}
	return holds(&st, n, piece), nil
}

// holds reports whether a file system has room for n more bytes beside the floor, and for the
// entries that may be among them: an image of many empty files takes hardly a byte, and can take
// the last inode. What is more than a piece is the content of one file.
func holds(st *unix.Statfs_t, n, piece int64) bool {
	total := int64(st.Blocks) * st.Bsize
	free := int64(st.Bavail)*st.Bsize - min(floor, total/20)
	return free >= n && freeByFiles(st) >= min(n, piece)
}

// freeByFiles is how many bytes entries without content may still be counted as; file systems
// without a bound on files tell none.
func freeByFiles(st *unix.Statfs_t) int64 {
	if st.Files == 0 {
		return math.MaxInt64
	}
	return (int64(st.Ffree) - int64(st.Files/20)) * unpack.PerEntry
}
