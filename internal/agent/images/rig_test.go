package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	wire "github.com/musterhq/muster/internal/wire/agent"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	server "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/layertest"
	"github.com/musterhq/muster/internal/agent/images/source"
)

// reg is a registry on loopback that can be told to misbehave.
type reg struct {
	host string

	mu       sync.Mutex
	before   func(w http.ResponseWriter, r *http.Request) bool // true: answered
	requests []string
}

func newReg(t testing.TB) *reg {
	t.Helper()
	r := &reg{}
	inner := server.New(server.Logger(quiet()))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.requests = append(r.requests, req.Method+" "+req.URL.Path)
		before := r.before
		r.mu.Unlock()
		if before != nil && before(w, req) {
			return
		}
		inner.ServeHTTP(w, req)
	}))
	t.Cleanup(srv.Close)
	r.host = strings.TrimPrefix(srv.URL, "http://")
	return r
}

func (r *reg) meddle(f func(w http.ResponseWriter, req *http.Request) bool) {
	r.mu.Lock()
	r.before = f
	r.mu.Unlock()
}

// asked counts requests, and forgets them.
func (r *reg) asked(method, part string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, line := range r.requests {
		if strings.HasPrefix(line, method+" ") && strings.Contains(line, part) {
			n++
		}
	}
	return n
}

func (r *reg) forget() {
	r.mu.Lock()
	r.requests = nil
	r.mu.Unlock()
}

func (r *reg) put(t testing.TB, path, contentType string, body []byte) {
	t.Helper()
	method := http.MethodPut
	if strings.Contains(path, "blobs/") {
		method = http.MethodPost
	}
	req, err := http.NewRequest(method, "http://"+r.host+"/v2/"+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("%s %s: %s", method, path, resp.Status)
	}
}

func zst(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(b, nil)
}

func hashOf(b []byte) v1.Hash {
	sum := sha256.Sum256(b)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

// blob is a layer of a test image: what is sent, and what is said of it.
type blob struct {
	data      []byte
	mediaType types.MediaType
	diff      v1.Hash
}

func gzLayer(t testing.TB, items ...layertest.Item) blob {
	plain := layertest.TarOf(t, items...)
	return blob{layertest.Gz(t, plain), types.DockerLayer, hashOf(plain)}
}

type built struct {
	manifest, config []byte
	digest           v1.Hash
	blobs            []blob
	mediaType        types.MediaType
}

func build(t testing.TB, change func(*v1.ConfigFile, *v1.Manifest), layers ...blob) built {
	t.Helper()
	c := v1.ConfigFile{OS: "linux", Architecture: testPlatform.Architecture, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Cmd: []string{"sh"}, Env: []string{"A=b"}, User: "app", WorkingDir: "/w", StopSignal: "SIGINT",
			Volumes: map[string]struct{}{"/v": {}, "/a": {}}, ExposedPorts: map[string]struct{}{"80/tcp": {}}}}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.DockerManifestSchema2}
	for _, l := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, l.diff)
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: l.mediaType, Size: int64(len(l.data)), Digest: hashOf(l.data)})
	}
	m.Config.MediaType = types.DockerConfigJSON
	if change != nil {
		change(&c, &m)
	}
	b := built{blobs: layers, mediaType: m.MediaType}
	b.config = mustJSON(t, c)
	m.Config.Size, m.Config.Digest = int64(len(b.config)), hashOf(b.config)
	b.manifest = mustJSON(t, m)
	b.digest = hashOf(b.manifest)
	return b
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (r *reg) push(t testing.TB, repo, tag string, b built) string {
	t.Helper()
	for _, l := range append([]blob{{data: b.config}}, b.blobs...) {
		r.put(t, repo+"/blobs/uploads/?digest="+hashOf(l.data).String(), "application/octet-stream", l.data)
	}
	r.put(t, repo+"/manifests/"+tag, string(b.mediaType), b.manifest)
	return r.host + "/" + repo + ":" + tag
}

var testPlatform = source.Platform{OS: "linux", Architecture: "amd64"}

// insecure is the grant for registries of tests, which are on loopback.
func insecure(context.Context, string, muster.Namespace) (source.Grant, error) {
	return source.Grant{Insecure: true}, nil
}

func newStore(t testing.TB, change func(*Config)) *Store {
	t.Helper()
	cfg := Config{Dir: filepath.Join(t.TempDir(), "images"), Platform: testPlatform}
	if change != nil {
		change(&cfg)
	}
	if cfg.Grant == nil {
		cfg.Grant = insecure
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.resolver.Pace = time.Millisecond
	return s
}

func again(t testing.TB, s *Store) *Store {
	t.Helper()
	return newStore(t, func(c *Config) { *c = s.Config })
}

func open(t testing.TB, s *Store, ref string) *Image {
	t.Helper()
	im, err := s.Open(context.Background(), ref, wire.Puller{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// refused opens what cannot be had, and checks how that is told.
func refused(t *testing.T, s *Store, ref string, class muster.FailureClass, reason muster.Reason, parts ...string) {
	t.Helper()
	im, err := s.Open(context.Background(), ref, wire.Puller{}, nil)
	if err == nil {
		im.Release()
		t.Fatalf("%s was opened", ref)
	}
	var f *muster.Failure
	if !errors.As(err, &f) {
		t.Fatalf("%s: %v is a %T", ref, err, err)
	}
	if f.Class != class || f.Reason != reason {
		t.Errorf("%s: %s/%s: %s; want %s/%s", ref, f.Class, f.Reason, f.Message, class, reason)
	}
	for _, part := range parts {
		if !strings.Contains(f.Message, part) {
			t.Errorf("%s: %q does not say %q", ref, f.Message, part)
		}
	}
	clean(t, s)
}

// clean checks that nothing is left of what did not come to be.
func clean(t *testing.T, s *Store) {
	t.Helper()
	if left := layertest.Names(t, s.path(tmpDir)); len(left) > 0 {
		t.Errorf("left in tmp: %v", left)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != 0 {
		t.Errorf("%d bytes are still taken for unpacking", s.pending)
	}
	var sum int64
	for _, l := range s.layers {
		sum += l.record.Tree.Bytes
	}
	if sum != s.used {
		t.Errorf("layers have %d bytes, %d are counted", sum, s.used)
	}
	if len(s.pulls)+len(s.fetches) > 0 {
		t.Errorf("%d pulls and %d fetches are left", len(s.pulls), len(s.fetches))
	}
}

// unused checks that all uses were given back.
func unused(t *testing.T, s *Store) {
	t.Helper()
	clean(t, s)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.layers {
		if l.refs != 0 {
			t.Errorf("layer %s has %d uses", l.name, l.refs)
		}
	}
	for _, im := range s.images {
		if im.refs != 0 {
			t.Errorf("image %s has %d uses", im.record.Digest, im.refs)
		}
	}
}
