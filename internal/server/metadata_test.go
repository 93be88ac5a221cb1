package server

import (
	"slices"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/state"
)

// served is a provider whose instances have a metadata service.
type served struct {
	cloud.Provider
	kind string
}

func (s served) Metadata() string { return s.kind }

// An agent asks the metadata service only where its provider has one, so it must be told; the
// wrappers around the provider must not hide that.
func TestAgentIsToldOfItsMetadataService(t *testing.T) {
	plain := fake.New(fake.Config{}).Owner("o")
	s := &Server{}
	asks := func(name muster.ProviderName) []string {
		return s.metadataArgs(&state.Node{Offering: muster.Offering{Provider: name}})
	}
	if got := asks("aws"); got != nil {
		t.Errorf("before there are providers: %q", got)
	}
	wrapped := cloud.NewCounted(cloud.NewLimited(served{plain, "ec2"}, cloud.Rates{Create: cloud.Rate{PerSecond: 1}}))
	s.stats.now.Store(&loops{providers: providers{"aws": wrapped, "plain": cloud.NewCounted(plain)}})
	for name, want := range map[muster.ProviderName][]string{"aws": {"--metadata", "ec2"}, "plain": nil, "removed": nil} {
		if got := asks(name); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
