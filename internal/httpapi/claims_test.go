package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// Of many releases at once one is done. All are told so: a release may be repeated.
func TestReleasedByManyAtOnce(t *testing.T) {
	b, _ := stocked(t, 1)
	c := b.claim(`{"environment": "e"}`)
	var all sync.WaitGroup
	var mu sync.Mutex
	codes := map[int]int{}
	for range 50 {
		all.Go(func() {
			a := b.do("DELETE", "/v1/runners/"+c.Runner, "", bearer(c.Secret))
			mu.Lock()
			defer mu.Unlock()
			codes[a.StatusCode]++
		})
	}
	all.Wait()
	if codes[204] != 50 {
		t.Errorf("answers were %v", codes)
	}
	released := 0
	for _, e := range b.events("after=0") {
		if e.Type == "claim.released" {
			released++
		}
	}
	if released != 1 {
		t.Errorf("released %d times", released)
	}
}

func TestClaimsAreShownInPages(t *testing.T) {
	b, _ := stocked(t, 5)
	var ids []string
	for range 5 {
		ids = append(ids, b.claim(`{"environment": "e", "note": "mine"}`).ID)
	}
	first := get[api.ClaimList](b, "/v1/claims?limit=2")
	rest := get[api.ClaimList](b, "/v1/claims?after="+first.Next)
	if len(first.Claims) != 2 || len(rest.Claims) != 3 || rest.Next != "" || first.Claims[0].Note != "mine" {
		t.Errorf("%+v, then %+v", first, rest)
	}
	for i, c := range append(first.Claims, rest.Claims...) {
		if c.ID != ids[i] || c.Secret != "" || c.State != string(muster.ClaimHeld) || c.Environment != "e" || c.Node != "n1" {
			t.Errorf("%+v", c)
		}
	}
	one := get[api.Claim](b, "/v1/claims/"+ids[0])
	if one.ID != ids[0] || one.Secret != "" {
		t.Errorf("%+v", one)
	}
	if a := b.do("DELETE", "/v1/runners/"+one.Runner, ""); a.StatusCode != 204 {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	if held, released := get[api.ClaimList](b, "/v1/claims?state=held"), get[api.ClaimList](b, "/v1/claims?state=released"); len(held.Claims) != 4 || len(released.Claims) != 1 || released.Claims[0].Ended == nil {
		t.Errorf("%+v and %+v", held, released)
	}
	b.problem(b.do("GET", "/v1/claims/nobodys", ""), 404, "not-found")
	b.problem(b.do("GET", "/v1/claims?state=odd", ""), 422, "invalid")
	b.problem(b.do("GET", "/v1/claims?limit=0", ""), 422, "invalid")
}

// What an environment says of claims holds for whoever has one: neither an extension nor a claim without an end passes max_ttl,
// and nobody acts as another user than the environment's where lock_user says so.
func TestClaimsAreBoundedByTheirEnvironment(t *testing.T) {
	b, _ := stocked(t, 3)
	set := func(spec string, status int) {
		a := b.do("POST", "/v1/environments", `{"spec": {"name": "e", "resources": {"cpu": 0.01, "memory": "1MiB"}, `+spec+`}}`)
		if a.StatusCode != status {
			t.Fatalf("%s: %d %s", spec, a.StatusCode, a.body)
		}
	}
	set(`"max_ttl": "1h", "ttl": "2h"`, 422)
	set(`"max_ttl": "-1s"`, 422)
	set(`"max_ttl": "1h", "lock_user": true`, 200)
	if spec := get[api.Environment](b, "/v1/environments/default/e").Spec; spec.MaxTTL.Std() != time.Hour || !spec.LockUser {
		t.Fatalf("%+v", spec)
	}
	lives := func(c *api.Claim) time.Duration {
		if c.Deadline == nil {
			return 0
		}
		return c.Deadline.Sub(c.Made)
	}
	c := b.claim(`{"environment": "e", "ttl": "0s", "idle": "0s"}`)
	if d := lives(&c); d != time.Hour {
		t.Errorf("a claim without an end lives %v", d)
	}
	if short := b.claim(`{"environment": "e", "ttl": "1m"}`); lives(&short) != time.Minute {
		t.Errorf("a claim of a minute lives %v", lives(&short))
	}
	for _, ask := range []string{`{"ttl": "0s"}`, `{"ttl": "5h", "idle": "0s"}`} {
		a := b.do("POST", "/v1/runners/"+c.Runner+"/extend", ask, bearer(c.Secret))
		var now api.Claim
		if err := json.Unmarshal([]byte(a.body), &now); err != nil || a.StatusCode != 200 || lives(&now) == 0 || lives(&now) > time.Hour+time.Second {
			t.Errorf("%s: %d %s", ask, a.StatusCode, a.body)
		}
	}
	at := "/v1/runners/" + c.Runner
	for _, r := range [][3]string{
		{"POST", "/exec", `{"command": ["id"], "user": "root"}`},
		{"PUT", "/files/content?path=/x&user=root", "x"},
		{"POST", "/files/directory?path=/x&user=0", ""},
		{"PUT", "/files/archive?path=/x&keep_owners=true", "x"},
		{"PATCH", "/files", `{"write": [{"path": "/x", "content": "x", "user": "root"}]}`},
	} {
		as := []func(*http.Request){bearer(c.Secret)}
		if r[0] == "PUT" {
			as = append(as, header("Content-Type", "application/octet-stream"))
		}
		a := b.do(r[0], at+r[1], r[2], as...)
		if a.StatusCode != 403 || !strings.Contains(a.body, "lock_user") {
			t.Errorf("%v: %d %s", r, a.StatusCode, a.body)
		}
	}
}

func TestExtendedClaims(t *testing.T) {
	b, _ := stocked(t, 1)
	c := b.claim(`{"environment": "e", "ttl": "1m", "idle": "1m"}`)
	path := "/v1/runners/" + c.Runner + "/extend"
	extend := func(body string) api.Claim { return as[api.Claim](b, b.do("POST", path, body, bearer(c.Secret))) }
	if got := extend(`{"ttl": "1h"}`); got.Deadline == nil || !got.Deadline.After(*c.Deadline) || got.Idle != c.Idle || got.Secret != "" {
		t.Errorf("%+v", got)
	}
	if got := extend(`{"idle": "5s"}`); got.Idle.String() != "5s" || got.Deadline == nil {
		t.Errorf("%+v", got)
	}
	if got := extend(`{"ttl": "0s", "idle": "0s"}`); got.Idle != 0 || got.Deadline != nil {
		t.Errorf("%+v", got)
	}
	b.problem(b.do("POST", path, `{"til": "1h"}`, bearer(c.Secret)), 422, "invalid")
	b.problem(b.do("POST", path, `{"ttl": "1h"}`, bearer("mcs-c9-00")), 401, api.CodeAuth)
	b.log.refuse(muster.Faultf(muster.FaultDiskLow, "the disk is full"))
	b.problem(b.do("POST", path, `{"ttl": "1h"}`), 507, "disk-low")
	b.problem(b.do("DELETE", "/v1/runners/"+c.Runner, ""), 507, "disk-low")
	b.problem(b.do("POST", "/v1/claims", `{"environment": "e"}`), 503, api.CodeNoneWarm)
	b.log.refuse(nil)
	if a := b.do("DELETE", "/v1/runners/"+c.Runner, ""); a.StatusCode != 204 {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	b.problem(b.do("POST", path, `{"ttl": "1h"}`), 410, api.CodeNotClaimed)
}

// Whoever has a claim is told why its runner is gone, in each place where they may ask.
func TestHoldersAreToldWhyARunnerIsGone(t *testing.T) {
	b, _ := stocked(t, 2)
	c := b.claim(`{"environment": "e"}`)
	b.report("n1", state.AllocUpdate{ID: muster.AllocID(c.Runner), Status: muster.AllocEnded, Outcome: muster.OutcomeFailed,
		Failure: &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonOutOfMemory, Message: "over its memory limit of 1MiB"}})
	for _, route := range []string{"GET /stats", "GET /files?path=/", "POST /exec", "POST /extend", "DELETE "} {
		method, below, _ := strings.Cut(route, " ")
		body := ""
		if method == "POST" {
			body = "{}"
		}
		for _, who := range []func(*http.Request){bearer(c.Secret), bearer(token)} {
			if p := b.problem(b.do(method, "/v1/runners/"+c.Runner+below, body, who), 410, api.CodeNotClaimed); !strings.Contains(p.Detail, "over its memory limit") {
				t.Errorf("%s: told was %q", route, p.Detail)
			}
		}
	}
	// The claim itself can still be looked at; by its holder, too.
	if got := as[api.Claim](b, b.do("GET", "/v1/claims/"+c.ID, "", bearer(c.Secret))); got.State != string(muster.ClaimLost) || !strings.Contains(got.Why, "over its memory limit") {
		t.Errorf("%+v", got)
	}
	if got := get[api.Runner](b, "/v1/runners/"+c.Runner); got.State != "gone" || !strings.Contains(got.Why, "over its memory limit") || got.Claim == nil {
		t.Errorf("%+v", got)
	}
	// One that was warm is gone by itself.
	var warm muster.AllocID
	b.state.Latest().Allocs("", func(a *state.Alloc) bool {
		if a.Runner == muster.RunnerWarm {
			warm = a.ID
		}
		return true
	})
	b.report("n1", state.AllocUpdate{ID: warm, Status: muster.AllocEnded, Outcome: muster.OutcomeFailed,
		Failure: &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonExit, Message: "its command ended"}})
	if p := b.problem(b.do("GET", "/v1/runners/"+string(warm)+"/stats", ""), 410, api.CodeNotClaimed); !strings.Contains(p.Detail, "its command ended") {
		t.Errorf("told was %q", p.Detail)
	}
	// A claim that nobody knows any more, by a secret that is right.
	gone := b.parts.Claims.Secret("c99").Reveal()
	b.problem(b.do("GET", "/v1/runners/"+c.Runner+"/stats", "", bearer(gone)), 410, api.CodeNotClaimed)
}

func TestRunnersAreListedInPages(t *testing.T) {
	b, _ := stocked(t, 4)
	c := b.claim(`{"environment": "e"}`)
	var seen []string
	for next := ""; ; {
		page := get[api.RunnerList](b, "/v1/runners?limit=1&after="+next)
		for _, r := range page.Runners {
			seen = append(seen, r.ID+" "+r.State)
		}
		if next = page.Next; next == "" {
			break
		}
	}
	if len(seen) != 4 || !strings.Contains(strings.Join(seen, ","), c.Runner+" claimed") {
		t.Errorf("%q", seen)
	}
	for query, want := range map[string]int{
		"state=claimed": 1, "state=warm": 3, "state=gone": 0, "environment=e": 4, "environment=e&namespace=default&state=warm": 3, "namespace=other": 0,
	} {
		if got := get[api.RunnerList](b, "/v1/runners?"+query); len(got.Runners) != want {
			t.Errorf("%s: %d, want %d", query, len(got.Runners), want)
		}
	}
	b.problem(b.do("GET", "/v1/runners?after=odd", ""), 422, "invalid")
	b.problem(b.do("GET", "/v1/runners?environment=nope", ""), 404, "not-found")
	b.problem(b.do("GET", "/v1/runners?environment=No+Name", ""), 422, "invalid")
	b.problem(b.do("GET", "/v1/runners?state=odd", ""), 422, "invalid")
	b.problem(b.do("GET", "/v1/runners/u-7-1", ""), 404, "not-found")
}

func TestEnvironmentProblems(t *testing.T) {
	b, _ := stocked(t, 0)
	for body, status := range map[string]int{
		`{"spec": {"name": "Not A Name"}}`: 422, `{"spec": {}}`: 422, `{"spec": {"name": "x", "warm": {"min": 3, "max": 2}}}`: 422, `{"spec": {"name": "x", "odd": 1}}`: 422, `{`: 400,
		`{"spec": {"name": "e"}, "if_version": 0}`: 409, `{"spec": {"name": "x"}, "if_version": 3}`: 409,
	} {
		if a := b.do("POST", "/v1/environments", body); a.StatusCode != status {
			t.Errorf("%s: %d %s", body, a.StatusCode, a.body)
		}
	}
	for i := range 3 {
		for _, ns := range []string{"a", "b"} {
			if a := b.do("POST", "/v1/environments", fmt.Sprintf(`{"spec": {"name": "e%d", "namespace": %q}}`, i, ns)); a.StatusCode != 201 {
				t.Fatalf("%d %s", a.StatusCode, a.body)
			}
		}
	}
	var seen []string
	for next := ""; ; {
		page := get[api.EnvironmentList](b, "/v1/environments?limit=2&after="+next)
		for _, e := range page.Environments {
			seen = append(seen, e.Namespace+"/"+e.Name)
		}
		if next = page.Next; next == "" {
			break
		}
	}
	if got := strings.Join(seen, " "); got != "a/e0 a/e1 a/e2 b/e0 b/e1 b/e2 default/e" {
		t.Errorf("listed are %s", got)
	}
	if got := get[api.EnvironmentList](b, "/v1/environments?namespace=b"); len(got.Environments) != 3 {
		t.Errorf("%+v", got)
	}
	for _, query := range []string{"after=odd", "after=a/No+Name", "namespace=No+Name"} {
		b.problem(b.do("GET", "/v1/environments?"+query, ""), 422, "invalid")
	}
	b.problem(b.do("GET", "/v1/environments/a/none", ""), 404, "not-found")
	b.problem(b.do("DELETE", "/v1/environments/a/none", ""), 404, "not-found")
	b.problem(b.do("GET", "/v1/environments/a/No%20Name", ""), 422, "invalid")
	b.log.refuse(muster.Faultf(muster.FaultUnavailable, "no leader"))
	b.problem(b.do("POST", "/v1/environments", `{"spec": {"name": "x"}}`), 503, "unavailable")
	b.problem(b.do("DELETE", "/v1/environments/a/e0", ""), 503, "unavailable")
}

// A server that hands out no runners says so.
func TestNoRunnersHere(t *testing.T) {
	b := newBench(t, 16)
	if a := b.do("POST", "/v1/environments", `{"spec": {"name": "e"}}`); a.StatusCode != 201 {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	b.problem(b.do("POST", "/v1/claims", `{"environment": "e"}`), 503, "unavailable")
	if e := get[api.Environment](b, "/v1/environments/default/e"); e.Waiting != 0 {
		t.Errorf("%+v", e)
	}
}
