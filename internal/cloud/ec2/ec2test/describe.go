package ec2test

import (
	"slices"
	"strings"
	"time"
)

// cursor is what a page token stands for.
type cursor struct {
	// rest is the list as it was at the first page. EC2 keeps none, which is what move is for.
	query     string
	rest      []string
	last      string // the first of the page before
	issued    time.Time
	goodUntil time.Time
}

// pages cuts a list into pages. A token is good for the query that it was made for. mu is held.
func (c *call) pages(all []string, least, most int) (now []string, next string, refused *failure) {
	n, refused := c.size(least, most)
	if refused != nil {
		return nil, "", refused
	}
	s := c.s
	if l := s.striking("list", "page", subject{action: c.action}); l != nil {
		n = min(n, l.number("max"))
	}
	if token := c.form.Get("NextToken"); token != "" {
		k := s.cursors[token]
		switch {
		case k == nil:
			return nil, "", fail(400, "InvalidParameterValue", "Unable to parse pagination token")
		// A token that is used with another filter would show a page of another list. A driver that mixes
		// two lists of its own is found out here.
		case k.query != c.query():
			return nil, "", fail(400, "InvalidPaginationToken", "The pagination token was made for other parameters")
		case !k.goodUntil.IsZero() && s.now().After(k.goodUntil):
			return nil, "", fail(400, "InvalidPaginationToken", "The pagination token has expired")
		}
		all = slices.Clone(k.rest)
		if s.striking("list", "move", subject{action: c.action}) != nil && len(all) > 0 {
			// EC2 promises no snapshot over pages. An instance can be on two of them, or on none.
			if s.rand.IntN(2) == 0 {
				all = append([]string{k.last}, all...)
			} else {
				all = all[1:]
			}
		}
	}
	if len(all) <= n {
		return all, "", nil
	}
	k := &cursor{query: c.query(), rest: all[n:], last: all[0], issued: s.now()}
	if l := s.striking("list", "expire", subject{action: c.action}); l != nil {
		k.goodUntil = k.issued.Add(l.Moment())
	}
	next = "token-" + itoa(len(s.cursors)+1)
	s.cursors[next] = k
	return all[:n], next, nil
}

// checkMachines finds the machines that have shut themselves down.
func (s *Server) checkMachines() {
	if s.cfg.Machines == nil {
		return
	}
	s.mu.Lock()
	s.settle()
	var look []*instance
	for _, i := range s.instances {
		if i.state == running && i.booted {
			look = append(look, i)
		}
	}
	s.mu.Unlock()
	// Asked without the lock: whether a process runs is not in the books.
	for _, i := range look {
		if s.cfg.Machines.State(i.id) {
			continue
		}
		s.mu.Lock()
		if i.state == running && i.onPoweroff == "terminate" {
			i.end(s.now(), "Client.InstanceInitiatedShutdown: Instance initiated shutdown")
		} else if i.state == running {
			i.turn(s.now(), stopping)
		}
		s.mu.Unlock()
	}
}

// field finds what filters look at. Filters see the tags that the answer shows: one on a tag that has
// not come yet leaves the instance out.
func (i *instance) field(tags []tag) func(string) ([]string, bool) {
	return func(name string) ([]string, bool) {
		market := "on-demand"
		if i.spot {
			market = "spot"
		}
		own := map[string]string{"client-token": i.token, "instance-state-name": i.state, "instance-state-code": itoa(codes[i.state]), "instance-id": i.id,
			"instance-type": i.kind.Name, "availability-zone": i.zone, "subnet-id": i.subnet, "image-id": i.ami, "reservation-id": i.reservation,
			"instance-lifecycle": market, "spot-instance-request-id": i.request, "private-ip-address": i.address}
		if v, ok := own[name]; ok {
			return []string{v}, true
		}
		return tagField(tags, name)
	}
}

// tagField are the values of a filter on tags.
func tagField(tags []tag, name string) ([]string, bool) {
	if name == "tag-key" {
		var keys []string
		for _, t := range tags {
			keys = append(keys, t.key)
		}
		return keys, true
	}
	key, ok := strings.CutPrefix(name, "tag:")
	if !ok {
		return nil, false
	}
	if v, has := tagMap(tags)[key]; has {
		return []string{v}, true
	}
	return nil, true
}

// describeInstances answers from one of two replicas. Ids that are named must all be known to it;
// filters just select less.
func (c *call) describeInstances() (string, *failure) {
	s := c.s
	s.checkMachines()
	filters, refused := c.filters()
	if refused != nil {
		return "", refused
	}
	ids := c.values("InstanceId")
	// EC2 has no pages for ids that are named.
	if len(ids) > 0 && (c.form.Has("MaxResults") || c.form.Has("NextToken")) {
		return "", fail(400, "InvalidParameterCombination", "The parameter instancesSet cannot be used with the parameter maxResults")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	now, replica := s.now(), s.rand.IntN(2)
	var all []string
	look := s.instances
	if len(ids) > 0 {
		if look, refused = s.find(ids); refused != nil {
			return "", refused
		}
		// Instances that are named were found by find, which has asked a replica already.
		replica = -1
	}
	for _, i := range look {
		ok, refused := fits(filters, i.field(i.shownTags(now)))
		if refused != nil {
			return "", refused
		}
		if ok && (replica < 0 || i.listed(replica, now)) {
			all = append(all, i.id)
		}
	}
	// A filter that does not exist is refused even when there is nothing that it could select.
	if len(look) == 0 {
		if _, refused := fits(filters, (&instance{}).field(nil)); refused != nil {
			return "", refused
		}
	}
	shown, next, refused := c.pages(all, 5, 1000)
	if refused != nil {
		return "", refused
	}
	return reservations(s, shown, now) + el("nextToken", next), nil
}

// reservations groups instances by their launch, as they come. mu is held.
func reservations(s *Server, ids []string, now time.Time) string {
	var b strings.Builder
	for k := 0; k < len(ids); {
		// Instances of one launch are one reservation, also if a page divides it in two.
		first, items := s.byID[ids[k]], ""
		for ; k < len(ids) && s.byID[ids[k]].reservation == first.reservation; k++ {
			i := s.byID[ids[k]]
			items += i.xml(i.shownTags(now))
		}
		b.WriteString(nest("item", el("reservationId", first.reservation), el("ownerId", "123456789012"), "<groupSet/>", nest("instancesSet", items)))
	}
	return nest("reservationSet", b.String())
}

// describeStatus shows running instances only, unless it is asked for all.
func (c *call) describeStatus() (string, *failure) {
	return c.listed("instanceStatusSet", 5, 1000, func(now time.Time) []row {
		var rows []row
		for _, i := range c.s.instances {
			if i.state != running && c.form.Get("IncludeAllInstances") != "true" || !i.listed(1, now) {
				continue
			}
			if ids := c.values("InstanceId"); len(ids) > 0 && !slices.Contains(ids, i.id) {
				continue
			}
			rows = append(rows, row{i.field(nil), nest("item", el("instanceId", i.id), el("availabilityZone", i.zone), stateXML("instanceState", i.state))})
		}
		return rows
	})
}

// describeSpotRequests is where EC2's API tells of a notice. The instances themselves show nothing of
// it until they end.
func (c *call) describeSpotRequests() (string, *failure) {
	ids := c.values("SpotInstanceRequestId")
	return c.listed("spotInstanceRequestSet", 5, 1000, func(now time.Time) []row {
		var rows []row
		for _, i := range c.s.instances {
			// Requests are listed as late as their instances.
			if !i.spot || !i.listed(1, now) || len(ids) > 0 && !slices.Contains(ids, i.request) {
				continue
			}
			code, at, state := "fulfilled", i.created, "active"
			if !i.closedAt.IsZero() {
				code, at, state = i.closed, i.closedAt, "closed"
			}
			own := map[string]string{"status-code": code, "state": state, "instance-id": i.id, "spot-instance-request-id": i.request}
			rows = append(rows, row{func(name string) ([]string, bool) {
				if v, ok := own[name]; ok {
					return []string{v}, true
				}
				return tagField(i.requestTags, name)
			}, nest("item", el("spotInstanceRequestId", i.request), el("instanceId", i.id), el("state", state), el("type", "one-time"), el("createTime", stamp(i.created)),
				nest("status", el("code", code), el("updateTime", stamp(at)), el("message", code)), tagsXML(i.requestTags))})
		}
		return rows
	})
}

// describeVolumes has pages of 500 at most, half as many as other lists.
func (c *call) describeVolumes() (string, *failure) {
	ids := c.values("VolumeId")
	return c.listed("volumeSet", 5, 500, func(time.Time) []row {
		var rows []row
		for _, v := range c.s.volumes {
			if !v.deleted.IsZero() || len(ids) > 0 && !slices.Contains(ids, v.id) {
				continue
			}
			// A volume is in use until its instance has ended whole, and not when that begins.
			status := "in-use"
			if i := c.s.byID[v.instance]; i == nil || i.state == terminated {
				status = "available"
			}
			own := map[string]string{"status": status, "volume-id": v.id, "availability-zone": v.zone, "attachment.instance-id": v.instance}
			rows = append(rows, row{func(name string) ([]string, bool) {
				if o, ok := own[name]; ok {
					return []string{o}, true
				}
				return tagField(v.tags, name)
			}, nest("item", el("volumeId", v.id), el("size", itoa(v.size)), el("availabilityZone", v.zone), el("status", status), el("createTime", stamp(v.created)), tagsXML(v.tags))})
		}
		return rows
	})
}

// row is an entry of a list: the values that filters look at, and its XML.
type row struct {
	field func(string) ([]string, bool)
	xml   string
}

// listed answers a list of rows.
func (c *call) listed(set string, least, most int, of func(now time.Time) []row) (string, *failure) {
	filters, refused := c.filters()
	if refused != nil {
		return "", refused
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	var all []string
	for _, r := range of(s.now()) {
		ok, refused := fits(filters, r.field)
		if refused != nil {
			return "", refused
		}
		if ok {
			all = append(all, r.xml)
		}
	}
	shown, next, refused := c.pages(all, least, most)
	if refused != nil {
		return "", refused
	}
	return nest(set, shown...) + el("nextToken", next), nil
}
