package server

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/imagearch"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// asked counts who asks for the right to read an image, and gives none.
type asked struct{ refs []string }

func (a *asked) Known(string, muster.Namespace) bool { return true }

func (a *asked) Grant(_ context.Context, ref string, _ muster.Namespace) wire.PullGrant {
	a.refs = append(a.refs, ref)
	return wire.PullGrant{Ref: ref, Failure: &muster.Failure{Class: muster.FailureOutside, Message: "no"}}
}

// Nobody asks for architectures where all machines have the same one. A loaded image is known, and only
// others are asked for.
func TestArchitecturesAreAskedForWhereTheyMatter(t *testing.T) {
	s, err := state.New(16)
	if err != nil {
		t.Fatal(err)
	}
	index := uint64(0)
	do := func(f state.Fact) {
		t.Helper()
		data, err := s.Encode(f)
		if err != nil {
			t.Fatal(err)
		}
		index++
		if err, failed := s.Apply(index, 1, int64(index), [][]byte{data})[0].(error); failed {
			t.Fatal(err)
		}
	}
	offer := func(arch string) muster.Offering {
		return muster.Offering{Provider: muster.ProviderName("p" + arch), Name: "o", Market: muster.OnDemand, Attributes: map[string]string{"arch": arch}}
	}
	digest := "sha256:" + strings.Repeat("a", 64)
	do(&state.FormatRaised{Format: state.FormatNewest})
	do(&state.ImageLoaded{Image: state.LoadedImage{Name: "docker.io/library/web:1", Digest: digest, Blobs: []state.LoadedBlob{{Digest: digest}}, Platforms: []string{"linux/arm64/v8", "linux/amd64", "linux/arm64"}}})
	do(&state.OfferingsSeen{Provider: "pamd64", Offerings: []muster.Offering{offer("amd64")}})
	grants := &asked{}
	open := func() *architectures {
		t.Helper()
		finder, err := imagearch.New(imagearch.Config{Grants: grants})
		if err != nil {
			t.Fatal(err)
		}
		return &architectures{finder: finder, state: s}
	}
	a := open()
	if got := append(a.of(t.Context(), "default", "web:1"), a.of(t.Context(), "default", "other:1")...); got != nil || len(grants.refs) > 0 {
		t.Errorf("with one architecture: %v, asked %v", got, grants.refs)
	}
	do(&state.OfferingsSeen{Provider: "parm64", Offerings: []muster.Offering{offer("arm64")}})
	a = open()
	if got := a.of(t.Context(), "default", "web:1"); !slices.Equal(got, []string{"amd64", "arm64"}) || len(grants.refs) > 0 {
		t.Errorf("of a loaded image: %v, asked %v", got, grants.refs)
	}
	if got := a.of(t.Context(), "default", "other:1"); got != nil || !slices.Equal(grants.refs, []string{"docker.io/library/other:1"}) {
		t.Errorf("of another: %v, asked %v", got, grants.refs)
	}
	if got := architecturesOf(&state.LoadedImage{Platforms: []string{"linux/amd64", ""}}); got != nil {
		t.Errorf("of one that does not say: %v", got)
	}
}
