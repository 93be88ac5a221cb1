package images

import (
	"context"
	"errors"
	wire "github.com/musterhq/muster/internal/wire/agent"
	"io"
	"log"
	"net/http"
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
	"github.com/musterhq/muster/internal/agent/images/layertest"
	"github.com/musterhq/muster/internal/agent/images/source"
)

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

func simple(t testing.TB, text string) built {
	return build(t, nil,
		gzLayer(t, layertest.Item{Name: "etc/"}, layertest.Item{Name: "etc/os", Body: "base"}, layertest.Item{Name: "bin/"}, layertest.Item{Name: "bin/su", Body: "x", Mode: 0o4755}),
		gzLayer(t, layertest.Item{Name: "app/"}, layertest.Item{Name: "app/text", Body: text, UID: 7, GID: 8}, layertest.Item{Name: "etc/.wh.os"}))
}

func TestOpenFromRegistry(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	b := simple(t, "one")
	ref := r.push(t, "team/app", "v1", b)
	s := newStore(t, nil)
	var last Progress
	im, err := s.Open(context.Background(), ref, wire.Puller{}, func(p Progress) { last = p })
	if err != nil {
		t.Fatal(err)
	}
	want := Progress{Ref: ref, Done: int64(len(b.blobs[0].data) + len(b.blobs[1].data)), Layers: 2, LayersDone: 2}
	want.Total = want.Done
	if last != want {
		t.Errorf("progress %+v, want %+v", last, want)
	}
	if im.Ref != ref || im.Digest != b.digest.String() || len(im.Layers) != 2 || len(im.Short) != 2 {
		t.Fatalf("image %+v", im)
	}
	for i, short := range im.Short {
		if filepath.Join(s.LayersDir(), short) != im.Layers[i] || len(short) > 12 {
			t.Errorf("short %q of %q", short, im.Layers[i])
		}
	}
	for path, want := range map[string]string{
		"app/text": "file 644 7:8 one", "app": "dir 755 0:0", "etc/os": "whiteout", "etc": "dir 755 0:0",
	} {
		if got := layertest.Look(t, filepath.Join(im.Layers[0], path)); got != want {
			t.Errorf("top layer has %s: %s, want %s", path, got, want)
		}
	}
	if got := layertest.Look(t, filepath.Join(im.Layers[1], "bin/su")); got != "file 4755 0:0 x" {
		t.Errorf("setuid file: %s", got)
	}
	c := im.Config
	if !slices.Equal(c.Cmd, []string{"sh"}) || c.User != "app" || c.WorkingDir != "/w" || c.StopSignal != "SIGINT" ||
		!slices.Equal(c.Volumes, []string{"/a", "/v"}) || !slices.Equal(c.ExposedPorts, []string{"80/tcp"}) || c.OS != "linux" {
		t.Errorf("configuration %+v", c)
	}
	// Once more: nothing is fetched but the answer what the tag means.
	r.forget()
	second := open(t, s, ref)
	if n := r.asked("HEAD", "manifests/v1"); n != 1 {
		t.Errorf("the tag was asked for %d times", n)
	}
	if n := r.asked("GET", "blobs/") + r.asked("GET", "manifests/"); n != 0 {
		t.Errorf("%d documents and layers were fetched again", n)
	}
	if !slices.Equal(second.Layers, im.Layers) {
		t.Errorf("layers %v, then %v", im.Layers, second.Layers)
	}
	list := s.List()
	if len(list) != 1 || list[0].InUse != 2 || list[0].Layers != 2 || list[0].Bytes == 0 || !slices.Equal(list[0].Refs, []string{ref}) {
		t.Errorf("list %+v", list)
	}
	im.Release()
	im.Release()
	second.Release()
	unused(t, s)
	// By digest nobody is asked once it was pulled so.
	byDigest := r.host + "/team/app@" + b.digest.String()
	open(t, s, byDigest).Release()
	r.forget()
	open(t, s, byDigest).Release()
	if n := r.asked("", ""); n != 0 || len(r.requests) != 0 {
		t.Errorf("an image by digest that is here: %v", r.requests)
	}
}

// TestFresh: a tag that was asked for lately is not asked for again, but when it is pulled on purpose.
func TestFresh(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	one := simple(t, "one")
	ref := r.push(t, "app", "latest", one)
	s := newStore(t, func(c *Config) { c.Fresh = time.Hour })
	open(t, s, ref).Release()
	two := simple(t, "two")
	r.push(t, "app", "latest", two)
	r.forget()
	im := open(t, s, ref)
	if im.Digest != one.digest.String() || len(r.requests) != 0 {
		t.Errorf("%s came, and the registry was asked for %v", im.Digest, r.requests)
	}
	im.Release()
	im, err := s.Pull(t.Context(), ref, wire.Puller{}, nil)
	if err != nil || im.Digest != two.digest.String() {
		t.Fatalf("pulled %+v, %v", im, err)
	}
	im.Release()
	if im = open(t, s, ref); im.Digest != two.digest.String() {
		t.Errorf("after the pull %s came", im.Digest)
	}
	im.Release()
}

func TestTagMovesAndRegistryAway(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	ref := r.push(t, "app", "latest", simple(t, "one"))
	s := newStore(t, nil)
	first := open(t, s, ref)
	two := simple(t, "two")
	r.push(t, "app", "latest", two)
	second := open(t, s, ref)
	if second.Digest != two.digest.String() {
		t.Errorf("the tag has moved, and %s came", second.Digest)
	}
	if first.Layers[1] != second.Layers[1] {
		t.Error("the layer that both have is there twice")
	}
	first.Release()
	second.Release()
	for _, status := range []int{500, 503, 429} {
		r.meddle(func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(status)
			return true
		})
		open(t, s, ref).Release()
		refused(t, s, r.host+"/other:1", muster.FailureOutside, muster.ReasonImage, "registry "+r.host)
	}
	// What it meant the day before yesterday is no answer.
	s.mu.Lock()
	old := *s.refs[ref]
	old.At = time.Now().Add(-askAgain - time.Minute)
	s.refs[ref] = &old
	s.mu.Unlock()
	refused(t, s, ref, muster.FailureOutside, muster.ReasonImage, "fewer requests")
	r.meddle(nil)
	s = again(t, s)
	open(t, s, ref).Release()
	// The same under another name: only the manifest is asked for.
	r.push(t, "app", "same", two)
	r.forget()
	open(t, s, r.host+"/app:same").Release()
	if n := r.asked("GET", "/blobs/"); n != 0 {
		t.Errorf("%d blobs were fetched for another name of the same", n)
	}
	// Dangling: what the tag meant first. It shares a layer with what it means now.
	if freed, err := s.Prune(context.Background(), false); err != nil || freed == 0 || len(s.List()) != 1 {
		t.Errorf("prune: %d %v, %d left", freed, err, len(s.List()))
	}
	open(t, s, ref).Release()
	if freed, err := s.Prune(context.Background(), true); err != nil || freed == 0 || len(s.List()) != 0 {
		t.Errorf("prune all: %d %v", freed, err)
	}
	if used, _ := s.Usage(); used != 0 || len(layertest.Names(t, s.LayersDir())) != 0 || len(layertest.Names(t, s.path(blobsDir))) != 0 || len(layertest.Names(t, s.path(refsDir))) != 0 {
		t.Errorf("%d bytes are used after all was pruned", used)
	}
	unused(t, s)
}

func TestRefusals(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	s := newStore(t, nil)
	good := gzLayer(t, layertest.Item{Name: "a", Body: "a"})
	push := func(name string, change func(*v1.ConfigFile, *v1.Manifest), layers ...blob) string {
		return r.push(t, name, "1", build(t, change, layers...))
	}
	user, img, none := muster.FailureUser, muster.ReasonImage, muster.ReasonImageNotFound
	refused(t, s, r.host+"/nothing:here", user, none, "check the spelling")
	refused(t, s, "Bad Name", user, img)
	refused(t, s, "UPPER/case", user, img, "malformed")
	refused(t, s, "https://example.com/x", user, img, "URL")
	refused(t, s, push("arch", func(c *v1.ConfigFile, _ *v1.Manifest) { c.Architecture = "s390x" }, good), user, img, "s390x", "amd64")
	refused(t, s, push("foreign", nil, blob{good.data, types.DockerForeignLayer, good.diff}), user, img, "may not be distributed")
	refused(t, s, push("unknown", nil, blob{good.data, "application/x-secret+encrypted", good.diff}), user, img, "media type")
	refused(t, s, push("chart", func(_ *v1.ConfigFile, m *v1.Manifest) {
		m.Config.MediaType = "application/vnd.cncf.helm.config.v1+json"
	}, good), user, img, "helm")
	refused(t, s, push("count", func(c *v1.ConfigFile, _ *v1.Manifest) { c.RootFS.DiffIDs = nil }, good), user, img, "layers")
	refused(t, s, push("diff", nil, blob{good.data, good.mediaType, hashOf([]byte("other"))}), user, img, "diff id")
	cut := layertest.TarOf(t, layertest.Item{Name: "a", Body: strings.Repeat("a", 5000)})[:3000]
	refused(t, s, push("cut", nil, blob{layertest.Gz(t, cut), types.DockerLayer, hashOf(cut)}), user, img, "whole tar")
	refused(t, s, push("cutgz", nil, blob{good.data[:len(good.data)-9], types.DockerLayer, good.diff}), user, img)
	refused(t, s, push("noise", nil, blob{[]byte("\x1f\x8bnoise and noise"), types.DockerLayer, good.diff}), user, img)
	many := make([]blob, 240+1)
	for i := range many {
		many[i] = good
	}
	refused(t, s, push("many", nil, many...), user, img, "layers")
	if used, _ := s.Usage(); used > 8<<10 {
		t.Errorf("%d bytes are used by what was refused", used)
	}
	// Statuses.
	for _, status := range []int{401, 403} {
		r.meddle(func(w http.ResponseWriter, req *http.Request) bool {
			if strings.Contains(req.URL.Path, "manifests") {
				w.WriteHeader(status)
				return true
			}
			return false
		})
		refused(t, s, r.host+"/private:1", user, none, "not found or no access", "credentials")
	}
	r.meddle(nil)
	refused(t, s, "127.0.0.1:1/x:1", muster.FailureOutside, img, "connection refused")
}

// The bytes of a layer are not those of its digest: the way or the registry is
// to blame, and the layer is tried once more.
func TestWrongBytes(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	b := simple(t, "one")
	ref := r.push(t, "app", "1", b)
	digest := hashOf(b.blobs[1].data).String()
	times := 0
	always := false
	other := gzLayer(t, layertest.Item{Name: "evil", Body: "x"})
	r.meddle(func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != http.MethodGet || !strings.HasSuffix(req.URL.Path, digest) {
			return false
		}
		times++
		if times > 1 && !always {
			return false
		}
		body := make([]byte, len(b.blobs[1].data))
		copy(body, other.data)
		_, _ = w.Write(body)
		return true
	})
	s := newStore(t, nil)
	always = true
	refused(t, s, ref, muster.FailureOutside, muster.ReasonImage, "bytes")
	times, always = 0, false
	im := open(t, s, ref)
	if got := layertest.Look(t, filepath.Join(im.Layers[0], "evil")); got != "none" {
		t.Errorf("evil: %s", got)
	}
	im.Release()
	unused(t, s)
}

func TestPlatforms(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	add := func(arch, variant, text string) built {
		b := build(t, func(c *v1.ConfigFile, m *v1.Manifest) {
			c.Architecture, c.Variant = arch, variant
			m.MediaType = types.OCIManifestSchema1
			m.Config.MediaType = types.OCIConfigJSON
		}, gzLayer(t, layertest.Item{Name: "text", Body: text}))
		r.push(t, "multi", "tmp-"+arch+variant, b)
		index.Manifests = append(index.Manifests, v1.Descriptor{MediaType: b.mediaType, Size: int64(len(b.manifest)), Digest: b.digest,
			Platform: &v1.Platform{OS: "linux", Architecture: arch, Variant: variant}})
		return b
	}
	add("arm64", "v8", "arm")
	add("amd64", "v3", "too new")
	add("amd64", "", "right")
	add("arm", "v5", "old")
	add("arm", "v6", "newer")
	att := add("amd64", "v2", "statement")
	index.Manifests[len(index.Manifests)-1] = v1.Descriptor{MediaType: att.mediaType, Size: int64(len(att.manifest)), Digest: att.digest,
		Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest"}, Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}}
	data := mustJSON(t, index)
	r.put(t, "multi/manifests/1", string(index.MediaType), data)
	for platform, want := range map[source.Platform]string{
		{OS: "linux", Architecture: "amd64"}:                "right",
		{OS: "linux", Architecture: "amd64", Variant: "v4"}: "too new",
		{OS: "linux", Architecture: "arm64"}:                "arm",
		{OS: "linux", Architecture: "arm", Variant: "v7"}:   "newer",
		{OS: "linux", Architecture: "arm", Variant: "v5"}:   "old",
	} {
		s := newStore(t, func(c *Config) { c.Platform = platform })
		im := open(t, s, r.host+"/multi:1")
		if got := layertest.Look(t, filepath.Join(im.Layers[0], "text")); !strings.HasSuffix(got, " "+want) {
			t.Errorf("%s got %s, want %s", platform, got, want)
		}
		if im.Digest != hashOf(data).String() {
			t.Errorf("digest %s is not that of the index", im.Digest)
		}
		im.Release()
		unused(t, s)
	}
	s := newStore(t, func(c *Config) { c.Platform.Architecture = "riscv64" })
	refused(t, s, r.host+"/multi:1", muster.FailureUser, muster.ReasonImage, "linux/arm64/v8", "linux/amd64", "riscv64")
}

// Layers that an image has twice are mounted once, the upper one.
func TestSameLayerTwice(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	a, b := gzLayer(t, layertest.Item{Name: "a", Body: "a"}), gzLayer(t, layertest.Item{Name: "b", Body: "b"})
	ref := r.push(t, "twice", "1", build(t, nil, a, b, a))
	s := newStore(t, nil)
	im := open(t, s, ref)
	defer im.Release()
	if len(im.Layers) != 2 || layertest.Look(t, im.Layers[0]+"/a") != "file 644 0:0 a" || layertest.Look(t, im.Layers[1]+"/b") != "file 644 0:0 b" {
		t.Errorf("layers %v", im.Layers)
	}
}

func TestMediaTypesAndCompressions(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	s := newStore(t, nil)
	plain := func(n string) []byte {
		return layertest.TarOf(t, layertest.Item{Name: n, Body: strings.Repeat(n, 100_000)})
	}
	layers := []blob{
		{layertest.Gz(t, plain("1")), types.OCILayer, hashOf(plain("1"))},
		{zst(t, plain("2")), types.OCILayerZStd, hashOf(plain("2"))},
		{plain("3"), types.OCIUncompressedLayer, hashOf(plain("3"))},
		{plain("4"), types.DockerUncompressedLayer, hashOf(plain("4"))},
		{zst(t, plain("5")), types.OCILayer, hashOf(plain("5"))}, // says gzip
	}
	ref := r.push(t, "kinds", "1", build(t, func(_ *v1.ConfigFile, m *v1.Manifest) {
		m.MediaType, m.Config.MediaType = types.OCIManifestSchema1, types.OCIConfigJSON
	}, layers...))
	im := open(t, s, ref)
	defer im.Release()
	for i, dir := range im.Layers {
		name := string(rune('5' - i))
		if got := layertest.Look(t, dir+"/"+name); got != "file 644 0:0 "+strings.Repeat(name, 100_000) {
			t.Errorf("layer %s: %.40s", name, got)
		}
	}
}

// Many at once: each layer is fetched once, and everything is given back.
func TestManyAtOnce(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	refs := []string{r.push(t, "a", "1", simple(t, "one")), r.push(t, "b", "1", simple(t, "two")), r.push(t, "c", "1", simple(t, "one"))}
	s := newStore(t, nil)
	r.forget()
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if i%5 == 4 {
				go cancel()
			}
			im, err := s.Open(ctx, refs[i%3], wire.Puller{}, func(Progress) {})
			if err != nil {
				if !errors.Is(err, context.Canceled) || i%5 != 4 {
					t.Error(err)
				}
				return
			}
			for _, dir := range im.Layers {
				if _, err := os.Stat(dir); err != nil {
					t.Error(err)
				}
			}
			im.Release()
		})
	}
	wg.Wait()
	unused(t, s)
	if t.Failed() {
		return
	}
	for _, ref := range refs {
		open(t, s, ref).Release()
	}
	if n := len(layertest.Names(t, s.LayersDir())); n != 3 {
		t.Errorf("%d layers, want 3", n)
	}
	again(t, s)
}

// Who opens together shares one pull.
func TestSingleFlight(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	refs := []string{r.push(t, "a", "1", simple(t, "one")), r.push(t, "b", "1", simple(t, "one"))}
	started, go_ := make(chan struct{}, 100), make(chan struct{})
	r.meddle(func(_ http.ResponseWriter, req *http.Request) bool {
		if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
			started <- struct{}{}
			<-go_
		}
		return false
	})
	r.forget()
	s := newStore(t, nil)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			im, err := s.Open(context.Background(), refs[i%2], wire.Puller{}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			im.Release()
		})
	}
	<-started // both configurations
	<-started
	close(go_)
	wg.Wait()
	if n := r.asked("GET", "/blobs/"); n != 2+2 {
		t.Errorf("%d blobs were fetched, want two configurations and two layers", n)
	}
	unused(t, s)
}

func TestCancelEndsThePull(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	b := simple(t, "one")
	ref := r.push(t, "a", "1", b)
	stuck := make(chan struct{}, 10)
	r.meddle(func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != http.MethodGet || !strings.Contains(req.URL.Path, "/blobs/") || strings.HasSuffix(req.URL.Path, hashOf(b.config).String()) {
			return false
		}
		_, _ = w.Write([]byte("\x1f\x8b"))
		w.(http.Flusher).Flush()
		stuck <- struct{}{}
		<-req.Context().Done()
		return true
	})
	s := newStore(t, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("not wanted any more")
	go func() {
		<-stuck
		cancel(why)
	}()
	if _, err := s.Open(ctx, ref, wire.Puller{}, nil); err != why {
		t.Errorf("error %v", err)
	}
	unused(t, s)
	r.meddle(nil)
	open(t, s, ref).Release()
}
