package source

import (
	"bytes"
	"context"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster/internal/agent/images/failure"
)

// mostPlatforms bounds the platforms of one image: an index may name any number.
const mostPlatforms = 64

// Platforms are those for which a document is an image or has images, each once; none if it does not
// say. Of an index only its own words count: what its entries say of themselves is not fetched.
func (r Resolver) Platforms(ctx context.Context, src Source, doc Document) ([]Platform, error) {
	if doc.mediaType.IsIndex() {
		m, err := v1.ParseIndexManifest(bytes.NewReader(doc.Data))
		if err != nil {
			return nil, failure.Unusable("its index cannot be read: %s", failure.Bounded(err.Error()))
		}
		var out []Platform
		for _, d := range m.Manifests {
			switch {
			case isAttestation(d) || !d.MediaType.IsImage() && !d.MediaType.IsIndex():
			case d.Platform == nil || len(out) >= mostPlatforms:
				return nil, nil // it may be for any
			case !slices.Contains(out, platformOf(*d.Platform)):
				out = append(out, platformOf(*d.Platform))
			}
		}
		return out, nil
	}
	config, err := r.configOf(ctx, src, doc)
	if err != nil {
		return nil, err
	}
	c, err := v1.ParseConfigFile(bytes.NewReader(config.Data))
	if err != nil {
		return nil, failure.Unusable("its configuration cannot be read: %s", failure.Bounded(err.Error()))
	}
	if c.OS == "" || c.Architecture == "" {
		return nil, nil
	}
	return []Platform{{OS: c.OS, Architecture: c.Architecture, Variant: c.Variant}}, nil
}
