package images

import (
	"context"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/layertest"
	"github.com/musterhq/muster/internal/agent/images/source"
)

// An image that is in the server's cache comes from there, and its registry is asked for nothing.
// When the server says no more that it has it, it comes from the registry.
func TestFromTheServersCache(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	b := ociBuild(t, "one")
	ref := r.push(t, "team/web", "1", b)
	r.forget()
	asked, cached := 0, true
	s := newStore(t, func(c *Config) {
		sends(&asked, b)(c)
		c.Grant = func(context.Context, string, muster.Namespace) (source.Grant, error) {
			g := source.Grant{Insecure: true, Until: time.Now()}
			if cached {
				g.Digest = b.digest
			}
			return g, nil
		}
	})
	im := open(t, s, ref)
	if textOf(t, im) != "one" || im.Digest != b.digest.String() || im.Ref != ref || asked != 3 || r.asked("GET", "") != 0 {
		t.Errorf("%q of %s, the server sent %d blobs and the registry was asked %d times", textOf(t, im), im.Digest, asked, r.asked("GET", ""))
	}
	im.Release()
	// What is here is not sent again; the server tells what the tag means.
	open(t, s, ref).Release()
	if asked != 3 || r.asked("HEAD", "")+r.asked("GET", "") != 0 {
		t.Errorf("%d blobs were sent", asked)
	}
	cached = false
	open(t, s, ref).Release()
	if _, err := s.Prune(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	im = open(t, s, ref)
	if textOf(t, im) != "one" || asked != 3 || r.asked("GET", "/blobs/") != 2 {
		t.Errorf("%q, the server sent %d blobs", textOf(t, im), asked)
	}
	im.Release()
	unused(t, s)
}

// A digest that the server names wrong is never used for the image.
func TestServersCacheHasAnotherImage(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	one, two := ociBuild(t, "one"), ociBuild(t, "two")
	r.push(t, "team/web", "1", one)
	asked := 0
	s := newStore(t, func(c *Config) {
		sends(&asked, two)(c)
		c.Grant = func(context.Context, string, muster.Namespace) (source.Grant, error) {
			return source.Grant{Insecure: true, Digest: two.digest}, nil
		}
	})
	refused(t, s, r.host+"/team/web@"+one.digest.String(), muster.FailureOutside, muster.ReasonImage, two.digest.String())
}
