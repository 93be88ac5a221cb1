package openstack

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/pagination"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// States of Nova's servers that the driver looks at.
const (
	statusActive      = "ACTIVE"
	statusBuild       = "BUILD"
	statusError       = "ERROR"
	statusUnknown     = "UNKNOWN"
	statusShutoff     = "SHUTOFF"
	statusSuspended   = "SUSPENDED"
	statusDeleted     = "DELETED"
	statusSoftDeleted = "SOFT_DELETED"

	taskDeleting = "deleting"
)

// server is what is known of a server of this owner.
type server struct {
	instance cloud.Instance
	address  string
	status   string
	seen     time.Time
}

// errForeign marks a server that exists and is another's.
var errForeign = errors.New("it is not of this owner")

// id is the form of Nova's ids.
var id = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// isID reports whether a text can be an id of OpenStack's.
func isID(s string) bool { return id.MatchString(s) }

// status is the HTTP status of an error of the library; 0: it has none.
func status(err error) int {
	var after *gophercloud.ErrErrorAfterReauthentication
	if errors.As(err, &after) {
		err = after.ErrOriginal
	}
	var e gophercloud.ErrUnexpectedResponseCode
	if errors.As(err, &e) {
		return e.Actual
	}
	return 0
}

// timeOf reads a time as Nova writes it, with and without a zone. It is always UTC.
func timeOf(text string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// ended reports whether a server is gone already although Nova lists it. A soft-deleted one runs no
// more; the operator of the cloud removes it later, and until then it may count against the quota.
func ended(s *servers.Server) bool {
	return s.Status == statusDeleted || s.Status == statusSoftDeleted
}

// mine reports whether a server is of this owner.
func (p *Provider) mine(s *servers.Server) bool {
	tags := driver.TagsOf(s.Metadata)
	return tags.Owner == p.cfg.Owner && tags.Token != ""
}

// learn remembers a server of this owner and returns its instance.
func (p *Provider) learn(s *servers.Server) cloud.Instance {
	in := cloud.Instance{ID: muster.InstanceID(s.ID), Tags: driver.TagsOf(s.Metadata), Market: muster.OnDemand,
		Created: muster.At(s.Created), Zone: s.Metadata[tagZone]}
	if name, ok := s.Flavor["original_name"].(string); ok {
		in.Offering = muster.OfferingName(name)
	}
	if s.AvailabilityZone != "" && in.Zone == "" {
		in.Zone = s.AvailabilityZone
	}
	// One that ran once and is in ERROR now has failed at something else, as a resize. It may run.
	if s.Status == statusError && s.LaunchedAt.IsZero() {
		in.Failed = p.buildFault(in.ID, in.Offering, in.Zone, s.Fault.Message)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.servers[in.ID] = &server{instance: in, address: addressOf(s, p.cfg.Network), status: s.Status, seen: p.cfg.Now()}
	return in
}

// known is a server that a list or a create has shown.
func (p *Provider) known(id muster.InstanceID) (server, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.servers[id]
	if s == nil {
		return server{}, false
	}
	return *s, true
}

func (p *Provider) forget(id muster.InstanceID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.servers, id)
}

// addressOf is where a server is reached: its first fixed IPv4 address in the network of that name,
// else in any, else one of IPv6.
func addressOf(s *servers.Server, network string) string {
	best, rank := "", 0
	for _, name := range sortedNetworks(s.Addresses) {
		raw, _ := json.Marshal(s.Addresses[name])
		var list []struct {
			Address string `json:"addr"`
			Version int    `json:"version"`
			Type    string `json:"OS-EXT-IPS:type"`
		}
		if json.Unmarshal(raw, &list) != nil {
			continue
		}
		for _, a := range list {
			r := 1
			if a.Version == 4 {
				r += 2
			}
			if name == network {
				r += 4
			}
			if a.Address != "" && a.Type != "floating" && r > rank {
				best, rank = a.Address, r
			}
		}
	}
	return best
}

func sortedNetworks(of map[string]any) []string {
	var names []string
	for name := range of {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func notFound(id muster.InstanceID) *muster.Fault {
	return muster.Faultf(muster.FaultNotFound, "server %q: there is none of this owner", id)
}

// read gets a server of this owner.
func (p *Provider) read(ctx context.Context, id muster.InstanceID) (*servers.Server, error) {
	if !isID(string(id)) {
		return nil, notFound(id)
	}
	what := "server " + string(id)
	s, err := p.session(ctx, what)
	if err != nil {
		return nil, err
	}
	ctx, sent := driver.Trace(ctx)
	got, err := servers.Get(ctx, s.compute, string(id)).Extract()
	switch {
	case status(err) == http.StatusNotFound:
		f := p.fault(call{what: what, sent: sent}, err)
		if f.Kind == muster.FaultNotFound {
			p.forget(id)
			return nil, notFound(id)
		}
		return nil, f
	case err != nil:
		return nil, p.fault(call{what: what, sent: sent}, err)
	case got.Status == statusUnknown && !p.mine(got):
		return nil, &muster.Fault{Kind: muster.FaultUnavailable, Message: what + ": the part of the cloud that has it does not answer", After: 30 * time.Second}
	case ended(got):
		p.forget(id)
		return nil, notFound(id)
	case !p.mine(got):
		return nil, &muster.Fault{Kind: muster.FaultNotFound, Message: notFound(id).Message, Err: errForeign}
	}
	return got, nil
}

// page is a page of a list of servers.
type page struct {
	servers []servers.Server
	more    bool
}

// page reads one page. The library would follow all of them.
func (p *Provider) page(ctx context.Context, s *session, what string, opts servers.ListOpts) (page, error) {
	var out page
	ctx, sent := driver.Trace(ctx)
	err := servers.List(s.compute, opts).EachPage(ctx, func(_ context.Context, got pagination.Page) (bool, error) {
		list, err := servers.ExtractServers(got)
		if err != nil {
			return false, muster.Faultf(muster.FaultTransient, "the list makes no sense: %v", err)
		}
		next, err := got.NextPageURL()
		if err != nil {
			return false, muster.Faultf(muster.FaultTransient, "the list's next page makes no sense: %v", err)
		}
		out.servers, out.more = list, next != ""
		return false, nil
	})
	if err != nil {
		return out, p.fault(call{what: what, sent: sent}, err)
	}
	return out, nil
}

// List is cloud.Provider's. The cursor is the id of the last server of the page before. No filter
// goes to Nova: it leaves out servers of cells that are down from lists with one, and the list would
// look whole.
func (p *Provider) List(ctx context.Context, cursor string) (cloud.Listing, error) {
	after, holes := strings.CutSuffix(cursor, "!")
	if cursor != "" && !isID(after) {
		return cloud.Listing{}, muster.Faultf(muster.FaultTransient, "list of servers: %q is no page: begin at the first", cursor)
	}
	s, err := p.session(ctx, "list of servers")
	if err != nil {
		return cloud.Listing{}, err
	}
	if cursor == "" {
		p.mu.Lock()
		p.began = p.cfg.Now()
		p.mu.Unlock()
	}
	got, err := p.page(ctx, s, "list of servers", servers.ListOpts{Limit: maxPage, Marker: after})
	if err != nil {
		if cursor != "" && muster.IsKind(err, muster.FaultInvalid) {
			return cloud.Listing{}, &muster.Fault{Kind: muster.FaultTransient, Message: "list of servers: the server that the last page ended with is gone: begin at the first", Err: err}
		}
		return cloud.Listing{}, err
	}
	var out cloud.Listing
	for i := range got.servers {
		v := &got.servers[i]
		switch {
		case p.mine(v) && !ended(v):
			out.Instances = append(out.Instances, p.learn(v))
		case v.Status == statusUnknown:
			holes = true // its cell is down, so nobody knows whose it is
		}
	}
	if got.more && len(got.servers) > 0 {
		out.Next = got.servers[len(got.servers)-1].ID
		if holes {
			out.Next += "!"
		}
	}
	out.Complete = out.Next == "" && !holes
	if out.Complete {
		p.prune()
	}
	return out, nil
}

// prune forgets what a whole list has not shown, so that memory has an end. Of two lists at once it
// may forget too much, which costs a read.
func (p *Provider) prune() {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.servers, func(_ muster.InstanceID, s *server) bool { return s.seen.Before(p.began) })
}

// Destroy is cloud.Provider's. Nova deletes in its own time; until then lists show the server.
func (p *Provider) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	errs := make([]error, len(ids))
	driver.Each(len(ids), driver.AtOnce, func(i int) { errs[i] = p.destroy(ctx, ids[i]) })
	return errs
}

func (p *Provider) destroy(ctx context.Context, id muster.InstanceID) error {
	if !isID(string(id)) {
		return nil // it can never have been one
	}
	// The cloud checks no owner. Who owns a server that was seen already is known.
	if _, seen := p.known(id); !seen {
		switch _, err := p.read(ctx, id); {
		case muster.IsKind(err, muster.FaultNotFound) && !errors.Is(err, errForeign):
			return nil
		case err != nil:
			return err
		}
	}
	what := "delete server " + string(id)
	s, err := p.session(ctx, what)
	if err != nil {
		return err
	}
	traced, sent := driver.Trace(ctx)
	err = servers.Delete(traced, s.compute, string(id)).ExtractErr()
	if status(err) == http.StatusConflict {
		// A delete that has failed before leaves a state in which only this is allowed.
		if forced := servers.ForceDelete(traced, s.compute, string(id)).ExtractErr(); forced == nil || status(forced) == http.StatusNotFound {
			err = forced
		}
	}
	if err != nil {
		if f := p.fault(call{what: what, sent: sent}, err); f.Kind != muster.FaultNotFound {
			return f
		}
	}
	p.forget(id)
	return nil
}

// SetTags is cloud.Provider's. Nova takes all five in one call, and leaves other metadata alone.
func (p *Provider) SetTags(ctx context.Context, id muster.InstanceID, tags cloud.Tags) error {
	s, err := p.read(ctx, id)
	if err != nil {
		return err
	}
	have := driver.TagsOf(s.Metadata)
	switch {
	case tags.Owner != have.Owner:
		return muster.Faultf(muster.FaultInvalid, "server %s: its owner is %s for ever, not %q", id, have.Owner, tags.Owner)
	case tags.Token != have.Token:
		return muster.Faultf(muster.FaultInvalid, "server %s: its token is %s for ever, not %q", id, have.Token, tags.Token)
	case tags == have:
		return nil
	}
	metadata, err := p.metadata(tags, nil)
	if err != nil {
		return err
	}
	what := "metadata of server " + string(id)
	api, err := p.session(ctx, what)
	if err != nil {
		return err
	}
	ctx, sent := driver.Trace(ctx)
	if _, err := servers.UpdateMetadata(ctx, api.compute, string(id), servers.MetadataOpts(metadata)).Extract(); err != nil {
		return p.fault(call{what: what, sent: sent}, err)
	}
	return nil
}

// Access is cloud.Accessor's. It costs a call only while no list has shown the server with an
// address.
func (p *Provider) Access(ctx context.Context, id muster.InstanceID) (cloud.Access, error) {
	known, seen := p.known(id)
	if !seen || known.address == "" {
		s, err := p.read(ctx, id)
		if err != nil {
			return cloud.Access{}, err
		}
		p.learn(s)
		known, _ = p.known(id)
	}
	if known.address == "" {
		return cloud.Access{}, &muster.Fault{Kind: muster.FaultUnavailable, Message: "server " + string(id) + " has no address yet", After: 5 * time.Second}
	}
	a := p.cfg.Access
	a.Address = known.address
	return a, nil
}

// HostKeys is cloud.HostKeyReader's, for nodes whose keys the server did not make: cloud-init writes
// the public keys to the console, which nobody on the network can change.
func (p *Provider) HostKeys(ctx context.Context, id muster.InstanceID) ([]string, error) {
	if _, err := p.read(ctx, id); err != nil {
		return nil, err
	}
	what := "console of server " + string(id)
	s, err := p.session(ctx, what)
	if err != nil {
		return nil, err
	}
	ctx, sent := driver.Trace(ctx)
	text, err := servers.ShowConsoleOutput(ctx, s.compute, string(id), servers.ShowConsoleOutputOpts{}).Extract()
	if err != nil {
		f := p.fault(call{what: what, sent: sent}, err)
		if f.Kind == muster.FaultTransient {
			f.Kind, f.After = muster.FaultUnavailable, 10*time.Second // it has no console yet
		}
		return nil, f
	}
	lines := hostKeysOf(text)
	if len(lines) == 0 {
		return nil, &muster.Fault{Kind: muster.FaultUnavailable, Message: what + " shows no host keys yet", After: 10 * time.Second}
	}
	return lines, nil
}

// hostKeysOf are the keys in a whole block of cloud-init's.
func hostKeysOf(console string) []string {
	const begin, end = "-----BEGIN SSH HOST KEY KEYS-----", "-----END SSH HOST KEY KEYS-----"
	from := strings.LastIndex(console, begin)
	if from < 0 {
		return nil
	}
	block, _, whole := strings.Cut(console[from+len(begin):], end)
	if !whole {
		return nil
	}
	var out []string
	for line := range strings.Lines(block) {
		if f := strings.Fields(line); len(f) >= 2 && (strings.HasPrefix(f[0], "ssh-") || strings.HasPrefix(f[0], "ecdsa-")) {
			out = append(out, f[0]+" "+f[1])
		}
	}
	return out
}
