package ec2

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

const (
	// maxBatch is how many instances one launch makes: their tokens fit in the value of one tag.
	maxBatch = 8
	// maxTagValue is EC2's bound; maxLabels leaves the rest of its 50 tags to ours.
	maxTagValue, maxLabels = 256, 40
	// rememberLaunch is how long a launch whose answer was lost can be repeated as it was.
	rememberLaunch = time.Hour
	// launchPatience is how long a launch is repeated that EC2 refused for the number of calls. After
	// it, the fleet may look for machines elsewhere.
	launchPatience = time.Minute
	// fullFor is how long a subnet that had no address is tried last.
	fullFor = time.Minute
)

// launch is one call of RunInstances for intents of the same kind. A launch whose answer was lost is
// kept, so that a repeated create sends the same call and gets the instances it made.
type launch struct {
	about   about
	intents []cloud.Intent
	image   machineImage
	// userData is in base64. It has private keys.
	userData string
	// subnet is the one whose answer was lost; empty: none yet. kept is since when.
	subnet string
	kept   time.Time
}

// launches are those whose answers were lost, by token, and the tokens in calls now.
type launches struct {
	driver.Tokens
	mu sync.Mutex
	m  map[muster.Token]*launch
}

// keep remembers a launch whose answer was lost; drop forgets it.
func (l *launches) keep(of *launch, subnet string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of.subnet, of.kept = subnet, now
	for _, in := range of.intents {
		l.m[in.Token] = of
	}
	maps.DeleteFunc(l.m, func(_ muster.Token, other *launch) bool { return now.Sub(other.kept) > rememberLaunch })
}

func (l *launches) drop(of *launch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, in := range of.intents {
		if l.m[in.Token] == of {
			delete(l.m, in.Token)
		}
	}
}

// lostIn is the subnet in which a launch's answer was lost; empty: none was.
func (l *launches) lostIn(of *launch) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return of.subnet
}

func (l *launches) unclear(t muster.Token) *launch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.m[t]
}

// Create is cloud.Provider's.
func (p *Provider) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	out := make([]cloud.Created, len(intents))
	// One token is one instance, also within a call.
	results := map[muster.Token]*cloud.Created{}
	var unique []cloud.Intent
	var tokens []muster.Token
	for _, in := range intents {
		if in.Market == "" {
			in.Market = muster.OnDemand
		}
		if results[in.Token] == nil {
			results[in.Token] = &cloud.Created{}
			unique, tokens = append(unique, in), append(tokens, in.Token)
		}
	}
	if len(unique) == 0 {
		return out
	}
	if done := p.launches.Take(ctx, tokens...); done != nil {
		p.create(ctx, unique, results)
		done()
	} else {
		for _, r := range results {
			r.Err = &muster.Fault{Kind: muster.FaultTransient, Message: p.api.named("RunInstances") + ": not sent", Err: ctx.Err()}
		}
	}
	for i := range intents {
		out[i] = *results[intents[i].Token]
	}
	return out
}

// create fills in the results of intents with different tokens.
func (p *Provider) create(ctx context.Context, intents []cloud.Intent, results map[muster.Token]*cloud.Created) {
	wanted, err := p.madeInBatches(ctx, intents, results)
	if err != nil {
		for _, in := range intents {
			results[in.Token].Err = err
		}
		return
	}
	var wg sync.WaitGroup
	for _, l := range p.plan(ctx, wanted, results) {
		wg.Go(func() {
			for token, made := range p.run(ctx, l) {
				// A launch that is repeated can have intents that this call does not ask for.
				if r := results[token]; r != nil {
					*r = made
				}
			}
		})
	}
	wg.Wait()
}

// madeInBatches finds what earlier launches of several instances have made already, and returns the
// other intents. The client token of a single launch protects only that form.
func (p *Provider) madeInBatches(ctx context.Context, intents []cloud.Intent, results map[muster.Token]*cloud.Created) ([]cloud.Intent, error) {
	form := url.Values{}
	filter(form, "tag:"+driver.TagOwner, p.cfg.Owner)
	var patterns []string
	for _, in := range intents {
		patterns = append(patterns, "*"+string(in.Token)+"*")
	}
	filter(form, "tag:"+tagTokens, patterns...)
	now := p.cfg.Now()
	found := map[muster.Token]*cloud.Created{}
	err := each(ctx, p, "DescribeInstances", form, maxPage, func(a *instancesAnswer) string {
		for r := range a.Reservations {
			for k := range a.Reservations[r].Instances {
				w := &a.Reservations[r].Instances[k]
				tags := w.tags()
				if tags.Owner != p.cfg.Owner || results[tags.Token] == nil {
					continue
				}
				switch had := found[tags.Token]; {
				case !ended(w.State):
					p.instances.learn(w, tags, now, false)
					found[tags.Token] = &cloud.Created{Instance: w.cloud(tags)}
				case had == nil:
					found[tags.Token] = &cloud.Created{Err: p.usedUp(tags.Token, w.ID)}
				}
			}
		}
		return a.Next
	})
	if err != nil {
		return nil, err
	}
	// Lists lag: what this process has made itself is known for certain.
	p.instances.mu.Lock()
	for _, i := range p.instances.m {
		if t := i.Tags.Token; results[t] != nil && found[t] == nil && !i.made.IsZero() && !ended(i.state) && i.batch {
			found[t] = &cloud.Created{Instance: i.Instance}
		}
	}
	p.instances.mu.Unlock()
	var rest []cloud.Intent
	for _, in := range intents {
		if made := found[in.Token]; made != nil {
			*results[in.Token] = *made
		} else {
			rest = append(rest, in)
		}
	}
	return rest, nil
}

func (p *Provider) usedUp(token muster.Token, id string) error {
	return muster.Faultf(muster.FaultTransient, "token %s is used up: its instance %s has ended", token, id)
}

// plan groups intents into launches. What can never be launched gets its result here.
func (p *Provider) plan(ctx context.Context, intents []cloud.Intent, results map[muster.Token]*cloud.Created) []*launch {
	var out []*launch
	for _, in := range intents {
		if l := p.launches.unclear(in.Token); l != nil {
			if !slices.Contains(out, l) {
				out = append(out, l)
			}
			continue
		}
		l, err := p.single(ctx, in)
		if err != nil {
			results[in.Token].Err = err
			continue
		}
		// A launch that is full or cannot take this one does not keep it from the others.
		joined := false
		for i, other := range out {
			if p.launches.lostIn(other) != "" || !other.takes(l) {
				continue
			}
			var more *launch
			if more, joined = other.with(in); joined {
				out[i] = more
				break
			}
		}
		if !joined {
			out = append(out, l)
		}
	}
	return out
}

// single is the launch of one intent.
func (p *Provider) single(ctx context.Context, in cloud.Intent) (*launch, error) {
	a := about{offering: in.Offering, zone: in.Zone, market: in.Market}
	t, err := p.typeOf(ctx, a)
	if err != nil {
		return nil, err
	}
	image, err := p.imageFor(ctx, in.Pool, t.arch)
	if err != nil {
		return nil, err
	}
	data := in.Boot.UserData.Reveal()
	if len(data) > maxUserData {
		return nil, &muster.Fault{Kind: muster.FaultInvalid, Field: "user_data_file", Scope: p.api.scope(offeringOnly, a),
			Message: fmt.Sprintf("the user data has %d bytes, and EC2 takes %d", len(data), maxUserData)}
	}
	return &launch{about: a, intents: []cloud.Intent{in}, image: image, userData: base64.StdEncoding.EncodeToString([]byte(data))}, nil
}

// takes reports whether both are of the same kind.
func (l *launch) takes(other *launch) bool {
	a, b := &l.intents[0], &other.intents[0]
	return l.about == other.about && l.image == other.image && a.Pool == b.Pool && maps.Equal(a.Labels, b.Labels)
}

// with is the launch with one more intent, if it can be one call.
func (l *launch) with(in cloud.Intent) (*launch, bool) {
	if len(l.intents) >= maxBatch {
		return nil, false
	}
	more := &launch{about: l.about, image: l.image, intents: append(slices.Clone(l.intents), in)}
	tokens, nodes := more.lists()
	if len(tokens) > maxTagValue || len(nodes) > maxTagValue || strings.Count(tokens, "/") != len(more.intents)-1 || strings.Count(nodes, "/") != len(more.intents)-1 {
		return nil, false
	}
	documents := make([]string, len(more.intents))
	for i := range more.intents {
		documents[i] = more.intents[i].Boot.UserData.Reveal()
	}
	shared, ok := sharedUserData(documents)
	if !ok {
		return nil, false
	}
	more.userData = base64.StdEncoding.EncodeToString([]byte(shared))
	return more, true
}

// lists are the tokens and the nodes in the order of the launch index.
func (l *launch) lists() (tokens, nodes string) {
	var t, n []string
	for i := range l.intents {
		t, n = append(t, string(l.intents[i].Token)), append(n, string(l.intents[i].Node))
	}
	return strings.Join(t, "/"), strings.Join(n, "/")
}

// run makes a launch, in one subnet of the zone after the other as long as each is full.
func (p *Provider) run(ctx context.Context, l *launch) map[muster.Token]cloud.Created {
	subnets, err := p.subnetsOf(ctx, l.about.zone)
	if err == nil && len(subnets) == 0 {
		err = &muster.Fault{Kind: muster.FaultInvalid, Field: "subnets", Scope: p.api.scope(offeringOnly, l.about),
			Message: fmt.Sprintf("provider %s has no subnet in zone %q", p.cfg.Name, l.about.zone)}
	}
	if err != nil {
		return l.all(err)
	}
	if lost := p.launches.lostIn(l); lost != "" {
		// The instances may have been made there: it is the same call again, or none.
		subnets = []subnet{{id: lost, zone: l.about.zone}}
	}
	for _, s := range subnets {
		var made map[muster.Token]cloud.Created
		if made, err = p.launchIn(ctx, l, s.id); err == nil {
			p.launches.drop(l)
			return made
		}
		switch {
		case muster.IsKind(err, muster.FaultAmbiguous):
			p.launches.keep(l, s.id, p.cfg.Now())
			return l.all(err)
		case codeOf(err) == codeSubnetFull && p.launches.lostIn(l) != "":
			return l.all(&muster.Fault{Kind: muster.FaultAmbiguous, Message: "the answer of an earlier call was lost", Err: err})
		case codeOf(err) == codeSubnetFull:
			p.refusals.add(s.id, p.cfg.Now().Add(fullFor))
			p.subnets.Forget(fullFor)
			continue
		case codeOf(err) == codeUnsupported:
			p.refusals.add(unsupportedKey(string(l.about.offering), l.about.zone), p.cfg.Now().Add(unsupportedFor))
		case strings.HasPrefix(codeOf(err), "InvalidAMIID."):
			// The next create resolves the image again.
			p.images[archAMD].Forget(0)
			p.images[archARM].Forget(0)
			p.pins.drop(l.image.id)
		}
		break
	}
	if !muster.IsKind(err, muster.FaultTransient) && !muster.IsKind(err, muster.FaultRateLimited) {
		p.launches.drop(l)
	}
	return l.all(err)
}

// all is the same result for each intent.
func (l *launch) all(err error) map[muster.Token]cloud.Created {
	out := map[muster.Token]cloud.Created{}
	for i := range l.intents {
		out[l.intents[i].Token] = cloud.Created{Err: err}
	}
	return out
}

// launchIn makes the call in one subnet at the rate that EC2 takes. A refusal for the number of calls
// is certain, so nothing was made and the call is repeated. Were it left to the fleet, that would try
// one launch of one machine at a time, while a launch of many costs EC2 no more.
func (p *Provider) launchIn(ctx context.Context, l *launch, subnet string) (map[muster.Token]cloud.Created, error) {
	unsent := func() error {
		return &muster.Fault{Kind: muster.FaultTransient, Message: p.api.named("RunInstances") + ": not sent: it waited for EC2's rate of launches", Err: ctx.Err()}
	}
	if !p.launch.Wait(ctx, 1) {
		return nil, unsent()
	}
	var refused error
	for waiting := ctx; ; {
		left, ok := p.throttle.Enter(waiting)
		switch {
		case ok:
		case refused != nil:
			return nil, refused
		default:
			return nil, unsent()
		}
		made, err := p.runIn(ctx, l, subnet)
		limited := muster.IsKind(err, muster.FaultRateLimited)
		left(limited)
		if !limited || p.patience <= 0 {
			return made, err
		}
		if refused == nil {
			var cancel context.CancelFunc
			waiting, cancel = context.WithTimeout(ctx, p.patience)
			defer cancel()
		}
		refused = err
	}
}

// runIn makes the call in one subnet.
func (p *Provider) runIn(ctx context.Context, l *launch, subnet string) (map[muster.Token]cloud.Created, error) {
	var answer reservation
	if err := p.api.do(ctx, call{action: "RunInstances", form: p.launchForm(l, subnet), effect: driver.Makes, about: l.about}, &answer); err != nil {
		return nil, err
	}
	out := l.all(&muster.Fault{Kind: muster.FaultCapacity, Scope: p.api.scope(offeringHere, l.about),
		Message: fmt.Sprintf("%s: EC2 made %d of %d instances", p.api.named("RunInstances"), len(answer.Instances), len(l.intents))})
	if len(answer.Instances) == 0 {
		return nil, muster.Faultf(muster.FaultAmbiguous, "%s: the answer has no instance", p.api.named("RunInstances"))
	}
	now := p.cfg.Now()
	for k := range answer.Instances {
		w := &answer.Instances[k]
		if w.Index < 0 || w.Index >= len(l.intents) || !idShape.MatchString(w.ID) {
			return nil, muster.Faultf(muster.FaultAmbiguous, "%s: the answer has instance %q with launch index %d of %d", p.api.named("RunInstances"), muster.Truncate(w.ID, 100), w.Index, len(l.intents))
		}
		in := &l.intents[w.Index]
		if ended(w.State) {
			// EC2 has answered a used token with its dead instance, too.
			out[in.Token] = cloud.Created{Err: p.usedUp(in.Token, w.ID)}
			continue
		}
		// A repeated call was seen to answer without tags.
		tags := w.tags()
		if tags.Owner != p.cfg.Owner || tags.Token != in.Token {
			tags = cloud.Tags{Owner: p.cfg.Owner, Token: in.Token, Node: in.Node, Pool: in.Pool}
		}
		// The answer of a launch lacks what the intent says in some fields of spot instances.
		w.Type, w.Zone = string(in.Offering), in.Zone
		if in.Market == muster.Spot {
			w.Lifecycle = "spot"
		}
		p.instances.learn(w, tags, now, true)
		p.instances.inBatch(muster.InstanceID(w.ID), len(l.intents) > 1)
		out[in.Token] = cloud.Created{Instance: w.cloud(tags)}
	}
	return out, nil
}

// launchForm is the call. Everything in it follows from the intents and the configuration.
func (p *Provider) launchForm(l *launch, subnet string) url.Values {
	in := &l.intents[0]
	tags := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(in.Labels)) {
		if len(tags) < maxLabels && k != "" && len(k) <= 128 && len(in.Labels[k]) <= maxTagValue && !strings.HasPrefix(strings.ToLower(k), "aws:") {
			tags[k] = in.Labels[k]
		}
	}
	paid := maps.Clone(tags)
	paid[driver.TagOwner] = p.cfg.Owner
	token := string(in.Token)
	if len(l.intents) == 1 {
		maps.Copy(tags, driver.TagMap(cloud.Tags{Owner: p.cfg.Owner, Token: in.Token, Node: in.Node, Pool: in.Pool}))
	} else {
		tags[driver.TagOwner], tags[driver.TagPool] = p.cfg.Owner, string(in.Pool)
		tags[tagTokens], tags[tagNodes] = l.lists()
		token = tags[tagTokens]
	}
	form := url.Values{
		"ImageId": {l.image.id}, "InstanceType": {string(in.Offering)}, "MinCount": {"1"}, "MaxCount": {strconv.Itoa(len(l.intents))},
		// The token is zonal in EC2, so the place is a part of it.
		"ClientToken": {driver.Digest(48, p.cfg.Owner, token, in.Zone, subnet)},
		// The default is to stop, and a stopped instance is kept.
		"InstanceInitiatedShutdownBehavior": {"terminate"},
		// One hop: what runs in a network of its own does not reach the user data.
		"MetadataOptions.HttpTokens": {"required"}, "MetadataOptions.HttpPutResponseHopLimit": {"1"},

		"NetworkInterface.1.DeviceIndex": {"0"}, "NetworkInterface.1.SubnetId": {subnet}, "NetworkInterface.1.DeleteOnTermination": {"true"},
		"NetworkInterface.1.AssociatePublicIpAddress": {strconv.FormatBool(p.cfg.PublicIP)},

		"BlockDeviceMapping.1.DeviceName": {l.image.root}, "BlockDeviceMapping.1.Ebs.VolumeSize": {strconv.FormatInt(int64(p.cfg.Disk/muster.GiB), 10)},
		"BlockDeviceMapping.1.Ebs.VolumeType": {"gp3"}, "BlockDeviceMapping.1.Ebs.DeleteOnTermination": {"true"}, "BlockDeviceMapping.1.Ebs.Encrypted": {"true"},
	}
	list(form, "NetworkInterface.1.SecurityGroupId", p.cfg.SecurityGroups)
	if l.userData != "" {
		form.Set("UserData", l.userData)
	}
	switch profile := p.cfg.InstanceProfile; {
	case strings.HasPrefix(profile, "arn:"):
		form.Set("IamInstanceProfile.Arn", profile)
	case profile != "":
		form.Set("IamInstanceProfile.Name", profile)
	}
	kinds := []string{"volume", "network-interface"}
	if in.Market == muster.Spot {
		// Without a price of our own: AWS advises against one, and it makes interruptions more frequent.
		form.Set("InstanceMarketOptions.MarketType", "spot")
		form.Set("InstanceMarketOptions.SpotOptions.SpotInstanceType", "one-time")
		form.Set("InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior", "terminate")
		kinds = append(kinds, "spot-instances-request")
	}
	tagSpec(form, 1, "instance", tags)
	for n, kind := range kinds {
		tagSpec(form, n+2, kind, paid)
	}
	return form
}
