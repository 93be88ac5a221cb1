package azure

import (
	"context"
	"encoding/json"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// machine is what is known of a machine of this owner.
type machine struct {
	instance cloud.Instance
	state    string
	address  string
	// ran: it was seen to be whole. asked: Azure was asked why it has failed.
	ran, asked bool
	seen       time.Time
	// deleting is when Azure accepted its deletion.
	deleting time.Time
}

// memory is what lists and creates have shown.
type memory struct {
	now      func() time.Time
	mu       sync.Mutex
	machines map[muster.InstanceID]*machine
	reading  driver.Reading
}

// Provisioning states that the driver acts on.
const (
	stateSucceeded = "Succeeded"
	stateFailed    = "Failed"
	stateDeleting  = "Deleting"
)

// deleteAgain is how long a deletion that Azure has accepted is not asked for again: a machine has 12
// deletes at once and 4 a minute.
const deleteAgain = 2 * time.Minute

// idShape is what the names of machines look like. What looks otherwise was never one.
var idShape = regexp.MustCompile(`^m-[0-9a-f]{24}$`)

func stateOf(vm *armcompute.VirtualMachine) string {
	if vm.Properties == nil {
		return ""
	}
	return of(vm.Properties.ProvisioningState)
}

// tagsOf reads the tags of a resource.
func tagsOf(tags map[string]*string) cloud.Tags { return driver.TagsOf(plain(tags)) }

func plain(tags map[string]*string) map[string]string {
	out := make(map[string]string, len(tags))
	for k, v := range tags {
		out[k] = of(v)
	}
	return out
}

// mine reports whether a machine is this owner's.
func (p *Provider) mine(vm *armcompute.VirtualMachine) bool {
	tags := tagsOf(vm.Tags)
	return tags.Owner == p.cfg.Owner && tags.Token != "" && idShape.MatchString(strings.ToLower(of(vm.Name)))
}

// instanceOf is a machine as the fleet knows it.
func (p *Provider) instanceOf(vm *armcompute.VirtualMachine) cloud.Instance {
	i := cloud.Instance{ID: muster.InstanceID(strings.ToLower(of(vm.Name))), Tags: tagsOf(vm.Tags), Market: muster.OnDemand, Zone: p.cfg.Location}
	if len(vm.Zones) > 0 {
		i.Zone += "-" + of(vm.Zones[0])
	}
	if v := vm.Properties; v != nil {
		if v.HardwareProfile != nil {
			i.Offering = muster.OfferingName(of(v.HardwareProfile.VMSize))
		}
		if of(v.Priority) == armcompute.VirtualMachinePriorityTypesSpot {
			i.Market = muster.Spot
		}
		if v.TimeCreated != nil {
			i.Created = muster.At(*v.TimeCreated)
		}
	}
	return i
}

// learn remembers a machine of this owner and returns its instance.
func (p *Provider) learn(vm *armcompute.VirtualMachine) cloud.Instance {
	i, state := p.instanceOf(vm), stateOf(vm)
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.machineLocked(i.ID)
	i.Failed = m.instance.Failed
	m.instance, m.state, m.seen = i, state, p.cfg.Now()
	m.ran = m.ran || state == stateSucceeded
	return i
}

// remember notes an instance of which no answer has said more.
func (k *memory) remember(i cloud.Instance) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := k.machineLocked(i.ID)
	m.instance, m.seen = i, k.now()
}

func (k *memory) machineLocked(id muster.InstanceID) *machine {
	m := k.machines[id]
	if m == nil {
		m = &machine{}
		k.machines[id] = m
	}
	return m
}

// failed notes why an instance will never run.
func (k *memory) failed(i *cloud.Instance, f *muster.Fault) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m := k.machines[i.ID]; m != nil {
		m.instance.Failed, m.asked = f, true
	}
	i.Failed = f
}

// known is a copy of what is known of an instance.
func (k *memory) known(id muster.InstanceID) (machine, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m := k.machines[id]; m != nil {
		return *m, true
	}
	return machine{}, false
}

func (k *memory) forget(id muster.InstanceID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.machines, id)
}

// change edits what is known of an instance.
func (k *memory) change(id muster.InstanceID, edit func(*machine)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m := k.machines[id]; m != nil {
		edit(m)
	}
}

func notFound(id muster.InstanceID) *muster.Fault {
	return muster.Faultf(muster.FaultNotFound, "machine %q: there is none of this owner", id)
}

// read gets a machine of this owner. Of another's, foreign is true.
func (p *Provider) read(ctx context.Context, id muster.InstanceID) (vm *armcompute.VirtualMachine, foreign bool, err error) {
	if !idShape.MatchString(string(id)) {
		return nil, false, notFound(id)
	}
	ctx, sent := driver.Trace(ctx)
	got, err := p.vms.Get(ctx, p.cfg.ResourceGroup, string(id), nil)
	if err != nil {
		f := p.fault(call{what: "machine " + string(id), sent: sent}, err)
		if f.Kind == muster.FaultNotFound {
			p.forget(id)
			return nil, false, notFound(id)
		}
		return nil, false, f
	}
	if !p.mine(&got.VirtualMachine) {
		return nil, true, notFound(id)
	}
	return &got.VirtualMachine, false, nil
}

// List is cloud.Provider's. The cursor is the link to the page, without the host.
func (p *Provider) List(ctx context.Context, cursor string) (cloud.Listing, error) {
	pager := p.vms.NewListPager(p.cfg.ResourceGroup, nil)
	if cursor != "" {
		at, err := p.endpoint.Parse(cursor)
		if err != nil || !strings.HasPrefix(cursor, "/") || at.Host != p.endpoint.Host {
			return cloud.Listing{}, muster.Faultf(muster.FaultTransient, "list of machines: %q is no page: begin at the first", cursor)
		}
		// A pager goes on after the page that it is given, which it returns first.
		page, err := json.Marshal(map[string]string{"nextLink": at.String()})
		if err == nil {
			err = pager.UnmarshalJSON(page)
		}
		if err == nil {
			_, err = pager.NextPage(ctx)
		}
		if err != nil {
			return cloud.Listing{}, &muster.Fault{Kind: muster.FaultTransient, Message: "list of machines", Err: err}
		}
	}
	began := p.cfg.Now()
	traced, sent := driver.Trace(ctx)
	got, err := pager.NextPage(traced)
	if err != nil {
		f := p.fault(call{what: "list of machines", sent: sent}, err)
		if f.Kind == muster.FaultNotFound || cursor != "" && f.Kind == muster.FaultInvalid && f.Field != "resource_group" {
			f.Kind = muster.FaultTransient // never an empty list, and a page's link may have expired
		}
		return cloud.Listing{}, f
	}
	var out cloud.Listing
	for _, vm := range got.Value {
		if vm != nil && p.mine(vm) {
			out.Instances = append(out.Instances, p.learn(vm))
		}
	}
	if out.Next, err = p.cursorOf(of(got.NextLink)); err != nil {
		return cloud.Listing{}, err
	}
	out.Complete = out.Next == ""
	p.turnPage(cursor, began, &out)
	for i := range out.Instances {
		p.askFailed(ctx, &out.Instances[i])
	}
	return out, nil
}

// cursorOf is the link without its host, which must be the endpoint's: credentials go with the call.
func (p *Provider) cursorOf(link string) (string, error) {
	if link == "" {
		return "", nil
	}
	u, err := url.Parse(link)
	if err != nil || !strings.EqualFold(u.Host, p.endpoint.Host) {
		return "", muster.Faultf(muster.FaultTransient, "list of machines: the next page is at another host")
	}
	return u.RequestURI(), nil
}

// turnPage forgets what a whole list has not shown, so that memory has an end.
func (k *memory) turnPage(cursor string, began time.Time, page *cloud.Listing) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if gone := k.reading.Page(cursor, began, page); gone != nil {
		// A list may lag behind a create.
		maps.DeleteFunc(k.machines, func(id muster.InstanceID, m *machine) bool { return gone(id, m.seen.Add(listLag)) })
	}
}

// askFailed finds out why a listed machine has failed. Lists do not say it, so each is asked for once.
// A machine that was whole before and whose stop or start failed is no failed create.
func (p *Provider) askFailed(ctx context.Context, i *cloud.Instance) {
	p.mu.Lock()
	m := p.machines[i.ID]
	ask := m != nil && m.state == stateFailed && !m.asked && !m.ran
	if ask {
		m.asked = true
	}
	p.mu.Unlock()
	if !ask {
		return
	}
	got, err := p.vms.Get(ctx, p.cfg.ResourceGroup, string(i.ID), &armcompute.VirtualMachinesClientGetOptions{Expand: ptr(armcompute.InstanceViewTypesInstanceView)})
	if err != nil {
		p.change(i.ID, func(m *machine) { m.asked = false })
		return
	}
	if f := p.failureIn(ctx, i, &got.VirtualMachine); f != nil {
		p.failed(i, f)
	}
}

// failureIn is why a machine has failed, of what its statuses say; nil if it runs all the same.
func (p *Provider) failureIn(ctx context.Context, i *cloud.Instance, vm *armcompute.VirtualMachine) *muster.Fault {
	why := refusal{code: stateFailed, message: "Azure does not say why"}
	runs := false
	if v := vm.Properties; v != nil && v.InstanceView != nil {
		for _, s := range v.InstanceView.Statuses {
			if s == nil {
				continue
			}
			if code, ok := strings.CutPrefix(of(s.Code), "ProvisioningState/failed"); ok {
				why = refusal{strings.TrimPrefix(code, "/"), of(s.Message)}
			}
			runs = runs || of(s.Code) == "PowerState/running"
		}
	}
	if runs && !strings.HasPrefix(why.code, "OSProvisioning") {
		return nil
	}
	f := p.judge(call{what: "machine " + string(i.ID) + " was accepted and failed", about: p.aboutOf(ctx, i)}, 0, []refusal{why})
	if f.Kind == muster.FaultNotFound || f.Kind == muster.FaultAmbiguous {
		f.Kind = muster.FaultTransient
	}
	return f
}

// Destroy is cloud.Provider's. Azure accepts and deletes later; interface, address and disk go with
// the machine.
func (p *Provider) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	errs := make([]error, len(ids))
	driver.Each(len(ids), driver.AtOnce, func(i int) { errs[i] = p.destroy(ctx, ids[i]) })
	return errs
}

func (p *Provider) destroy(ctx context.Context, id muster.InstanceID) error {
	if !idShape.MatchString(string(id)) {
		return nil // it can never have been one
	}
	m, seen := p.known(id)
	if seen && p.cfg.Now().Sub(m.deleting) < deleteAgain {
		return nil
	}
	// The cloud checks no owner. Who owns a machine that was seen already is known.
	if !seen {
		switch vm, foreign, err := p.read(ctx, id); {
		case muster.IsKind(err, muster.FaultNotFound) && !foreign:
			return nil
		case err != nil:
			return err
		default:
			p.learn(vm)
		}
	}
	ctx, sent := driver.Trace(ctx)
	_, err := p.vms.BeginDelete(ctx, p.cfg.ResourceGroup, string(id), &armcompute.VirtualMachinesClientBeginDeleteOptions{ForceDeletion: ptr(true)})
	if err != nil {
		f := p.fault(call{what: "delete machine " + string(id), sent: sent}, err)
		if f.Kind != muster.FaultNotFound {
			return f
		}
		p.forget(id)
		return nil
	}
	p.change(id, func(m *machine) { m.deleting = p.cfg.Now() })
	return nil
}

// SetTags is cloud.Provider's. The call replaces all tags, so it sends those that others have put on
// the machine, too.
func (p *Provider) SetTags(ctx context.Context, id muster.InstanceID, tags cloud.Tags) error {
	vm, _, err := p.read(ctx, id)
	if err != nil {
		return err
	}
	have := plain(vm.Tags)
	switch old := driver.TagsOf(have); {
	case tags.Owner != p.cfg.Owner:
		return muster.Faultf(muster.FaultInvalid, "machine %s: its owner is %s for ever, not %q", id, p.cfg.Owner, tags.Owner)
	case tags.Token != old.Token:
		return muster.Faultf(muster.FaultInvalid, "machine %s: its token is %s for ever, not %q", id, old.Token, tags.Token)
	case stateOf(vm) == stateDeleting:
		return notFound(id)
	}
	others := maps.Clone(vm.Tags)
	maps.DeleteFunc(others, func(k string, _ *string) bool { return strings.HasPrefix(strings.ToLower(k), "muster-") })
	all, err := p.tags(tags, nil)
	if err != nil {
		return err
	}
	maps.Copy(all, others)
	if maps.Equal(plain(all), have) {
		return nil
	}
	ctx, sent := driver.Trace(ctx)
	if _, err := p.vms.BeginUpdate(ctx, p.cfg.ResourceGroup, string(id), armcompute.VirtualMachineUpdate{Tags: all}, nil); err != nil {
		return p.fault(call{what: "tags of machine " + string(id), sent: sent}, err)
	}
	p.change(id, func(m *machine) { m.instance.Tags = tags })
	return nil
}

// Access is cloud.Accessor's. Many machines that start at once share one list of interfaces.
func (p *Provider) Access(ctx context.Context, id muster.InstanceID) (cloud.Access, error) {
	m, seen := p.known(id)
	if !seen {
		vm, _, err := p.read(ctx, id)
		if err != nil {
			return cloud.Access{}, err
		}
		p.learn(vm)
	}
	if m.address == "" {
		all, err := p.address.Get(ctx)
		if err != nil {
			return cloud.Access{}, err
		}
		if m.address = all[string(id)]; m.address == "" {
			return cloud.Access{}, &muster.Fault{Kind: muster.FaultUnavailable, Message: "machine " + string(id) + " has no address yet", After: 5 * time.Second}
		}
		p.change(id, func(k *machine) { k.address = m.address })
	}
	a := p.cfg.Access
	a.Address, a.Shutdown = m.address, ""
	return a, nil
}

// readAddresses reads the addresses of all machines of the group, by their names.
func (p *Provider) readAddresses(ctx context.Context) (map[string]string, error) {
	ctx, sent := driver.Trace(ctx)
	public := map[string]string{}
	if p.cfg.PublicIP {
		for pager := p.ips.NewListPager(p.cfg.ResourceGroup, nil); pager.More(); {
			page, err := pager.NextPage(ctx)
			if err != nil {
				return nil, p.fault(call{what: "list of public addresses", sent: sent}, err)
			}
			for _, ip := range page.Value {
				if ip != nil && ip.Properties != nil {
					public[strings.ToLower(of(ip.ID))] = of(ip.Properties.IPAddress)
				}
			}
		}
	}
	out := map[string]string{}
	for pager := p.nics.NewListPager(p.cfg.ResourceGroup, nil); pager.More(); {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, p.fault(call{what: "list of network interfaces", sent: sent}, err)
		}
		for _, nic := range page.Value {
			if nic == nil || nic.Properties == nil || nic.Properties.VirtualMachine == nil || len(nic.Properties.IPConfigurations) == 0 || nic.Properties.IPConfigurations[0].Properties == nil {
				continue
			}
			ip, name := nic.Properties.IPConfigurations[0].Properties, lastOf(of(nic.Properties.VirtualMachine.ID))
			switch {
			case !p.cfg.PublicIP:
				out[name] = of(ip.PrivateIPAddress)
			case ip.PublicIPAddress != nil:
				out[name] = public[strings.ToLower(of(ip.PublicIPAddress.ID))]
			}
		}
	}
	return out, nil
}

// lastOf is the name at the end of a resource id. Azure changes the case of ids between calls.
func lastOf(id string) string {
	parts := strings.Split(strings.ToLower(id), "/")
	return parts[slices.Max([]int{len(parts) - 1, 0})]
}
