package hetzner

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
	"github.com/musterhq/muster/internal/cloud/hetzner/hetznertest"
)

// project is a stand-in of one project, in which several owners have servers.
type project struct{ *hetznertest.Cloud }

func (c project) Open(t *testing.T, owner string) cloud.Provider { return open(t, c.Cloud, owner, nil) }

func open(t *testing.T, c *hetznertest.Cloud, owner string, edit func(*Config)) *Provider {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(hetznertest.Token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Name: "hz", Owner: owner, TokenFile: file, Locations: []string{"fsn1", "nbg1"}, Access: cloud.Access{KeyFile: "/key"}, Endpoint: c.URL, Poll: time.Millisecond}
	if edit != nil {
		edit(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestConformance(t *testing.T) {
	cloudtest.Run(t, 10*time.Second, func(t *testing.T) cloudtest.Cloud {
		return project{hetznertest.New(t, hetznertest.Options{})}
	})
}

func intent(token string) cloud.Intent {
	return cloud.Intent{Token: muster.Token(token), Node: "n1", Pool: "main", Offering: "cpx11", Zone: "fsn1", Market: muster.OnDemand,
		Labels: map[string]string{"team": "a", "not a label": "x"}, Boot: cloud.Boot{UserData: muster.NewSecret("#cloud-config\n")}}
}

func make1(t *testing.T, p *Provider, token string) cloud.Created {
	t.Helper()
	return p.Create(t.Context(), []cloud.Intent{intent(token)})[0]
}

func list(t *testing.T, p *Provider) []cloud.Instance {
	t.Helper()
	l, err := p.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return l.Instances
}

func numeric(t *testing.T, id muster.InstanceID) int64 {
	t.Helper()
	n, err := strconv.ParseInt(string(id), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAServerHasAllFromItsCreate(t *testing.T) {
	c := hetznertest.New(t, hetznertest.Options{})
	p := open(t, c, "o", nil)
	got := make1(t, p, "t")
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	s, userData, _ := c.Server(numeric(t, got.Instance.ID))
	if userData != "#cloud-config\n" || s.Labels["team"] != "a" || s.Labels["muster-owner"] != "o" || len(s.Labels) != 6 || s.PublicNet.IPv4.ID != 0 {
		t.Errorf("%q, %+v", userData, s)
	}
	calls := c.Calls("GET /v1/servers/{id}")
	a, err := p.Access(t.Context(), got.Instance.ID)
	if err != nil || a.User != "root" || a.KeyFile != "/key" || a.Shutdown != "" || !strings.HasSuffix(a.Address, "::1") {
		t.Errorf("%+v, %v", a, err)
	}
	if c.Calls("GET /v1/servers/{id}") != calls {
		t.Error("an address that the create has shown is asked for again")
	}
	if errs := p.Destroy(t.Context(), []muster.InstanceID{got.Instance.ID}); errs[0] != nil {
		t.Error(errs[0])
	}
	if servers, ips, made := c.Books(); len(servers) != 0 || len(ips) != 0 || made != 1 {
		t.Errorf("%v, %v, %d", servers, ips, made)
	}
}

func TestAddresses(t *testing.T) {
	c := hetznertest.New(t, hetznertest.Options{})
	for name, edit := range map[string]func(*Config){
		"198.51.": func(c *Config) { c.PublicIP = true },
		"10.0.":   func(c *Config) { c.Network = "nodes" },
	} {
		p := open(t, c, "o", edit)
		got := make1(t, p, "token-"+strings.Trim(name, "."))
		if got.Err != nil {
			t.Fatal(got.Err)
		}
		if a, err := p.Access(t.Context(), got.Instance.ID); err != nil || !strings.HasPrefix(a.Address, name) {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	got := open(t, c, "o", func(c *Config) { c.Network = "none" }).Create(t.Context(), []cloud.Intent{intent("x")})[0]
	if !muster.IsKind(got.Err, muster.FaultInvalid) || !strings.Contains(got.Err.Error(), "network none is not in the project") {
		t.Errorf("%v", got.Err)
	}
}

func TestALostAnswerMakesOneServer(t *testing.T) {
	c := hetznertest.New(t, hetznertest.Options{})
	p := open(t, c, "o", nil)
	c.Lose(hetznertest.CreateServer)
	if got := make1(t, p, "t"); !muster.IsKind(got.Err, muster.FaultAmbiguous) {
		t.Fatalf("%+v", got)
	}
	if got := make1(t, p, "t"); got.Err != nil || got.Instance.Tags.Token != "t" {
		t.Errorf("%+v", got)
	}
	if servers, _, made := c.Books(); len(servers) != 1 || made != 1 {
		t.Errorf("%v, %d", servers, made)
	}
}

func TestAStartThatFailsIsSeen(t *testing.T) {
	want := muster.Scope{Provider: "hz", Offering: "cpx11", Zone: "fsn1"}
	check := func(t *testing.T, f *muster.Fault) {
		t.Helper()
		if f == nil || f.Kind != muster.FaultCapacity || f.Scope != want || !strings.Contains(f.Error(), "start_server") {
			t.Errorf("%+v", f)
		}
	}
	c := hetznertest.New(t, hetznertest.Options{ActionTime: 20 * time.Millisecond})
	p := open(t, c, "o", nil)
	c.FailAction("resource_unavailable", "no host")
	got := make1(t, p, "t")
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	check(t, got.Instance.Failed)
	if l := list(t, p); len(l) != 1 {
		t.Errorf("%+v", l)
	} else {
		check(t, l[0].Failed)
	}
	// Another server finds it out once the instance is old enough, and asks once.
	later := open(t, c, "o", func(c *Config) { c.Now = func() time.Time { return time.Now().Add(3 * time.Minute) } })
	for range 2 {
		if l := list(t, later); len(l) == 1 {
			check(t, l[0].Failed)
		}
	}
	if n := c.Calls("GET /v1/servers/{id}/actions"); n != 1 {
		t.Errorf("%d calls", n)
	}
}

func TestManyCreatesShareTheirLooksAtActions(t *testing.T) {
	c := hetznertest.New(t, hetznertest.Options{ActionTime: 50 * time.Millisecond})
	p := open(t, c, "o", func(c *Config) { c.Poll = 200 * time.Millisecond })
	var intents []cloud.Intent
	for i := range 20 {
		intents = append(intents, intent("t"+strconv.Itoa(i)))
	}
	for _, g := range p.Create(t.Context(), intents) {
		if g.Err != nil || g.Instance.Failed != nil {
			t.Errorf("%+v", g)
		}
	}
	if n := c.Calls("GET /v1/actions"); n > 4 {
		t.Errorf("%d calls for 20 servers", n)
	}
	if l := list(t, p); len(l) != 20 {
		t.Errorf("%d", len(l))
	}
}

func TestListsHavePages(t *testing.T) {
	c := hetznertest.New(t, hetznertest.Options{})
	p := open(t, c, "o", nil)
	var intents []cloud.Intent
	for i := range maxPage + 5 {
		intents = append(intents, intent("t"+strconv.Itoa(i)))
	}
	p.Create(t.Context(), intents)
	first, err := p.List(t.Context(), "")
	if err != nil || len(first.Instances) != maxPage || first.Complete || first.Next != "2" {
		t.Fatalf("%d of %+v, %v", len(first.Instances), first.Next, err)
	}
	second, err := p.List(t.Context(), first.Next)
	if err != nil || len(second.Instances) != 5 || !second.Complete {
		t.Errorf("%d, %v", len(second.Instances), err)
	}
	if _, err := p.List(t.Context(), "nonsense"); !muster.IsKind(err, muster.FaultTransient) {
		t.Errorf("%v", err)
	}
}

func TestLeftoversAreOursAndUnassigned(t *testing.T) {
	c := hetznertest.New(t, hetznertest.Options{})
	p := open(t, c, "o", nil)
	mine := c.AddPrimaryIP(map[string]string{"muster-owner": "o"})
	c.AddPrimaryIP(map[string]string{"muster-owner": "other"})
	c.AddPrimaryIP(nil)
	make1(t, p, "t")
	left, err := p.Leftovers(t.Context())
	if err != nil || len(left) != 1 || left[0].ID != strconv.FormatInt(mine, 10) || left[0].Created == 0 {
		t.Fatalf("%+v, %v", left, err)
	}
	bad := []cloud.Leftover{{Kind: primaryIP, ID: strconv.FormatInt(mine+1, 10)}, {Kind: "volume", ID: "1"}}
	if errs := p.Remove(t.Context(), bad); !muster.IsKind(errs[0], muster.FaultNotFound) || !muster.IsKind(errs[1], muster.FaultInvalid) {
		t.Errorf("%v", errs)
	}
	for range 2 {
		if errs := p.Remove(t.Context(), left); errs[0] != nil {
			t.Error(errs[0])
		}
	}
	if _, ips, _ := c.Books(); len(ips) != 3 {
		t.Errorf("%v", ips)
	}
}

func TestOffersAndResolve(t *testing.T) {
	c := hetznertest.New(t, hetznertest.Options{})
	p := open(t, c, "o", nil)
	offers, err := p.Offers(t.Context())
	if err != nil || len(offers) != 4 || slices.ContainsFunc(offers, func(o muster.Offering) bool { return o.Attributes["arch"] != "amd64" }) {
		t.Fatalf("%+v, %v", offers, err)
	}
	named := open(t, c, "o", func(c *Config) { c.Types = []string{"cax*"} })
	if all, err := named.Offers(t.Context()); err != nil || len(all) != 2 || all[0].Attributes["arch"] != "arm64" {
		t.Errorf("types that the operator names: %+v, %v", all, err)
	}
	if o := offers[0]; o.Name != "cpx11" || o.Price != 6300 || o.Capacity.CPU != 2000 || o.Capacity.Disk != 36*muster.GiB || o.Attributes["arch"] != "amd64" {
		t.Errorf("%+v", o)
	}
	all, err := p.Resolve(t.Context())
	if err != nil || slices.ContainsFunc(all, func(r cloud.Resolved) bool { return r.Problem != "" }) {
		t.Errorf("%+v, %v", all, err)
	}
	bad := open(t, c, "o", func(c *Config) {
		c.Locations, c.Types, c.Network, c.Image = []string{"mars1", "fsn1"}, []string{"*"}, "none", "debian-1"
	})
	all, err = bad.Resolve(t.Context())
	problems := 0
	for _, r := range all {
		if r.Problem != "" {
			problems++
		}
	}
	if err != nil || problems != 4 {
		t.Errorf("%d problems: %+v, %v", problems, all, err)
	}
}

func TestConfigIsRefusedInSentences(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("two words"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, cfg := range map[string]Config{
		"name and owner are missing":    {},
		"token_file is missing":         {Name: "hz", Owner: "o"},
		"locations are missing":         {Name: "hz", Owner: "o", TokenFile: file},
		"has no API token":              {Name: "hz", Owner: "o", TokenFile: file, Locations: []string{"fsn1"}},
		"no such file":                  {Name: "hz", Owner: "o", TokenFile: file + "x", Locations: []string{"fsn1"}},
		`owner "a b" cannot be a label`: {Name: "hz", Owner: "a b"},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "two words") {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestTheLimitOnCallsIsReported(t *testing.T) {
	c := hetznertest.New(t, hetznertest.Options{Limit: 3, Refill: 0.001})
	p := open(t, c, "o", nil)
	for range 3 {
		list(t, p)
	}
	_, err := p.List(t.Context(), "")
	f, ok := err.(*muster.Fault)
	if !ok || f.Kind != muster.FaultRateLimited || f.After != slowest || f.Scope != (muster.Scope{Provider: "hz"}) {
		t.Errorf("%+v", err)
	}
}

// An idle server lists each minute, reads offerings each minute and leftovers every five: with a
// hundred nodes that is a tenth of the project's calls.
func TestCallsOfAnIdleHour(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { return now }
	c := hetznertest.New(t, hetznertest.Options{Limit: 3600, Refill: 1, Now: clock})
	p := open(t, c, "o", func(cfg *Config) { cfg.Now = clock })
	for n := range 100 {
		make1(t, p, fmt.Sprint("t", n))
		now = now.Add(10 * time.Second)
	}
	now = now.Add(time.Hour)
	before, least := sumOf(c), int64(3600)
	for minute := range 60 {
		servers, cursor := 0, ""
		for {
			page, err := p.List(t.Context(), cursor)
			if err != nil {
				t.Fatal(err)
			}
			servers += len(page.Instances)
			if cursor = page.Next; cursor == "" {
				break
			}
		}
		if servers != 100 {
			t.Fatalf("%d servers", servers)
		}
		if _, err := p.Offers(t.Context()); err != nil {
			t.Fatal(err)
		}
		if minute%5 == 0 {
			if _, err := p.Leftovers(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		least = min(least, p.calls.left.Load())
		now = now.Add(time.Minute)
	}
	calls := sumOf(c) - before
	t.Logf("%d calls in an hour, %d left at least", calls, least)
	if calls > 360 || calls < 120 || least < 3590 || p.Scarce() {
		t.Errorf("%d calls in an hour, %d left at least", calls, least)
	}
}

func sumOf(c *hetznertest.Cloud) (n int) {
	for _, call := range c.AllCalls() {
		n += call
	}
	return n
}

func TestFewCallsLeft(t *testing.T) {
	now := time.Now()
	c := hetznertest.New(t, hetznertest.Options{Limit: 60, Refill: 1, Now: func() time.Time { return now }})
	p := open(t, c, "o", nil)
	if p.Scarce() {
		t.Error("before anything is known")
	}
	for n := range 51 {
		list(t, p)
		if want := n == 50; p.Scarce() != want {
			t.Errorf("after %d calls: scarce %v", n+1, p.Scarce())
		}
	}
	now = now.Add(10 * time.Second)
	list(t, p)
	if p.Scarce() {
		t.Error("calls came back")
	}
}

func TestANewTokenNeedsNoRestart(t *testing.T) {
	c := hetznertest.New(t, hetznertest.Options{})
	p := open(t, c, "o", nil)
	for _, step := range []struct {
		token string
		kind  muster.FaultKind
	}{{"old", muster.FaultAuth}, {"", muster.FaultAuth}, {hetznertest.Token, ""}} {
		if err := os.WriteFile(p.cfg.TokenFile, []byte(step.token), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := p.List(t.Context(), ""); (err == nil) != (step.kind == "") || err != nil && muster.KindOf(err) != step.kind {
			t.Errorf("%q: %v", step.token, err)
		}
	}
}

func TestAnotherServerOfTheNameIsLeftAlone(t *testing.T) {
	c := hetznertest.New(t, hetznertest.Options{})
	p := open(t, c, "o", nil)
	got := make1(t, p, "t")
	c.Change(numeric(t, got.Instance.ID), func(s *schema.Server) { s.Labels = map[string]string{} })
	if got := make1(t, open(t, c, "o", nil), "t"); !muster.IsKind(got.Err, muster.FaultInvalid) || !strings.Contains(got.Err.Error(), "not the labels") {
		t.Errorf("%+v", got)
	}
}

const errorBody = `{"error":{"code":"%s","message":"said so","details":null}}`

func coded(code string) string { return strings.Replace(errorBody, "%s", code, 1) }

func TestErrors(t *testing.T) {
	account, here := muster.Scope{Provider: "hz"}, muster.Scope{Provider: "hz", Offering: "cpx11", Zone: "fsn1"}
	reset := http.Header{"Ratelimit-Reset": {strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)}}
	const destroy, read = "DELETE /v1/servers/{id}", "GET /v1/servers"
	rows := []cloudtest.ErrorRow{
		{Name: "not found on create", Status: 404, Body: coded("not_found"), Kind: muster.FaultInvalid},
		{Name: "not found on destroy", Call: destroy, Status: 404, Body: coded("not_found"), Succeeds: true},
		{Name: "protected", Call: destroy, Status: 403, Body: coded("protected"), Kind: muster.FaultInvalid},
		{Name: "locked on destroy", Call: destroy, Status: 423, Body: coded("locked"), Kind: muster.FaultTransient},
		{Name: "server_error on destroy", Call: destroy, Status: 500, Body: coded("server_error"), Kind: muster.FaultTransient},
		{Name: "rate_limit_exceeded", Status: 429, Header: reset, Body: coded("rate_limit_exceeded"), Kind: muster.FaultRateLimited, Scope: account, After: time.Minute},
		{Name: "429 of a proxy", Status: 429, Header: http.Header{"Retry-After": {"7"}}, Kind: muster.FaultRateLimited, Scope: account, After: 7 * time.Second},
		{Name: "resource_limit_exceeded", Status: 403, Body: coded("resource_limit_exceeded"), Kind: muster.FaultQuota, Scope: account},
		{Name: "placement group", Status: 422, Body: `{"error":{"code":"invalid_input","message":"placement group is full","details":{"fields":[]}}}`, Kind: muster.FaultCapacity, Scope: here},
		{Name: "invalid_input", Status: 422, Body: `{"error":{"code":"invalid_input","message":"no","details":{"fields":[{"name":"server_type","messages":["x"]}]}}}`, Kind: muster.FaultInvalid, Field: "types"},
		{Name: "HTML of a proxy", Status: 503, Body: "<html>", Kind: muster.FaultAmbiguous},
		{Name: "HTML of a proxy on read", Call: read, Status: 503, Body: "<html>", Kind: muster.FaultTransient},
		{Name: "404 of a proxy", Status: 404, Body: "<html>", Kind: muster.FaultAmbiguous},
		{Name: "truncated success", Status: 201, Body: `{"server":{"id":`, Kind: muster.FaultAmbiguous},
		{Name: "success without a server", Status: 201, Body: `{}`, Kind: muster.FaultAmbiguous},
		{Name: "truncated list", Call: read, Status: 200, Body: `{"servers":[`, Kind: muster.FaultTransient},
		{Name: "server_error on read", Call: read, Status: 500, Body: coded("server_error"), Kind: muster.FaultTransient},
	}
	for kind, codes := range map[muster.FaultKind]string{
		muster.FaultCapacity: "resource_unavailable placement_error no_space_left_in_location",
		muster.FaultAuth:     "unauthorized forbidden token_readonly",
		muster.FaultInvalid: "invalid_server_type unsupported_error json_error deprecated_api_endpoint networks_overlap " +
			"primary_ip_datacenter_mismatch primary_ip_version_mismatch",
		muster.FaultTransient: "locked conflict maintenance resource_locked",
		muster.FaultAmbiguous: "server_error service_error unknown_error bad_gateway timeout something_new",
	} {
		for code := range strings.FieldsSeq(codes) {
			row := cloudtest.ErrorRow{Name: code, Status: 422, Body: coded(code), Kind: kind}
			if kind == muster.FaultCapacity {
				row.Scope = here
			}
			rows = append(rows, row)
		}
	}
	for _, code := range []string{"no_subnet_available", "ip_not_available"} {
		rows = append(rows, cloudtest.ErrorRow{Name: code, Status: 422, Body: coded(code), Kind: muster.FaultCapacity, Scope: account})
	}
	cloudtest.Errors(t, rows, func(t *testing.T, row cloudtest.ErrorRow) error {
		c := hetznertest.New(t, hetznertest.Options{})
		p := open(t, c, "o", nil)
		refuse := func(call string) { c.Refuse(call, row.Status, row.Header, row.Body) }
		switch row.Call {
		case destroy:
			got := make1(t, p, "t")
			refuse(destroy)
			return p.Destroy(t.Context(), []muster.InstanceID{got.Instance.ID})[0]
		case read:
			refuse(read)
			_, err := p.List(t.Context(), "")
			return err
		}
		refuse(hetznertest.CreateServer)
		return make1(t, p, "t").Err
	})
}
