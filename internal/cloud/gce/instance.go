package gce

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// known is what lists and creates have shown of an instance of this owner.
type known struct {
	instance cloud.Instance
	address  string
	// gpus are those of the instance: they say whose quota it counts against.
	gpus accelerator
	// op is the operation that makes it, if it had not ended yet.
	op   string
	seen time.Time
}

// remember is how long an instance is known that no list shows.
const remember = time.Hour

// shape is what the id of an instance of ours looks like. Nothing else can be one.
var shape = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?/m-[0-9a-f]{24}$`)

// instancePath is the path of an instance below its project.
func instancePath(id muster.InstanceID) string {
	zone, name, _ := strings.Cut(string(id), "/")
	return "/zones/" + zone + "/instances/" + name
}

// learn remembers an instance of this owner.
func (p *Provider) learn(g *instance) cloud.Instance {
	i := cloud.Instance{Zone: last(g.Zone), Offering: g.offeringOf(), Tags: driver.TagsOf(g.Labels), Market: muster.OnDemand}
	i.ID = muster.InstanceID(i.Zone + "/" + g.Name)
	if g.Scheduling != nil && g.Scheduling.ProvisioningModel == "SPOT" {
		i.Market = muster.Spot
	}
	i.Created = timeOf(g.CreationTimestamp)
	address, now := p.addressOf(g), p.cfg.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.instances[i.ID]
	if k == nil {
		k = &known{}
		p.instances[i.ID] = k
	}
	i.Failed = k.instance.Failed
	k.instance, k.gpus, k.seen = i, g.gpus(), now
	if address != "" {
		k.address = address
	}
	return i
}

// timeOf reads a time of the API; zero if it is none.
func timeOf(text string) muster.Time {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0
	}
	return muster.At(at)
}

// watch notes that the operation which makes an instance has not ended.
func (p *Provider) watch(id muster.InstanceID, op string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := p.instances[id]; k != nil {
		k.op = op
	}
}

// knows is an instance that a list or a create has shown, and its address.
func (p *Provider) knows(id muster.InstanceID) (cloud.Instance, string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.instances[id]
	if k == nil {
		return cloud.Instance{}, "", false
	}
	return k.instance, k.address, true
}

func (p *Provider) forget(id muster.InstanceID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.instances, id)
}

// prune forgets what no list has shown for long.
func (p *Provider) prune() {
	now := p.cfg.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.instances, func(_ muster.InstanceID, k *known) bool { return now.Sub(k.seen) > remember })
}

// addressOf is where the instance is reached; empty: it has no address yet.
func (p *Provider) addressOf(g *instance) string {
	if len(g.NetworkInterfaces) == 0 {
		return ""
	}
	first := g.NetworkInterfaces[0]
	if !p.cfg.PublicIP {
		return first.NetworkIP
	}
	if len(first.AccessConfigs) == 0 {
		return ""
	}
	return first.AccessConfigs[0].NatIP
}

// errForeign marks an instance that exists and is another's.
var errForeign = errors.New("it is not of this owner")

func notFound(id muster.InstanceID) *muster.Fault {
	return muster.Faultf(muster.FaultNotFound, "instance %q: there is none of this owner", id)
}

// read gets an instance of this owner.
func (p *Provider) read(ctx context.Context, id muster.InstanceID) (*instance, error) {
	if !shape.MatchString(string(id)) {
		return nil, notFound(id)
	}
	var g instance
	if err := p.do(ctx, call{what: "instance " + string(id)}, http.MethodGet, instancePath(id), nil, nil, &g); err != nil {
		if muster.IsKind(err, muster.FaultNotFound) {
			p.forget(id)
		}
		return nil, err
	}
	if g.Labels[driver.TagOwner] != p.cfg.Owner {
		f := notFound(id)
		f.Err = errForeign
		return nil, f
	}
	p.learn(&g)
	return &g, nil
}

// Cursors begin with whether all that was asked so far has answered: a list is complete only if each
// of its pages is.
const soFarComplete, soFarPartial = "c", "p"

// listed are the fields that lists ask for. Without this the user data of each instance comes along.
const listed = "nextPageToken,unreachables,warning(code),items/*(warning(code),instances(name,zone,machineType,labels,status,creationTimestamp,scheduling(provisioningModel),guestAccelerators(acceleratorType,acceleratorCount),networkInterfaces(networkIP,accessConfigs(natIP))))"

// List is cloud.Provider's. It looks at all zones of the project, so that an instance is found
// although its zone was taken out of the configuration.
func (p *Provider) List(ctx context.Context, cursor string) (cloud.Listing, error) {
	complete := !strings.HasPrefix(cursor, soFarPartial)
	query := url.Values{"filter": {"labels." + driver.TagOwner + "=" + p.cfg.Owner}, "maxResults": {strconv.Itoa(maxPage)},
		"returnPartialSuccess": {"true"}, "fields": {listed}}
	if cursor != "" {
		query.Set("pageToken", cursor[1:])
	} else {
		p.look(ctx)
		p.prune()
	}
	var page aggregated[scopedInstances]
	if err := p.do(ctx, call{what: "list of instances"}, http.MethodGet, "/aggregated/instances", query, nil, &page); err != nil {
		if f := (*muster.Fault)(nil); errors.As(err, &f) && f.Kind == muster.FaultInvalid && cursor != "" {
			f.Kind = muster.FaultTransient // the cursor is too old; the list is read again from its start
		}
		return cloud.Listing{}, err
	}
	complete = complete && len(page.Unreachables) == 0 && !page.Warning.missing()
	var out cloud.Listing
	for _, zone := range slices.Sorted(maps.Keys(page.Items)) {
		scoped := page.Items[zone]
		complete = complete && !scoped.Warning.missing()
		for i := range scoped.Instances {
			// What lists show of labels may lag, so the filter is not enough.
			if g := &scoped.Instances[i]; g.Labels[driver.TagOwner] == p.cfg.Owner {
				out.Instances = append(out.Instances, p.learn(g))
			}
		}
	}
	switch {
	case page.NextPageToken == "":
		out.Complete = complete
	case complete:
		out.Next = soFarComplete + page.NextPageToken
	default:
		out.Next = soFarPartial + page.NextPageToken
	}
	return out, nil
}

// Destroy is cloud.Provider's. It returns when the cloud has accepted; lists show the instance until it
// is gone. Disk and address go with it.
func (p *Provider) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	errs := make([]error, len(ids))
	driver.Each(len(ids), atOnce, func(i int) { errs[i] = p.destroy(ctx, ids[i]) })
	return errs
}

func (p *Provider) destroy(ctx context.Context, id muster.InstanceID) error {
	if !shape.MatchString(string(id)) {
		return nil // it can never have been one
	}
	// The cloud checks no owner. Whose an instance is that was seen already is known.
	if _, _, seen := p.knows(id); !seen {
		switch _, err := p.read(ctx, id); {
		case muster.IsKind(err, muster.FaultNotFound) && !errors.Is(err, errForeign):
			return nil
		case err != nil:
			return err
		}
	}
	var op operation
	err := p.do(ctx, call{what: "delete instance " + string(id)}, http.MethodDelete, instancePath(id), nil, nil, &op)
	if err == nil {
		if f := p.failed(call{what: "delete instance " + string(id)}, &op); f != nil {
			err = f
		}
	}
	if err != nil && !muster.IsKind(err, muster.FaultNotFound) {
		return err
	}
	p.forget(id)
	return nil
}

// atMostTagTries bounds how often SetTags reads an instance again because others have changed it meanwhile.
const atMostTagTries = 5

// SetTags is cloud.Provider's. The call replaces all labels, so it sends those that others have put on
// the instance, too. A fingerprint of those that it has read keeps two writers apart.
func (p *Provider) SetTags(ctx context.Context, id muster.InstanceID, tags cloud.Tags) error {
	for try := 1; ; try++ {
		err := p.setTags(ctx, id, tags)
		if r := reasonOf(err); r != "conditionNotMet" || try == atMostTagTries {
			return err
		}
	}
}

func (p *Provider) setTags(ctx context.Context, id muster.InstanceID, tags cloud.Tags) error {
	g, err := p.read(ctx, id)
	if err != nil {
		return err
	}
	if have := driver.TagsOf(g.Labels); tags.Owner != have.Owner || tags.Token != have.Token {
		return muster.Faultf(muster.FaultInvalid, "instance %s: it is of owner %s and token %s for ever, not %q and %q", id, have.Owner, have.Token, tags.Owner, tags.Token)
	}
	labels, err := p.labels(tags, nil)
	if err != nil {
		return err
	}
	others := maps.Clone(g.Labels)
	maps.DeleteFunc(others, func(k, _ string) bool { return strings.HasPrefix(k, "muster-") })
	maps.Copy(labels, others)
	if maps.Equal(labels, g.Labels) {
		return nil
	}
	c := call{what: "labels of instance " + string(id)}
	var op operation
	if err := p.do(ctx, c, http.MethodPost, instancePath(id)+"/setLabels", nil, setLabels{labels, g.LabelFingerprint}, &op); err != nil {
		return err
	}
	zone, _, _ := strings.Cut(string(id), "/")
	if err := p.await(ctx, c, zone, &op); err != nil && !errors.Is(err, errPending) {
		return err
	}
	return nil
}

// Access is cloud.Accessor's. The address is in the answer to a create, so it costs a call only for an
// instance that nothing has shown yet.
func (p *Provider) Access(ctx context.Context, id muster.InstanceID) (cloud.Access, error) {
	_, address, seen := p.knows(id)
	if !seen || address == "" {
		g, err := p.read(ctx, id)
		if err != nil {
			return cloud.Access{}, err
		}
		address = p.addressOf(g)
	}
	if address == "" {
		return cloud.Access{}, &muster.Fault{Kind: muster.FaultUnavailable, Message: "instance " + string(id) + " has no address yet", After: 5 * time.Second}
	}
	a := p.cfg.Access
	a.Address = address
	return a, nil
}

// HostKeys is cloud.HostKeyReader's. The guest agent and cloud-init write the keys to the guest
// attributes at the first boot. Anything on the machine may write them later, so only the first
// connection may rely on them; the server's own keys go first.
func (p *Provider) HostKeys(ctx context.Context, id muster.InstanceID) ([]string, error) {
	if _, err := p.read(ctx, id); err != nil {
		return nil, err
	}
	var got guestAttributes
	err := p.do(ctx, call{what: "host keys of instance " + string(id)}, http.MethodGet, instancePath(id)+"/getGuestAttributes",
		url.Values{"queryPath": {"hostkeys/"}}, nil, &got)
	if err != nil && !muster.IsKind(err, muster.FaultNotFound) {
		return nil, err
	}
	var lines []string
	for _, i := range got.QueryValue.Items {
		if i.Namespace == "hostkeys" && i.Value != "" {
			lines = append(lines, i.Key+" "+i.Value)
		}
	}
	if len(lines) == 0 {
		return nil, &muster.Fault{Kind: muster.FaultUnavailable, Message: "instance " + string(id) + " has not shown its host keys yet", After: 5 * time.Second}
	}
	return lines, nil
}
