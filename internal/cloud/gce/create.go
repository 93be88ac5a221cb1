package gce

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
	"github.com/musterhq/muster/internal/wait"
)

// verdict is how long a call waits for its operation to end.
const verdict = time.Minute

// errPending is what an operation comes to that has not ended in time.
var errPending = errors.New("the operation has not ended yet")

// Create is cloud.Provider's. It waits for each operation for up to a minute: a zone without capacity
// often says so only there.
func (p *Provider) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	out := make([]cloud.Created, len(intents))
	driver.Each(len(intents), atOnce, func(i int) {
		made, err := p.create(ctx, &intents[i])
		out[i] = cloud.Created{Instance: made, Err: err}
	})
	return out
}

// create makes the instance of one intent, or finds it.
func (p *Provider) create(ctx context.Context, in *cloud.Intent) (cloud.Instance, error) {
	c := call{what: "create instance for token " + string(in.Token), effect: driver.Makes, launches: true,
		offering: in.Offering, zone: in.Zone, market: in.Market}
	if c.market == "" {
		c.market = muster.OnDemand
	}
	leave := p.creating.Take(ctx, in.Token)
	if leave == nil {
		return cloud.Instance{}, &muster.Fault{Kind: muster.FaultTransient, Message: c.what + ": not sent", Err: ctx.Err()}
	}
	defer leave()
	t, err := p.offered(ctx, &c)
	if err != nil {
		return cloud.Instance{}, err
	}
	body, err := p.body(in, t, c.market)
	if err != nil {
		return cloud.Instance{}, err
	}
	id := muster.InstanceID(in.Zone + "/" + body.Name)
	// Google answers the same request for a while with the same operation. The name is what lasts.
	query := url.Values{"requestId": {requestID(p.cfg.Owner, in.Token)}}
	var op operation
	err = p.do(ctx, c, http.MethodPost, "/zones/"+in.Zone+"/instances", query, body, &op)
	if err == nil && op.Name == "" {
		return cloud.Instance{}, muster.Faultf(muster.FaultAmbiguous, "%s: the answer has no operation", c.what)
	}
	pending := false
	if err == nil {
		err = p.await(ctx, c, in.Zone, &op)
		pending = errors.Is(err, errPending)
	}
	if r := reasonOf(err); r == "alreadyExists" || r == "RESOURCE_ALREADY_EXISTS" || pending {
		err = nil
	}
	if err != nil {
		return cloud.Instance{}, err
	}
	return p.made(ctx, in, id, pending, op.Name)
}

// made reads the instance that a create has made, or an earlier create of the token.
func (p *Provider) made(ctx context.Context, in *cloud.Intent, id muster.InstanceID, pending bool, op string) (cloud.Instance, error) {
	what := "instance " + string(id) + " of token " + string(in.Token)
	var got instance
	if err := p.do(ctx, call{what: what}, http.MethodGet, instancePath(id), nil, nil, &got); err != nil {
		var f *muster.Fault
		if errors.As(err, &f) && (f.Kind == muster.FaultTransient || f.Kind == muster.FaultNotFound) {
			f.Kind = muster.FaultAmbiguous // it exists, or will, or did
		}
		return cloud.Instance{}, err
	}
	if tags := driver.TagsOf(got.Labels); tags.Owner != p.cfg.Owner || tags.Token != in.Token {
		return cloud.Instance{}, muster.Faultf(muster.FaultInvalid, "%s: it has the name and not the labels; remove it or put them back", what)
	}
	if got.Status == "STOPPING" {
		return cloud.Instance{}, muster.Faultf(muster.FaultTransient, "%s: it is being stopped or deleted", what)
	}
	made := p.learn(&got)
	if pending {
		p.watch(id, op)
	}
	return made, nil
}

// requestID is a UUID that follows from owner and token, of the version for those that are made from
// names with SHA-1 in RFC 9562; the digits are of SHA-256, so it is marked as version 8.
func requestID(owner string, token muster.Token) string {
	d := driver.Digest(32, "request", owner, string(token))
	return fmt.Sprintf("%s-%s-8%s-a%s-%s", d[:8], d[8:12], d[13:16], d[17:20], d[20:32])
}

// body is the body of an insert. It follows from the intent, its machine type and the configuration
// alone.
func (p *Provider) body(in *cloud.Intent, t *machineType, market muster.Market) (*instance, error) {
	labels, err := p.labels(cloud.Tags{Owner: p.cfg.Owner, Token: in.Token, Node: in.Node, Pool: in.Pool}, in.Labels)
	if err != nil {
		return nil, err
	}
	zone := "zones/" + in.Zone
	base, add := takeApart(in.Offering)
	const gib = int64(muster.GiB)
	i := &instance{
		Name: driver.InstanceName(p.cfg.Owner, in.Token), MachineType: zone + "/machineTypes/" + base, Labels: labels,
		Disks: []attachedDisk{{Boot: true, AutoDelete: true, InitializeParams: &initialize{
			SourceImage: p.image(t.arch()), DiskSizeGb: (int64(p.cfg.Disk) + gib - 1) / gib,
			DiskType: zone + "/diskTypes/" + diskType(base),
			Labels:   map[string]string{driver.TagOwner: p.cfg.Owner, driver.TagToken: string(in.Token)}}}},
		NetworkInterfaces: []nic{{Subnetwork: p.subnetwork(regionOf(in.Zone))}},
		Metadata:          &metadata{Items: []metadataItem{{"block-project-ssh-keys", "TRUE"}, {"enable-guest-attributes", "TRUE"}}},
	}
	if text := in.Boot.UserData.Reveal(); text != "" {
		i.Metadata.Items = append(i.Metadata.Items, metadataItem{"user-data", text})
	}
	if p.cfg.PublicIP {
		i.NetworkInterfaces[0].AccessConfigs = []accessConfig{{Name: "external", Type: "ONE_TO_ONE_NAT"}}
	}
	i.Scheduling = p.scheduling(market)
	if add.count > 0 {
		i.GuestAccelerators = []attachedGPUs{{"projects/" + p.cfg.Project + "/" + zone + "/acceleratorTypes/" + add.name, add.count}}
	}
	if !plain(t) {
		// An instance with GPUs cannot move to another host while it runs.
		i.Scheduling.OnHostMaintenance = "TERMINATE"
	}
	return i, nil
}

// scheduling is how the cloud may take the instance.
func (p *Provider) scheduling(market muster.Market) *scheduling {
	s := &scheduling{ProvisioningModel: "STANDARD"}
	if market == muster.Spot {
		// Without this action an instance that was taken stays, stopped, and its disk is paid for.
		s.ProvisioningModel, s.InstanceTerminationAction, s.OnHostMaintenance = "SPOT", "DELETE", "TERMINATE"
		s.AutomaticRestart = new(bool)
	}
	if p.cfg.MaxLife > 0 {
		s.InstanceTerminationAction, s.MaxRunDuration = "DELETE", &duration{Seconds: int64(p.cfg.MaxLife / time.Second)}
	}
	return s
}

// subnetwork is the path of the subnetwork of a region.
func (p *Provider) subnetwork(region string) string {
	if strings.Contains(p.cfg.Subnetwork, "/") {
		return p.cfg.Subnetwork
	}
	return "projects/" + p.cfg.Project + "/regions/" + region + "/subnetworks/" + p.cfg.Subnetwork
}

// image is the path of the image for an architecture.
func (p *Provider) image(arch string) string {
	name := p.cfg.Image
	if version, ok := strings.CutPrefix(name, "ubuntu-"); ok && strings.Contains(version, ".") {
		// Families of Canonical's project. Up to 22.04 the one of x86-64 has no suffix.
		family := "ubuntu-" + strings.ReplaceAll(version, ".", "") + "-lts"
		if arch == "arm64" || version >= "24" {
			family += "-" + arch
		}
		return "projects/ubuntu-os-cloud/global/images/family/" + family
	}
	if strings.Contains(name, "/") {
		return name
	}
	return "projects/" + p.cfg.Project + "/global/images/" + name
}

// labels are the tags and, where they can be labels, the operator's own.
func (p *Provider) labels(tags cloud.Tags, more map[string]string) (map[string]string, error) {
	out := driver.TagMap(tags)
	for k, v := range out {
		if !label.MatchString(v) {
			return nil, muster.Faultf(muster.FaultInvalid, "label %s cannot be %q: Google takes %d lower-case letters, digits, dashes and underscores", k, v, maxLabel)
		}
	}
	for k, v := range more {
		if len(out) < maxLabels && !strings.HasPrefix(k, "muster-") && labelKey.MatchString(k) && label.MatchString(v) {
			out[k] = v
		}
	}
	return out, nil
}

// await looks at an operation until it has ended: nil if it has succeeded, its fault, or errPending.
func (p *Provider) await(ctx context.Context, c call, zone string, op *operation) error {
	ctx, cancel := context.WithTimeout(ctx, verdict)
	defer cancel()
	for op.Status != "DONE" {
		var next operation
		// The cloud answers when the operation has ended or two minutes are over, or sooner.
		err := p.do(ctx, call{what: "operation " + op.Name}, http.MethodPost, "/zones/"+zone+"/operations/"+op.Name+"/wait", nil, nil, &next)
		if err != nil {
			// What was asked for may have been done all the same. How it ends will show in lists.
			p.log.Debug("an operation cannot be read", "provider", p.cfg.Name, "operation", op.Name, "err", err)
			return errPending
		}
		next.Name = op.Name
		*op = next
		if op.Status != "DONE" && !wait.For(ctx, p.cfg.Poll) {
			return errPending
		}
	}
	if f := p.failed(c, op); f != nil {
		return f
	}
	return nil
}

// look reads how operations of instances stand that had not ended when their create was answered.
func (p *Provider) look(ctx context.Context) {
	p.mu.Lock()
	pending := map[muster.InstanceID]string{}
	for id, k := range p.instances {
		if k.op != "" {
			pending[id] = k.op
		}
	}
	p.mu.Unlock()
	for id, name := range maps.All(pending) {
		zone, _, _ := strings.Cut(string(id), "/")
		var op operation
		err := p.do(ctx, call{what: "operation " + name}, http.MethodGet, "/zones/"+zone+"/operations/"+name, nil, nil, &op)
		if err != nil && !muster.IsKind(err, muster.FaultNotFound) || err == nil && op.Status != "DONE" {
			continue
		}
		p.mu.Lock()
		if k := p.instances[id]; k != nil {
			c := call{what: "create instance " + string(id), effect: driver.Makes, launches: true,
				offering: k.instance.Offering, zone: zone, market: k.instance.Market, family: family(zone, string(k.instance.Offering), k.gpus, k.instance.Market)}
			k.op, k.instance.Failed = "", p.failed(c, &op)
		}
		p.mu.Unlock()
	}
}
