// Package azuretest is a stand-in of Azure's resource manager, for tests: machines, network
// interfaces, disks, public addresses, sizes, quotas, image versions and prices of one resource
// group, with long-running operations and the refusals of the real one.
//
// It speaks the wire itself. The fake servers that come with Microsoft's libraries play operations with
// a protocol of their own (header Fake-Poller-Status) that no cloud has, and lists in the process of the
// client, so neither the body of a failed operation nor a page's link would pass through the driver
// as it does in earnest.
//
// It must never know the driver. It refuses fields of a create that it does not know.
package azuretest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/musterhq/muster/internal/cloud/standin"
)

// What the stand-in has, and the token that it takes.
const (
	Token        = "azure-test-token"
	Subscription = "00000000-1111-2222-3333-444444444444"
	Group        = "muster"
	Location     = "westeurope"
	Subnet       = "/subscriptions/" + Subscription + "/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/main/subnets/nodes"
)

// Credential is one that has Token.
type Credential struct{}

// GetToken is azcore.TokenCredential's.
func (Credential) GetToken(ctx context.Context, _ policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: Token, ExpiresOn: time.Now().Add(time.Hour)}, ctx.Err()
}

// Options say how the stand-in differs from a cloud that does everything at once.
type Options struct {
	// OperationTime is how long an operation takes.
	OperationTime time.Duration
	// Page is how many things a page of a list has; 0: 5.
	Page int
	// Quotas are limits in cores by family, as standardDSv5Family or lowPriorityCores; absent: 1,000.
	Quotas map[string]int
	// Seed is that of the chance in scripts.
	Seed uint64
	// Machines is what stands behind machines of Azure; nil: nothing.
	Machines standin.Machines
	// Now is the clock; nil: the system's.
	Now func() time.Time
}

// Cloud is one resource group.
type Cloud struct {
	// Answers has Refuse and Lose for calls as Create.
	standin.Answers
	// URL is the endpoint.
	URL string

	options Options
	now     func() time.Time

	mu         sync.Mutex
	last       int
	ever       []Made // all machines that were made, in order
	starts     []string
	stops      []string // names of machines whose processes are yet to be started, and stopped
	vms        map[string]*vm
	parts      map[string]map[string]*part // by kind, then name
	operations map[string]*operation
	lines      []*line
	began      time.Time
	fails      []string // errors of the operations of the creates to come, as JSON
	calls      map[string]int
}

// Made is a machine that was made once.
type Made struct{ ID, Token string }

// operation is a long-running one.
type operation struct {
	vm, kind string
	ends     time.Time
	done     bool
	// fails is the error with which it ends, as JSON; empty: it succeeds.
	fails string
}

// Calls that Refuse, Calls and scripts know.
const (
	Create = "create"
	Get    = "get"
	List   = "list"
	Delete = "delete"
	Tags   = "tags"
	Start  = "start"
	Stop   = "stop"
	Poll   = "poll"
	NICs   = "nics"
	Disks  = "disks"
	IPs    = "ips"
	SKUs   = "skus"
	Usages = "usages"
	Images = "images"
	Prices = "prices"
	Net    = "subnet"
)

// New starts a resource group, which ends with the test.
func New(t testing.TB, options Options) *Cloud {
	c := &Cloud{options: options, now: options.Now, vms: map[string]*vm{}, operations: map[string]*operation{}, calls: map[string]int{},
		parts: map[string]map[string]*part{kindNIC: {}, kindDisk: {}, kindIP: {}}}
	if c.now == nil {
		c.now = time.Now
	}
	if c.options.Page == 0 {
		c.options.Page = 5
	}
	s := httptest.NewServer(c.handler())
	t.Cleanup(s.Close)
	c.URL = s.URL
	return c
}

// handler is the resource manager and the price list.
func (c *Cloud) handler() http.Handler {
	const (
		sub     = "/subscriptions/{sub}/providers/Microsoft.Compute"
		compute = "/subscriptions/{sub}/resourceGroups/{group}/providers/Microsoft.Compute"
		network = "/subscriptions/{sub}/resourceGroups/{group}/providers/Microsoft.Network"
		version = "/locations/{location}/publishers/{publisher}/artifacttypes/vmimage/offers/{offer}/skus/{sku}/versions"
	)
	mux := http.NewServeMux()
	for pattern, h := range map[string]struct {
		call string
		do   http.HandlerFunc
	}{
		"PUT " + compute + "/virtualMachines/{name}":             {Create, c.putVM},
		"GET " + compute + "/virtualMachines/{name}":             {Get, c.getVM},
		"PATCH " + compute + "/virtualMachines/{name}":           {Tags, c.patchVM},
		"DELETE " + compute + "/virtualMachines/{name}":          {Delete, c.deleteVM},
		"GET " + compute + "/virtualMachines":                    {List, c.listVMs},
		"POST " + compute + "/virtualMachines/{name}/start":      {Start, func(w http.ResponseWriter, r *http.Request) { c.power(w, r, Start) }},
		"POST " + compute + "/virtualMachines/{name}/deallocate": {Stop, func(w http.ResponseWriter, r *http.Request) { c.power(w, r, Stop) }},
		"GET " + compute + "/disks":                              {Disks, c.lister(kindDisk)},
		"GET " + compute + "/disks/{name}":                       {Disks, c.getter(kindDisk)},
		"DELETE " + compute + "/disks/{name}":                    {Disks, c.deleter(kindDisk)},
		"GET " + network + "/networkInterfaces":                  {NICs, c.lister(kindNIC)},
		"GET " + network + "/networkInterfaces/{name}":           {NICs, c.getter(kindNIC)},
		"DELETE " + network + "/networkInterfaces/{name}":        {NICs, c.deleter(kindNIC)},
		"GET " + network + "/publicIPAddresses":                  {IPs, c.lister(kindIP)},
		"GET " + network + "/publicIPAddresses/{name}":           {IPs, c.getter(kindIP)},
		"DELETE " + network + "/publicIPAddresses/{name}":        {IPs, c.deleter(kindIP)},
		"GET " + network + "/virtualNetworks/{net}/subnets/{s}":  {Net, c.getSubnet},
		"GET " + sub + "/skus":                                   {SKUs, c.listSKUs},
		"GET " + sub + "/locations/{location}/usages":            {Usages, c.listUsages},
		"GET " + sub + version:                                   {Images, c.listVersions},
		"GET " + sub + version + "/{version}":                    {Images, c.getVersion},
		"GET " + sub + "/locations/{location}/operations/{id}":   {Poll, c.pollOperation},
		"GET /api/retail/prices":                                 {Prices, c.listPrices},
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { c.serve(h.call, h.do, w, r) })
	}
	mux.HandleFunc("GET "+identityPath, c.signIn)
	return mux
}

// serve checks what all calls have, and plays what waits for this one.
func (c *Cloud) serve(call string, do http.HandlerFunc, w http.ResponseWriter, r *http.Request) {
	defer c.attend()
	q := r.URL.Query()
	group := r.PathValue("group")
	switch {
	case call == Prices:
	case r.Header.Get("Authorization") != "Bearer "+Token:
		refuse(w, http.StatusUnauthorized, "InvalidAuthenticationToken", "The access token is invalid.")
		return
	case q.Get("api-version") == "":
		refuse(w, http.StatusBadRequest, "MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required for all requests.")
		return
	case r.PathValue("sub") != Subscription:
		refuse(w, http.StatusNotFound, "SubscriptionNotFound", "The subscription '"+r.PathValue("sub")+"' could not be found.")
		return
	case group != "" && !strings.EqualFold(group, Group) && call != Net:
		refuse(w, http.StatusNotFound, "ResourceGroupNotFound", "Resource group '"+group+"' could not be found.")
		return
	}
	c.mu.Lock()
	c.calls[call]++
	c.settleLocked()
	c.mu.Unlock()
	if c.Answered(call, do, w, r) {
		return
	}
	c.mu.Lock()
	l := c.strikesLocked(call)
	c.mu.Unlock()
	if l != nil {
		l.play(c, do, w, r)
		return
	}
	do(w, r)
}

// FailOperation accepts the next create, and ends its operation with this error, as JSON.
func (c *Cloud) FailOperation(body string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails = append(c.fails, body)
}

// Calls is how many calls of a kind there were.
func (c *Cloud) Calls(call string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[call]
}

// Books are the names of the machines and of their parts that are there, and how many machines were
// ever made.
func (c *Cloud) Books() (machines, parts []string, made int) {
	defer c.attend()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked()
	for name := range c.vms {
		machines = append(machines, name)
	}
	for _, all := range c.parts {
		for name := range all {
			parts = append(parts, name)
		}
	}
	slices.Sort(machines)
	slices.Sort(parts)
	return machines, parts, len(c.ever)
}

// Ever are all machines that were ever made, in order: two of one token are a fault that Books do not
// show once one of them is gone.
func (c *Cloud) Ever() []Made {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.ever)
}

// Body is the body with which a machine was made.
func (c *Cloud) Body(name string) (body []byte, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.vms[name]; m != nil {
		return m.body, true
	}
	return nil, false
}

// Retag gives a machine other tags, as a person in the portal would.
func (c *Cloud) Retag(name string, tags map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vms[name].tags = tags
}

// AddPart makes a part that is attached to nothing: a disk, nic or ip.
func (c *Cloud) AddPart(kind, name string, tags map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parts[kind][name] = &part{name: name, kind: kind, tags: tags, created: c.now()}
}

func (c *Cloud) numberLocked() int {
	c.last++
	return c.last
}

// wireErr is an error as Azure writes it, without what is around it.
func wireErr(code, message string) string {
	b, _ := json.Marshal(map[string]string{"code": code, "message": message})
	return string(b)
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("X-Ms-Error-Code", code)
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"error":%s}`, wireErr(code, message))
}

// here is the address that a caller has used. Links lead back there.
func here(r *http.Request) string { return "http://" + r.Host }

// page answers a page of a list. The link to the next is whole, as Azure's are.
func (c *Cloud) page(w http.ResponseWriter, r *http.Request, all []any) {
	q := r.URL.Query()
	from, _ := strconv.Atoi(q.Get("$skiptoken"))
	from = min(max(from, 0), len(all))
	to := min(from+c.options.Page, len(all))
	out := map[string]any{"value": append([]any{}, all[from:to]...)}
	if to < len(all) {
		q.Set("$skiptoken", strconv.Itoa(to))
		out["nextLink"] = here(r) + r.URL.Path + "?" + q.Encode()
	}
	standin.JSON(w, http.StatusOK, out)
}
