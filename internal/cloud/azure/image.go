package azure

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

const defaultImage = "debian-12"

// image is what machines start from: a resource, or an image of the marketplace.
type image struct {
	// id is the resource id; empty: the rest counts.
	id                        string
	publisher, offer, version string
	// sku is that of each architecture.
	sku map[string]string
}

// aliases are images that have cloud-init, for both architectures.
var aliases = map[string]image{
	"debian-12":    {publisher: "Debian", offer: "debian-12", version: latest, sku: map[string]string{"amd64": "12-gen2", "arm64": "12-arm64"}},
	"debian-13":    {publisher: "Debian", offer: "debian-13", version: latest, sku: map[string]string{"amd64": "13-gen2", "arm64": "13-arm64"}},
	"ubuntu-24.04": {publisher: "Canonical", offer: "ubuntu-24_04-lts", version: latest, sku: map[string]string{"amd64": "server", "arm64": "server-arm64"}},
}

// latest stands for the newest version.
const latest = "latest"

// imageOf reads what the configuration says.
func imageOf(text string) (image, error) {
	if a, ok := aliases[text]; ok {
		return a, nil
	}
	if strings.HasPrefix(strings.ToLower(text), "/subscriptions/") || strings.HasPrefix(text, "/communityGalleries/") || strings.HasPrefix(text, "/sharedGalleries/") {
		return image{id: text}, nil
	}
	if f := strings.Split(text, ":"); len(f) == 4 && !slices.Contains(f, "") {
		return image{publisher: f[0], offer: f[1], version: f[3], sku: map[string]string{"amd64": f[2], "arm64": f[2]}}, nil
	}
	return image{}, fmt.Errorf("image %q is none: write debian-12, debian-13, ubuntu-24.04, publisher:offer:sku:version, or the resource id of an image", text)
}

// imageFor is the image of a create. A version that was found is used for an hour.
func (p *Provider) imageFor(ctx context.Context, arch string) (*armcompute.ImageReference, error) {
	switch {
	case strings.HasPrefix(p.image.id, "/communityGalleries/"):
		return &armcompute.ImageReference{CommunityGalleryImageID: &p.image.id}, nil
	case strings.HasPrefix(p.image.id, "/sharedGalleries/"):
		return &armcompute.ImageReference{SharedGalleryImageID: &p.image.id}, nil
	case p.image.id != "":
		return &armcompute.ImageReference{ID: &p.image.id}, nil
	}
	version, err := p.versions[arch].Get(ctx)
	if err != nil {
		return nil, err
	}
	return &armcompute.ImageReference{Publisher: &p.image.publisher, Offer: &p.image.offer, SKU: ptr(p.image.sku[arch]), Version: &version}, nil
}

// versionReader reads the version of the image for an architecture.
func (p *Provider) versionReader(arch string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		if p.image.version != latest {
			return p.image.version, nil
		}
		sku := p.image.sku[arch]
		what := fmt.Sprintf("image %s:%s:%s", p.image.publisher, p.image.offer, sku)
		ctx, sent := driver.Trace(ctx)
		got, err := p.images.List(ctx, p.cfg.Location, p.image.publisher, p.image.offer, sku,
			&armcompute.VirtualMachineImagesClientListOptions{Top: ptr(int32(1)), Orderby: ptr("name desc")})
		missing := &muster.Fault{Kind: muster.FaultInvalid, Field: "image", Message: what + " is not in " + p.cfg.Location + ": az vm image list --all prints those that are"}
		if err != nil {
			if f := p.fault(call{what: what, sent: sent}, err); f.Kind != muster.FaultNotFound {
				return "", f
			}
			return "", missing
		}
		if len(got.VirtualMachineImageResourceArray) == 0 || of(got.VirtualMachineImageResourceArray[0].Name) == "" {
			return "", missing
		}
		return of(got.VirtualMachineImageResourceArray[0].Name), nil
	}
}
