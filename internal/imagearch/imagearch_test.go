package imagearch

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/imagetest"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// grants are those of a server that has one registry in its configuration.
type grants struct{ host string }

func (g grants) Known(ref string, _ muster.Namespace) bool { return strings.HasPrefix(ref, g.host+"/") }

func (g grants) Grant(_ context.Context, ref string, _ muster.Namespace) wire.PullGrant {
	if strings.Contains(ref, "refused") {
		return wire.PullGrant{Ref: ref, Failure: &muster.Failure{Class: muster.FailureOutside, Message: "no login"}}
	}
	return wire.PullGrant{Ref: ref, Insecure: true}
}

// built is an image for an architecture.
func built(t *testing.T, arch string) v1.Image {
	t.Helper()
	image := imagetest.New(t, v1.Config{}, imagetest.Layer(t, imagetest.File("a", arch, 0o644)))
	c, err := image.ConfigFile()
	if err == nil {
		c = c.DeepCopy()
		c.Architecture = arch
		image, err = mutate.ConfigFile(image, c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// index is an index of images for platforms, as linux/arm64.
func index(t *testing.T, platforms ...string) v1.ImageIndex {
	t.Helper()
	out := v1.ImageIndex(empty.Index)
	for _, p := range platforms {
		platform, err := v1.ParsePlatform(p)
		if err != nil {
			t.Fatal(err)
		}
		out = mutate.AppendManifests(out, mutate.IndexAddendum{Add: built(t, platform.Architecture), Descriptor: v1.Descriptor{Platform: platform}})
	}
	return out
}

func TestArchitectures(t *testing.T) {
	reg := imagetest.NewRegistry(t, imagetest.Anonymous)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f, err := New(Config{Grants: grants{reg.Host}, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	for want, ref := range map[string]string{
		"amd64":       reg.Push(t, "one:1", built(t, "amd64")),
		"arm64":       reg.Push(t, "arm:1", built(t, "arm64")),
		"amd64 arm64": reg.Push(t, "both:1", index(t, "linux/arm64", "linux/amd64", "linux/arm64/v9", "windows/amd64", "unknown/unknown")),
		"riscv64":     reg.Push(t, "other:1", index(t, "linux/riscv64", "windows/arm64")),
	} {
		for range 2 {
			if got := strings.Join(f.Architectures(t.Context(), "default", ref), " "); got != want {
				t.Errorf("%s: %q", ref, got)
			}
		}
	}
	// What is remembered is not asked for again until it is old.
	served := len(reg.Served())
	f.Architectures(t.Context(), "default", reg.Host+"/one:1")
	if len(reg.Served()) != served {
		t.Errorf("asked again: %v", reg.Served()[served:])
	}
	reg.Push(t, "one:1", built(t, "arm64"))
	now = now.Add(fresh)
	if got := f.Architectures(t.Context(), "default", reg.Host+"/one:1"); !slices.Equal(got, []string{"arm64"}) {
		t.Errorf("%v", got)
	}
	// Nobody is asked for what is of no registry of the configuration.
	served = len(reg.Served())
	for _, ref := range []string{"localhost:1/x:1", "python:3", "oci-layout:/x", "Not An Image", "", reg.Host + "/refused:1", reg.Host + "/missing:1"} {
		if got := f.Architectures(t.Context(), "default", ref); got != nil {
			t.Errorf("%s: %v", ref, got)
		}
	}
	if more := len(reg.Served()) - served; more > 4 {
		t.Errorf("%v", reg.Served()[served:])
	}
}

// A registry that is out of order is waited for once by all, and asked again after a while.
func TestARegistryThatIsAway(t *testing.T) {
	reg := imagetest.NewRegistry(t, imagetest.Anonymous)
	ref := reg.Push(t, "one:1", built(t, "amd64"))
	reg.Strike(imagetest.Fault{Times: -1, Status: http.StatusNotFound})
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f, err := New(Config{Grants: grants{reg.Host}, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if got := f.Architectures(t.Context(), "default", ref); got != nil {
				t.Errorf("%v", got)
			}
		})
	}
	all.Wait()
	reg.Heal()
	if got := f.Architectures(t.Context(), "default", ref); got != nil {
		t.Errorf("asked again at once: %v", got)
	}
	now = now.Add(unknownFor)
	if got := f.Architectures(t.Context(), "default", ref); !slices.Equal(got, []string{"amd64"}) {
		t.Errorf("%v", got)
	}
	// Who leaves gets no answer, and takes it from nobody.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	now = now.Add(fresh)
	f.Architectures(gone, "default", ref)
	if got := f.Architectures(t.Context(), "default", ref); !slices.Equal(got, []string{"amd64"}) {
		t.Errorf("%v", got)
	}
}
