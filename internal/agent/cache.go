package agent

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
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/wait"
)

// inputs keeps inputs by digest, for as long as there is room: those pushed by
// the server and those fetched from URLs, each fetched once for all that wait.
type inputs struct {
	inputsConfig

	mu      sync.Mutex
	entries map[string]*entry
	total   int64
	clock   uint64
	wants   map[wantKey]*want
	ctx     context.Context
}

type inputsConfig struct {
	dir   string
	limit int64
	// most is how many bytes one input from a URL may have.
	most int64
	// destinations are where URLs may lead.
	destinations Destinations
	client       *http.Client
	log          *slog.Logger
	spawn        func(func()) bool
	// added is called, without locks held, when a digest must be pushed that need not before.
	added func()
	// wipe: what is there cannot be trusted.
	wipe bool
}

// entry is an input on disk. Its file's name is the digest, a dot and something
// of its own, so that deleting an old copy cannot hit a new one.
type entry struct {
	path string
	size int64
	refs int    // in use: not deleted
	used uint64 // clock of the last use
}

// wantKey: with a URL it is fetched, without the server pushes it.
type wantKey struct{ digest, url string }

// want is an input that allocations wait for.
type want struct {
	waiters int
	ctx     context.Context // of the fetch
	cancel  context.CancelFunc
	done    chan struct{}   // closed when landed or failed
	path    string          // valid after done, without failure
	failure *muster.Failure // valid after done: why it will never come
	last    *muster.Failure // why it has not come yet
}

// Times of fetching.
const (
	fetchHeader  = 30 * time.Second
	fetchStall   = time.Minute
	fetchFirst   = 500 * time.Millisecond
	fetchLongest = 30 * time.Second
)

// checkDiskEvery is after how many bytes the room on the disk is looked at again.
const checkDiskEvery = 16 << 20

var (
	errTooLarge = errors.New("it is too large")
	errDiskFull = errors.New("the disk of the node is nearly full")
)

// newInputs opens the cache; ctx ends its fetches.
func newInputs(ctx context.Context, cfg inputsConfig) (*inputs, error) {
	if cfg.client == nil {
		tr := cfg.destinations.Transport(fetchHeader)
		cfg.client = &http.Client{Transport: tr}
		context.AfterFunc(ctx, tr.CloseIdleConnections)
	}
	if cfg.most <= 0 {
		cfg.most = int64(api.DefaultInputLimit)
	}
	s := &inputs{inputsConfig: cfg, ctx: ctx, entries: map[string]*entry{}, wants: map[wantKey]*want{}}
	if cfg.wipe {
		if err := os.RemoveAll(cfg.dir); err != nil {
			return nil, err
		}
	}
	if err := os.Mkdir(cfg.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	files, err := os.ReadDir(cfg.dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		path := filepath.Join(cfg.dir, f.Name())
		info, err := f.Info()
		name, _, whole := strings.Cut(f.Name(), ".")
		if _, e := parseDigest("sha256:" + name); e != nil || err != nil || !whole || s.entries[name] != nil {
			_ = os.Remove(path)
			continue
		}
		s.entries[name] = &entry{path: path, size: info.Size()}
		s.total += info.Size()
	}
	s.evict()
	return s, nil
}

// parseDigest is the hexadecimal part of "sha256:…".
func parseDigest(digest string) (string, error) {
	name, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || len(name) != 2*sha256.Size || strings.Trim(name, "0123456789abcdef") != "" {
		return "", fmt.Errorf("digest %q is not sha256: and 64 lower-case hexadecimal digits", digest)
	}
	return name, nil
}

// maxNeeds bounds the digests in one report, which the server refuses if it is too large. It is many times what the server pushes at
// a time; the rest is asked for when those have come.
const maxNeeds = 16 << 10

// needs are the digests that must be pushed, sorted.
func (s *inputs) needs() []string {
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

// get waits until the input is on disk. The path stays until release. When ctx
// ends first: with cause errGaveUp a failure that says what was wrong, else neither path nor failure.
func (s *inputs) get(ctx context.Context, digest, url string) (path string, release func(), f *muster.Failure) {
	name, err := parseDigest(digest)
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
	switch {
	case added && url == "":
		s.added()
	case added:
		s.spawn(func() { s.fetch(key, w) })
	}
	select {
	case <-w.done:
		if w.failure != nil {
			failed := *w.failure
			return "", nil, &failed
		}
		return w.path, release, nil
	case <-ctx.Done():
		return "", nil, s.leave(ctx, key, w)
	}
}

// leave is the end of waiting without the input.
func (s *inputs) leave(ctx context.Context, key wantKey, w *want) *muster.Failure {
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

func (s *inputs) release(name string) {
	s.mu.Lock()
	if e := s.entries[name]; e != nil {
		e.refs--
	}
	s.mu.Unlock()
	s.evict()
}

// evict deletes the longest unused inputs until the rest is within the limit.
func (s *inputs) evict() {
	var paths []string
	s.mu.Lock()
	for s.total > s.limit {
		oldest := ""
		for name, e := range s.entries {
			if e.refs == 0 && (oldest == "" || e.used < s.entries[oldest].used) {
				oldest = name
			}
		}
		if oldest == "" {
			break
		}
		s.total -= s.entries[oldest].size
		paths = append(paths, s.entries[oldest].path)
		delete(s.entries, oldest)
	}
	s.mu.Unlock()
	for _, path := range paths {
		_ = os.Remove(path)
	}
}

// errDigest: the bytes are not those of the digest.
var errDigest = errors.New("the bytes have another digest")

// put stores bytes that were pushed. errDigest if they are others.
func (s *inputs) put(digest string, data io.Reader) error {
	name, err := parseDigest(digest)
	if err != nil {
		return err
	}
	s.mu.Lock()
	have := s.entries[name] != nil
	s.mu.Unlock()
	if have {
		_, err := io.Copy(io.Discard, data)
		return err
	}
	return s.write(name, data)
}

// write stores bytes under their digest and wakes all that wait for it.
func (s *inputs) write(name string, data io.Reader) error {
	f, err := os.CreateTemp(s.dir, "tmp-")
	if err != nil {
		return err
	}
	sum := sha256.New()
	size, err := io.Copy(io.MultiWriter(f, sum), data)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		if hex.EncodeToString(sum.Sum(nil)) != name {
			// Which one it has is not told: that would be a way to read what only this node can reach.
			err = errDigest
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

// land makes a whole file known under its digest.
func (s *inputs) land(tmp, name string, size int64) error {
	path := filepath.Join(s.dir, name+"."+rand.Text())
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
			e.refs += w.waiters
			w.path = e.path
			delete(s.wants, key)
			w.cancel()
			close(w.done)
		}
	}
	s.mu.Unlock()
	if e.path != path {
		_ = os.Remove(path)
	}
	s.evict()
	return nil
}

// fetch gets an input from its URL, again and again until it is there, it can
// never be, or nobody waits any more.
func (s *inputs) fetch(key wantKey, w *want) {
	ctx := w.ctx
	for delay := fetchFirst; ; delay = min(2*delay, fetchLongest) {
		f, final := s.fetchOnce(ctx, key)
		if ctx.Err() != nil || f == nil {
			return // landed, by this fetch or another; or nobody waits
		}
		s.mu.Lock()
		w.last = f
		if final {
			if s.wants[key] == w {
				delete(s.wants, key)
			}
			w.failure = f
			w.cancel()
			close(w.done)
		}
		s.mu.Unlock()
		if final {
			return
		}
		s.log.Warn("input not fetched, tried again", "url", plainURL(key.url), "error", f.Message)
		if !wait.For(ctx, delay) {
			return
		}
	}
}

// fetchOnce tries once; final says that trying again is of no use.
func (s *inputs) fetchOnce(ctx context.Context, key wantKey) (f *muster.Failure, final bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	where := plainURL(key.url)
	outside := func(err error) (*muster.Failure, bool) {
		if c := context.Cause(ctx); c != nil {
			err = c
		}
		return contract.Failure(muster.FailureOutside, muster.ReasonInput, "%s: %v", where, err), false
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, key.url, nil)
	if err != nil || req.URL.Scheme != "http" && req.URL.Scheme != "https" {
		return contract.Failure(muster.FailureUser, muster.ReasonInput, "%s: only http and https can be fetched", where), true
	}
	resp, err := s.client.Do(req)
	var refused *ErrDestination
	if errors.As(err, &refused) {
		return contract.Failure(muster.FailureUser, muster.ReasonInput, "%s: %v", where, refused), true
	}
	if err != nil {
		var told *url.Error // has the URL in its text
		if errors.As(err, &told) {
			err = told.Err
		}
		return outside(err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch c := resp.StatusCode; {
	case c == http.StatusOK:
	case c >= 500, c == http.StatusTooManyRequests, c == http.StatusRequestTimeout, c == http.StatusTooEarly:
		return outside(errors.New(resp.Status))
	default:
		return contract.Failure(muster.FailureUser, muster.ReasonInput, "%s: %s", where, resp.Status), true
	}
	tooLarge := func() (*muster.Failure, bool) {
		return contract.Failure(muster.FailureUser, muster.ReasonInput, "%s: it is larger than %s, the most that an input may have on this node (input_limit of the pool)", where, muster.Bytes(s.most)), true
	}
	if resp.ContentLength > s.most {
		return tooLarge()
	}
	stall := time.AfterFunc(fetchStall, func() { cancel(errors.New("nothing came for too long")) })
	defer stall.Stop()
	var netErr error
	left, check := s.most, int64(0)
	err = s.write(key.digest, readerFunc(func(p []byte) (int, error) {
		if left < 0 {
			return 0, errTooLarge
		}
		if check <= 0 {
			if free, floor := journal.FreeDisk(s.dir), journal.DiskFloor(s.dir); free < floor {
				return 0, errDiskFull
			}
			check = checkDiskEvery
		}
		n, err := resp.Body.Read(p)
		left, check = left-int64(n), check-int64(n)
		stall.Reset(fetchStall)
		if err != nil && err != io.EOF {
			netErr = err
		}
		return n, err
	}))
	switch {
	case err == nil:
		return nil, true
	case errors.Is(err, errTooLarge):
		return tooLarge()
	case errors.Is(err, errDiskFull):
		return outside(err)
	case netErr != nil:
		return outside(netErr)
	case errors.Is(err, errDigest):
		return contract.Failure(muster.FailureUser, muster.ReasonInput, "%s: %v", where, err), true
	}
	return contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "%s: %v", where, err), true
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// plainURL is a URL as it may be printed: without a user, a query or a fragment, where secrets
// travel, as in presigned ones.
func plainURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(a URL that cannot be read)"
	}
	u.User, u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = nil, "", false, "", ""
	return u.String()
}
