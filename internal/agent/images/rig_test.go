package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	server "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
)

// needRoot skips where layers cannot be unpacked.
func needRoot(t testing.TB) {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mknod(filepath.Join(dir, "w"), unix.S_IFCHR, 0); err != nil {
		t.Skip("unpacking layers needs the right to make device nodes:", err)
	}
	if err := unix.Setxattr(dir, opaqueAttr, []byte("y"), 0); err != nil {
		t.Skip("unpacking layers needs the right to set trusted attributes:", err)
	}
	if err := os.Chown(dir, 12345, 12345); err != nil {
		t.Skip("unpacking layers needs the right to change owners:", err)
	}
}

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

// item is an entry of a layer's tar, short to write.
type item struct {
	name  string
	typ   byte // 0: file, or directory if the name ends in a slash
	body  string
	link  string
	mode  int64
	uid   int
	gid   int
	xattr map[string]string
}

var someTime = time.Unix(1_700_000_000, 0)

func tarOf(t testing.TB, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, it := range items {
		h := &tar.Header{Name: it.name, Typeflag: it.typ, Linkname: it.link, Mode: it.mode, Uid: it.uid, Gid: it.gid, ModTime: someTime, Size: int64(len(it.body))}
		switch {
		case it.typ == 0 && strings.HasSuffix(it.name, "/"):
			h.Typeflag = tar.TypeDir
		case it.typ == 0:
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		for k, v := range it.xattr {
			if h.PAXRecords == nil {
				h.PAXRecords = map[string]string{}
			}
			h.PAXRecords[xattrRecord+k] = v
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(it.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gz(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
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

func gzLayer(t testing.TB, items ...item) blob {
	plain := tarOf(t, items...)
	return blob{gz(t, plain), types.DockerLayer, hashOf(plain)}
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

var testPlatform = Platform{OS: "linux", Architecture: "amd64"}

// insecure is the grant for registries of tests, which are on loopback.
func insecure(context.Context, string) (Grant, error) { return Grant{Insecure: true}, nil }

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
	s.pace = time.Millisecond
	return s
}

func again(t testing.TB, s *Store) *Store {
	t.Helper()
	return newStore(t, func(c *Config) { *c = s.Config })
}

func open(t testing.TB, s *Store, ref string) *Image {
	t.Helper()
	im, err := s.Open(context.Background(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// refused opens what cannot be had, and checks how that is told.
func refused(t *testing.T, s *Store, ref string, class muster.FailureClass, reason muster.Reason, parts ...string) {
	t.Helper()
	im, err := s.Open(context.Background(), ref, nil)
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
	if left := names(t, s.path(tmpDir)); len(left) > 0 {
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

func names(t testing.TB, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

// look describes what is at a path of a layer in a few words.
func look(t testing.TB, path string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "none"
	}
	owner := fmt.Sprintf("%o %d:%d", st.Mode&0o7777, st.Uid, st.Gid)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		var y [1]byte
		if n, _ := unix.Lgetxattr(path, opaqueAttr, y[:]); n == 1 {
			return "opaque dir " + owner
		}
		return "dir " + owner
	case unix.S_IFLNK:
		to, _ := os.Readlink(path)
		return "link " + to
	case unix.S_IFREG:
		b, _ := os.ReadFile(path)
		return "file " + owner + " " + string(b)
	case unix.S_IFIFO:
		return "fifo " + owner
	}
	if isWhiteout(&st) {
		return "whiteout"
	}
	return "other"
}
