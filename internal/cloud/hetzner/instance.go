package hetzner

import (
	"context"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// server is what is known of a server of this owner.
type server struct {
	instance cloud.Instance
	address  string
	// actions are those under way.
	actions map[int64]bool
	// off: it did not run when it was seen last. asked: its actions were read since then.
	off, asked bool
	seen       time.Time
}

// askAfter is how old a server must be that does not run before its actions are read.
const askAfter = 2 * time.Minute

// learn remembers a server of this owner and returns its instance.
func (p *Provider) learn(s *hcloud.Server, actions []*hcloud.Action) cloud.Instance {
	id := muster.InstanceID(strconv.FormatInt(s.ID, 10))
	i := cloud.Instance{ID: id, Tags: driver.TagsOf(s.Labels), Market: muster.OnDemand, Created: muster.At(s.Created)}
	if s.ServerType != nil {
		i.Offering = muster.OfferingName(s.ServerType.Name)
	}
	if s.Location != nil {
		i.Zone = s.Location.Name
	}
	address, now := p.addressOf(s), p.cfg.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.servers[id]
	if known == nil {
		known = &server{actions: map[int64]bool{}}
		p.servers[id] = known
	}
	failed := known.instance.Failed
	known.instance, known.seen = i, now
	known.instance.Failed = failed
	if address != "" {
		known.address = address
	}
	known.off = s.Status == hcloud.ServerStatusOff
	known.asked = known.asked && known.off
	p.noteLocked(known, actions)
	return known.instance
}

// noteLocked notes how actions of a server stand.
func (p *Provider) noteLocked(s *server, actions []*hcloud.Action) {
	for _, a := range actions {
		switch a.Status {
		case hcloud.ActionStatusRunning:
			s.actions[a.ID] = true
		case hcloud.ActionStatusError:
			delete(s.actions, a.ID)
			if s.instance.Failed == nil {
				s.instance.Failed = p.actionFault(&s.instance, a)
			}
		default:
			delete(s.actions, a.ID)
		}
	}
}

// actionFault is why a server will never run.
func (p *Provider) actionFault(i *cloud.Instance, a *hcloud.Action) *muster.Fault {
	f := p.judge(call{what: "server " + string(i.ID) + ": " + a.Command + " failed", offering: i.Offering, zone: i.Zone},
		hcloud.ErrorCode(a.ErrorCode), a.ErrorMessage)
	f.Err = hcloud.ActionError{Code: a.ErrorCode, Message: a.ErrorMessage}
	return f
}

// pending are the actions that are under way, as far as is known.
func (p *Provider) pending() []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []int64
	for _, s := range p.servers {
		out = slices.AppendSeq(out, maps.Keys(s.actions))
	}
	return out
}

// ended notes how the actions stand that were asked for. One that the cloud does not know any more
// is over.
func (p *Provider) ended(got []*hcloud.Action, asked []int64) {
	byID := map[int64]*hcloud.Action{}
	for _, a := range got {
		byID[a.ID] = a
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.servers {
		for _, id := range asked {
			if !s.actions[id] {
				continue
			}
			if a := byID[id]; a != nil {
				p.noteLocked(s, []*hcloud.Action{a})
			} else {
				delete(s.actions, id)
			}
		}
	}
}

// failed is why an instance will never run, as far as is known.
func (p *Provider) failed(id muster.InstanceID) *muster.Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.servers[id]; s != nil {
		return s.instance.Failed
	}
	return nil
}

// known is an instance that a list or a create has shown.
func (p *Provider) known(id muster.InstanceID) (cloud.Instance, string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.servers[id]
	if s == nil {
		return cloud.Instance{}, "", false
	}
	return s.instance, s.address, true
}

func (p *Provider) forget(id muster.InstanceID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.servers, id)
}

// addressOf is where the server is reached.
func (p *Provider) addressOf(s *hcloud.Server) string {
	switch {
	case p.cfg.PublicIP:
		return host(s.PublicNet.IPv4.IP)
	case p.cfg.Network != "":
		for _, n := range s.PrivateNet {
			if n.IP != nil {
				return n.IP.String()
			}
		}
		return ""
	}
	// A server gets a network of 64 bits, and its image takes the first address of it.
	ip := slices.Clone(s.PublicNet.IPv6.IP.To16())
	if ip == nil || ip.IsUnspecified() {
		return ""
	}
	ip[15] |= 1
	return ip.String()
}

func host(ip net.IP) string {
	if ip == nil || ip.IsUnspecified() {
		return ""
	}
	return ip.String()
}

// numberOf is the id of a server; false: it cannot be one, so there is no such server.
func numberOf(id muster.InstanceID) (int64, bool) {
	n, err := strconv.ParseInt(string(id), 10, 64)
	return n, err == nil && n > 0 && strconv.FormatInt(n, 10) == string(id)
}

func notFound(id muster.InstanceID) *muster.Fault {
	return muster.Faultf(muster.FaultNotFound, "server %q: there is none of this owner", id)
}

// read gets a server of this owner.
func (p *Provider) read(ctx context.Context, id muster.InstanceID) (*hcloud.Server, error) {
	n, ok := numberOf(id)
	if !ok {
		return nil, notFound(id)
	}
	ctx, sent := driver.Trace(ctx)
	s, resp, err := p.api.Server.GetByID(ctx, n)
	if err != nil {
		return nil, p.fault(call{what: "server " + string(id), sent: sent}, resp, err)
	}
	if s == nil {
		p.forget(id)
		return nil, notFound(id)
	}
	if tags := driver.TagsOf(s.Labels); tags.Owner != p.cfg.Owner || tags.Token == "" {
		return nil, &muster.Fault{Kind: muster.FaultNotFound, Message: notFound(id).Message, Err: errForeign}
	}
	return s, nil
}

// List is cloud.Provider's. The cursor is the number of the page.
func (p *Provider) List(ctx context.Context, cursor string) (cloud.Listing, error) {
	page := 1
	if cursor != "" {
		n, err := strconv.Atoi(cursor)
		if err != nil || n < 2 {
			return cloud.Listing{}, muster.Faultf(muster.FaultTransient, "list of servers: %q is no page: begin at the first", cursor)
		}
		page = n
	}
	began := p.cfg.Now()
	traced, sent := driver.Trace(ctx)
	got, resp, err := p.api.Server.List(traced, hcloud.ServerListOpts{ListOpts: hcloud.ListOpts{Page: page, PerPage: maxPage, LabelSelector: driver.TagOwner + "==" + p.cfg.Owner},
		Sort: []string{"id:asc"}})
	if err != nil {
		return cloud.Listing{}, p.fault(call{what: "list of servers", sent: sent}, resp, err)
	}
	var out cloud.Listing
	for _, s := range got {
		if tags := driver.TagsOf(s.Labels); tags.Owner != p.cfg.Owner || tags.Token == "" || s.Status == hcloud.ServerStatusDeleting {
			continue
		}
		out.Instances = append(out.Instances, p.learn(s, nil))
	}
	if resp.Meta.Pagination != nil && resp.Meta.Pagination.NextPage > page {
		out.Next = strconv.Itoa(resp.Meta.Pagination.NextPage)
	}
	out.Complete = out.Next == ""
	p.turnPage(cursor, began, &out)
	p.askStopped(ctx, out.Instances)
	return out, nil
}

// turnPage forgets what a whole list has not shown, so that memory has an end.
func (p *Provider) turnPage(cursor string, began time.Time, page *cloud.Listing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if gone := p.reading.Page(cursor, began, page); gone != nil {
		maps.DeleteFunc(p.servers, func(id muster.InstanceID, s *server) bool { return gone(id, s.seen) })
	}
}

// askStopped finds out why listed servers do not run: a start that failed after the create was
// answered shows in nothing but the server's actions. Each is asked for once.
func (p *Provider) askStopped(ctx context.Context, listed []cloud.Instance) {
	now := p.cfg.Now()
	for i := range listed {
		in := &listed[i]
		p.mu.Lock()
		s := p.servers[in.ID]
		ask := s != nil && s.off && !s.asked && s.instance.Failed == nil && now.Sub(in.Created.Std()) >= askAfter
		if ask {
			s.asked = true
		}
		p.mu.Unlock()
		if !ask {
			continue
		}
		n, _ := numberOf(in.ID)
		got, _, err := p.api.Server.Action.ListFor(ctx, &hcloud.Server{ID: n}, hcloud.ActionListOpts{ListOpts: hcloud.ListOpts{PerPage: maxPage}})
		p.mu.Lock()
		if err != nil {
			s.asked = false
		} else {
			p.noteLocked(s, got)
		}
		in.Failed = s.instance.Failed
		p.mu.Unlock()
	}
}

// Destroy is cloud.Provider's. Hetzner deletes at once; addresses made with a server go with it.
func (p *Provider) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	errs := make([]error, len(ids))
	driver.Each(len(ids), driver.AtOnce, func(i int) { errs[i] = p.destroy(ctx, ids[i]) })
	return errs
}

func (p *Provider) destroy(ctx context.Context, id muster.InstanceID) error {
	n, ok := numberOf(id)
	if !ok {
		return nil // it can never have been one
	}
	// The cloud checks no owner. Who owns a server that was seen already is known.
	if _, _, seen := p.known(id); !seen {
		switch _, err := p.read(ctx, id); {
		case muster.IsKind(err, muster.FaultNotFound) && !isForeign(err):
			return nil
		case err != nil:
			return err
		}
	}
	ctx, sent := driver.Trace(ctx)
	_, resp, err := p.api.Server.DeleteWithResult(ctx, &hcloud.Server{ID: n})
	if err != nil {
		f := p.fault(call{what: "delete server " + string(id), sent: sent}, resp, err)
		if f.Kind != muster.FaultNotFound {
			return f
		}
	}
	p.forget(id)
	return nil
}

// SetTags is cloud.Provider's. The call replaces all labels, so it sends those that others have put
// on the server, too.
func (p *Provider) SetTags(ctx context.Context, id muster.InstanceID, tags cloud.Tags) error {
	if tags.Owner != p.cfg.Owner {
		// Of an instance that is not there, or another's, the caller learns just that.
		if _, _, seen := p.known(id); !seen {
			if _, err := p.read(ctx, id); err != nil {
				return err
			}
		}
		return muster.Faultf(muster.FaultInvalid, "server %s: its owner is %s for ever, not %q", id, p.cfg.Owner, tags.Owner)
	}
	s, err := p.read(ctx, id)
	if err != nil {
		return err
	}
	if have := driver.TagsOf(s.Labels); have.Token != tags.Token {
		return muster.Faultf(muster.FaultInvalid, "server %s: its token is %s for ever, not %q", id, have.Token, tags.Token)
	}
	others := maps.Clone(s.Labels)
	maps.DeleteFunc(others, func(k, _ string) bool { return strings.HasPrefix(k, "muster-") })
	labels, err := p.labels(tags, nil)
	if err != nil {
		return err
	}
	maps.Copy(labels, others)
	if maps.Equal(labels, s.Labels) {
		return nil
	}
	ctx, sent := driver.Trace(ctx)
	now, resp, err := p.api.Server.Update(ctx, s, hcloud.ServerUpdateOpts{Labels: labels})
	if err != nil {
		return p.fault(call{what: "labels of server " + string(id), sent: sent}, resp, err)
	}
	p.learn(now, nil)
	return nil
}

// Access is cloud.Accessor's. A server's public addresses are in the answer to its create, so it
// costs a call only for those of a private network, or of a server that no list has shown yet.
func (p *Provider) Access(ctx context.Context, id muster.InstanceID) (cloud.Access, error) {
	_, address, seen := p.known(id)
	if !seen || address == "" {
		s, err := p.read(ctx, id)
		if err != nil {
			return cloud.Access{}, err
		}
		p.learn(s, nil)
		address = p.addressOf(s)
	}
	if address == "" {
		return cloud.Access{}, &muster.Fault{Kind: muster.FaultUnavailable, Message: "server " + string(id) + " has no address yet", After: 5 * time.Second}
	}
	a := p.cfg.Access
	a.Address, a.Shutdown = address, ""
	return a, nil
}
