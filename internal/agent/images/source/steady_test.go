package source

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/destinations"
	"github.com/musterhq/muster/internal/agent/images/failure"
)

// drip is an answer that brings a piece at a time; it ends with its request.
type drip struct {
	ctx   context.Context
	every time.Duration
	piece int
}

func (d drip) Read(p []byte) (int, error) {
	select {
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	case <-time.After(d.every):
		return min(d.piece, len(p)), nil
	}
}

func (drip) Close() error { return nil }

// trip is a transport that is a function.
type trip func(*http.Request) (*http.Response, error)

func (f trip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// A registry must send, and at a least rate; what it sends slowly is not held for hours.
func TestSlowRegistry(t *testing.T) {
	nothing, _, err := v1.SHA256(strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		every time.Duration
		piece int
		size  int64
		ok    bool
		most  time.Duration
	}{
		"an byte now and then":     {50 * time.Second, 1, 1000, false, 30 * time.Minute},
		"silent":                   {2 * time.Hour, 1, 1000, false, 10 * time.Minute},
		"below the rate":           {time.Second, leastRate / 100, 1 << 20, false, 30 * time.Minute},
		"slow":                     {time.Second, leastRate / 50, 2 << 20, true, time.Hour},
		"bursts":                   {25 * time.Second, leastRate, 10 << 20, true, 4 * time.Hour},
		"little, in its first two": {50 * time.Second, 1, 2, true, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := trip(func(req *http.Request) (*http.Response, error) {
					resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: req}
					if req.URL.Path == "/v2/x/blobs/sha256:"+nothing.Hex {
						resp.Body = drip{req.Context(), c.every, c.piece}
						if from := req.Header.Get("Range"); from != "" {
							resp.StatusCode = http.StatusPartialContent
							resp.Header.Set("Content-Range", "bytes "+from[len("bytes="):])
						}
					}
					return resp, nil
				})
				ref, err := Parse("registry.example/x:1")
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				src := NewRegistry(ref, nil, nil, rt, destinations.Allowed{})
				tr := NewTransfer(t.Context(), src, Layer{Descriptor: v1.Descriptor{Size: c.size, Digest: nothing}}, &Gauge{}, slog.New(slog.DiscardHandler), FirstPause)
				n, err := io.Copy(writeOnly{io.Discard}, readOnly{tr}) // in large pieces
				tr.Close()
				if took := time.Since(began); took > c.most {
					t.Errorf("it took %v", took)
				}
				if c.ok && (err != nil || n != c.size) || !c.ok && !failure.Is(err, muster.FailureOutside) {
					t.Errorf("%d bytes, %v", n, err)
				}
				if !c.ok {
					t.Log(err)
				}
			})
		})
	}
}
