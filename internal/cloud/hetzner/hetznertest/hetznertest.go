// Package hetznertest is a stand-in of the API of Hetzner Cloud, for tests: servers, server types,
// locations, images, networks, actions and primary IPs of one project, with the limit on calls and
// the refusals of the real one.
//
// It must never know the driver. It takes bodies apart with the schema of Hetzner's own library and
// refuses fields that it does not know.
package hetznertest

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/musterhq/muster/internal/cloud/standin"
)

// Token is the API token that the stand-in takes.
const Token = "hcloud-test-token"

// Cloud is one project.
type Cloud struct {
	// Answers has Refuse and Lose for calls as CreateServer.
	standin.Answers
	// URL is the endpoint, with its version.
	URL string

	options Options
	now     func() time.Time

	mu      sync.Mutex
	last    int64
	servers map[int64]*server
	actions map[int64]*action
	ips     map[int64]*schema.PrimaryIP
	// fails are the errors of the starts of creates to come.
	fails  []*schema.ActionError
	script []*line
	played time.Time
	// ever are all servers that were made, as they were made, in order.
	ever  []schema.Server
	calls map[string]int
	// deleted are servers whose machines are yet to be stopped.
	deleted []string
	// tokens are the calls that may be made, at the time of spent.
	tokens float64
	spent  time.Time
}

// Options say how the stand-in differs from a cloud that does everything at once.
type Options struct {
	// ActionTime is how long an action takes.
	ActionTime time.Duration
	// Limit is how many calls a project has, Refill how many come back in a second; 0: no limit. The
	// real ones are 3,600 and 1.
	Limit  int
	Refill float64
	// Script says what goes wrong, see Play. Seed is for its chance.
	Script string
	Seed   uint64
	// MaxServers is the quota; 0: none.
	MaxServers int
	// Machines is what stands behind servers; nil: nothing.
	Machines standin.Machines
	// Now is the clock; nil: the system's.
	Now func() time.Time
}

type server struct {
	schema.Server
	userData string
	// booted: its machine was started. Until then a machine that does not run is no machine that has
	// shut down.
	booted bool
	// hidden is until when lists lack it.
	hidden time.Time
}

type action struct {
	schema.Action
	ends time.Time
	// fails is the error with which it ends.
	fails *schema.ActionError
}

// New starts a project, which ends with the test.
func New(t testing.TB, options Options) *Cloud {
	c := &Cloud{options: options, now: options.Now, last: 1000, servers: map[int64]*server{}, actions: map[int64]*action{},
		ips: map[int64]*schema.PrimaryIP{}, calls: map[string]int{}, tokens: float64(options.Limit)}
	if c.now == nil {
		c.now = time.Now
	}
	c.spent = c.now()
	if err := c.Play(options.Script); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for pattern, do := range map[string]func(http.ResponseWriter, *http.Request){
		"GET /v1/servers": c.listServers, "POST /v1/servers": c.createServer, "GET /v1/servers/{id}": c.getServer,
		"PUT /v1/servers/{id}": c.updateServer, "DELETE /v1/servers/{id}": c.deleteServer, "GET /v1/servers/{id}/actions": c.serverActions,
		"GET /v1/actions": c.listActions, "GET /v1/server_types": c.listTypes, "GET /v1/locations": c.listLocations,
		"GET /v1/images": c.listImages, "GET /v1/networks": c.listNetworks, "GET /v1/networks/{id}": c.getNetwork,
		"GET /v1/primary_ips": c.listIPs, "GET /v1/primary_ips/{id}": c.getIP, "DELETE /v1/primary_ips/{id}": c.deleteIP,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { c.serve(pattern, do, w, r) })
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	c.URL = s.URL + "/v1"
	return c
}

// serve checks token and rate, and plays what was prepared for this call, or what the script says of it.
func (c *Cloud) serve(pattern string, do http.HandlerFunc, w http.ResponseWriter, r *http.Request) {
	defer c.stopDeleted()
	if r.Header.Get("Authorization") != "Bearer "+Token {
		refused(w, http.StatusUnauthorized, "unauthorized", "the token you are trying to use is invalid")
		return
	}
	if !c.take(w) {
		refused(w, http.StatusTooManyRequests, "rate_limit_exceeded", "limit of requests per hour reached")
		return
	}
	c.mu.Lock()
	c.calls[pattern]++
	c.mu.Unlock()
	if c.Answered(pattern, do, w, r) {
		return
	}
	c.mu.Lock()
	l := c.strikingLocked("call", "", subject{call: pattern})
	c.mu.Unlock()
	if l != nil {
		l.play(do, w, r)
		return
	}
	do(w, r)
}

// take takes one call of the project's, and sets the headers that say how many are left.
func (c *Cloud) take(w http.ResponseWriter) bool {
	limit := float64(c.options.Limit)
	if limit == 0 {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.tokens = min(limit, c.tokens+now.Sub(c.spent).Seconds()*c.options.Refill)
	c.spent = now
	ok := c.tokens >= 1
	if ok {
		c.tokens--
	}
	reset := now.Add(time.Duration((limit - c.tokens) / c.options.Refill * float64(time.Second)))
	w.Header().Set("RateLimit-Limit", strconv.Itoa(c.options.Limit))
	w.Header().Set("RateLimit-Remaining", strconv.Itoa(int(math.Floor(c.tokens))))
	w.Header().Set("RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
	return ok
}

// CreateServer is the call of a create, for Refuse and Calls. Other calls are written likewise.
const CreateServer = "POST /v1/servers"

// FailAction accepts the next create, and ends its start so.
func (c *Cloud) FailAction(code, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails = append(c.fails, &schema.ActionError{Code: code, Message: message})
}

// Calls is how many calls of a pattern there were.
func (c *Cloud) Calls(call string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[call]
}

// AllCalls are how many calls of each kind were served.
func (c *Cloud) AllCalls() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.calls)
}

// Books are the names of the servers and primary IPs that are there, and how many servers were ever
// made.
func (c *Cloud) Books() (servers, ips []string, made int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.servers {
		servers = append(servers, s.Name)
	}
	for _, ip := range c.ips {
		ips = append(ips, ip.Name)
	}
	slices.Sort(servers)
	slices.Sort(ips)
	return servers, ips, len(c.ever)
}

// Ever are all servers that were ever made, as they were made, in order: two of one token are a fault
// that Books do not show once one of them is gone.
func (c *Cloud) Ever() []schema.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.ever)
}

// Server is the server of this id, with the user data it was made with.
func (c *Cloud) Server(id int64) (s schema.Server, userData string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.servers[id]; at != nil {
		return at.Server, at.userData, true
	}
	return schema.Server{}, "", false
}

// Change edits a server as a person with the console would.
func (c *Cloud) Change(id int64, edit func(*schema.Server)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	edit(&c.servers[id].Server)
}

// AddPrimaryIP makes an address apart from any server.
func (c *Cloud) AddPrimaryIP(labels map[string]string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addIPLocked("ipv4", labels, nil).ID
}

func (c *Cloud) addIPLocked(kind string, labels map[string]string, assignee *int64) *schema.PrimaryIP {
	id := c.nextLocked()
	ip := &schema.PrimaryIP{ID: id, Name: fmt.Sprintf("primary_ip-%d", id), Type: kind, Labels: labels, AssigneeID: assignee,
		AssigneeType: "server", AutoDelete: assignee != nil, Created: c.now().UTC().Truncate(time.Second), IP: fmt.Sprintf("198.51.%d.%d", id/250%250, id%250+1)}
	if kind == "ipv6" {
		ip.IP = fmt.Sprintf("2001:db8:0:%x::/64", id)
	}
	c.ips[id] = ip
	return ip
}

func (c *Cloud) nextLocked() int64 {
	c.last++
	return c.last
}

func refused(w http.ResponseWriter, status int, code, message string) {
	standin.JSON(w, status, map[string]any{"error": map[string]any{"code": code, "message": message, "details": nil}})
}

// page answers a page of a list, 25 things unless the call says up to 50.
func page[T any](w http.ResponseWriter, r *http.Request, name string, all []T) {
	q := r.URL.Query()
	per, n := 25, 1
	if v, err := strconv.Atoi(q.Get("per_page")); err == nil {
		per = min(max(v, 1), 50)
	}
	if v, err := strconv.Atoi(q.Get("page")); err == nil {
		n = max(v, 1)
	}
	total := len(all)
	last := max((total+per-1)/per, 1)
	meta := map[string]any{"page": n, "per_page": per, "total_entries": total, "last_page": last, "previous_page": nil, "next_page": nil}
	if n < last {
		meta["next_page"] = n + 1
	}
	from := min((n-1)*per, total)
	all = all[from:min(from+per, total)]
	if all == nil {
		all = []T{}
	}
	standin.JSON(w, http.StatusOK, map[string]any{name: all, "meta": map[string]any{"pagination": meta}})
}

// selected reports whether labels fit a selector of equalities.
func selected(selector string, labels map[string]string) bool {
	for part := range strings.SplitSeq(selector, ",") {
		if part == "" {
			continue
		}
		k, v, ok := strings.Cut(strings.ReplaceAll(part, "==", "="), "=")
		if have, there := labels[k]; !there || ok && have != v {
			return false
		}
	}
	return true
}

func idOf(r *http.Request) int64 {
	id, _ := strconv.ParseInt(r.PathValue("id"), 10, 64)
	return id
}
