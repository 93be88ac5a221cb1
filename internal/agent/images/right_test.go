package images

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/layertest"
	"github.com/musterhq/muster/internal/agent/images/source"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// The namespaces of these tests. web may pull what begins with web/ and with shared/, ml only the
// latter; nobody has neither, and has no credentials.
var (
	web    = wire.Puller{Namespace: "web", Scope: "of web"}
	ml     = wire.Puller{Namespace: "ml", Scope: "of ml"}
	nobody = wire.Puller{Namespace: "nobody", Scope: muster.PublicScope}
)

// mayPull is how the registry of these tests decides.
func mayPull(authorization, repo string) bool {
	switch repo, _, _ = strings.Cut(repo, "/"); repo {
	case "public":
		return true
	case "shared":
		return authorization == "Bearer web" || authorization == "Bearer ml"
	default:
		return authorization == "Bearer "+repo
	}
}

// fileLayer is a layer with one file.
func fileLayer(t *testing.T, name, body string) blob {
	t.Helper()
	return gzLayer(t, layertest.Item{Name: name, Body: body})
}

// divided is a registry that shows namespaces different images, and a store of a node.
type divided struct {
	*reg
	*Store
	// without is the digest of a blob that the repository public/copy has not.
	without string
}

func newDivided(t *testing.T) *divided {
	t.Helper()
	r := newReg(t)
	s := newStore(t, func(c *Config) {
		c.Grant = func(_ context.Context, _ string, ns muster.Namespace) (source.Grant, error) {
			g := source.Grant{Insecure: true, Until: time.Now().Add(time.Hour)}
			switch ns {
			case "web":
				g.Authorization, g.Scope = "Bearer web", web.Scope
			case "ml":
				g.Authorization, g.Scope = "Bearer ml", ml.Scope
			case "nobody":
				g.Scope = nobody.Scope
			}
			return g, nil
		}
		c.Fresh = time.Hour
	})
	return &divided{reg: r, Store: s}
}

// guard makes the registry ask for credentials. Images are pushed before.
func (d *divided) guard() {
	d.meddle(func(w http.ResponseWriter, req *http.Request) bool {
		repo := strings.TrimPrefix(req.URL.Path, "/v2/")
		// The stand-in has the blobs of all repositories in one place; a registry has not.
		if strings.HasPrefix(repo, "public/copy/blobs/") && strings.HasSuffix(repo, d.without) {
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		if repo == "" || mayPull(req.Header.Get("Authorization"), repo) {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	d.forget()
}

func (d *divided) get(t *testing.T, by wire.Puller, ref string) error {
	t.Helper()
	im, err := d.Open(t.Context(), ref, by, nil)
	if err == nil {
		im.Release()
	}
	return err
}

// want opens an image, and checks whether that succeeds and what is fetched for it.
func (d *divided) want(t *testing.T, by wire.Puller, ref string, ok bool, heads, layers int) {
	t.Helper()
	d.forget()
	err := d.get(t, by, ref)
	if (err == nil) != ok {
		t.Errorf("%s pulls %s: %v; want success %v", by.Namespace, ref, err, ok)
	}
	if !ok && !isNotFound(err) {
		t.Errorf("%s pulls %s: %v; want that it is not found", by.Namespace, ref, err)
	}
	if got := d.asked("HEAD", "/manifests/"); got != heads {
		t.Errorf("%s pulls %s: %d times HEAD, want %d", by.Namespace, ref, got, heads)
	}
	if got := d.asked("GET", "/blobs/"); got != layers {
		t.Errorf("%s pulls %s: %d blobs, want %d", by.Namespace, ref, got, layers)
	}
	clean(t, d.Store)
}

func isNotFound(err error) bool {
	f, ok := err.(*muster.Failure) //nolint:errorlint // that is what Open promises
	return ok && f.Reason == muster.ReasonImageNotFound
}

// An image that one namespace has pulled is used in another one only after the registry has shown it
// to the credentials of that: by its tag, by its digest, and after a restart of the agent.
func TestImagesAreNotSharedWithoutRight(t *testing.T) {
	d := newDivided(t)
	image := build(t, nil, fileLayer(t, "secret", "of web"), fileLayer(t, "b", "2"))
	tag := d.push(t, "web/app", "1", image)
	digest := d.host + "/web/app@" + image.digest.String()
	sharedTag := d.push(t, "shared/app", "1", build(t, nil, fileLayer(t, "c", "3")))
	publicTag := d.push(t, "public/app", "1", build(t, nil, fileLayer(t, "d", "4")))
	d.guard()
	d.want(t, web, tag, true, 0, 3)
	d.want(t, web, sharedTag, true, 0, 2)
	d.want(t, nobody, publicTag, true, 0, 2)
	for range 2 {
		for _, by := range []wire.Puller{ml, nobody, {}} {
			d.want(t, by, tag, false, 1, 0)
		}
		// The agent that is new knows what the old one has learned.
		d.Store = again(t, d.Store)
	}
	d.want(t, web, digest, true, 0, 0)
	for range 2 {
		d.want(t, ml, digest, false, 1, 0)
		d.want(t, web, tag, true, 0, 0)
		d.want(t, web, digest, true, 0, 0)
		d.Store = again(t, d.Store)
	}
	// What a namespace may have it gets without a byte of a layer, and asks for it once.
	d.want(t, ml, sharedTag, true, 1, 0)
	d.want(t, web, publicTag, true, 0, 0)
	for range 2 {
		d.want(t, ml, sharedTag, true, 0, 0)
		d.want(t, nobody, sharedTag, false, 1, 0)
		d.Store = again(t, d.Store)
	}
	unused(t, d.Store)
}

// While the registry is out of order an image is used by those who had it, and by no others.
func TestNoRightWithoutRegistry(t *testing.T) {
	d := newDivided(t)
	tag := d.push(t, "shared/app", "1", build(t, nil, fileLayer(t, "a", "1")))
	d.guard()
	d.want(t, web, tag, true, 0, 2)
	d.meddle(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	if err := d.get(t, web, tag); err != nil {
		t.Error(err)
	}
	im, err := d.Pull(t.Context(), tag, web, nil)
	if err != nil {
		t.Fatal(err)
	}
	im.Release()
	if err := d.get(t, ml, tag); err == nil || isNotFound(err) {
		t.Errorf("%v; want that the registry is out of order", err)
	}
	d.guard()
	d.want(t, ml, tag, true, 1, 0)
}

// Somebody who knows the manifest of a private image, or the digests of its layers, gets nothing of
// it by naming it in a repository of his own.
func TestLayersAreNotSharedByTheirNames(t *testing.T) {
	d := newDivided(t)
	secret := fileLayer(t, "secret", "of web")
	image := build(t, nil, secret)
	tag := d.push(t, "web/app", "1", image)
	// The layers of this one say that they are the secret, and are not.
	fake := fileLayer(t, "nothing", "")
	forged := build(t, nil, blob{fake.data, fake.mediaType, secret.diff})
	forgedTag := d.push(t, "public/forged", "1", forged)
	// This repository has the manifest and the configuration, and not the layer.
	d.put(t, "public/copy/blobs/uploads/?digest="+hashOf(image.config).String(), "application/octet-stream", image.config)
	d.put(t, "public/copy/manifests/1", string(image.mediaType), image.manifest)
	copied := d.host + "/public/copy:1"
	d.without = hashOf(secret.data).String()
	d.guard()
	d.want(t, web, tag, true, 0, 2)
	for range 2 {
		for _, ref := range []string{copied, forgedTag, d.host + "/public/copy@" + image.digest.String()} {
			for _, by := range []wire.Puller{ml, nobody, {}} {
				if err := d.get(t, by, ref); err == nil {
					t.Errorf("%s has the layers of web by %s", by.Namespace, ref)
				}
			}
			// The owner has them, and that gives them to nobody.
			if err := d.get(t, web, ref); err != nil && ref != forgedTag {
				t.Errorf("%s: %v", ref, err)
			}
		}
		d.Store = again(t, d.Store)
	}
	unused(t, d.Store)
}

// Who has the same layers in a repository of his own fetches them once, and the node has one copy.
func TestSameLayersOfTwoScopes(t *testing.T) {
	d := newDivided(t)
	base := fileLayer(t, "base", "x")
	one := d.push(t, "web/app", "1", build(t, nil, base, fileLayer(t, "one", "1")))
	two := d.push(t, "ml/app", "1", build(t, nil, base, fileLayer(t, "two", "2")))
	three := d.push(t, "ml/other", "1", build(t, nil, base))
	d.guard()
	d.want(t, web, one, true, 0, 3)
	d.want(t, ml, two, true, 0, 3)
	for range 2 {
		d.layersAre(t, 3)
		d.want(t, web, one, true, 0, 0)
		d.want(t, ml, two, true, 0, 0)
		d.Store = again(t, d.Store)
	}
	// The base is now for both: only the configuration is fetched.
	d.want(t, ml, three, true, 0, 1)
	unused(t, d.Store)
}

// layersAre checks how many layers there are.
func (d *divided) layersAre(t *testing.T, want int) {
	t.Helper()
	d.Store.mu.Lock()
	defer d.Store.mu.Unlock()
	if len(d.layers) != want {
		t.Errorf("%d layers, want %d", len(d.layers), want)
	}
}

// Caches of agents that knew no namespaces are for those who have the credentials that all have.
func TestImagesOfAnOldAgent(t *testing.T) {
	d := newDivided(t)
	d.guard()
	image := build(t, nil, fileLayer(t, "a", "1"))
	d.meddle(nil)
	tag := d.push(t, "web/app", "1", image)
	// It had a credential for all, and noted no rights.
	d.Grant = func(context.Context, string, muster.Namespace) (source.Grant, error) {
		return source.Grant{Insecure: true, Authorization: "Bearer web", Until: time.Now().Add(time.Hour)}, nil
	}
	grant := newDivided(t).Grant
	d.guard()
	d.want(t, wire.Puller{}, tag, true, 0, 2)
	d.Store.mu.Lock()
	im := d.images[imageKey{image.digest.String(), 0}]
	record := im.record
	d.Store.mu.Unlock()
	if err := d.writeRecord(d.path(imagesDir, imageName(record)), record); err != nil {
		t.Fatal(err)
	}
	d.Store = again(t, d.Store)
	d.want(t, wire.Puller{}, tag, true, 0, 0)
	d.Grant = grant
	d.Store = again(t, d.Store)
	d.want(t, ml, tag, false, 1, 0)
	d.want(t, nobody, tag, false, 1, 0)
	// The layers are fetched once more by those who may have the image.
	d.want(t, web, tag, true, 1, 2)
	d.want(t, web, tag, true, 0, 0)
	d.want(t, ml, tag, false, 1, 0)
}

// Pulls by several namespaces at the same time give nobody what is not his.
func TestRightsUnderConcurrency(t *testing.T) {
	d := newDivided(t)
	shared := fileLayer(t, "base", strings.Repeat("x", 1<<16))
	refs := map[string]string{
		"web":    d.push(t, "web/app", "1", build(t, nil, shared, fileLayer(t, "w", "1"))),
		"ml":     d.push(t, "ml/app", "1", build(t, nil, shared, fileLayer(t, "m", "1"))),
		"shared": d.push(t, "shared/app", "1", build(t, nil, shared, fileLayer(t, "s", "1"))),
		"public": d.push(t, "public/app", "1", build(t, nil, shared, fileLayer(t, "p", "1"))),
	}
	d.guard()
	var wg sync.WaitGroup
	for range 4 {
		for repo, ref := range refs {
			for _, by := range []wire.Puller{web, ml, nobody} {
				wg.Go(func() {
					for range 5 {
						err := d.get(t, by, ref)
						if may := mayPull("Bearer "+string(by.Namespace), repo+"/"); (err == nil) != may {
							t.Errorf("%s pulls %s: %v", by.Namespace, ref, err)
						}
					}
				})
			}
		}
	}
	wg.Wait()
	d.layersAre(t, 5)
	unused(t, d.Store)
}
