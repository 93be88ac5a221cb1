package ec2

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// image is what the configuration says: an id, or a parameter by architecture.
type image struct {
	name      string
	id        string
	user      string
	parameter map[string]string
}

// imageOf reads an alias, an id, or the name of a parameter.
func imageOf(name string) (image, error) {
	arches := func(format, amd, arm string) map[string]string {
		return map[string]string{archAMD: fmt.Sprintf(format, amd), archARM: fmt.Sprintf(format, arm)}
	}
	switch name {
	case "debian-12", "debian-13":
		return image{name: name, user: "admin", parameter: arches("/aws/service/debian/release/"+strings.TrimPrefix(name, "debian-")+"/latest/%s", archAMD, archARM)}, nil
	case "ubuntu-22.04":
		return image{name: name, user: "ubuntu", parameter: arches("/aws/service/canonical/ubuntu/server/22.04/stable/current/%s/hvm/ebs-gp2/ami-id", archAMD, archARM)}, nil
	case "ubuntu-24.04":
		return image{name: name, user: "ubuntu", parameter: arches("/aws/service/canonical/ubuntu/server/24.04/stable/current/%s/hvm/ebs-gp3/ami-id", archAMD, archARM)}, nil
	case "amazon-linux-2023":
		return image{name: name, user: "ec2-user", parameter: arches("/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-%s", "x86_64", archARM)}, nil
	}
	switch {
	case strings.HasPrefix(name, "ami-"):
		return image{name: name, id: name}, nil
	case strings.HasPrefix(name, "/"):
		return image{name: name, parameter: map[string]string{archAMD: name, archARM: name}}, nil
	}
	return image{}, fmt.Errorf("image %q is not known: write debian-12, debian-13, ubuntu-22.04, ubuntu-24.04, amazon-linux-2023, the id of an image (ami-…), or the name of a parameter that begins with /", name)
}

// machineImage is an image of EC2.
type machineImage struct{ id, root, arch, name string }

// imagesAnswer is that of DescribeImages.
type imagesAnswer struct {
	Images []struct {
		ID    string `xml:"imageId"`
		Root  string `xml:"rootDeviceName"`
		Arch  string `xml:"architecture"`
		Name  string `xml:"name"`
		State string `xml:"imageState"`
	} `xml:"imagesSet>item"`
}

// readImage finds the image of an architecture.
func (p *Provider) readImage(ctx context.Context, arch string) (machineImage, error) {
	id := p.image.id
	if id == "" {
		var answer struct {
			Parameter struct{ Value string }
		}
		ask := struct{ Name string }{p.image.parameter[arch]}
		if err := p.api.doJSON(ctx, p.api.ssm, "AmazonSSM.GetParameter", ask, &answer); err != nil {
			if code := codeOf(err); code == "ParameterNotFound" {
				return machineImage{}, &muster.Fault{Kind: muster.FaultInvalid, Field: "image",
					Message: fmt.Sprintf("image %s for %s: region %s has no parameter %s: name an image by its id (ami-…)", p.image.name, arch, p.cfg.Region, ask.Name), Err: err}
			}
			return machineImage{}, err
		}
		id = answer.Parameter.Value
	}
	form := url.Values{}
	list(form, "ImageId", []string{id})
	var a imagesAnswer
	if err := p.api.do(ctx, call{action: "DescribeImages", form: form, effect: driver.Reads}, &a); err != nil {
		return machineImage{}, err
	}
	for _, i := range a.Images {
		if i.ID != id {
			continue
		}
		out := machineImage{id: i.ID, root: i.Root, name: i.Name, arch: archAMD}
		if i.Arch == archARM {
			out.arch = archARM
		}
		switch {
		case i.Arch != "" && out.arch != arch:
			return machineImage{}, &muster.Fault{Kind: muster.FaultInvalid, Field: "image",
				Message: fmt.Sprintf("image %s is for %s, and the instance type for %s: name types of one architecture, or an alias that has both", id, out.arch, arch)}
		case i.Root == "":
			return machineImage{}, &muster.Fault{Kind: muster.FaultInvalid, Field: "image", Message: fmt.Sprintf("image %s has no root device", id)}
		}
		return out, nil
	}
	return machineImage{}, &muster.Fault{Kind: muster.FaultInvalid, Field: "image",
		Message: fmt.Sprintf("image %s is not there in region %s: find its id with aws ec2 describe-images", id, p.cfg.Region)}
}

// pinFor is how long a pool goes on with an image after a newer one is there. A create that is
// repeated in that time sends the same image; EC2 refuses a token that comes with another.
const pinFor = time.Hour

type pinKey struct {
	pool muster.PoolName
	arch string
}

// pin is the image of a pool, and since when there is a newer one.
type pin struct {
	image machineImage
	since time.Time
}

type pins struct {
	mu sync.Mutex
	m  map[pinKey]*pin
}

// choose is the image that the pool launches, when newest is the newest one.
func (p *pins) choose(k pinKey, newest machineImage, now time.Time) machineImage {
	p.mu.Lock()
	defer p.mu.Unlock()
	had := p.m[k]
	switch {
	case had == nil || had.image.id == newest.id:
		p.m[k] = &pin{image: newest}
		return newest
	case had.since.IsZero():
		had.since = now
	case now.Sub(had.since) >= pinFor:
		p.m[k] = &pin{image: newest}
		return newest
	}
	return had.image
}

// drop forgets an image that EC2 does not know any more.
func (p *pins) drop(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, had := range p.m {
		if had.image.id == id {
			delete(p.m, k)
		}
	}
}

// imageFor is the image that a pool launches on a type.
func (p *Provider) imageFor(ctx context.Context, pool muster.PoolName, arch string) (machineImage, error) {
	newest, err := p.images[arch].Get(ctx)
	if err != nil {
		return machineImage{}, err
	}
	return p.pins.choose(pinKey{pool, arch}, newest, p.cfg.Now()), nil
}
