package httpapi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// sweep ends a job of four members: 0 succeeds, 1 to 3 fail.
func (b *bench) sweep(name string) muster.JobUID {
	b.Helper()
	uid := b.submit("default", name, 4)
	for i, id := range b.place(uid, "n1", 0, 4) {
		u := state.AllocUpdate{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded}
		if i > 0 {
			u.Outcome, u.ExitCode = muster.OutcomeFailed, 1
			u.Failure = &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonExit, Message: "exit 1"}
		}
		b.report("n1", u)
	}
	return uid
}

func TestRetry(t *testing.T) {
	b := newBench(t, 100)
	b.node("n1")
	uid := b.sweep("j")
	const at = "/v1/jobs/default/j/retry"
	a := b.do("POST", at, `{"members":[2]}`, header("Idempotency-Key", "k"))
	one := as[api.JobRetried](b, a)
	if a.StatusCode != 200 || one.Retried != 1 || one.UID != string(uid) || one.Version != 1 || one.Name != "j" || one.Namespace != "default" || one.Index == 0 || one.Unchanged {
		t.Errorf("%d %+v", a.StatusCode, one)
	}
	// Repeated, it is answered as the first time; another request with the key is refused.
	if two := as[api.JobRetried](b, b.do("POST", at, ` {"members": [2]} `, header("Idempotency-Key", "k"))); !two.Unchanged || two.Retried != 1 || two.Index != one.Index {
		t.Errorf("%+v, first %+v", two, one)
	}
	b.problem(b.do("POST", at, `{"members":[3]}`, header("Idempotency-Key", "k")), 409, "conflict")
	b.problem(b.do("POST", "/v1/jobs/default/other/retry", `{"members":[2]}`, header("Idempotency-Key", "k")), 404, "not-found")
	b.problem(b.do("POST", "/v1/jobs", `{"spec":{"command":["true"]}}`, header("Idempotency-Key", "k")), 409, "conflict")
	if a := b.do("POST", at, ""); a.StatusCode != 200 || as[api.JobRetried](b, a).Retried != 2 {
		t.Errorf("without a body: %d", a.StatusCode)
	}
	j := as[api.Job](b, b.do("GET", "/v1/jobs/default/j", ""))
	if j.Stage != "live" || j.Counts.Waiting != 3 || j.Counts.Succeeded != 1 || j.Ended != nil || j.Outcome != "" {
		t.Errorf("%+v", j)
	}
	var text string
	for _, ev := range b.events("after=oldest&job=j") {
		if ev.Type == "job.retried" {
			text = ev.Text
		}
	}
	if text != "job j is retried: of 4 members 3 wait and 1 succeeded before" {
		t.Errorf("event %q", text)
	}
}

func TestRetryRefusals(t *testing.T) {
	b := newBench(t, 100)
	b.node("n1")
	b.sweep("j")
	const at = "/v1/jobs/default/j/retry"
	many := strings.TrimSuffix(strings.Repeat("1,", api.MaxRetryMembers+1), ",")
	for _, c := range []struct {
		at, body string
		status   int
		field    string
		words    string
	}{
		{"/v1/jobs/default/nope/retry", "", 404, "", "can be retried only while the server keeps it after its end"},
		{"/v1/jobs/default/Nope/retry", "", 422, "path.name", ""},
		{at, `{"members":[0]}`, 409, "", "member 0 succeeded, and only members that failed or were stopped"},
		{at, `{"members":[4]}`, 422, "", "has no member 4: its members are 0 to 3"},
		{at, `{"members":[1,-1]}`, 422, "body.members[1]", "is -1; members are counted from 0"},
		{at, `{"members":[]}`, 422, "body.members", "is empty"},
		{at, `{"members":[1],"all":true}`, 422, "body.members", "exclude each other"},
		{at, `{"members":[` + many + `]}`, 422, "body.members", "at most 10000"},
		{at, `{"members":["1"]}`, 422, "body.members[0]", ""},
		{at, `{"member":[1]}`, 422, "body.member", ""},
		{at, `nonsense`, 400, "", ""},
	} {
		code := map[int]string{404: "not-found", 409: "conflict", 422: "invalid", 400: "invalid"}[c.status]
		p := b.problem(b.do("POST", c.at, c.body), c.status, code)
		if text := fmt.Sprintf("%+v", p); !strings.Contains(text, c.words) || c.field != "" && (len(p.Errors) != 1 || p.Errors[0].Location != c.field) {
			t.Errorf("%s %.40s: %s", c.at, c.body, text)
		}
	}
	if j := as[api.Job](b, b.do("GET", "/v1/jobs/default/j", "")); j.Stage != "ended" || j.Counts.Failed != 3 {
		t.Errorf("a refused retry changed the job: %+v", j)
	}
}
