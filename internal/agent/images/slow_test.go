package images

import (
	"context"
	wire "github.com/musterhq/muster/internal/wire/agent"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/failure"
)

// trickle is an answer that brings one byte in a while; it ends with its request.
type trickle struct{ ctx context.Context }

func (d trickle) Read(p []byte) (int, error) {
	select {
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	case <-time.After(50 * time.Second):
		return min(1, len(p)), nil
	}
}

func (trickle) Close() error { return nil }

// What is no layer must come at a least rate as well.
func TestSlowManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := tripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: trickle{req.Context()}, Request: req}, nil
		})
		s := newStore(t, func(c *Config) { c.HTTP = rt })
		began := time.Now()
		if _, err := s.Open(t.Context(), "registry.example/x:1", wire.Puller{}, nil); !failure.Is(err, muster.FailureOutside) || time.Since(began) > time.Hour {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}
