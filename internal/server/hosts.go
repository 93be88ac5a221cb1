package server

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/static"
	"github.com/musterhq/muster/internal/state"
)

// hosts are the records of a static provider. They are rows of the state, so that each leader knows
// who has which host, and that of two leaders only one can give a host to somebody.
type hosts struct {
	provider muster.ProviderName
	state    *state.State
	log      state.Proposer
}

// ready says why nothing is known of hosts yet. In a cluster with a server of an older version that is
// so until the server is upgraded: an answer without any host would have all nodes given up.
func (h hosts) ready() error {
	if meta := h.state.Latest().Meta(); meta.LogFormat() < state.FormatProviders {
		return muster.Faultf(muster.FaultUnavailable, "provider %s: the log has the users of its hosts from format %d on, and the log has format %d until every server of the cluster reads a newer one; upgrade the servers that are older",
			h.provider, state.FormatProviders, meta.LogFormat())
	}
	return nil
}

// Hosts returns those that somebody has, or that are to be cleared.
func (h hosts) Hosts() (out []static.Record, err error) {
	if err := h.ready(); err != nil {
		return nil, err
	}
	state.ProvidersOf(h.state.Latest()).Hosts(h.provider, func(row *state.Host) bool {
		u := row.Use
		if u == nil {
			return true
		}
		r := static.Record{Host: row.Name, Owed: u.Owed, Instance: cloud.Instance{
			ID: u.Instance, Offering: u.Offering, Zone: u.Zone, Market: u.Market, Created: u.Taken,
			Tags: cloud.Tags{Owner: u.Owner, Token: u.Token, Node: u.Node, Pool: u.Pool, Intent: u.Intent},
		}}
		if err = json.Unmarshal(u.Access, &r.Access); err != nil {
			err = muster.Faultf(muster.FaultInternal, "host %s of provider %s: the log does not say how it is reached: %v", row.Name, h.provider, err)
			return false
		}
		out = append(out, r)
		return true
	})
	return out, err
}

func (h hosts) Take(ctx context.Context, r static.Record) error {
	access, err := json.Marshal(r.Access)
	if err != nil {
		return err
	}
	return h.propose(ctx, &state.HostTaken{Provider: h.provider, Name: r.Host, Use: state.HostUse{
		Instance: r.ID, Owner: r.Tags.Owner, Token: r.Tags.Token, Node: r.Tags.Node, Pool: r.Tags.Pool, Intent: r.Tags.Intent,
		Offering: r.Offering, Zone: r.Zone, Market: r.Market, Taken: r.Created, Owed: r.Owed, Access: access,
	}})
}

func (h hosts) Tag(ctx context.Context, host string, id muster.InstanceID, tags cloud.Tags) error {
	return h.propose(ctx, &state.HostTagged{Provider: h.provider, Name: host, Instance: id, Node: tags.Node, Pool: tags.Pool, Intent: tags.Intent})
}

func (h hosts) Release(ctx context.Context, host string, id muster.InstanceID, owed bool) error {
	return h.propose(ctx, &state.HostReleased{Provider: h.provider, Name: host, Instance: id, Owed: owed})
}

// Found returns what was measured, by host.
func (h hosts) Found() (map[string]static.Found, error) {
	if err := h.ready(); err != nil {
		return nil, err
	}
	out := map[string]static.Found{}
	state.ProvidersOf(h.state.Latest()).Hosts(h.provider, func(row *state.Host) bool {
		if f := row.Found; f != nil {
			out[row.Name] = static.Found{Address: f.Address, Capacity: f.Capacity, Arch: f.Arch}
		}
		return true
	})
	return out, nil
}

func (h hosts) SetFound(ctx context.Context, all map[string]static.Found) error {
	fact := &state.HostsFound{Provider: h.provider}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		fact.Hosts = append(fact.Hosts, state.HostFound{Name: name, Address: f.Address, Capacity: f.Capacity, Arch: f.Arch})
	}
	return h.propose(ctx, fact)
}

func (h hosts) propose(ctx context.Context, f state.Fact) error {
	_, _, err := h.log.Propose(ctx, f)
	return err
}
