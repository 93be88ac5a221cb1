package imagecache

import (
	"cmp"
	"container/list"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/atomicfile"
)

const (
	tempPrefix, refPrefix = "tmp-", "ref-"
	// stampEvery is how often the use of a blob is noted on the disk, so that a start knows the order.
	stampEvery = time.Hour
)

// blobKey is a blob of a repository. The same bytes in two repositories are two blobs: whoever may
// pull one need not be allowed to pull the other.
type blobKey struct {
	repo   string
	digest v1.Hash
}

// name is the blob's below the directory: repositories have names that are no file names. Its file
// has a suffix of its own, so that the deletion of an old one never meets a new one.
func (k blobKey) name() string { return filepath.Join(dirOf(k.repo), k.digest.Hex) }

func dirOf(repo string) string {
	sum := sha256.Sum256([]byte(repo))
	return hex.EncodeToString(sum[:16])
}

// store is the directory: blobs of repositories, and what references mean there. Its size is
// bounded. Errors of the disk are failures of class node.
type store struct {
	dir  string
	size int64

	mu sync.Mutex
	// blobs are by name; order has them by their last use, the latest in front.
	blobs map[string]*list.Element
	order *list.List
	// used is what blobs take. reserved is for those that are on their way.
	used, reserved int64
}

// stored is a blob on the disk; guarded by store.mu.
type stored struct {
	name, path    string
	size          int64
	used, stamped time.Time
	opens         int
}

func openStore(dir string, size int64) (*store, error) {
	s := &store{dir: dir, size: size, blobs: map[string]*list.Element{}, order: list.New()}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var found []*stored
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		switch base := filepath.Base(name); {
		case strings.HasPrefix(base, tempPrefix), strings.HasSuffix(base, atomicfile.TempSuffix):
			return os.Remove(path) // of a process that was killed
		case strings.HasPrefix(base, refPrefix), !strings.Contains(base, "."):
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		blob, _, _ := strings.Cut(name, ".")
		found = append(found, &stored{name: blob, path: path, size: info.Size(), used: info.ModTime(), stamped: info.ModTime()})
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b *stored) int { return cmp.Or(b.used.Compare(a.used), strings.Compare(a.name, b.name)) })
	for _, b := range found {
		if s.blobs[b.name] != nil {
			// A kill came between the arrival of this one and the deletion of the one before.
			if err := os.Remove(b.path); err != nil {
				return nil, err
			}
			continue
		}
		s.blobs[b.name] = s.order.PushBack(b)
		s.used += b.size
	}
	// It may have been larger before.
	s.mu.Lock()
	_, gone := s.evictLocked(0)
	s.mu.Unlock()
	remove(gone)
	return s, nil
}

// usage is how many bytes blobs take.
func (s *store) usage() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

func (s *store) has(k blobKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blobs[k.name()] != nil
}

// cached is an open blob. It is not deleted before Close.
type cached struct {
	*os.File
	size  int64
	close func()
	once  sync.Once
}

// Close ends the use of the blob.
func (f *cached) Close() error {
	f.once.Do(f.close)
	return f.File.Close()
}

// open opens a blob; nil if it is not here.
func (s *store) open(k blobKey) (*cached, error) {
	now := time.Now()
	s.mu.Lock()
	e := s.blobs[k.name()]
	if e == nil {
		s.mu.Unlock()
		return nil, nil
	}
	b := e.Value.(*stored)
	b.opens++
	b.used = now
	stamp := now.Sub(b.stamped) > stampEvery
	if stamp {
		b.stamped = now
	}
	s.order.MoveToFront(e)
	s.mu.Unlock()
	release := func() {
		s.mu.Lock()
		b.opens--
		s.mu.Unlock()
	}
	if stamp {
		_ = os.Chtimes(b.path, now, now) // only the order after a start depends on it
	}
	f, err := os.Open(b.path)
	if err == nil {
		return &cached{File: f, size: b.size, close: release}, nil
	}
	release()
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, failure.Node("image cache: %v", err)
	}
	// Somebody has deleted it. It can be had again.
	s.mu.Lock()
	if s.blobs[b.name] == e {
		s.dropLocked(e)
	}
	s.mu.Unlock()
	return nil, nil
}

// dropLocked forgets a blob. s.mu is held.
func (s *store) dropLocked(e *list.Element) {
	b := s.order.Remove(e).(*stored)
	delete(s.blobs, b.name)
	s.used -= b.size
}

// evictLocked drops the blobs that were used the longest ago and that nobody reads, until so many
// bytes more fit. It reports whether they do, and which files the caller must remove when it has
// given up s.mu, which is held.
func (s *store) evictLocked(more int64) (fits bool, gone []string) {
	for e := s.order.Back(); e != nil && s.used+s.reserved+more > s.size; {
		b, next := e.Value.(*stored), e.Prev()
		if b.opens == 0 {
			s.dropLocked(e)
			gone = append(gone, b.path)
		}
		e = next
	}
	return s.used+s.reserved+more <= s.size, gone
}

// remove deletes files. One that stays is found at the next start.
func remove(paths []string) {
	for _, p := range paths {
		_ = os.Remove(p)
	}
}

// reserve sets bytes aside for a blob that is on its way. release gives them back.
func (s *store) reserve(n int64) (release func(), err error) {
	fits := n >= 0 && n <= s.size
	var gone []string
	s.mu.Lock()
	if fits {
		fits, gone = s.evictLocked(n)
	}
	if fits {
		s.reserved += n
	}
	s.mu.Unlock()
	remove(gone)
	if !fits {
		return nil, failure.Node("image cache: no space for %s beside what nodes are pulling; raise image_cache.size (%s)", muster.Bytes(n), muster.Bytes(s.size))
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reserved -= n
	}), nil
}

// create makes the file in which a blob is received.
func (s *store) create(k blobKey) (*os.File, error) {
	dir := filepath.Join(s.dir, dirOf(k.repo))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, failure.Node("image cache: %v", err)
	}
	f, err := os.CreateTemp(dir, tempPrefix)
	if err != nil {
		return nil, failure.Node("image cache: %v", err)
	}
	return f, nil
}

// land makes a received file the blob. The bytes have the digest.
func (s *store) land(k blobKey, f *os.File, size int64) error {
	// A blob is believed after a start, so its bytes come to the disk before its name.
	path := filepath.Join(s.dir, k.name()+"."+rand.Text())
	err := f.Sync()
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return failure.Node("image cache: %v", err)
	}
	now := time.Now()
	var gone []string
	s.mu.Lock()
	if e := s.blobs[k.name()]; e != nil {
		gone = append(gone, e.Value.(*stored).path)
		s.dropLocked(e)
	}
	s.blobs[k.name()] = s.order.PushFront(&stored{name: k.name(), path: path, size: size, used: now, stamped: now})
	s.used += size
	s.mu.Unlock()
	remove(gone)
	return nil
}

// put stores a small blob.
func (s *store) put(k blobKey, data []byte, low func() error) error {
	if err := low(); err != nil {
		return failure.Node("image cache: %v", err)
	}
	release, err := s.reserve(int64(len(data)))
	if err != nil {
		return err
	}
	defer release()
	f, err := s.create(k)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err = f.Write(data); err != nil {
		err = failure.Node("image cache: %v", err)
	} else {
		err = s.land(k, f, int64(len(data)))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

func (s *store) refPath(repo, ref string) string {
	sum := sha256.Sum256([]byte(ref))
	return filepath.Join(s.dir, dirOf(repo), refPrefix+hex.EncodeToString(sum[:16]))
}

// ref is what a reference meant, as the disk has it.
func (s *store) ref(repo, ref string) (v1.Hash, bool) {
	b, err := os.ReadFile(s.refPath(repo, ref))
	if err != nil {
		return v1.Hash{}, false
	}
	h, err := v1.NewHash(strings.TrimSpace(string(b)))
	return h, err == nil
}

func (s *store) setRef(repo, ref string, digest v1.Hash) error {
	if err := atomicfile.Replace(s.refPath(repo, ref), []byte(digest.String()+"\n")); err != nil {
		return failure.Node("image cache: %v", err)
	}
	return nil
}

func (s *store) dropRef(repo, ref string) { _ = os.Remove(s.refPath(repo, ref)) }
