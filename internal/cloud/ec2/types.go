package ec2

import (
	"cmp"
	"context"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Architectures, as nodes name them.
const (
	archAMD = "amd64"
	archARM = "arm64"
)

// typeInfo is an instance type, as far as an offering needs it.
type typeInfo struct {
	name   string
	cpus   int
	memory muster.Bytes
	arch   string
	spot   bool
	gpus   []gpuInfo
}

// gpuInfo is a number of equal GPUs of an instance type.
type gpuInfo struct {
	Name  string `xml:"name"`
	Count int    `xml:"count"`
	MiB   int64  `xml:"memoryInfo>sizeInMiB"`
}

// typesAnswer is that of DescribeInstanceTypes.
type typesAnswer struct {
	Types []struct {
		Name    string    `xml:"instanceType"`
		Current string    `xml:"currentGeneration"`
		Bare    string    `xml:"bareMetal"`
		CPUs    int       `xml:"vCpuInfo>defaultVCpus"`
		MiB     int64     `xml:"memoryInfo>sizeInMiB"`
		Arch    []string  `xml:"processorInfo>supportedArchitectures>item"`
		Usage   []string  `xml:"supportedUsageClasses>item"`
		GPUs    []gpuInfo `xml:"gpuInfo>gpus>item"`
	} `xml:"instanceTypeSet>item"`
	Next string `xml:"nextToken"`
}

const (
	// typesPerPage is EC2's bound for this action.
	typesPerPage = 100
	// defaultMostCPUs is the largest machine that is offered where the operator names no types.
	defaultMostCPUs = 32
)

// readTypes reads the types that the patterns name, or the default ones.
func (p *Provider) readTypes(ctx context.Context) ([]typeInfo, error) {
	form := url.Values{}
	if len(p.cfg.Types) > 0 {
		filter(form, "instance-type", p.cfg.Types...)
	} else {
		filter(form, "instance-type", "m*", "c*", "r*")
	}
	var out []typeInfo
	err := each(ctx, p, "DescribeInstanceTypes", form, typesPerPage, func(a *typesAnswer) string {
		for _, t := range a.Types {
			info := typeInfo{name: t.Name, cpus: t.CPUs, memory: muster.Bytes(t.MiB) * muster.MiB, spot: len(t.Usage) == 0 || slices.Contains(t.Usage, "spot"), gpus: t.GPUs}
			switch {
			case slices.Contains(t.Arch, "x86_64"):
				info.arch = archAMD
			case slices.Contains(t.Arch, "arm64"):
				info.arch = archARM
			}
			// Nodes of another architecture need a muster-node for it, so they are offered only where
			// the operator names their types.
			byDefault := info.arch != archARM && t.Current != "false" && t.Bare != "true" && len(t.GPUs) == 0 && t.CPUs <= defaultMostCPUs
			if info.arch == "" || info.cpus <= 0 || info.memory <= 0 || len(p.cfg.Types) > 0 && !p.cfg.Types.Match(t.Name) || len(p.cfg.Types) == 0 && !byDefault {
				continue
			}
			out = append(out, info)
		}
		return a.Next
	})
	if err != nil {
		return nil, err
	}
	if len(p.cfg.Types) == 0 {
		out = newest(out)
	}
	if len(out) == 0 {
		return nil, &muster.Fault{Kind: muster.FaultInvalid, Field: "types", Message: p.api.named("DescribeInstanceTypes") + ": region " + p.cfg.Region + " has no instance type that types names"}
	}
	slices.SortFunc(out, func(a, b typeInfo) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// plainFamily is a family without special parts: Intel's or AMD's processors, no disks, no faster
// network.
var plainFamily = regexp.MustCompile(`^([mcr])(\d+)(|i|a)\.`)

// newest keeps the two newest plain families of each letter.
func newest(all []typeInfo) []typeInfo {
	families := map[string]int{} // generation by family
	for _, t := range all {
		if m := plainFamily.FindStringSubmatch(t.name); m != nil && t.arch == archAMD {
			families[m[1]+m[2]+m[3]], _ = strconv.Atoi(m[2])
		}
	}
	var keep []string
	for _, letter := range []string{"m", "c", "r"} {
		var own []string
		for f := range families {
			if strings.HasPrefix(f, letter) {
				own = append(own, f)
			}
		}
		slices.SortFunc(own, func(a, b string) int {
			return cmp.Or(cmp.Compare(families[b], families[a]), strings.Compare(a, b))
		})
		keep = append(keep, own[:min(2, len(own))]...)
	}
	return slices.DeleteFunc(all, func(t typeInfo) bool {
		family, _, _ := strings.Cut(t.name, ".")
		return t.arch != archAMD || !slices.Contains(keep, family)
	})
}

// zonesAnswer is that of DescribeInstanceTypeOfferings.
type zonesAnswer struct {
	Offerings []struct {
		Type string `xml:"instanceType"`
		Zone string `xml:"location"`
	} `xml:"instanceTypeOfferingSet>item"`
	Next string `xml:"nextToken"`
}

// readZones reads which types there are in which zone.
func (p *Provider) readZones(ctx context.Context) (map[string][]string, error) {
	form := url.Values{"LocationType": {"availability-zone"}}
	if len(p.cfg.Types) > 0 {
		filter(form, "instance-type", p.cfg.Types...)
	} else {
		filter(form, "instance-type", "m*", "c*", "r*")
	}
	out := map[string][]string{}
	err := each(ctx, p, "DescribeInstanceTypeOfferings", form, maxPage, func(a *zonesAnswer) string {
		for _, o := range a.Offerings {
			out[o.Type] = append(out[o.Type], o.Zone)
		}
		return a.Next
	})
	return out, err
}

// subnet is one of those to launch in.
type subnet struct {
	id, zone, vpc string
	free          int
}

// subnetsAnswer is that of DescribeSubnets.
type subnetsAnswer struct {
	Subnets []struct {
		ID   string `xml:"subnetId"`
		Zone string `xml:"availabilityZone"`
		VPC  string `xml:"vpcId"`
		Free int    `xml:"availableIpAddressCount"`
	} `xml:"subnetSet>item"`
}

// readSubnets reads the subnets, in the order of the configuration.
func (p *Provider) readSubnets(ctx context.Context) ([]subnet, error) {
	form := url.Values{}
	list(form, "SubnetId", p.cfg.Subnets)
	var a subnetsAnswer
	if err := p.api.do(ctx, call{action: "DescribeSubnets", form: form, effect: driver.Reads}, &a); err != nil {
		return nil, err
	}
	var out []subnet
	for _, id := range p.cfg.Subnets {
		for _, s := range a.Subnets {
			if s.ID == id {
				out = append(out, subnet{id: s.ID, zone: s.Zone, vpc: s.VPC, free: s.Free})
			}
		}
	}
	if len(out) == 0 {
		return nil, muster.Faultf(muster.FaultTransient, "%s: none of the subnets is in the answer", p.api.named("DescribeSubnets"))
	}
	return out, nil
}

// subnetsOf are the subnets of a zone in the order in which a launch tries them: those that were
// full a moment ago come last.
func (p *Provider) subnetsOf(ctx context.Context, zone string) ([]subnet, error) {
	all, err := p.subnets.Get(ctx)
	if err != nil {
		return nil, err
	}
	var open, full []subnet
	now := p.cfg.Now()
	for _, s := range all {
		switch {
		case s.zone != zone:
		case p.refusals.has(s.id, now):
			full = append(full, s)
		default:
			open = append(open, s)
		}
	}
	return append(open, full...), nil
}

// familyOf is whose quota in vCPUs an instance counts against. Quotas of EC2 are by the first
// letters of the type; spot instances have quotas of their own.
func familyOf(name string, market muster.Market) string {
	family, _, _ := strings.Cut(name, ".")
	if family == "" {
		return ""
	}
	out := ""
	switch {
	case strings.HasPrefix(family, "inf"), strings.HasPrefix(family, "trn"), strings.HasPrefix(family, "hpc"):
		out = family[:3]
	case strings.HasPrefix(family, "mac"):
		out = family
	case strings.HasPrefix(family, "dl"), strings.HasPrefix(family, "vt"), strings.HasPrefix(family, "p5"):
		out = family[:2]
	case strings.HasPrefix(family, "u-"):
		out = "u"
	default:
		out = family[:1]
	}
	switch out {
	case "a", "c", "d", "h", "i", "m", "r", "t", "z":
		out = "standard"
	case "vt":
		out = "g"
	}
	if market == muster.Spot {
		out += "-spot"
	}
	return out
}
