package azure

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
	"golang.org/x/crypto/ssh"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
	"github.com/musterhq/muster/internal/wait"
)

const (
	// verdict is how long Create waits for operations to end.
	verdict = time.Minute
	// firstPolls is how often an operation is looked at before the looks get rarer: a machine has 15
	// looks and then a few a minute.
	firstPolls = 10
)

// operation is a create that Azure has accepted.
type operation = runtime.Poller[armcompute.VirtualMachinesClientCreateOrUpdateResponse]

// Create is cloud.Provider's. It waits for up to a minute until Azure has found a place for the
// machines, all together: most refusals come only then.
func (p *Provider) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	out := make([]cloud.Created, len(intents))
	running := make([]*operation, len(intents))
	driver.Each(len(intents), driver.AtOnce, func(i int) {
		running[i], out[i] = p.create(ctx, &intents[i])
	})
	p.await(ctx, out, running)
	return out
}

// create makes the machine of one intent, or finds it. The operation is nil if there is none to wait
// for.
func (p *Provider) create(ctx context.Context, in *cloud.Intent) (*operation, cloud.Created) {
	none := func(err error) (*operation, cloud.Created) { return nil, cloud.Created{Err: err} }
	what := "create machine for token " + string(in.Token)
	leave := p.creating.Take(ctx, in.Token)
	if leave == nil {
		return none(&muster.Fault{Kind: muster.FaultTransient, Message: what + ": not sent", Err: ctx.Err()})
	}
	defer leave()
	body, size, err := p.body(ctx, in)
	if err != nil {
		if ctx.Err() != nil {
			err = &muster.Fault{Kind: muster.FaultTransient, Message: what + ": not sent", Err: err}
		}
		return none(err)
	}
	name := driver.InstanceName(p.cfg.Owner, in.Token)
	c := call{what: what, effect: driver.Makes, about: p.about(size, in.Offering, in.Zone, in.Market)}
	traced, sent := driver.Trace(ctx)
	c.sent = sent
	var answer *http.Response
	poller, err := p.vms.BeginCreateOrUpdate(policy.WithCaptureResponse(traced, &answer), p.cfg.ResourceGroup, name, *body,
		&armcompute.VirtualMachinesClientBeginCreateOrUpdateOptions{IfNoneMatch: ptr("*")})
	switch {
	case exists(err):
		i, err := p.adopt(ctx, in, name)
		return nil, cloud.Created{Instance: i, Err: err}
	case err != nil:
		return none(p.fault(c, err))
	}
	p.slow.Succeeded()
	// The answer to an accepted create has the machine already, but the library hides it.
	var made armcompute.VirtualMachine
	if b, err := runtime.Payload(answer); err == nil && json.Unmarshal(b, &made) == nil && p.mine(&made) {
		return poller, cloud.Created{Instance: p.learn(&made)}
	}
	i := cloud.Instance{ID: muster.InstanceID(name), Offering: in.Offering, Zone: in.Zone, Market: marketOf(in.Market),
		Tags: cloud.Tags{Owner: p.cfg.Owner, Token: in.Token, Node: in.Node, Pool: in.Pool}}
	p.remember(i)
	return poller, cloud.Created{Instance: i}
}

func marketOf(m muster.Market) muster.Market {
	if m == "" {
		return muster.OnDemand
	}
	return m
}

// about is what a refusal of an offering may be about.
func (p *Provider) about(s size, offering muster.OfferingName, zone string, market muster.Market) about {
	market = marketOf(market)
	return about{offering: offering, zone: zone, market: market, family: s.familyIn(market)}
}

// body is that of a create. It follows from the intent and the configuration alone.
func (p *Provider) body(ctx context.Context, in *cloud.Intent) (*armcompute.VirtualMachine, size, error) {
	s, err := p.sizeOf(ctx, in.Offering, in.Zone, in.Market)
	if err != nil {
		return nil, s, err
	}
	if n := len(in.Boot.UserData.Reveal()); n > maxUserData {
		return nil, s, &muster.Fault{Kind: muster.FaultInvalid, Field: "user_data_file", Message: fmt.Sprintf("user data has %d bytes, and Azure takes %d", n, maxUserData)}
	}
	tags, err := p.tags(cloud.Tags{Owner: p.cfg.Owner, Token: in.Token, Node: in.Node, Pool: in.Pool}, in.Labels)
	if err != nil {
		return nil, s, err
	}
	key, err := p.publicKey()
	if err != nil {
		return nil, s, err
	}
	image, err := p.imageFor(ctx, s.arch)
	if err != nil {
		return nil, s, err
	}
	name := driver.InstanceName(p.cfg.Owner, in.Token)
	vm := &armcompute.VirtualMachine{Location: &p.cfg.Location, Tags: tags, Zones: zonesOf(in.Zone), Properties: &armcompute.VirtualMachineProperties{
		HardwareProfile: &armcompute.HardwareProfile{VMSize: ptr(armcompute.VirtualMachineSizeTypes(in.Offering))},
		NetworkProfile:  p.network(name, tags),
		StorageProfile: &armcompute.StorageProfile{ImageReference: image, OSDisk: &armcompute.OSDisk{
			Name: ptr(p.partName(name, partDisk)), CreateOption: ptr(armcompute.DiskCreateOptionTypesFromImage), DeleteOption: ptr(armcompute.DiskDeleteOptionTypesDelete),
			DiskSizeGB: ptr(int32(gigabytes(p.cfg.Disk))), ManagedDisk: &armcompute.ManagedDiskParameters{StorageAccountType: ptr(armcompute.StorageAccountTypesStandardSSDLRS)}}},
		OSProfile: &armcompute.OSProfile{ComputerName: &name, AdminUsername: &p.cfg.Access.User,
			LinuxConfiguration: &armcompute.LinuxConfiguration{DisablePasswordAuthentication: ptr(true), SSH: &armcompute.SSHConfiguration{
				PublicKeys: []*armcompute.SSHPublicKey{{KeyData: &key, Path: ptr("/home/" + p.cfg.Access.User + "/.ssh/authorized_keys")}}}}},
	}}
	if text := in.Boot.UserData.Reveal(); text != "" {
		vm.Properties.OSProfile.CustomData = ptr(base64.StdEncoding.EncodeToString([]byte(text)))
	}
	if in.Market == muster.Spot {
		// -1: taken back for want of capacity only, and never dearer than on demand.
		price := -1.0
		vm.Properties.Priority, vm.Properties.EvictionPolicy = ptr(armcompute.VirtualMachinePriorityTypesSpot), ptr(armcompute.VirtualMachineEvictionPolicyTypesDelete)
		vm.Properties.BillingProfile = &armcompute.BillingProfile{MaxPrice: &price}
	}
	return vm, s, nil
}

// network is the interface of a machine, made with it and deleted with it.
func (p *Provider) network(name string, tags map[string]*string) *armcompute.NetworkProfile {
	ip := &armcompute.VirtualMachineNetworkInterfaceIPConfigurationProperties{Primary: ptr(true), Subnet: &armcompute.SubResource{ID: &p.cfg.Subnet}}
	if p.cfg.PublicIP {
		ip.PublicIPAddressConfiguration = &armcompute.VirtualMachinePublicIPAddressConfiguration{Name: ptr(p.partName(name, partIP)), Tags: tags,
			SKU: &armcompute.PublicIPAddressSKU{Name: ptr(armcompute.PublicIPAddressSKUNameStandard)},
			Properties: &armcompute.VirtualMachinePublicIPAddressConfigurationProperties{DeleteOption: ptr(armcompute.DeleteOptionsDelete),
				PublicIPAllocationMethod: ptr(armcompute.PublicIPAllocationMethodStatic)}}
	}
	nic := &armcompute.VirtualMachineNetworkInterfaceConfigurationProperties{Primary: ptr(true), DeleteOption: ptr(armcompute.DeleteOptionsDelete),
		IPConfigurations: []*armcompute.VirtualMachineNetworkInterfaceIPConfiguration{{Name: ptr("main"), Properties: ip}}}
	if p.cfg.SecurityGroup != "" {
		nic.NetworkSecurityGroup = &armcompute.SubResource{ID: &p.cfg.SecurityGroup}
	}
	return &armcompute.NetworkProfile{NetworkAPIVersion: ptr(armcompute.NetworkAPIVersionTwoThousandTwentyTwo1101),
		NetworkInterfaceConfigurations: []*armcompute.VirtualMachineNetworkInterfaceConfiguration{{Name: ptr(p.partName(name, partNIC)), Tags: tags, Properties: nic}}}
}

// publicKey is the public half of the key with which machines are reached.
func (p *Provider) publicKey() (string, error) {
	b, err := os.ReadFile(p.cfg.Access.KeyFile)
	if err == nil {
		var key ssh.Signer
		if key, err = ssh.ParsePrivateKey(b); err == nil {
			return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key.PublicKey()))), nil
		}
	}
	return "", &muster.Fault{Kind: muster.FaultInvalid, Field: "ssh.key_file", Message: "key " + p.cfg.Access.KeyFile + " cannot be read", Err: err}
}

// tags are the tags and, where there is room, the operator's own.
func (p *Provider) tags(tags cloud.Tags, more map[string]string) (map[string]*string, error) {
	all := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(more)) {
		v := more[k]
		if !strings.HasPrefix(strings.ToLower(k), "muster-") && k != "" && !strings.ContainsAny(k, `<>%&\?/`) && len(k) <= maxTag && len(v) <= maxTag && len(all) < maxTags-10 {
			all[k] = v
		}
	}
	maps.Copy(all, driver.TagMap(tags))
	out := make(map[string]*string, len(all))
	for k, v := range all {
		if len(v) > maxTag {
			return nil, muster.Faultf(muster.FaultInvalid, "tag %s has %d characters, and Azure takes %d", k, len(v), maxTag)
		}
		out[k] = &v
	}
	return out, nil
}

// adopt takes over the machine of that name, which an earlier create of the token has made.
func (p *Provider) adopt(ctx context.Context, in *cloud.Intent, name string) (cloud.Instance, error) {
	what := "machine " + name + " of token " + string(in.Token)
	ctx, sent := driver.Trace(ctx)
	found, err := p.vms.Get(ctx, p.cfg.ResourceGroup, name, nil)
	if err != nil {
		f := p.fault(call{what: what, sent: sent}, err)
		if f.Kind == muster.FaultTransient || f.Kind == muster.FaultNotFound {
			f.Kind = muster.FaultAmbiguous // it exists, or did a moment ago
		}
		return cloud.Instance{}, f
	}
	if tags := tagsOf(found.Tags); tags.Owner != p.cfg.Owner || tags.Token != in.Token {
		return cloud.Instance{}, muster.Faultf(muster.FaultInvalid, "%s: a machine has the name and not the tags; remove it or put them back", what)
	}
	if stateOf(&found.VirtualMachine) == stateDeleting {
		return cloud.Instance{}, muster.Faultf(muster.FaultTransient, "%s: it is being deleted", what)
	}
	i := p.learn(&found.VirtualMachine)
	p.askFailed(ctx, &i)
	return i, nil
}

// await looks at operations until all have ended, or the time for a verdict or the call's is over.
// What is not known then shows in lists.
func (p *Provider) await(ctx context.Context, out []cloud.Created, running []*operation) {
	ctx, cancel := context.WithTimeout(ctx, verdict)
	defer cancel()
	pause := p.cfg.Poll
	for n := 0; ; n++ {
		left := 0
		for _, o := range running {
			if o != nil {
				left++
			}
		}
		if left == 0 || ctx.Err() != nil || !wait.For(ctx, pause) {
			return
		}
		if n == firstPolls {
			pause *= 3
		}
		driver.Each(len(running), driver.AtOnce, func(i int) {
			if running[i] != nil && p.look(ctx, running[i], &out[i].Instance) {
				running[i] = nil
			}
		})
	}
}

// look reads how an operation stands. It reports whether there is no more to learn from it.
func (p *Provider) look(ctx context.Context, o *operation, i *cloud.Instance) (done bool) {
	_, err := o.Poll(ctx)
	if err == nil && !o.Done() {
		return false
	}
	if err == nil {
		var made armcompute.VirtualMachinesClientCreateOrUpdateResponse
		if made, err = o.Result(ctx); err == nil {
			if made.Name != nil {
				*i = p.learn(&made.VirtualMachine)
			}
			return true
		}
	}
	var re *azcore.ResponseError
	if !o.Done() || !errors.As(err, &re) {
		// What has been made is known; how it ends will show in lists.
		p.log.Debug("an operation cannot be read", "provider", p.cfg.Name, "instance", i.ID, "err", err)
		return true
	}
	if re.StatusCode < http.StatusMultipleChoices && re.ErrorCode == "" {
		// It had failed by the time it was answered. The machine itself knows why.
		p.change(i.ID, func(m *machine) { m.state = stateFailed })
		p.askFailed(ctx, i)
		return true
	}
	p.failed(i, p.operationFault(ctx, i, re))
	return true
}

// operationFault is why a machine will never run: the body of an operation that has failed.
func (p *Provider) operationFault(ctx context.Context, i *cloud.Instance, re *azcore.ResponseError) *muster.Fault {
	c := call{what: "machine " + string(i.ID) + " was accepted and failed", about: p.aboutOf(ctx, i)}
	f := p.refused(c, re)
	if f.Kind == muster.FaultNotFound || f.Kind == muster.FaultAmbiguous {
		f.Kind = muster.FaultTransient
	}
	return f
}

// aboutOf is what a refusal of an instance may be about.
func (p *Provider) aboutOf(ctx context.Context, i *cloud.Instance) about {
	s, err := p.sizeNamed(ctx, i.Offering)
	if err != nil {
		s = size{}
	}
	return p.about(s, i.Offering, i.Zone, i.Market)
}
