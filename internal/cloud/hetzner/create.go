package hetzner

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
	"github.com/musterhq/muster/internal/wait"
)

// verdict is how long Create waits for actions to end.
const verdict = time.Minute

// Create is cloud.Provider's. It waits for the actions of all servers together, for up to a minute: a
// start that fails leaves a server that is stopped and paid for.
func (p *Provider) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	out := make([]cloud.Created, len(intents))
	driver.Each(len(intents), driver.AtOnce, func(i int) {
		made, err := p.create(ctx, &intents[i])
		out[i] = cloud.Created{Instance: made, Err: err}
	})
	p.await(ctx)
	for i := range out {
		if out[i].Err == nil {
			out[i].Instance.Failed = p.failed(out[i].Instance.ID)
		}
	}
	return out
}

// create makes the server of one intent, or finds it.
func (p *Provider) create(ctx context.Context, in *cloud.Intent) (cloud.Instance, error) {
	what := "create server for token " + string(in.Token)
	leave := p.creating.Take(ctx, in.Token)
	if leave == nil {
		return cloud.Instance{}, &muster.Fault{Kind: muster.FaultTransient, Message: what + ": not sent", Err: ctx.Err()}
	}
	defer leave()
	if err := p.offered(ctx, in.Offering, in.Zone); err != nil {
		return cloud.Instance{}, err
	}
	opts, err := p.options(ctx, in)
	if err != nil {
		return cloud.Instance{}, err
	}
	ctx, sent := driver.Trace(ctx)
	c := call{what: what, effect: driver.Makes, offering: in.Offering, zone: in.Zone, sent: sent}
	made, resp, err := p.api.Server.Create(ctx, opts)
	switch {
	case hcloud.IsError(err, hcloud.ErrorCodeUniquenessError):
		return p.adopt(ctx, in, opts.Name)
	case err != nil:
		return cloud.Instance{}, p.fault(c, resp, err)
	case made.Server == nil || made.Server.ID == 0:
		return cloud.Instance{}, muster.Faultf(muster.FaultAmbiguous, "%s: the answer has no server", what)
	}
	actions := made.NextActions
	if made.Action != nil {
		actions = append(actions, made.Action)
	}
	return p.learn(made.Server, actions), nil
}

// options are the body of a create. They follow from the intent and the configuration alone.
func (p *Provider) options(ctx context.Context, in *cloud.Intent) (hcloud.ServerCreateOpts, error) {
	labels, err := p.labels(cloud.Tags{Owner: p.cfg.Owner, Token: in.Token, Node: in.Node, Pool: in.Pool}, in.Labels)
	if err != nil {
		return hcloud.ServerCreateOpts{}, err
	}
	opts := hcloud.ServerCreateOpts{
		Name: driver.InstanceName(p.cfg.Owner, in.Token), ServerType: &hcloud.ServerType{Name: string(in.Offering)},
		Image: &hcloud.Image{Name: p.cfg.Image}, Location: &hcloud.Location{Name: in.Zone},
		UserData: in.Boot.UserData.Reveal(), StartAfterCreate: hcloud.Ptr(true), Labels: labels,
		PublicNet: &hcloud.ServerCreatePublicNet{EnableIPv4: p.cfg.PublicIP, EnableIPv6: true},
	}
	if id, err := strconv.ParseInt(p.cfg.Image, 10, 64); err == nil {
		opts.Image = &hcloud.Image{ID: id}
	}
	if p.cfg.Network != "" {
		id, err := p.network.Get(ctx)
		if err != nil {
			return opts, err
		}
		opts.Networks = []*hcloud.Network{{ID: id}}
	}
	return opts, nil
}

// labels are the tags and, where they can be labels, the operator's own.
func (p *Provider) labels(tags cloud.Tags, more map[string]string) (map[string]string, error) {
	out := map[string]string{}
	for k, v := range more {
		if !strings.HasPrefix(k, "muster-") && k != "" && label.MatchString(k) && label.MatchString(v) {
			out[k] = v
		}
	}
	maps.Copy(out, driver.TagMap(tags))
	for k, v := range out {
		if !label.MatchString(v) {
			return nil, muster.Faultf(muster.FaultInvalid, "label %s cannot be %q: Hetzner takes %d letters, digits, dots, dashes and underscores", k, v, maxLabel)
		}
	}
	return out, nil
}

// adopt takes over the server of that name, which an earlier create of the token has made.
func (p *Provider) adopt(ctx context.Context, in *cloud.Intent, name string) (cloud.Instance, error) {
	ctx, sent := driver.Trace(ctx)
	what := "server " + name + " of token " + string(in.Token)
	found, resp, err := p.api.Server.List(ctx, hcloud.ServerListOpts{Name: name})
	switch {
	case err != nil:
		f := p.fault(call{what: what, sent: sent}, resp, err)
		if f.Kind == muster.FaultTransient {
			f.Kind = muster.FaultAmbiguous // it exists
		}
		return cloud.Instance{}, f
	case len(found) == 0:
		return cloud.Instance{}, muster.Faultf(muster.FaultAmbiguous, "%s: the name is in use, and no server has it", what)
	}
	if tags := driver.TagsOf(found[0].Labels); tags.Owner != p.cfg.Owner || tags.Token != in.Token {
		return cloud.Instance{}, muster.Faultf(muster.FaultInvalid, "%s: server %d has the name and not the labels; remove it or put them back", what, found[0].ID)
	}
	return p.learn(found[0], nil), nil
}

// await looks at all actions that are under way until they have ended, or the time for a verdict or
// the call's is over.
func (p *Provider) await(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, verdict)
	defer cancel()
	for {
		ids := p.pending()
		if len(ids) == 0 || ctx.Err() != nil {
			return
		}
		if err := p.look(ctx, ids); err != nil && ctx.Err() == nil {
			// What has been made is known; how it ends will show in lists.
			p.log.Debug("actions cannot be read", "provider", p.cfg.Name, "err", err)
			return
		}
		if len(p.pending()) == 0 || !wait.For(ctx, p.cfg.Poll) {
			return
		}
	}
}

// look reads the state of actions, many in one call.
func (p *Provider) look(ctx context.Context, ids []int64) error {
	ctx, sent := driver.Trace(ctx)
	for len(ids) > 0 {
		n := min(len(ids), maxPage)
		got, resp, err := p.api.Action.List(ctx, hcloud.ActionListOpts{ID: ids[:n], ListOpts: hcloud.ListOpts{PerPage: maxPage}})
		if err != nil {
			return p.fault(call{what: "list of actions", sent: sent}, resp, err)
		}
		p.ended(got, ids[:n])
		ids = ids[n:]
	}
	return nil
}
