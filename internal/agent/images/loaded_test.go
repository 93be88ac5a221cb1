package images

import (
	"bytes"
	"context"
	wire "github.com/musterhq/muster/internal/wire/agent"
	"io"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/failure"
)

type sent struct{ *bytes.Reader }

func (sent) Close() error { return nil }

// sends is a server that has some images loaded. asked counts what it sends.
func sends(asked *int, images ...built) func(*Config) {
	return func(c *Config) {
		c.Loaded = func(_ context.Context, digest string) (io.ReadSeekCloser, error) {
			*asked++
			for _, b := range images {
				for _, data := range append([][]byte{b.manifest, b.config}, b.blobs[0].data) {
					if hashOf(data).String() == digest {
						return sent{bytes.NewReader(data)}, nil
					}
				}
			}
			return nil, failure.Outside("the server has no %s", digest)
		}
	}
}

// An image that was loaded on the server is used as long as the server says so, and never for what
// a registry has under its name. What is here is not sent again.
func TestLoadedOnTheServer(t *testing.T) {
	one, two := ociBuild(t, "one"), ociBuild(t, "two")
	asked := 0
	s := newStore(t, sends(&asked, one, two))
	const name = "127.0.0.1:1/team/web:1"
	ref := func(b built) string { return muster.LoadedImage + name + "@" + b.digest.String() }
	im := open(t, s, ref(one))
	if textOf(t, im) != "one" || im.Digest != one.digest.String() || asked != 3 {
		t.Errorf("%q of %s, %d blobs were sent", textOf(t, im), im.Digest, asked)
	}
	im.Release()
	s = again(t, s)
	im = open(t, s, ref(one))
	if textOf(t, im) != "one" || asked != 3 {
		t.Errorf("%q, %d blobs were sent", textOf(t, im), asked)
	}
	im.Release()
	// Another version under the same name is another image, at once.
	im = open(t, s, ref(two))
	if textOf(t, im) != "two" {
		t.Errorf("%q", textOf(t, im))
	}
	im.Release()
	for _, info := range s.List() {
		if info.Digest == two.digest.String() && (len(info.Refs) != 1 || info.Refs[0] != name) {
			t.Errorf("it is listed as %v", info.Refs)
		}
	}
	// The registry of that name does not answer, and what was loaded is not taken for its image.
	if _, err := s.Open(t.Context(), name, wire.Puller{}, nil); !failure.Is(err, muster.FailureOutside) {
		t.Errorf("%v", err)
	}
}

func TestLoadedCannotBeHad(t *testing.T) {
	one := ociBuild(t, "one")
	asked := 0
	s := newStore(t, sends(&asked))
	_, err := s.Open(t.Context(), muster.LoadedImage+"docker.io/library/web:1@"+one.digest.String(), wire.Puller{}, nil)
	if !failure.Is(err, muster.FailureOutside) || !strings.HasPrefix(err.Error(), "image docker.io/library/web:1: ") {
		t.Errorf("%v", err)
	}
	for _, ref := range []string{"loaded:", "loaded:web:1", "loaded:web:1@sha256:1", "loaded:@" + one.digest.String(), "loaded:web@" + one.digest.String() + "@" + one.digest.String()} {
		if _, err := s.Open(t.Context(), ref, wire.Puller{}, nil); !failure.Is(err, muster.FailureUser) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if _, err := newStore(t, nil).Open(t.Context(), muster.LoadedImage+"web:1@"+one.digest.String(), wire.Puller{}, nil); !failure.Is(err, muster.FailureNode) {
		t.Errorf("without a way to the server: %v", err)
	}
}
