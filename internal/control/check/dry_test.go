package check

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
)

// resolving is a provider that says what it found out.
type resolving struct {
	cloud.Provider
	list []cloud.Resolved
	err  error
}

func (r resolving) Resolve(context.Context) ([]cloud.Resolved, error) { return r.list, r.err }

func TestDry(t *testing.T) {
	offer := muster.Offering{Name: "small", Market: muster.OnDemand, Price: 20_000, Available: true, Capacity: muster.Resources{CPU: 2000, Memory: muster.GiB}}
	dear := offer
	dear.Name, dear.Price, dear.Zone, dear.Market = "dear", 90_000, "z1", muster.Spot
	good := fake.New(fake.Config{Offerings: []muster.Offering{dear, offer}}).Owner("o")
	graviton := offer
	graviton.Name, graviton.Attributes, graviton.Devices = "arm", map[string]string{"arch": "arm64"}, []muster.Device{{Kind: "gpu", Model: "T4G", Count: 1}}
	mixed := fake.New(fake.Config{Offerings: []muster.Offering{offer, graviton, graviton}}).Owner("o")
	bare := fake.New(fake.Config{}).Owner("o")
	image := cloud.Resolved{What: "image", Value: "debian-12"}
	for _, c := range []struct {
		name  string
		p     cloud.Provider
		lines string
		kind  muster.FaultKind
	}{
		{"no resolver", good, "offering small: 2 cpu, 1GiB memory, 0.0200 per hour|offering dear: 2 cpu, 1GiB memory, 0.0900 per hour, zone z1, spot", ""},
		{"all there", resolving{good, []cloud.Resolved{image}, nil}, "image debian-12|offering small: 2 cpu, 1GiB memory, 0.0200 per hour|offering dear: 2 cpu, 1GiB memory, 0.0900 per hour, zone z1, spot", ""},
		{"a right is missing", resolving{good, []cloud.Resolved{image, {What: "right", Value: "CreateTags", Problem: "add it to the policy"}}, nil},
			"image debian-12|problem right CreateTags: add it to the policy|offering small: 2 cpu, 1GiB memory, 0.0200 per hour|offering dear: 2 cpu, 1GiB memory, 0.0900 per hour, zone z1, spot", muster.FaultInvalid},
		{"no agent for an architecture", mixed, "offering small: 2 cpu, 1GiB memory, 0.0200 per hour|offering arm: 2 cpu, 1GiB memory, 0.0200 per hour, 1 gpu T4G, arm64|" +
			"offering arm: 2 cpu, 1GiB memory, 0.0200 per hour, 1 gpu T4G, arm64|problem machines for arm64, as arm: there is no muster-node", muster.FaultInvalid},
		{"nothing on offer", bare, "", muster.FaultInvalid},
		{"it does not answer", resolving{good, nil, muster.Faultf(muster.FaultAuth, "who are you")}, "", muster.FaultAuth},
	} {
		t.Run(c.name, func(t *testing.T) {
			var lines []string
			program := func(arch string) error {
				if arch == "arm64" {
					return errors.New("there is no muster-node")
				}
				return nil
			}
			err := Dry(t.Context(), c.p, program, func(step, text string) { lines = append(lines, step+" "+text) })
			if got := strings.Join(lines, "|"); got != c.lines {
				t.Errorf("got  %s\nwant %s", got, c.lines)
			}
			var fault *muster.Fault
			if (err == nil) != (c.kind == "") || err != nil && (!errors.As(err, &fault) || fault.Kind != c.kind) {
				t.Errorf("%v", err)
			}
		})
	}
}
