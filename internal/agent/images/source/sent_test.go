package source

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/destinations"
	"github.com/musterhq/muster/internal/agent/images/failure"
)

type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

// While the server sends nothing, it is asked now and then whether it still will: it may have been
// started again, or be unable to get the blob.
func TestServerIsAskedWhetherItStillSends(t *testing.T) {
	digest, _, err := v1.SHA256(bytes.NewReader([]byte("layer")))
	if err != nil {
		t.Fatal(err)
	}
	ref, err := Parse("registry.example.org/team/app:1")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		// grants are the answers of the server; the last is repeated. A zero one is a failure.
		grants []Grant
		// after is when the blob comes; 0: never.
		after time.Duration
		asked int
		// took is how long the answer takes. blob: it has the blob; else the registry is to be asked,
		// or it is the failure.
		took   time.Duration
		blob   bool
		failed bool
	}{
		"it sends":           {[]Grant{{Digest: digest}}, time.Second, 1, time.Second, true, false},
		"it sends late":      {[]Grant{{Digest: digest}}, 95 * time.Second, 10, 95 * time.Second, true, false},
		"it goes back on it": {[]Grant{{Digest: digest}, {Digest: digest}, {Insecure: true}}, 0, 3, 20 * time.Second, false, false},
		"it cannot have it":  {[]Grant{{Digest: digest}, {}}, 0, 2, 10 * time.Second, false, true},
		"it never wanted to": {[]Grant{{Insecure: true}}, 0, 1, 0, false, false},
		"its grant is over":  {[]Grant{{Digest: digest, Until: time.Unix(1, 0)}}, time.Second, 1, time.Second, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, gone := 0, 0
				grant := func(context.Context, string) (Grant, error) {
					g := c.grants[min(asked, len(c.grants)-1)]
					asked++
					if g == (Grant{}) {
						return g, failure.Outside("the server's cache cannot have it")
					}
					return g, nil
				}
				sent := func(ctx context.Context, _ string) (io.ReadSeekCloser, error) {
					var due <-chan time.Time
					if c.after > 0 {
						due = time.After(c.after)
					}
					select {
					case <-due:
						return memory{bytes.NewReader([]byte("layer"))}, nil
					case <-ctx.Done():
						gone++
						return nil, ctx.Err()
					}
				}
				rt := trip(func(*http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody}, nil
				})
				began := time.Now()
				blob, err := NewRegistry(ref, grant, sent, rt, destinations.Allowed{}).fromServer(t.Context(), digest)
				if (blob != nil) != c.blob || failure.Is(err, muster.FailureOutside) != c.failed || time.Since(began) != c.took || asked != c.asked {
					t.Errorf("%v %v after %s, the server was asked %d times", blob, err, time.Since(began), asked)
				}
				if waited := asked > 0 && c.grants[0].Digest != (v1.Hash{}); waited && !c.blob && gone != 1 {
					t.Errorf("%d waits were given up", gone)
				}
			})
		})
	}
}

// A wait for the server ends with its context.
func TestWaitForTheServerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ref, err := Parse("registry.example.org/team/app:1")
		if err != nil {
			t.Fatal(err)
		}
		var digest v1.Hash
		digest.Algorithm, digest.Hex = "sha256", "00"
		grant := func(context.Context, string) (Grant, error) { return Grant{Digest: digest}, nil }
		sent := func(ctx context.Context, _ string) (io.ReadSeekCloser, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := NewRegistry(ref, grant, sent, nil, destinations.Allowed{}).fromServer(ctx, digest); err != context.DeadlineExceeded {
			t.Errorf("%v", err)
		}
	})
}

func TestParts(t *testing.T) {
	index := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:` + zeros + `","size":5}]}`)
	image := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:` + zeros + `","size":7},` +
		`"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:` + zeros + `","size":9}]}`)
	for _, c := range []struct {
		data      []byte
		sizes     []int64
		documents int
	}{{index, []int64{5}, 1}, {image, []int64{7, 9}, 0}} {
		doc, err := newDocument(c.data, "", v1.Hash{})
		if err != nil {
			t.Fatal(err)
		}
		parts, err := doc.Parts()
		if err != nil || len(parts) != len(c.sizes) {
			t.Fatalf("%v %v", parts, err)
		}
		documents := 0
		for i, p := range parts {
			if p.Size != c.sizes[i] {
				t.Errorf("%+v", p)
			}
			if IsDocument(p) {
				documents++
			}
		}
		if documents != c.documents {
			t.Errorf("%d of %v are documents", documents, parts)
		}
	}
}

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"
