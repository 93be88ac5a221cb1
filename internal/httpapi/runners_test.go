package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/claim"
	"github.com/musterhq/muster/internal/metrics"
	"github.com/musterhq/muster/internal/state"
)

// handsOut is the stock of a test: the first warm runner in the log.
type handsOut struct {
	b *bench

	mu   sync.Mutex
	made int
	used []muster.ClaimID
}

func (h *handsOut) Claim(ctx context.Context, w claim.Request) (*state.Claim, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var id muster.AllocID
	h.b.state.Latest().Runners(w.UID, muster.RunnerWarm, func(a *state.Alloc) bool { id = a.ID; return false })
	if id == "" && h.b.state.Latest().ClaimByKey(w.UID, w.Key) == nil {
		return nil, muster.Faultf(muster.FaultCapacity, "no runner is warm")
	}
	h.made++
	_, v, err := h.b.log.Propose(ctx, &state.RunnerClaimed{Claim: muster.ClaimID(fmt.Sprintf("c%d", h.made)), UID: w.UID, Runner: id,
		TTL: muster.Time(w.TTL.Microseconds()), Idle: muster.Time(w.Idle.Microseconds()), Note: w.Note, Idempotency: w.Key, Digest: w.Digest})
	if err != nil {
		return nil, err
	}
	return v.(*state.Claimed).Claim, nil
}

func (h *handsOut) Use(id muster.ClaimID) func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used = append(h.used, id)
	return func() {}
}

func (h *handsOut) Waiting(muster.JobUID) int { return 0 }

// stocked is a bench with environment e of which n runners are warm.
func stocked(t *testing.T, n int) (*bench, *handsOut) {
	h := &handsOut{}
	b := newBench(t, 256, func(c *parts) { c.Runners, c.ClaimKey = h, muster.NewSecret("a key") })
	h.b = b
	if a := b.do("POST", "/v1/environments", `{"spec": {"name": "e", "resources": {"cpu": 0.01, "memory": "1MiB"}}}`); a.StatusCode != 201 {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	j := b.state.Latest().Environment("default", "e")
	b.propose(&state.RunnersWanted{UID: j.UID, Count: n, Stock: n, Why: "a test"})
	b.node("n1")
	for _, id := range b.place(j.UID, "n1", 0, n) {
		b.report("n1", state.AllocUpdate{ID: id, Status: muster.AllocRunning})
	}
	return b, h
}

func (b *bench) claim(body string, edit ...func(*http.Request)) api.Claim {
	b.Helper()
	a := b.do("POST", "/v1/claims", body, edit...)
	var c api.Claim
	if err := json.Unmarshal([]byte(a.body), &c); a.StatusCode != 201 || err != nil {
		b.Fatalf("claim: %d %s %v", a.StatusCode, a.body, err)
	}
	return c
}

func bearer(secret string) func(*http.Request) { return header("Authorization", "Bearer "+secret) }

func TestWrongClaims(t *testing.T) {
	b, _ := stocked(t, 0)
	b.problem(b.do("POST", "/v1/claims", `{"environment": "nope"}`), 404, "not-found")
	b.problem(b.do("POST", "/v1/claims", `{"environment": `), 400, "invalid")
	b.problem(b.do("POST", "/v1/claims", `{"environment": "e"}`), 503, api.CodeNoneWarm)
}

// A note is shown in lists among those of others: it is one line, and nothing in it changes how a line reads.
func TestNotesAreLines(t *testing.T) {
	b, _ := stocked(t, 1)
	for _, note := range []string{`a\nr2  claimed`, `\u0085`, `\u009b2J`, `\u202eevil`, `\u2028x`, `\u200b`, `\u001b[2J`} {
		if p := b.problem(b.do("POST", "/v1/claims", `{"environment": "e", "note": "`+note+`"}`), 422, "invalid"); len(p.Errors) != 1 || p.Errors[0].Location != "body.note" {
			t.Errorf("%s: %+v", note, p)
		}
		if p := b.problem(b.do("POST", "/v1/nodes/n1/hold", `{"reason": "`+note+`"}`), 422, "invalid"); len(p.Errors) != 1 || p.Errors[0].Location != "body.reason" {
			t.Errorf("%s: %+v", note, p)
		}
	}
	b.claim(`{"environment": "e", "note": "näher, mit 😀"}`)
}

func TestReleasedTwice(t *testing.T) {
	b, _ := stocked(t, 1)
	c := b.claim(`{"environment": "e"}`)
	if a := b.do("DELETE", "/v1/runners/"+c.Runner, "", bearer(c.Secret)); a.StatusCode != 204 {
		t.Fatalf("release: %d %s", a.StatusCode, a.body)
	}
	// A client whose first answer came too late repeats the request; whoever it is.
	for _, as := range []func(*http.Request){bearer(c.Secret), func(*http.Request) {}} {
		if a := b.do("DELETE", "/v1/runners/"+c.Runner, "", as); a.StatusCode != 204 {
			t.Errorf("release repeated: %d %s", a.StatusCode, a.body)
		}
	}
	if p := b.problem(b.do("GET", "/v1/runners/"+c.Runner+"/files?path=/", "", bearer(c.Secret)), 410, api.CodeNotClaimed); p.Detail != "runner "+c.Runner+" is gone: it was released" {
		t.Errorf("told was %q", p.Detail)
	}
	if p := b.problem(b.do("DELETE", "/v1/runners/u-7-1", ""), 410, api.CodeNotClaimed); !strings.Contains(p.Detail, "runner u-7-1 does not exist") || !strings.Contains(p.Detail, "`muster runner list`") {
		t.Error(p.Detail)
	}
}

// Only a release may be repeated: a holder is told that its claim ended otherwise.
func TestReleaseOfExpiredClaim(t *testing.T) {
	b, _ := stocked(t, 1)
	c := b.claim(`{"environment": "e"}`)
	row := b.state.Latest().Claim(muster.ClaimID(c.ID))
	b.propose(&state.ClaimsExpired{Claims: []state.Expiry{{Claim: row.ID, Reason: "its time is over", Modified: row.Modified}}})
	if p := b.problem(b.do("DELETE", "/v1/runners/"+c.Runner, ""), 410, api.CodeNotClaimed); p.Detail != "runner "+c.Runner+" is gone: its claim expired: its time is over" {
		t.Errorf("told was %q", p.Detail)
	}
}

func TestRunnerThatEndedSaysWhy(t *testing.T) {
	b, _ := stocked(t, 1)
	c := b.claim(`{"environment": "e"}`)
	b.report("n1", state.AllocUpdate{ID: muster.AllocID(c.Runner), Status: muster.AllocEnded, Outcome: muster.OutcomeFailed,
		Failure: &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonOutOfMemory, Message: "over its memory limit"}})
	if p := b.problem(b.do("DELETE", "/v1/runners/"+c.Runner, ""), 410, api.CodeNotClaimed); p.Detail != "runner "+c.Runner+" is gone: it ended: over its memory limit" {
		t.Errorf("told was %q", p.Detail)
	}
}

// A claim that gets no runner is told what keeps the environment from having one.
func TestRefusedClaimTellsTheCause(t *testing.T) {
	claims := func(b *bench, want string) {
		t.Helper()
		if p := b.problem(b.do("POST", "/v1/claims", `{"environment": "e"}`), 503, api.CodeNoneWarm); p.Detail != "environment e: no runner is warm"+want+"; claim with a wait, or keep more runners warm" {
			t.Errorf("told was %q, want %q", p.Detail, want)
		}
		if p := b.problem(b.do("POST", "/v1/claims", `{"environment": "e", "wait": "1s"}`), 503, api.CodeNoneWarm); p.Detail != "environment e: no runner is warm"+want {
			t.Errorf("told was %q, want %q", p.Detail, want)
		}
	}
	b, _ := stocked(t, 0)
	claims(b, "")
	j := b.state.Latest().Environment("default", "e")
	b.propose(&state.RunnersWanted{UID: j.UID, Count: 2, Stock: 2, Why: "a test"})
	claims(b, "; 2 runners without a place on a node")
	ids := b.place(j.UID, "n1", 0, 2)
	b.report("n1", state.AllocUpdate{ID: ids[0], Status: muster.AllocStarting, Detail: "pulling image x: 3MiB"})
	claims(b, "; the first that is starting: pulling image x: 3MiB")
	failed := func(id muster.AllocID, class muster.FailureClass, text string) {
		b.report("n1", state.AllocUpdate{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeFailed, Failure: &muster.Failure{Class: class, Reason: muster.ReasonImage, Message: text}})
	}
	// The registry does not answer: it is tried again under the same index.
	failed(ids[0], muster.FailureOutside, "image x: no such host")
	claims(b, "; the last runner that was started failed: image x: no such host")
	failed(ids[1], muster.FailureUser, "image x: not found")
	claims(b, "; the last runner that was started failed: image x: not found")
}

func TestWarmRunnersHaveNoHolder(t *testing.T) {
	b, _ := stocked(t, 1)
	var id muster.AllocID
	b.state.Latest().Allocs("", func(a *state.Alloc) bool { id = a.ID; return false })
	for method, paths := range map[string][]string{
		"GET": {"/stats", "/files?path=/", "/files/content?path=/x", "/executions", "/ports"}, "POST": {"/exec", "/extend"}, "DELETE": {"", "/files?path=/x"},
	} {
		for _, path := range paths {
			body := ""
			if method == "POST" {
				body = "{}"
			}
			b.problem(b.do(method, "/v1/runners/"+string(id)+path, body), 410, api.CodeNotClaimed)
		}
	}
}

func TestAbsurdTimes(t *testing.T) {
	b, _ := stocked(t, 1)
	for _, field := range []string{`"idle": "-1s"`, `"ttl": "-1ms"`, `"idle": "900000h"`, `"ttl": "900000h"`, `"wait": "2h"`, `"wait": "-1s"`} {
		b.problem(b.do("POST", "/v1/claims", `{"environment": "e", `+field+`}`), 400, "invalid")
	}
	c := b.claim(`{"environment": "e", "ttl": "0s", "idle": "0s"}`)
	if c.Deadline != nil || c.Idle != 0 {
		t.Fatalf("with neither time-out: %+v", c)
	}
	b.problem(b.do("POST", "/v1/runners/"+c.Runner+"/extend", `{"ttl": "-1s"}`), 400, "invalid")
}

func TestStatisticsOfADeletedEnvironment(t *testing.T) {
	b, _ := stocked(t, 2)
	c := b.claim(`{"environment": "e"}`)
	if a := b.do("DELETE", "/v1/environments/default/e", ""); a.StatusCode != 204 {
		t.Fatalf("delete: %d %s", a.StatusCode, a.body)
	}
	for _, path := range []string{"/v1/environments", "/v1/environments/default/e", "/v1/runners", "/v1/runners?environment=e", "/v1/runners/" + c.Runner, "/v1/claims", "/metrics"} {
		if a := b.do("GET", path, ""); a.StatusCode != 200 {
			t.Errorf("%s: %d %s", path, a.StatusCode, a.body)
		}
	}
	b.problem(b.do("POST", "/v1/claims", `{"environment": "e"}`), 404, "not-found")
	if a := b.do("DELETE", "/v1/runners/"+c.Runner, "", bearer(c.Secret)); a.StatusCode != 204 {
		t.Fatalf("release: %d %s", a.StatusCode, a.body)
	}
}

func TestOnlyTheHolderUsesARunner(t *testing.T) {
	b, h := stocked(t, 2)
	c, other := b.claim(`{"environment": "e"}`), b.claim(`{"environment": "e"}`)
	path := "/v1/runners/" + c.Runner
	b.problem(b.do("GET", path+"/stats", "", header("Authorization", "")), 401, api.CodeAuth)
	b.problem(b.do("GET", path+"/stats", "", bearer(c.Secret+"0")), 401, api.CodeAuth)
	b.problem(b.do("GET", path+"/stats", "", bearer("mcs-nobody-00")), 401, api.CodeAuth)
	b.problem(b.do("GET", path+"/stats", "", bearer(other.Secret)), 403, api.CodeForbidden)
	for _, elsewhere := range []string{"/v1/jobs", "/v1/claims", "/v1/runners", path + "0/stats", "/v1/claims/" + other.ID} {
		b.problem(b.do("GET", elsewhere, "", bearer(c.Secret)), 403, api.CodeForbidden)
	}
	if a := b.do("GET", path, "", bearer(c.Secret)); a.StatusCode != 200 || strings.Contains(a.body, c.Secret) {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	before := len(h.used)
	b.do("GET", path+"/stats", "", bearer(c.Secret))
	if len(h.used) != before+1 || h.used[before] != muster.ClaimID(c.ID) {
		t.Fatalf("used were %v: what is asked of a runner is use", h.used)
	}
}

func TestAClaimIsRepeatedWithItsSecret(t *testing.T) {
	b, _ := stocked(t, 2)
	first := b.claim(`{"environment": "e"}`, header("Idempotency-Key", "k"))
	again := b.claim(`{"environment": "e", "wait": "1s"}`, header("Idempotency-Key", "k"))
	if again.ID != first.ID || again.Secret != first.Secret || again.Runner != first.Runner {
		t.Fatalf("%+v, then %+v", first, again)
	}
	b.problem(b.do("POST", "/v1/claims", `{"environment": "e", "ttl": "1s"}`, header("Idempotency-Key", "k")), 409, "conflict")
}

// Thousands of environments make no more series than a bound. Sums over all series stay right.
func TestEnvironmentSeriesAreBounded(t *testing.T) {
	b, _ := stocked(t, 1)
	const n = metrics.MaxEnvironmentSeries + 20
	wanted := 1
	for i := range n - 1 {
		spec := &api.EnvironmentSpec{Name: fmt.Sprintf("many-%d", i), Namespace: "default", Template: api.Template{Resources: api.ResourcesSpec{CPU: 0.01, Memory: 1 << 20}}}
		spec.Defaults()
		uid := muster.JobUID(fmt.Sprintf("m%d", i))
		b.propose(&state.EnvironmentSet{Key: muster.EnvironmentKey("default", spec.Name), UID: uid, Spec: spec})
		b.propose(&state.RunnersWanted{UID: uid, Count: 2, Stock: 2, Why: "a test"})
		wanted += 2
	}
	series, sum, rest := map[string]int{}, 0, 0
	for line := range strings.Lines(b.do("GET", "/metrics", "").body) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		metric, labels, _ := strings.Cut(name, "{")
		series[metric]++
		if metric == "muster_runners_wanted" {
			v, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			sum += v
			if strings.Contains(labels, `environment="*"`) {
				rest += v
			}
		}
	}
	if sum != wanted || rest == 0 || rest > 40 {
		t.Errorf("%d are wanted in all and %d of the rest, want %d", sum, rest, wanted)
	}
	for metric, want := range map[string]int{"muster_runners_wanted": metrics.MaxEnvironmentSeries + 1, "muster_environment_alert": metrics.MaxEnvironmentSeries + 1, "muster_runners": 3 * (metrics.MaxEnvironmentSeries + 1), "muster_environment_claims_total": metrics.MaxEnvironmentSeries} {
		if series[metric] != want {
			t.Errorf("%s has %d series, want %d", metric, series[metric], want)
		}
	}
}
