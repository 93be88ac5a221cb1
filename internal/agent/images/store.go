package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/destinations"
	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/agent/images/source"
)

// Config is what a store needs.
type Config struct {
	// Dir is the store's own directory; it is made, for root only.
	Dir string
	// Limit is of the bytes of unpacked layers; 0 is 20 GiB.
	Limit int64
	// Shift is added to every owner while unpacking: the first id of the node's user namespace.
	// Layers that were unpacked with another one are not used again and go when nobody uses them.
	// Below 0: this process is root of a user namespace that has -Shift ids; see unpack.Unpack.
	Shift int
	// Grant asks the server how to pull a reference, which is given in its full form
	// ("docker.io/library/busybox:latest"), for a namespace; empty: that does not matter. nil:
	// anonymously.
	Grant func(ctx context.Context, ref string, ns muster.Namespace) (source.Grant, error)
	// Loaded waits for a blob of an image that was loaded on the server, or that is in its cache, by
	// its digest. nil: the server sends none.
	Loaded source.Sender
	// Fresh is for how long a registry's answer what a tag means is good: a start need not wait for
	// it. 0: it is asked each time.
	Fresh time.Duration
	// Platform is what images are chosen for; zero is this machine's.
	Platform source.Platform
	Logger   *slog.Logger      // nil: discarded
	HTTP     http.RoundTripper // nil: one of its own
	// Destinations are where registries may be and send to, beside those on the node itself that
	// the server's configuration calls insecure.
	Destinations destinations.Allowed
}

const (
	defaultLimit = 20 << 30

	layersDir  = "l"
	recordsDir = "r"
	blobsDir   = "b"
	imagesDir  = "i"
	refsDir    = "t"
	tmpDir     = "tmp"

	// fetchers is how many layers are pulled at once, checkers how many are compared with their
	// records.
	fetchers = 4
	checkers = 2
)

// Store keeps the images of one node. Its methods may be called from many goroutines.
type Store struct {
	Config

	fetchers chan struct{}
	checkers chan struct{}
	resolver source.Resolver

	mu      sync.Mutex
	layers  map[string]*layer           // by name; those of other shifts and bad ones too
	current map[string]*layer           // by diff id: those that new sandboxes may have
	images  map[imageKey]*image         // whole ones
	refs    map[string]*refRecord       // by canonical reference
	sources map[string]*source.Registry // by canonical reference and namespace, with their sessions
	pulls   map[string]*pull            // by canonical reference and namespace
	fetches map[fetchKey]*fetch
	used    int64 // bytes of all layers
	pending int64 // bytes that are being unpacked
}

type imageKey struct {
	digest string
	shift  int
}

// layer is an unpacked layer. Fields are guarded by Store.mu, but for name and the record, which
// change only in retire.
type layer struct {
	name    string
	record  layerRecord
	refs    int
	used    time.Time
	stamped time.Time // used, as the disk has it
	checked bool      // compared with its record in this process's life, or made in it
	// scopes are those for whom it is, repos those that have it; see right.
	scopes, repos map[string]bool
}

// fetchKey is a layer that is fetched, and what of an access matters for that.
type fetchKey struct {
	diff, use, give string
	whole           bool
}

// image is a whole image; guarded by Store.mu.
type image struct {
	record  imageRecord // without its rights
	rights  []right
	refs    int
	used    time.Time
	stamped time.Time // used, as the disk has it
}

// New opens a store and cleans what an earlier process left half done. It deletes no layer:
// sandboxes may live on them until Hold says so.
func New(cfg Config) (*Store, error) {
	cfg.Limit = cmp.Or(cfg.Limit, defaultLimit)
	if cfg.Platform == (source.Platform{}) {
		cfg.Platform = source.Platform{OS: "linux", Architecture: runtime.GOARCH}
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.HTTP == nil {
		tr := cfg.Destinations.Transport(30 * time.Second)
		tr.MaxIdleConnsPerHost = fetchers
		cfg.HTTP = tr
	}
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("image store: the directory %q is not absolute", cfg.Dir)
	}
	s := &Store{
		Config:   cfg,
		fetchers: make(chan struct{}, fetchers), checkers: make(chan struct{}, checkers), resolver: source.Resolver{Platform: cfg.Platform, Pace: source.FirstPause},
		layers: map[string]*layer{}, current: map[string]*layer{}, images: map[imageKey]*image{}, refs: map[string]*refRecord{},
		sources: map[string]*source.Registry{}, pulls: map[string]*pull{}, fetches: map[fetchKey]*fetch{},
	}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("image store: %w", err)
	}
	return s, nil
}

// LayersDir is the directory that the short names of layers are in.
func (s *Store) LayersDir() string { return s.path(layersDir) }

func (s *Store) load() error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(s.Dir, 0o700); err != nil {
		return err
	}
	if err := os.RemoveAll(s.path(tmpDir)); err != nil {
		return err
	}
	for _, dir := range []string{layersDir, recordsDir, blobsDir, imagesDir, refsDir, tmpDir} {
		if err := os.Mkdir(s.path(dir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	for _, load := range []func() error{s.loadLayers, s.loadImages, s.loadRefs, s.cleanBlobs} {
		if err := load(); err != nil {
			return err
		}
	}
	return nil
}

// each calls do for each name in a directory; what it does not want is rubbish.
func (s *Store) each(dir string, want func(name string, path string, info fs.FileInfo) bool) error {
	list, err := os.ReadDir(s.path(dir))
	if err != nil {
		return err
	}
	for _, e := range list {
		path := s.path(dir, e.Name())
		info, err := e.Info()
		if err == nil && want(e.Name(), path, info) {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) loadLayers() error {
	err := s.each(recordsDir, func(name, path string, info fs.FileInfo) bool {
		l := &layer{name: name, used: info.ModTime()}
		if readRecord(path, &l.record) != nil || l.record.Version != recordVersion {
			return false
		}
		l.scopes, l.repos = map[string]bool{}, map[string]bool{}
		l.giveLocked(right{l.record.Repo, l.record.Scope})
		if st, err := os.Lstat(s.layerPath(l)); err != nil || !st.IsDir() {
			return false
		}
		s.layers[name] = l
		s.used += l.record.Tree.Bytes
		if other := s.current[l.record.Diff]; !l.record.Bad && l.record.Shift == s.Shift && (other == nil || other.used.Before(l.used)) {
			s.current[l.record.Diff] = l
		}
		return true
	})
	if err != nil {
		return err
	}
	return s.each(layersDir, func(name, _ string, _ fs.FileInfo) bool { return s.layers[name] != nil })
}

func (s *Store) loadImages() error {
	have := map[layerKey][]*layer{}
	for _, l := range s.layers {
		k := layerKey{l.record.Diff, l.record.Shift}
		have[k] = append(have[k], l)
	}
	return s.each(imagesDir, func(name, path string, info fs.FileInfo) bool {
		im := &image{used: info.ModTime()}
		if readRecord(path, &im.record) != nil || im.record.Version != recordVersion || imageName(im.record) != name {
			return false
		}
		for _, diff := range im.record.Layers {
			if len(have[layerKey{diff, im.record.Shift}]) == 0 {
				return false
			}
		}
		if im.rights, im.record.Rights = im.record.Rights, nil; len(im.rights) == 0 {
			im.rights = []right{{}}
		}
		for _, diff := range im.record.Layers {
			for _, l := range have[layerKey{diff, im.record.Shift}] {
				for _, r := range im.rights {
					l.giveLocked(r)
				}
			}
		}
		s.images[keyOf(im.record)] = im
		return true
	})
}

type layerKey struct {
	diff  string
	shift int
}

func (s *Store) loadRefs() error {
	return s.each(refsDir, func(name, path string, _ fs.FileInfo) bool {
		r := &refRecord{}
		if readRecord(path, r) != nil || r.Version != recordVersion || refName(r.Ref) != name {
			return false
		}
		if s.images[imageKey{r.Digest, s.Shift}] == nil {
			return false
		}
		s.refs[r.Ref] = r
		return true
	})
}

func (s *Store) cleanBlobs() error {
	keep := map[string]bool{}
	for _, im := range s.images {
		keep[hexOf(im.record.Manifest)], keep[hexOf(im.record.Config)] = true, true
	}
	return s.each(blobsDir, func(name, _ string, _ fs.FileInfo) bool { return keep[name] })
}

func keyOf(r imageRecord) imageKey { return imageKey{r.Digest, r.Shift} }

func imageName(r imageRecord) string { return fmt.Sprint(hexOf(r.Digest), "-", r.Shift) }

func refName(ref string) string {
	sum := sha256.Sum256([]byte(ref))
	return hex.EncodeToString(sum[:])
}

func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

func (s *Store) layerPath(l *layer) string { return s.path(layersDir, l.name) }

// Info is an image as a list shows it.
type Info struct {
	Refs   []string // that mean it, in full form, sorted; none if a tag has moved on
	Digest string
	Layers int
	Bytes  int64 // unpacked; layers that images share count in each
	InUse  int   // how many hold it
	Pinned bool  // it stays although nothing uses it
	Used   time.Time
}

// List lists whole images, the last used first.
func (s *Store) List() []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Info
	for _, im := range s.images {
		info := Info{Digest: im.record.Digest, Layers: len(im.record.Layers), InUse: im.refs, Used: im.used, Pinned: im.record.Pinned}
		for _, diff := range im.record.Layers {
			if l := s.current[diff]; l != nil && im.record.Shift == s.Shift {
				info.Bytes += l.record.Tree.Bytes
			}
		}
		for ref, r := range s.refs {
			if r.Digest == im.record.Digest && im.record.Shift == s.Shift {
				info.Refs = append(info.Refs, ref)
			}
		}
		sort.Strings(info.Refs)
		list = append(list, info)
	}
	slices.SortFunc(list, func(a, b Info) int {
		if c := b.Used.Compare(a.Used); c != 0 {
			return c
		}
		return strings.Compare(a.Digest, b.Digest)
	})
	return list
}

// Usage is how many bytes the unpacked layers have, those being unpacked included, and how many
// they may have.
func (s *Store) Usage() (used, limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used + s.pending, s.Limit
}

// Verify compares the layers of an image with their records now; of all images if digest is empty.
// It names the diff ids of those that are not what they were: they are fetched again when they are
// wanted next.
func (s *Store) Verify(ctx context.Context, digest string) (bad []string, err error) {
	s.mu.Lock()
	var list []*layer
	found := digest == ""
	for _, im := range s.images {
		if digest != "" && im.record.Digest != digest || im.record.Shift != s.Shift {
			continue
		}
		found = true
		for _, diff := range im.record.Layers {
			if l := s.current[diff]; l != nil && !slices.Contains(list, l) {
				l.refs++
				list = append(list, l)
			}
		}
	}
	s.mu.Unlock()
	if !found {
		return nil, failure.NotFound("image %s is not on this node", digest)
	}
	for i, l := range list {
		whole, e := s.check(ctx, l)
		if e != nil {
			s.release(nil, list[i:])
			return bad, e
		}
		if !whole {
			bad = append(bad, l.record.Diff)
			s.retire(l)
		}
		s.release(nil, []*layer{l})
	}
	return bad, nil
}

// readBlob reads a manifest or configuration that was kept, and checks it.
func (s *Store) readBlob(digest string) ([]byte, error) {
	data, err := os.ReadFile(s.path(blobsDir, hexOf(digest)))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	if hex.EncodeToString(sum[:]) != hexOf(digest) {
		return nil, fmt.Errorf("%s: %w", digest, source.ErrDigest)
	}
	return data, nil
}

// cached is an image that is here, in use, and its content; nil if it is not, or not as it was.
func (s *Store) cached(digest string) (*image, *source.Content) {
	s.mu.Lock()
	im := s.images[imageKey{digest, s.Shift}]
	if im == nil {
		s.mu.Unlock()
		return nil, nil
	}
	im.refs++
	s.mu.Unlock()
	ct, err := s.readContent(im.record)
	if err != nil {
		s.Logger.Warn("image is not what it was, it is fetched again", "image", digest, "error", err)
		s.release(im, nil)
		return nil, nil
	}
	return im, ct
}

func (s *Store) readContent(r imageRecord) (*source.Content, error) {
	var docs [2]source.Document
	for i, digest := range []string{r.Manifest, r.Config} {
		data, err := s.readBlob(digest)
		if err != nil {
			return nil, err
		}
		docs[i] = source.Document{Digest: v1.Hash{Algorithm: "sha256", Hex: hexOf(digest)}, Data: data}
	}
	ct, err := source.NewContent(docs[0], docs[1], s.Platform)
	if err != nil {
		return nil, err
	}
	for i := range ct.Layers {
		ct.Layers[i].DiffOnly = r.Unsaid
	}
	return ct, nil
}
