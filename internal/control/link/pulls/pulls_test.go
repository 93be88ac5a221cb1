package pulls

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func TestAskedUntilDone(t *testing.T) {
	b := New()
	one, two := b.Ask("a"), b.Ask("a")
	one()
	if got := b.Asked(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("%v", got)
	}
	two()
	if got := b.Asked(); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// The authorization of an image that the server sends is not the node's: it uses none.
func TestAuthorization(t *testing.T) {
	b := New()
	now := muster.At(time.Unix(1000, 0))
	b.Granted(wire.PullGrant{Ref: "a", Authorization: "Bearer a"}, now)
	if got := b.Authorization("a"); got != "Bearer a" {
		t.Errorf("%q", got)
	}
	b.Granted(wire.PullGrant{Ref: "a", Authorization: "Bearer b", Digest: "sha256:1"}, now)
	if got := b.Authorization("a"); got != "" {
		t.Errorf("%q", got)
	}
}

// Both versions of an image that moves may be sent, for a while.
func TestCached(t *testing.T) {
	b := New()
	now := muster.At(time.Unix(1000, 0))
	b.Granted(wire.PullGrant{Ref: "a", Digest: "sha256:1"}, now)
	later := now.Add(cachedFor)
	b.Granted(wire.PullGrant{Ref: "a", Digest: "sha256:2"}, later)
	if got := b.Cached(later); len(got) != 2 {
		t.Errorf("%v", got)
	}
	if got := b.Cached(later.Add(time.Second)); !slices.Equal(got, []Cached{{Ref: "a", Digest: "sha256:2"}}) {
		t.Errorf("%v", got)
	}
}

func TestRecordIsBounded(t *testing.T) {
	b := New()
	now := muster.At(time.Unix(1000, 0))
	for i := range 2 * maxGrants {
		b.Granted(wire.PullGrant{Ref: fmt.Sprint("a", i), Authorization: "x", Until: now.Add(time.Minute)}, now)
		b.Granted(wire.PullGrant{Ref: fmt.Sprint("b", i), Digest: "sha256:1"}, now)
	}
	if len(b.grants) != maxGrants || len(b.cached) != maxGrants {
		t.Errorf("%d and %d are kept", len(b.grants), len(b.cached))
	}
	// What has expired makes room.
	later := now.Add(2 * cachedFor)
	b.Granted(wire.PullGrant{Ref: "new", Authorization: "x", Until: later.Add(time.Minute)}, later)
	b.Granted(wire.PullGrant{Ref: "newer", Digest: "sha256:1"}, later)
	if len(b.grants) != 1 || len(b.cached) != 1 {
		t.Errorf("%d and %d are kept", len(b.grants), len(b.cached))
	}
}
