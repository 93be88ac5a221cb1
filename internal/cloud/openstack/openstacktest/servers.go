package openstacktest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster/internal/cloud/standin"
)

// Server is a server as Nova's database has it.
type Server struct {
	ID, Name, Status, Task, Zone string
	Flavor                       string
	Metadata                     map[string]string
	Tags                         []string
	UserData                     string
	Created, Launched            time.Time
	Fault                        string
	Address                      string
	// Locked, Stuck: a person has locked it; a delete of it has failed before.
	Locked, Stuck bool

	// volume reports whether its root disk is a volume.
	Volume bool
	// ready is when it leaves BUILD.
	ready  time.Time
	booted bool
}

// kind is a flavor.
type kind struct {
	id, name         string
	cores, ram, disk int
	extra            map[string]string
}

var kinds = []kind{
	{"f-1", "m1.small", 1, 2048, 20, nil},
	{"f-6", "m1.medium", 2, 4096, 40, nil},
	{"f-2", "m1.large", 4, 8192, 80, nil},
	{"f-3", "v1.large", 4, 8192, 0, nil},
	{"f-4", "g1.large", 8, 32768, 80, map[string]string{"pci_passthrough:alias": "a100:1"}},
	{"f-5", "x1.huge", 64, 262144, 80, nil},
	{"f-6", "r1.arm", 4, 8192, 80, map[string]string{"trait:HW_ARCH_AARCH64": "required"}},
	{"f-7", "g2.large", 8, 32768, 80, map[string]string{"pci_passthrough:alias": "fast-nic:1, nvidia-a100-80gb:2"}},
	{"f-8", "v2.gpu", 8, 32768, 80, map[string]string{"resources:VGPU": "1"}},
	{"f-9", "n1.fast", 8, 32768, 80, map[string]string{"pci_passthrough:alias": "fast-nic:1"}},
}

// zones of the cloud; the last one is not available.
var zones = []string{"az1", "az2", "az3"}

// wanted is the body of a create.
type wanted struct {
	Name           string            `json:"name"`
	ImageRef       string            `json:"imageRef"`
	FlavorRef      string            `json:"flavorRef"`
	Zone           string            `json:"availability_zone"`
	UserData       string            `json:"user_data"`
	Metadata       map[string]string `json:"metadata"`
	Tags           []string          `json:"tags"`
	SecurityGroups []struct {
		Name string `json:"name"`
	} `json:"security_groups"`
	Networks []struct {
		UUID string `json:"uuid"`
	} `json:"networks"`
	Disks []struct {
		Index  int    `json:"boot_index"`
		UUID   string `json:"uuid"`
		From   string `json:"source_type"`
		To     string `json:"destination_type"`
		Size   int    `json:"volume_size"`
		Delete bool   `json:"delete_on_termination"`
	} `json:"block_device_mapping_v2"`
}

// volume reports whether the root disk is a volume that goes with the server.
func (s *wanted) volume() bool {
	return len(s.Disks) == 1 && s.Disks[0].Delete && s.Disks[0].Size > 0 && s.Disks[0].To == "volume"
}

// wrong is what Nova's API refuses at once; empty: nothing.
func (s *wanted) wrong() string {
	image := s.ImageRef
	if s.volume() {
		image = s.Disks[0].UUID
	}
	switch {
	case !slices.ContainsFunc(kinds, func(k kind) bool { return k.id == s.FlavorRef }):
		return "Flavor " + s.FlavorRef + " could not be found."
	case image != ImageID && image != oldImageID:
		return "Image " + image + " could not be found."
	case len(s.Networks) != 1 || s.Networks[0].UUID != NetworkID:
		return "Network could not be found."
	case s.Zone != "" && !slices.Contains(zones[:2], s.Zone):
		return "The requested availability zone is not available"
	case len(s.UserData) > 65535:
		return "Invalid input for field/attribute user_data. Value is too long"
	}
	for k, v := range s.Metadata {
		if len(k) > 255 || len(v) > 255 {
			return "Metadata property value greater than 255 characters"
		}
	}
	for _, t := range s.Tags {
		if len(t) > 60 || strings.ContainsAny(t, "/,") {
			return "Invalid input for field/attribute tags"
		}
	}
	for _, g := range s.SecurityGroups {
		if g.Name != "default" {
			return "Unable to find security_group with name or id '" + g.Name + "'"
		}
	}
	if _, err := base64.StdEncoding.DecodeString(s.UserData); err != nil {
		return "User data needs to be valid base 64."
	}
	return ""
}

func (p *Project) createServer(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Server wanted `json:"server"`
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		refused(w, http.StatusBadRequest, "badRequest", "Invalid input for field/attribute server: "+err.Error())
		return
	}
	s := &q.Server
	if wrong := s.wrong(); wrong != "" {
		refused(w, http.StatusBadRequest, "badRequest", wrong)
		return
	}
	userData, _ := base64.StdEncoding.DecodeString(s.UserData)
	k := kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.id == s.FlavorRef })]
	p.mu.Lock()
	p.settleLocked()
	bad := ""
	switch {
	case k.disk == 0 && !s.volume():
		bad = "Only volume-backed servers are allowed for flavors with zero disk."
	case len(p.servers) >= p.options.MaxServers || p.strikesLocked("quota", subject{}):
		bad = fmt.Sprintf("Quota exceeded for instances: Requested 1, but already used %d of %d instances", len(p.servers), p.options.MaxServers)
	}
	if bad != "" {
		p.mu.Unlock()
		refused(w, http.StatusForbidden, "forbidden", bad)
		return
	}
	v := p.makeLocked(s, k, string(userData))
	id, fails := v.ID, v.Fault != ""
	p.mu.Unlock()
	if !fails {
		p.boot(id, userData)
	}
	standin.JSON(w, http.StatusAccepted, map[string]any{"server": map[string]any{"id": id, "adminPass": "x", "links": []any{}}})
}

// makeLocked makes a server.
func (p *Project) makeLocked(s *wanted, k kind, userData string) *Server {
	now := p.now()
	v := &Server{ID: p.idLocked(), Name: s.Name, Status: "BUILD", Zone: s.Zone, Flavor: k.name, Metadata: s.Metadata, Tags: s.Tags, UserData: userData,
		Created: now, Volume: s.volume(), ready: now.Add(p.options.Build), Address: fmt.Sprintf("10.0.%d.%d", p.last/250%250, p.last%250+2)}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	if p.strikesLocked("novalidhost", subject{flavor: k.name, zone: s.Zone}) {
		v.Fault = "No valid host was found. There are not enough hosts available."
	}
	p.servers[v.ID] = v
	p.ever = append(p.ever, Made{ID: v.ID, Token: v.Metadata["muster-token"]})
	p.settleLocked()
	return v
}

// boot starts the machine behind a server.
func (p *Project) boot(id string, userData []byte) {
	if p.options.Machines == nil {
		return
	}
	address, err := p.options.Machines.Start(id, userData)
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.servers[id]
	switch {
	case v == nil:
		// It was deleted meanwhile, and the delete found no machine to stop.
		p.deleted = append(p.deleted, id)
	case err != nil:
		v.Fault = "Build of instance " + id + " aborted: " + err.Error()
	default:
		v.booted, v.Address = true, address
	}
}

// stopDeleted stops the machines of servers that were deleted. It takes a while, so mu is not held.
func (p *Project) stopDeleted() {
	p.mu.Lock()
	ids := p.deleted
	p.deleted = nil
	p.mu.Unlock()
	for _, id := range ids {
		p.options.Machines.Stop(id)
	}
}

// settleLocked ends builds whose time is over and whose machine runs, and notes machines that have
// shut down.
func (p *Project) settleLocked() {
	now := p.now()
	for _, v := range p.servers {
		switch m := p.options.Machines; {
		case v.Status == "BUILD" && m != nil && !v.booted && v.Fault == "":
		case v.Status == "BUILD" && !now.Before(v.ready):
			v.Status, v.Launched = "ACTIVE", v.ready
			if v.Fault != "" {
				v.Status, v.Launched = "ERROR", time.Time{}
			}
		case v.Status == "ACTIVE" && m != nil && v.booted && !m.State(v.ID):
			v.Status = "SHUTOFF"
		}
	}
}

// show is a server as lists and reads show it.
func show(v *Server) map[string]any {
	out := map[string]any{
		"id": v.ID, "name": v.Name, "status": v.Status, "metadata": v.Metadata, "tags": v.Tags, "created": v.Created.UTC().Format(time.RFC3339),
		"updated": v.Created.UTC().Format(time.RFC3339), "OS-EXT-STS:task_state": nil, "OS-EXT-AZ:availability_zone": "", "locked": v.Locked,
		"flavor": map[string]any{"original_name": v.Flavor}, "image": "", "links": []any{}, "OS-SRV-USG:launched_at": nil, "addresses": map[string]any{},
	}
	if v.Task != "" {
		out["OS-EXT-STS:task_state"] = v.Task
	}
	if !v.Launched.IsZero() {
		out["OS-SRV-USG:launched_at"] = v.Launched.UTC().Format("2006-01-02T15:04:05.000000")
		out["OS-EXT-AZ:availability_zone"] = v.Zone
		out["addresses"] = map[string]any{Network: []any{map[string]any{"addr": v.Address, "version": 4, "OS-EXT-IPS:type": "fixed"}}}
	}
	if v.Status == "ERROR" {
		out["fault"] = map[string]any{"code": 500, "message": v.Fault, "created": v.Created.UTC().Format(time.RFC3339)}
	}
	return out
}

func (p *Project) listServers(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit := p.options.Page
	if n, err := strconv.Atoi(q.Get("limit")); err == nil {
		limit = min(limit, n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settleLocked()
	down := p.strikesLocked("down", subject{})
	var all []*Server
	for _, v := range p.servers {
		all = append(all, v)
	}
	// The newest come first, as Nova's do.
	slices.SortFunc(all, func(a, b *Server) int { return strings.Compare(b.ID, a.ID) })
	if q.Get("name") != "" {
		name, err := regexp.Compile(q.Get("name"))
		if err != nil {
			refused(w, http.StatusBadRequest, "badRequest", "Invalid filter")
			return
		}
		all = slices.DeleteFunc(all, func(v *Server) bool { return !name.MatchString(v.Name) })
	}
	if m := q.Get("marker"); m != "" {
		i := slices.IndexFunc(all, func(v *Server) bool { return v.ID == m })
		if i < 0 {
			refused(w, http.StatusBadRequest, "badRequest", "marker ["+m+"] not found")
			return
		}
		all = all[i+1:]
	}
	body := map[string]any{}
	if len(all) > limit {
		all = all[:limit]
		body["servers_links"] = []any{map[string]any{"rel": "next", "href": "http://" + r.Host + r.URL.Path + "?limit=" + strconv.Itoa(limit) + "&marker=" + all[limit-1].ID}}
	}
	out := []any{}
	for i, v := range all {
		switch {
		case !down || i%2 == 1:
			out = append(out, show(v))
		case q.Get("name") == "":
			// A list with a filter leaves them out.
			out = append(out, map[string]any{"id": v.ID, "status": "UNKNOWN", "created": v.Created.UTC().Format(time.RFC3339), "tenant_id": "t", "links": []any{}})
		}
	}
	body["servers"] = out
	standin.JSON(w, http.StatusOK, body)
}

// with answers for one server.
func (p *Project) with(w http.ResponseWriter, r *http.Request, do func(*Server)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settleLocked()
	v := p.servers[r.PathValue("id")]
	if v == nil {
		refused(w, http.StatusNotFound, "itemNotFound", "Instance "+r.PathValue("id")+" could not be found.")
		return
	}
	do(v)
}

func (p *Project) getServer(w http.ResponseWriter, r *http.Request) {
	p.with(w, r, func(v *Server) { standin.JSON(w, http.StatusOK, map[string]any{"server": show(v)}) })
}

func (p *Project) deleteServer(w http.ResponseWriter, r *http.Request) {
	p.with(w, r, func(v *Server) {
		switch {
		case v.Locked:
			refused(w, http.StatusConflict, "conflictingRequest", "Instance "+v.ID+" is locked")
		case v.Stuck:
			refused(w, http.StatusConflict, "conflictingRequest", "Cannot 'delete' instance "+v.ID+" while it is in vm_state error")
		default:
			p.dropLocked(v.ID)
			w.WriteHeader(http.StatusNoContent)
		}
	})
}

func (p *Project) dropLocked(id string) {
	delete(p.servers, id)
	if p.options.Machines != nil {
		p.deleted = append(p.deleted, id)
	}
}

func (p *Project) setMetadata(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Metadata map[string]string `json:"metadata"`
	}
	if json.NewDecoder(r.Body).Decode(&q) != nil {
		refused(w, http.StatusBadRequest, "badRequest", "Malformed request body")
		return
	}
	p.with(w, r, func(v *Server) {
		for k, value := range q.Metadata {
			v.Metadata[k] = value
		}
		standin.JSON(w, http.StatusOK, map[string]any{"metadata": v.Metadata})
	})
}

// act makes an action, which Nova refuses in a state that it does not fit.
func (p *Project) act(w http.ResponseWriter, r *http.Request) {
	var q map[string]any
	if json.NewDecoder(r.Body).Decode(&q) != nil || len(q) != 1 {
		refused(w, http.StatusBadRequest, "badRequest", "Malformed request body")
		return
	}
	p.with(w, r, func(v *Server) {
		if _, ok := q["os-getConsoleOutput"]; ok {
			key := base64.StdEncoding.EncodeToString([]byte("\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20" + strings.Repeat("k", 32)))
			standin.JSON(w, http.StatusOK, map[string]any{"output": "booting\n-----BEGIN SSH HOST KEY KEYS-----\nssh-ed25519 " + key + " root@" + v.Name + "\n-----END SSH HOST KEY KEYS-----\n"})
			return
		}
		if _, ok := q["forceDelete"]; ok && !v.Locked {
			p.dropLocked(v.ID)
			w.WriteHeader(http.StatusAccepted)
			return
		}
		for name, to := range map[string][2]string{"os-stop": {"ACTIVE", "SHUTOFF"}, "os-start": {"SHUTOFF", "ACTIVE"}, "suspend": {"ACTIVE", "SUSPENDED"}, "resume": {"SUSPENDED", "ACTIVE"}} {
			if _, ok := q[name]; ok && v.Status == to[0] && !v.Locked {
				v.Status = to[1]
				w.WriteHeader(http.StatusAccepted)
				return
			}
		}
		refused(w, http.StatusConflict, "conflictingRequest", "Cannot act on instance "+v.ID+" while it is in vm_state "+strings.ToLower(v.Status))
	})
}

// Server is the server of this id.
func (p *Project) Server(id string) (Server, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settleLocked()
	if v := p.servers[id]; v != nil {
		return *v, true
	}
	return Server{}, false
}

// Change edits a server as its operator or the cloud itself would.
func (p *Project) Change(id string, edit func(*Server)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	edit(p.servers[id])
}
