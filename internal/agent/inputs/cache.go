package inputs

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/destinations"
)

// Cache keeps inputs by digest for as long as there is room: those that the server has pushed and
// those that it has fetched from URLs, each fetched once for all that wait.
type Cache struct {
	cfg Config
	ctx context.Context // ends fetches

	mu      sync.Mutex
	entries map[string]*entry
	total   int64
	// clock counts uses, to tell which input was used last.
	clock uint64
	wants map[wantKey]*want
}

// Config is what a cache needs.
type Config struct {
	// Dir is its directory. Open makes it.
	Dir string
	// Limit bounds in bytes what is kept. What is in use stays also beyond it.
	Limit int64
	// Most is how many bytes one input from a URL may have; 0: api.DefaultInputLimit.
	Most int64
	// Destinations are where URLs may lead.
	Destinations destinations.Allowed
	// Client fetches; nil: one that obeys Destinations.
	Client *http.Client
	Logger *slog.Logger
	// Spawn starts a goroutine; false: the agent is ending, and it did not.
	Spawn func(func()) bool
	// Added is called, without locks held, when the server has to push one digest more.
	Added func()
	// Wipe says that what is there cannot be trusted: after a power cut any file may be torn.
	Wipe bool
}

// entry is an input on disk. The name of its file is the digest, a dot and a random part, so that
// deleting an old copy cannot hit a new one.
type entry struct {
	path string
	size int64
	// refs is how many use the file now. It is not deleted while there are any.
	refs int
	// used is the cache's clock at the last use.
	used uint64
}

// wantKey names an input that is waited for: with a URL the cache fetches it, without one the
// server pushes it.
type wantKey struct{ digest, url string }

// want is an input that allocations wait for.
type want struct {
	// waiters is how many allocations wait. The last one that leaves cancels the fetch.
	waiters int
	ctx     context.Context // of the fetch
	cancel  context.CancelFunc
	// done is closed when the input is there or can never be. Then either path or failure is set.
	done    chan struct{}
	path    string
	failure *muster.Failure
	// last is why the input has not come yet: the failure of the last try.
	last *muster.Failure
}

// Open opens the cache with what earlier agents have left in its directory; ctx ends its fetches.
func Open(ctx context.Context, cfg Config) (*Cache, error) {
	if cfg.Client == nil {
		tr := cfg.Destinations.Transport(fetchHeader)
		cfg.Client = &http.Client{Transport: tr}
		context.AfterFunc(ctx, tr.CloseIdleConnections)
	}
	if cfg.Most <= 0 {
		cfg.Most = int64(api.DefaultInputLimit)
	}
	s := &Cache{cfg: cfg, ctx: ctx, entries: map[string]*entry{}, wants: map[wantKey]*want{}}
	if cfg.Wipe {
		if err := os.RemoveAll(cfg.Dir); err != nil {
			return nil, err
		}
	}
	if err := os.Mkdir(cfg.Dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	files, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		path := filepath.Join(cfg.Dir, f.Name())
		info, err := f.Info()
		name, _, whole := strings.Cut(f.Name(), ".")
		// A killed agent leaves temporary files, and may leave a second copy of an input.
		if _, e := ParseDigest("sha256:" + name); e != nil || err != nil || !whole || s.entries[name] != nil {
			_ = os.Remove(path)
			continue
		}
		s.entries[name] = &entry{path: path, size: info.Size()}
		s.total += info.Size()
	}
	s.evict()
	return s, nil
}

// ParseDigest is the hexadecimal part of "sha256:…". Only lower case is a digest, so that each has
// one name.
func ParseDigest(digest string) (string, error) {
	name, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || len(name) != 2*sha256.Size || strings.Trim(name, "0123456789abcdef") != "" {
		return "", fmt.Errorf("digest %q is not sha256: and 64 lower-case hexadecimal digits", digest)
	}
	return name, nil
}

// maxNeeds bounds the digests in one report: the server refuses a report that is too large. It is
// many times what the server pushes at a time; the agent asks for the rest when those have come.
const maxNeeds = 16 << 10

// Needs are the digests that the server has to push, sorted.
func (s *Cache) Needs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for k := range s.wants {
		if k.url == "" {
			list = append(list, "sha256:"+k.digest)
		}
	}
	sort.Strings(list)
	return list[:min(len(list), maxNeeds)]
}

// get waits until the input is on disk. The file stays until release is called. When ctx ends first
// there is no path; and if its cause is errGaveUp, a failure that says what was wrong, else none.
func (s *Cache) get(ctx context.Context, digest, url string) (path string, release func(), f *muster.Failure) {
	name, err := ParseDigest(digest)
	if err != nil {
		return "", nil, contract.Failure(muster.FailureUser, muster.ReasonSpec, "%v", err)
	}
	release = func() { s.release(name) }
	s.mu.Lock()
	if e := s.entries[name]; e != nil {
		s.clock++
		e.refs++
		e.used = s.clock
		s.mu.Unlock()
		return e.path, release, nil
	}
	key := wantKey{name, url}
	w := s.wants[key]
	added := w == nil
	if added {
		w = &want{done: make(chan struct{})}
		w.ctx, w.cancel = context.WithCancel(s.ctx)
		s.wants[key] = w
	}
	w.waiters++
	s.mu.Unlock()
	// The first that waits for an input sees to it that it comes.
	switch {
	case added && url == "":
		s.cfg.Added()
	case added:
		s.cfg.Spawn(func() { s.fetch(key, w) })
	}
	select {
	case <-w.done:
		if w.failure != nil {
			failed := *w.failure // the caller adds to its message
			return "", nil, &failed
		}
		return w.path, release, nil
	case <-ctx.Done():
		return "", nil, s.leave(ctx, key, w)
	}
}

// Blob waits for bytes that the server pushes, and opens them. Closing them deletes them, unless
// somebody else uses them: what is made of them is kept elsewhere.
func (s *Cache) Blob(ctx context.Context, digest string) (io.ReadSeekCloser, error) {
	path, release, f := s.get(ctx, digest, "")
	switch {
	case f != nil:
		return nil, f
	case path == "":
		return nil, context.Cause(ctx)
	}
	file, err := os.Open(path)
	if err != nil {
		release()
		return nil, contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "%s: %v", digest, err)
	}
	return &blob{File: file, close: func() {
		release()
		s.discard(strings.TrimPrefix(digest, "sha256:"))
	}}, nil
}

// blob is an open file of a cache.
type blob struct {
	*os.File
	close func()
	once  sync.Once
}

// Close closes the file and ends its use.
func (b *blob) Close() error {
	b.once.Do(b.close)
	return b.File.Close()
}

// discard deletes an input that nobody uses.
func (s *Cache) discard(name string) {
	s.mu.Lock()
	e := s.entries[name]
	unused := e != nil && e.refs == 0
	if unused {
		s.total -= e.size
		delete(s.entries, name)
	}
	s.mu.Unlock()
	if unused {
		_ = os.Remove(e.path)
	}
}

// leave ends the waiting of one allocation whose ctx has ended. The last one that leaves ends the
// fetch.
func (s *Cache) leave(ctx context.Context, key wantKey, w *want) *muster.Failure {
	s.mu.Lock()
	select {
	case <-w.done: // it came in the same moment: this waiter was counted as a user
		s.mu.Unlock()
		if w.failure == nil {
			s.release(key.digest)
		}
	default:
		w.waiters--
		if w.waiters == 0 {
			delete(s.wants, key)
			w.cancel()
		}
		s.mu.Unlock()
	}
	if context.Cause(ctx) != errGaveUp {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.last != nil {
		last := *w.last
		return &last
	}
	return contract.Failure(muster.FailureOutside, muster.ReasonInput, "sha256:%s did not come in time", key.digest)
}

// release ends one use of an input.
func (s *Cache) release(name string) {
	s.mu.Lock()
	if e := s.entries[name]; e != nil {
		e.refs--
	}
	s.mu.Unlock()
	s.evict()
}

// evict deletes the longest unused inputs until the rest is within the limit.
func (s *Cache) evict() {
	var paths []string
	s.mu.Lock()
	for s.total > s.cfg.Limit {
		oldest := ""
		for name, e := range s.entries {
			if e.refs == 0 && (oldest == "" || e.used < s.entries[oldest].used) {
				oldest = name
			}
		}
		if oldest == "" {
			// All are in use. The next release comes here again.
			break
		}
		s.total -= s.entries[oldest].size
		paths = append(paths, s.entries[oldest].path)
		delete(s.entries, oldest)
	}
	s.mu.Unlock()
	// Files are deleted without the lock: nobody can find them any more.
	for _, path := range paths {
		_ = os.Remove(path)
	}
}

// ErrDigest says that bytes are not those of the digest.
var ErrDigest = errors.New("the bytes have another digest")

// Put stores bytes that the server has pushed. The error is ErrDigest if they have another digest.
func (s *Cache) Put(digest string, data io.Reader) error {
	name, err := ParseDigest(digest)
	if err != nil {
		return err
	}
	s.mu.Lock()
	have := s.entries[name] != nil
	s.mu.Unlock()
	if have {
		// The body is read all the same, as the connection is used again.
		_, err := io.Copy(io.Discard, data)
		return err
	}
	return s.write(name, data)
}

// write stores bytes under their digest and wakes all that wait for it.
func (s *Cache) write(name string, data io.Reader) error {
	f, err := os.CreateTemp(s.cfg.Dir, "tmp-")
	if err != nil {
		return err
	}
	// The digest is computed while the bytes are written: nothing is read twice.
	sum := sha256.New()
	size, err := io.Copy(io.MultiWriter(f, sum), data)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		if hex.EncodeToString(sum.Sum(nil)) != name {
			// The error does not tell which digest they have: that would be a way to read what only
			// this node can reach.
			err = ErrDigest
		}
	}
	if err == nil {
		err = s.land(f.Name(), name, size)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// land makes a whole file known under its digest, unless a copy is there, and wakes all that wait
// for it.
func (s *Cache) land(tmp, name string, size int64) error {
	path := filepath.Join(s.cfg.Dir, name+"."+rand.Text())
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	s.mu.Lock()
	e := s.entries[name]
	if e == nil {
		e = &entry{path: path, size: size}
		s.entries[name] = e
		s.total += size
	}
	s.clock++
	e.used = s.clock
	for key, w := range s.wants {
		if key.digest == name {
			// Each waiter counts as a user from now on, so that the file cannot be evicted before
			// it looks.
			e.refs += w.waiters
			w.path = e.path
			delete(s.wants, key)
			w.cancel()
			close(w.done)
		}
	}
	s.mu.Unlock()
	if e.path != path {
		// Another one came first, and may be in use.
		_ = os.Remove(path)
	}
	s.evict()
	return nil
}
