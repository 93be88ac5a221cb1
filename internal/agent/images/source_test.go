package images

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	wire "github.com/musterhq/muster/internal/wire/agent"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/agent/images/layertest"
	"github.com/musterhq/muster/internal/agent/images/source"
)

func ociBuild(t testing.TB, text string) built {
	return build(t, func(_ *v1.ConfigFile, m *v1.Manifest) {
		m.MediaType, m.Config.MediaType = types.OCIManifestSchema1, types.OCIConfigJSON
	}, gzLayer(t, layertest.Item{Name: "text", Body: text}))
}

// layoutOf writes images as an OCI layout, by name.
func layoutOf(t testing.TB, dir string, images map[string]built) {
	t.Helper()
	index := v1.IndexManifest{SchemaVersion: 2}
	for name, b := range images {
		d := v1.Descriptor{MediaType: b.mediaType, Size: int64(len(b.manifest)), Digest: b.digest}
		if name != "" {
			d.Annotations = map[string]string{"org.opencontainers.image.ref.name": name}
		}
		index.Manifests = append(index.Manifests, d)
		for _, data := range append([][]byte{b.manifest, b.config}, b.blobs[0].data) {
			layertest.Write(t, filepath.Join(dir, "blobs/sha256", hashOf(data).Hex), data)
		}
	}
	layertest.Write(t, filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`))
	layertest.Write(t, filepath.Join(dir, "index.json"), mustJSON(t, index))
}

func textOf(t testing.TB, im *Image) string {
	t.Helper()
	b, err := os.ReadFile(im.Layers[0] + "/text")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestLayouts(t *testing.T) {
	layertest.NeedRoot(t)
	dir := t.TempDir()
	s := newStore(t, nil)
	user, img, none := muster.FailureUser, muster.ReasonImage, muster.ReasonImageNotFound
	refused(t, s, "oci:"+dir+"/none", user, none, "does not exist")
	refused(t, s, "oci:"+dir, user, img, "not an OCI layout")
	one := ociBuild(t, "one")
	layoutOf(t, dir, map[string]built{"": one})
	im := open(t, s, "oci:"+dir)
	if textOf(t, im) != "one" || im.Digest != one.digest.String() {
		t.Errorf("%s %s", textOf(t, im), im.Digest)
	}
	im.Release()
	layoutOf(t, dir, map[string]built{"a": ociBuild(t, "two"), "b": ociBuild(t, "three")})
	refused(t, s, "oci:"+dir, user, img, "2 images", "a", "b")
	refused(t, s, "oci:"+dir+":c", user, none, `"c"`, "it has:")
	im = open(t, s, "oci:"+dir+":b")
	if textOf(t, im) != "three" {
		t.Error(textOf(t, im))
	}
	im.Release()
	// What it names is not what is there, or leads elsewhere.
	evil := ociBuild(t, "evil")
	layoutOf(t, dir, map[string]built{"": evil})
	layer := filepath.Join(dir, "blobs/sha256", hashOf(evil.blobs[0].data).Hex)
	layertest.Write(t, layer, []byte("others"))
	refused(t, s, "oci:"+dir, user, img, "less than")
	layertest.Write(t, layer, bytes.Repeat([]byte{'x'}, len(evil.blobs[0].data)))
	refused(t, s, "oci:"+dir, user, img, "bytes")
	if err := os.Remove(layer); err != nil {
		t.Fatal(err)
	}
	refused(t, s, "oci:"+dir, user, none, "does not exist")
	if err := os.Symlink("/etc/passwd", layer); err != nil {
		t.Fatal(err)
	}
	refused(t, s, "oci:"+dir, user, img)
	layertest.Write(t, filepath.Join(dir, "index.json"), []byte("root:x:0:0"))
	refused(t, s, "oci:"+dir, user, img, "JSON")
	unused(t, s)
}

// archiveOf is what docker save writes; the second image's layer is a link to the first's.
func archiveOf(t testing.TB, images ...built) []byte {
	t.Helper()
	var items []layertest.Item
	type saved struct {
		Config           string
		RepoTags, Layers []string
	}
	var list []saved
	for i, b := range images {
		im := saved{Config: fmt.Sprint(i, ".json"), RepoTags: []string{fmt.Sprint("img", i, ":1")}}
		items = append(items, layertest.Item{Name: im.Config, Body: string(b.config)})
		for j, l := range b.blobs {
			name := fmt.Sprint(i, "-", j, "/layer.tar")
			im.Layers = append(im.Layers, name)
			if i > 0 && l.diff == images[0].blobs[0].diff {
				items = append(items, layertest.Item{Name: name, Type: tar.TypeSymlink, Link: "../0-0/layer.tar"})
				continue
			}
			items = append(items, layertest.Item{Name: name, Body: string(l.data)})
		}
		list = append(list, im)
	}
	return layertest.TarOf(t, append(items, layertest.Item{Name: "manifest.json", Body: string(mustJSON(t, list))})...)
}

func plainLayer(t testing.TB, items ...layertest.Item) blob {
	data := layertest.TarOf(t, items...)
	return blob{data, types.DockerUncompressedLayer, hashOf(data)}
}

func TestArchives(t *testing.T) {
	layertest.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "a.tar")
	ref := "docker-archive:" + path
	s := newStore(t, nil)
	user, img, none := muster.FailureUser, muster.ReasonImage, muster.ReasonImageNotFound
	refused(t, s, ref, user, none, "does not exist")
	layertest.Write(t, path, []byte("root:x:0:0:root:/root:/bin/sh\n"))
	refused(t, s, ref, user, img, "not a tar of an image")
	layertest.Write(t, path, layertest.TarOf(t, layertest.Item{Name: "x"}))
	refused(t, s, ref, user, img, "manifest.json")
	base := plainLayer(t, layertest.Item{Name: "base", Body: "base"})
	one := build(t, nil, base, plainLayer(t, layertest.Item{Name: "text", Body: "one"}))
	layertest.Write(t, path, archiveOf(t, one))
	first := open(t, s, ref)
	if textOf(t, first) != "one" {
		t.Error(textOf(t, first))
	}
	first.Release()
	// Compressed, and with layers that are compressed: the same image.
	for name, data := range map[string][]byte{"gzip": layertest.Gz(t, archiveOf(t, one)), "zstd": zst(t, archiveOf(t, one)),
		"layers": archiveOf(t, build(t, nil, base, blob{layertest.Gz(t, one.blobs[1].data), types.DockerLayer, one.blobs[1].diff}))} {
		layertest.Write(t, path, data)
		other := newStore(t, nil)
		im := open(t, other, ref)
		if textOf(t, im) != "one" || name != "layers" && im.Digest != first.Digest {
			t.Errorf("%s: %s %s", name, textOf(t, im), im.Digest)
		}
		im.Release()
		unused(t, other)
	}
	two := build(t, nil, base, plainLayer(t, layertest.Item{Name: "text", Body: "two"}))
	layertest.Write(t, path, archiveOf(t, one, two))
	refused(t, s, ref, user, img, "2 images", "img0:1", "img1:1")
	refused(t, s, ref+":img2:1", user, none, "img0:1")
	im := open(t, s, ref+":img1:1")
	if textOf(t, im) != "two" || layertest.Look(t, im.Layers[1]+"/base") != "file 644 0:0 base" {
		t.Error(textOf(t, im))
	}
	im.Release()
	// Not changed: not read, also by a new process; a bad layer of it is read again.
	s = again(t, s)
	if err := os.Remove(im.Layers[0] + "/text"); err != nil {
		t.Fatal(err)
	}
	im = open(t, s, ref+":img1:1")
	if textOf(t, im) != "two" {
		t.Error(textOf(t, im))
	}
	im.Release()
	// A layer that is not what the configuration says.
	bad := build(t, nil, blob{base.data, base.mediaType, hashOf([]byte("x"))})
	layertest.Write(t, path, archiveOf(t, bad))
	refused(t, s, ref, user, img, "diff id")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	refused(t, s, ref, user, none)
	unused(t, s)
}

// A registry that wants a token, and sends to another host for blobs: the grant
// reaches the one and not the other, is asked for again when it is over, and is never told.
func TestGrant(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	b := simple(t, "one")
	r.push(t, "mirror/app", "1", b)
	var mu sync.Mutex
	var leaked []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		if h := req.Header.Get("Authorization"); h != "" {
			leaked = append(leaked, h)
		}
		mu.Unlock()
		for _, l := range append([]blob{{data: b.config}}, b.blobs...) {
			if strings.Contains(req.URL.Path, hashOf(l.data).Hex) {
				_, _ = w.Write(l.data)
			}
		}
	}))
	defer elsewhere.Close()
	valid := "Bearer secret-1"
	broken := false
	r.meddle(func(w http.ResponseWriter, req *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if req.Header.Get("Authorization") != valid {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.host+`/token"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		if broken {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
			http.Redirect(w, req, elsewhere.URL+"/"+req.URL.Path+"?signature=secret-2", http.StatusTemporaryRedirect)
			return true
		}
		return false
	})
	var logs bytes.Buffer
	asked := 0
	s := newStore(t, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&locked{w: &logs}, nil))
		c.Grant = func(_ context.Context, ref string, _ muster.Namespace) (source.Grant, error) {
			mu.Lock()
			defer mu.Unlock()
			asked++
			if ref != "example.com/team/app:1" {
				return source.Grant{}, fmt.Errorf("asked for %s", ref)
			}
			return source.Grant{Ref: r.host + "/mirror/app:1", Authorization: valid, Insecure: true, Until: time.Now().Add(time.Hour)}, nil
		}
	})
	const ref = "example.com/team/app:1"
	im := open(t, s, ref)
	if im.Ref != ref || im.Digest != b.digest.String() {
		t.Errorf("%+v", im)
	}
	im.Release()
	open(t, s, ref).Release()
	if asked != 1 {
		t.Errorf("a grant of an hour was asked for %d times", asked)
	}
	mu.Lock()
	valid = "Bearer secret-3"
	mu.Unlock()
	open(t, s, ref).Release()
	if asked != 2 {
		t.Errorf("a grant that was refused was asked for %d times", asked)
	}
	mu.Lock()
	broken = true
	mu.Unlock()
	refused(t, s, ref, muster.FailureUser, muster.ReasonImageNotFound, "not found or no access")
	refused(t, s, "example.com/other:1", muster.FailureOutside, muster.ReasonImage, "right to pull")
	elsewhere.Close()
	_, err := s.Prune(context.Background(), true)
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	broken = false
	mu.Unlock()
	_, err = s.Open(context.Background(), ref, wire.Puller{}, nil)
	if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "signature") {
		t.Errorf("error %v", err)
	}
	if strings.Contains(logs.String(), "secret") || strings.Contains(logs.String(), "signature") {
		t.Errorf("the log tells: %s", logs.String())
	}
	if len(leaked) > 0 {
		t.Errorf("another host was given %v", leaked)
	}
	unused(t, s)
}

type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// Plain http, and registries of this machine, are for where a grant allows them.
func TestPlainHTTP(t *testing.T) {
	var mu sync.Mutex
	var schemes []string
	rt := tripper(func(req *http.Request) (*http.Response, error) {
		mu.Lock()
		schemes = append(schemes, req.URL.Scheme)
		mu.Unlock()
		return nil, fmt.Errorf("dialled %s", req.URL.Host)
	})
	const user, out = muster.FailureUser, muster.FailureOutside
	for host, c := range map[string]struct {
		secure, insecure muster.FailureClass
	}{
		"10.0.0.1:5000": {out, out}, "registry.example": {out, out}, "x.localhost:5000": {user, out}, "127.0.0.1:5000": {user, out},
		"127.9.9.9:1": {user, out}, "localhost:5000": {user, out}, "[::1]:5000": {user, out}, "0.0.0.0:5000": {user, out},
		"169.254.169.254": {user, user}, "[fe80::1]:5000": {user, user}, "[fd00:ec2::254]:80": {user, user}, "metadata.google.internal": {user, user},
	} {
		for plain, want := range map[bool]muster.FailureClass{false: c.secure, true: c.insecure} {
			for _, mirror := range []bool{false, true} {
				schemes = nil
				ref, g := host+"/x:1", source.Grant{Insecure: plain}
				if mirror {
					ref, g.Ref = "registry.example/x:1", ref
				}
				s := newStore(t, func(c *Config) {
					c.HTTP = rt
					c.Grant = func(context.Context, string, muster.Namespace) (source.Grant, error) { return g, nil }
				})
				_, err := s.Open(context.Background(), ref, wire.Puller{}, nil)
				if !failure.Is(err, want) {
					t.Errorf("%s, insecure %v, mirror %v: %v", host, plain, mirror, err)
				}
				if got := slices.Contains(schemes, "http"); got != (plain && want == out) || want == user && len(schemes) > 0 {
					t.Errorf("%s, insecure %v, mirror %v: %v", host, plain, mirror, schemes)
				}
			}
		}
	}
	schemes = nil
	s, err := New(Config{Dir: t.TempDir() + "/images", Platform: testPlatform, HTTP: rt})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(context.Background(), "127.0.0.1:5000/x:1", wire.Puller{}, nil); !failure.Is(err, user) || len(schemes) > 0 {
		t.Errorf("without grants: %v, %v", err, schemes)
	}
}

// A registry that sends elsewhere, for its tokens or its blobs, does not make
// this node ask its own services or the metadata of its cloud.
func TestSentElsewhere(t *testing.T) {
	for _, how := range []string{"realm", "redirect"} {
		for host, want := range map[string]map[bool]bool{ // by insecure
			"https://other.example": {false: true, true: true}, "http://other.example": {false: false, true: true},
			"https://127.0.0.1": {false: false, true: false}, "http://localhost:80": {false: false, true: false},
			"http://169.254.169.254": {false: false, true: false}, "https://[fe80::1%25lo]": {false: false, true: false},
			"https://[::ffff:169.254.169.254]": {false: false, true: false}, "http://0.0.0.0": {false: false, true: false},
		} {
			for _, plain := range []bool{false, true} {
				var mu sync.Mutex
				reached := false
				rt := tripper(func(req *http.Request) (*http.Response, error) {
					resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: req}
					switch {
					case req.URL.Host != "registry.example":
						mu.Lock()
						reached = true
						mu.Unlock()
						resp.StatusCode = http.StatusNotFound
					case how == "realm":
						resp.StatusCode = http.StatusUnauthorized
						resp.Header.Set("WWW-Authenticate", `Bearer realm="`+host+`/token",service="s"`)
					case strings.Contains(req.URL.Path, "/manifests/"):
						resp.StatusCode = http.StatusTemporaryRedirect
						resp.Header.Set("Location", host+"/x")
					}
					return resp, nil
				})
				s := newStore(t, func(c *Config) {
					c.HTTP = rt
					c.Grant = func(context.Context, string, muster.Namespace) (source.Grant, error) {
						return source.Grant{Insecure: plain}, nil
					}
				})
				if im, err := s.Open(context.Background(), "registry.example/x:1", wire.Puller{}, nil); err == nil {
					im.Release()
					t.Error("opened")
				}
				// The library itself takes no realm without TLS from a registry with it.
				if reached != (want[plain] && (how == "redirect" || strings.HasPrefix(host, "https:"))) {
					t.Errorf("%s to %s, insecure %v: reached %v", how, host, plain, reached)
				}
			}
		}
	}
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// An anonymous registry that hands out tokens, over TLS.
func TestAnonymousToken(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	b := simple(t, "one")
	r.push(t, "app", "1", b)
	var srv *httptest.Server
	srv = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case req.URL.Path == "/token":
			if got := req.URL.Query().Get("scope"); got != "repository:app:pull" {
				t.Errorf("scope %q", got)
			}
			_, _ = io.WriteString(w, `{"token":"given"}`)
		case req.Header.Get("Authorization") != "Bearer given":
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+srv.URL+`/token",service="s"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			resp, err := http.Get("http://" + r.host + req.URL.Path)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = resp.Body.Close() }()
			for k, v := range resp.Header {
				w.Header()[k] = v
			}
			w.WriteHeader(resp.StatusCode)
			if req.Method != http.MethodHead {
				_, _ = io.Copy(w, resp.Body)
			}
		}
	}))
	srv.Config.ErrorLog = quiet()
	srv.StartTLS()
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "https://")
	s := newStore(t, func(c *Config) { c.HTTP = srv.Client().Transport })
	im := open(t, s, host+"/app:1")
	im.Release()
	open(t, s, host+"/app:1").Release()
	unused(t, s)
	// Without its certificate: told, and not trusted.
	s = newStore(t, nil)
	refused(t, s, host+"/app:1", muster.FailureOutside, muster.ReasonImage, "certificate")
}
