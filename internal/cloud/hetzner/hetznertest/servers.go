package hetznertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/musterhq/muster/internal/cloud/standin"
)

var (
	hostName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	label    = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$`)
)

// body reads a body, and refuses fields that the API does not have.
func body(w http.ResponseWriter, r *http.Request, into any) bool {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		refused(w, http.StatusBadRequest, "json_error", err.Error())
		return false
	}
	return true
}

func invalid(w http.ResponseWriter, field, message string) {
	standin.JSON(w, http.StatusUnprocessableEntity, map[string]any{"error": map[string]any{"code": "invalid_input", "message": "invalid input in field '" + field + "'",
		"details": map[string]any{"fields": []any{map[string]any{"name": field, "messages": []string{message}}}}}})
}

func badLabels(labels *map[string]string) bool {
	if labels != nil {
		for k, v := range *labels {
			if !label.MatchString(k) || !label.MatchString(v) {
				return true
			}
		}
	}
	return false
}

func (c *Cloud) createServer(w http.ResponseWriter, r *http.Request) {
	var q schema.ServerCreateRequest
	if !body(w, r, &q) {
		return
	}
	kind := slices.IndexFunc(serverTypes, func(t schema.ServerType) bool { return t.Name == q.ServerType.Name || t.ID == q.ServerType.ID })
	location := slices.IndexFunc(locations, func(l schema.Location) bool { return l.Name == q.Location })
	image := slices.IndexFunc(images, func(i schema.Image) bool { return *i.Name == q.Image.Name || i.ID == q.Image.ID })
	switch {
	case !hostName.MatchString(q.Name):
		invalid(w, "name", "is not a host name")
		return
	case kind < 0:
		invalid(w, "server_type", "server type not found")
		return
	case location < 0:
		invalid(w, "location", "location not found")
		return
	case image < 0:
		invalid(w, "image", "image not found")
		return
	case len(q.UserData) > 32<<10:
		invalid(w, "user_data", "must be at most 32768 bytes")
		return
	case badLabels(q.Labels):
		invalid(w, "labels", "a label is not valid")
		return
	}
	c.mu.Lock()
	if slices.ContainsFunc(c.listLocked(), func(s schema.Server) bool { return s.Name == q.Name }) {
		c.mu.Unlock()
		refused(w, http.StatusConflict, "uniqueness_error", "server name is already used")
		return
	}
	if c.strikingLocked("create", "capacity", subject{kind: q.ServerType.Name, location: q.Location}) != nil {
		c.mu.Unlock()
		refused(w, http.StatusPreconditionFailed, "resource_unavailable", "error during placement")
		return
	}
	if c.options.MaxServers > 0 && len(c.servers) >= c.options.MaxServers {
		c.mu.Unlock()
		refused(w, http.StatusForbidden, "resource_limit_exceeded", "server limit exceeded")
		return
	}
	s, first, next := c.makeLocked(&q, serverTypes[kind], locations[location], images[image])
	c.mu.Unlock()
	c.boot(s.ID, q.UserData)
	standin.JSON(w, http.StatusCreated, schema.ServerCreateResponse{Server: s, Action: first, NextActions: next})
}

// makeLocked makes a server with its addresses and actions.
func (c *Cloud) makeLocked(q *schema.ServerCreateRequest, t schema.ServerType, l schema.Location, i schema.Image) (schema.Server, schema.Action, []schema.Action) {
	id := c.nextLocked()
	s := &server{userData: q.UserData, Server: schema.Server{ID: id, Name: q.Name, Status: "initializing", Created: c.now().UTC().Truncate(time.Second),
		ServerType: t, Location: l, Image: &i, Labels: map[string]string{}, PrimaryDiskSize: t.Disk}}
	if q.Labels != nil {
		s.Labels = *q.Labels
	}
	if q.PublicNet == nil || q.PublicNet.EnableIPv4 {
		ip := c.addIPLocked("ipv4", map[string]string{}, &id)
		s.PublicNet.IPv4 = schema.ServerPublicNetIPv4{ID: ip.ID, IP: ip.IP}
	}
	if q.PublicNet == nil || q.PublicNet.EnableIPv6 {
		ip := c.addIPLocked("ipv6", map[string]string{}, &id)
		s.PublicNet.IPv6 = schema.ServerPublicNetIPv6{ID: ip.ID, IP: ip.IP}
	}
	for _, n := range q.Networks {
		s.PrivateNet = append(s.PrivateNet, schema.ServerPrivateNet{Network: n, IP: fmt.Sprintf("10.0.%d.%d", id/250%250, id%250+2), AliasIPs: []string{}})
	}
	c.servers[id] = s
	c.ever = append(c.ever, s.Server)
	about := subject{kind: t.Name, location: l.Name, n: len(c.ever)}
	if l := c.strikingLocked("list", "late", about); l != nil {
		s.hidden = c.now().Add(l.Moment())
	}
	first := c.actLocked(id, "create_server", nil)
	var fails *schema.ActionError
	if len(c.fails) > 0 {
		fails, c.fails = c.fails[0], c.fails[1:]
	} else if l := c.strikingLocked("server", "fails", about); l != nil {
		fails = &schema.ActionError{Code: l.words[0], Message: "played by the script"}
	}
	next := []schema.Action{c.actLocked(id, "start_server", fails)}
	c.settleLocked()
	return s.Server, first, next
}

func (c *Cloud) actLocked(server int64, command string, fails *schema.ActionError) schema.Action {
	now := c.now()
	takes := c.options.ActionTime
	if l := c.strikingLocked("action", "takes", subject{}); l != nil {
		takes = l.Moment()
	}
	a := &action{ends: now.Add(takes), fails: fails, Action: schema.Action{ID: c.nextLocked(), Status: "running", Command: command,
		Started: now.UTC(), Resources: []schema.ActionResourceReference{{ID: server, Type: "server"}}}}
	c.actions[a.ID] = a
	return a.Action
}

// settleLocked ends the actions whose time is over.
func (c *Cloud) settleLocked() {
	now := c.now()
	for _, a := range c.actions {
		if a.Status != "running" || now.Before(a.ends) {
			continue
		}
		finished := a.ends.UTC()
		a.Status, a.Progress, a.Finished = "success", 100, &finished
		if a.fails != nil {
			a.Status, a.Error = "error", a.fails
		}
		if s := c.servers[a.Resources[0].ID]; s != nil && a.Command == "start_server" {
			s.Status = "running"
			if a.fails != nil {
				s.Status = "off"
			}
		}
	}
}

// boot starts the machine behind a server.
func (c *Cloud) boot(id int64, userData string) {
	if c.options.Machines == nil {
		return
	}
	address, err := c.options.Machines.Start(strconv.FormatInt(id, 10), []byte(userData))
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.servers[id]
	if s == nil {
		// It was deleted meanwhile, and the delete found no machine to stop.
		c.deleted = append(c.deleted, strconv.FormatInt(id, 10))
		return
	}
	if err != nil {
		s.Status = "off"
		return
	}
	s.booted = true
	for i := range s.PrivateNet {
		s.PrivateNet[i].IP = address
	}
	if s.PublicNet.IPv4.ID != 0 {
		s.PublicNet.IPv4.IP = address
	}
}

// listLocked are all servers, by id.
func (c *Cloud) listLocked() []schema.Server {
	c.settleLocked()
	var out []schema.Server
	for _, s := range c.servers {
		if m := c.options.Machines; m != nil && s.booted && s.Status == "running" && !m.State(strconv.FormatInt(s.ID, 10)) {
			s.Status = "off"
		}
		out = append(out, s.Server)
	}
	slices.SortFunc(out, func(a, b schema.Server) int { return int(a.ID - b.ID) })
	return out
}

func (c *Cloud) listServers(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	c.mu.Lock()
	all := c.listLocked()
	// Who asks for one name is answered by another part of the API, which is not behind.
	if !q.Has("name") {
		all = slices.DeleteFunc(all, func(s schema.Server) bool { return c.now().Before(c.servers[s.ID].hidden) })
	}
	c.mu.Unlock()
	page(w, r, "servers", slices.DeleteFunc(all, func(s schema.Server) bool {
		return !selected(q.Get("label_selector"), s.Labels) || q.Has("name") && s.Name != q.Get("name")
	}))
}

// with answers for one server.
func (c *Cloud) with(w http.ResponseWriter, r *http.Request, do func(*server)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked()
	s := c.servers[idOf(r)]
	if s == nil {
		refused(w, http.StatusNotFound, "not_found", "server with ID '"+r.PathValue("id")+"' not found")
		return
	}
	do(s)
}

func (c *Cloud) getServer(w http.ResponseWriter, r *http.Request) {
	c.with(w, r, func(s *server) { standin.JSON(w, http.StatusOK, schema.ServerGetResponse{Server: s.Server}) })
}

func (c *Cloud) updateServer(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Name   *string            `json:"name"`
		Labels *map[string]string `json:"labels"`
	}
	if !body(w, r, &q) {
		return
	}
	if badLabels(q.Labels) {
		invalid(w, "labels", "a label is not valid")
		return
	}
	c.with(w, r, func(s *server) {
		if q.Labels != nil {
			s.Labels = *q.Labels
		}
		standin.JSON(w, http.StatusOK, schema.ServerGetResponse{Server: s.Server})
	})
}

// deleteServer deletes at once, with the addresses that were made with the server.
func (c *Cloud) deleteServer(w http.ResponseWriter, r *http.Request) {
	c.with(w, r, func(s *server) {
		if s.Protection.Delete {
			refused(w, http.StatusForbidden, "protected", "server deletion is protected")
			return
		}
		delete(c.servers, s.ID)
		leaves := c.strikingLocked("server", "leaves", subject{kind: s.ServerType.Name, location: s.Location.Name}) != nil
		for id, ip := range c.ips {
			if ip.AssigneeID == nil || *ip.AssigneeID != s.ID {
				continue
			}
			if leaves {
				ip.AssigneeID, ip.Labels = nil, s.Labels
			} else {
				delete(c.ips, id)
			}
		}
		if c.options.Machines != nil {
			c.deleted = append(c.deleted, r.PathValue("id"))
		}
		standin.JSON(w, http.StatusOK, map[string]any{"action": c.actLocked(s.ID, "delete_server", nil)})
	})
}

// stopDeleted stops the machines of servers that were deleted. It takes a while, so mu is not held.
func (c *Cloud) stopDeleted() {
	c.mu.Lock()
	ids := c.deleted
	c.deleted = nil
	c.mu.Unlock()
	for _, id := range ids {
		c.options.Machines.Stop(id)
	}
}

func (c *Cloud) serverActions(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.settleLocked()
	var all []schema.Action
	for _, a := range c.actions {
		if a.Resources[0].ID == idOf(r) {
			all = append(all, a.Action)
		}
	}
	c.mu.Unlock()
	page(w, r, "actions", all)
}

func (c *Cloud) listActions(w http.ResponseWriter, r *http.Request) {
	ids := r.URL.Query()["id"]
	if len(ids) == 0 {
		refused(w, http.StatusGone, "deprecated_api_endpoint", "the list of all actions has gone: name ids")
		return
	}
	c.mu.Lock()
	c.settleLocked()
	var all []schema.Action
	for _, a := range c.actions {
		if slices.Contains(ids, strconv.FormatInt(a.ID, 10)) {
			all = append(all, a.Action)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(all, func(a, b schema.Action) int { return int(a.ID - b.ID) })
	page(w, r, "actions", all)
}
