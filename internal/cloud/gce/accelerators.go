package gce

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// accelerator is a number of GPUs of a type, as one instance has them. Its zero value is none.
type accelerator struct {
	// name is Google's, as nvidia-tesla-t4.
	name  string
	count int
}

// Instances of N1 have no GPUs of their own, and up to eight can be attached. Such an offering has a
// name of our own: that of the machine type, a plus, and the accelerator, as
// n1-standard-8+nvidia-tesla-t4 or n1-standard-8+2xnvidia-tesla-t4.
const (
	attached = "+"
	// attachable is the one family that GPUs are attached to. The others have GPUs or have none.
	attachable = "n1"
)

// attachedName is what follows the plus.
var attachedName = regexp.MustCompile(`^(?:([2-9])x)?(nvidia-[a-z0-9-]+)$`)

// compose is the name of a machine type with GPUs attached to it.
func (a accelerator) compose(base string) string {
	if a.count > 1 {
		return fmt.Sprintf("%s%s%dx%s", base, attached, a.count, a.name)
	}
	return base + attached + a.name
}

// takeApart is the machine type of an offering and what is attached to it.
func takeApart(offering muster.OfferingName) (base string, a accelerator) {
	base, what, ok := strings.Cut(string(offering), attached)
	if m := attachedName.FindStringSubmatch(what); ok && m != nil {
		a = accelerator{name: m[2], count: 1}
		if n, err := strconv.Atoi(m[1]); err == nil {
			a.count = n
		}
	}
	return base, a
}

// mostCores is how many cores an N1 instance may have at most with so many GPUs: Google couples the
// two. A number that is not here cannot be attached.
var mostCores = map[string]map[int]int{
	"nvidia-tesla-t4":   {1: 48, 2: 48, 4: 96},
	"nvidia-tesla-p4":   {1: 24, 2: 48, 4: 96},
	"nvidia-tesla-p100": {1: 16, 2: 32, 4: 64},
	"nvidia-tesla-v100": {1: 12, 2: 24, 4: 48, 8: 96},
}

// gpus are the accelerators of a machine type.
func (t *machineType) gpus() accelerator {
	if len(t.Accelerators) == 0 {
		return accelerator{}
	}
	return accelerator{last(t.Accelerators[0].Type), t.Accelerators[0].Count}
}

// gpus are the accelerators of an instance.
func (g *instance) gpus() accelerator {
	if len(g.GuestAccelerators) == 0 {
		return accelerator{}
	}
	return accelerator{last(g.GuestAccelerators[0].Type), g.GuestAccelerators[0].Count}
}

// offeringOf is the offering of an instance, with what is attached to it.
func (g *instance) offeringOf() muster.OfferingName {
	base := last(g.MachineType)
	if a := g.gpus(); a.count > 0 && familyOf(base) == attachable {
		return muster.OfferingName(a.compose(base))
	}
	return muster.OfferingName(base)
}

// model is how offerings of all clouds call it: T4 of nvidia-tesla-t4, A100-80GB of nvidia-a100-80gb.
func (a accelerator) model() string {
	name := strings.TrimPrefix(strings.TrimPrefix(a.name, "nvidia-"), "tesla-")
	return strings.ToUpper(name)
}

// quota is the metric of a region that the GPUs count against.
func (a accelerator) quota(market muster.Market) string {
	metric := "NVIDIA_" + strings.ReplaceAll(a.model(), "-", "_") + "_GPUS"
	if market == muster.Spot {
		return "PREEMPTIBLE_" + metric
	}
	return metric
}

// gpuType reports whether it is a type of GPU for computing. The list also has TPUs, and licences of
// virtual workstations.
func gpuType(name string) bool {
	return strings.HasPrefix(name, "nvidia-") && !strings.HasSuffix(name, "-vws")
}

// attaches reports whether a pattern of types names machine types with GPUs attached.
func attaches(pattern string) bool { return strings.Contains(pattern, attached) }

// attach adds to the machine types of a zone those with GPUs attached that the patterns name.
func (p *Provider) attach(ctx context.Context, zone string, types []machineType) ([]machineType, error) {
	var patterns driver.Globs
	for _, g := range p.cfg.Types {
		if attaches(g) {
			patterns = append(patterns, g)
		}
	}
	if len(patterns) == 0 {
		return types, nil
	}
	all, err := p.readAccelerators(ctx, zone)
	if err != nil {
		return nil, err
	}
	plain := len(types)
	for i := range plain {
		// A machine with a part of a core takes no GPU.
		if t := types[i]; familyOf(t.Name) == attachable && !t.IsSharedCPU {
			for _, a := range all {
				if t.GuestCPUs > mostCores[a.name][a.count] {
					continue
				}
				with := t
				with.Name = a.compose(t.Name)
				with.Accelerators = []typeAccelerator{{a.name, a.count}}
				if patterns.Match(with.Name) {
					types = append(types, with)
				}
			}
		}
	}
	return types, nil
}

// readAccelerators reads which GPUs can be attached in a zone, each in all its numbers.
func (p *Provider) readAccelerators(ctx context.Context, zone string) ([]accelerator, error) {
	var out []accelerator
	query := url.Values{"maxResults": {strconv.Itoa(maxPage)}}
	for {
		var page acceleratorTypeList
		if err := p.do(ctx, call{what: "accelerator types of zone " + zone}, http.MethodGet, "/zones/"+zone+"/acceleratorTypes", query, nil, &page); err != nil {
			return nil, err
		}
		for _, t := range page.Items {
			if !gpuType(t.Name) {
				continue
			}
			for _, n := range []int{1, 2, 4, 8} {
				if n <= t.Most && mostCores[t.Name][n] > 0 {
					out = append(out, accelerator{t.Name, n})
				}
			}
		}
		if page.NextPageToken == "" {
			return out, nil
		}
		query.Set("pageToken", page.NextPageToken)
	}
}

// addGPUs tells of the GPUs of a machine type in its offering. What is no GPU is told nobody.
func (t *machineType) addGPUs(o *muster.Offering) {
	if a := t.gpus(); gpuType(a.name) {
		driver.AddGPUs(o, a.model(), 0, a.count)
	}
}

// sells reports whether a machine type can be offered with what it has beside cores and memory: all
// of it must be GPUs of one type.
func (t *machineType) sells() bool {
	return len(t.Accelerators) == 0 || len(t.Accelerators) == 1 && gpuType(t.gpus().name)
}

// plain reports whether an instance has no GPUs.
func plain(t *machineType) bool { return len(t.Accelerators) == 0 }

// indexOf finds the machine type of an offering; below 0: there is none.
func indexOf(types []machineType, offering muster.OfferingName) int {
	return slices.IndexFunc(types, func(t machineType) bool { return muster.OfferingName(t.Name) == offering })
}
