package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/operate"
	"github.com/musterhq/muster/internal/state"
)

// What a submission would do is told of whatever has the name now, and nothing is done.
func TestPlanOfSubmission(t *testing.T) {
	b := newBench(t, 100)
	b.node("n1")
	web := func(more string) string {
		return fmt.Sprintf(`{"spec": {"name": "web", "type": "service", "count": 4, "resources": {"cpu": 1, "memory": "1MiB"}, "update": {"max_parallel": 2, "min_healthy_time": "1s"}, %s}}`, more)
	}
	plan := func(body string) *api.JobPlan {
		t.Helper()
		before := b.state.Latest()
		v := as[api.JobValidation](b, b.do(http.MethodPost, "/v1/jobs/validate?plan=true", body))
		if v.Plan == nil {
			t.Fatalf("no plan: %+v", v)
		}
		if b.state.Latest() != before {
			t.Fatal("something was done")
		}
		return v.Plan
	}

	if p := plan(web(`"command": ["a"]`)); p.Version != 1 || p.Change != nil || p.Placed != 4 || p.Waiting != 0 || p.Refused != "" {
		t.Errorf("new: %+v", p)
	}
	if a := b.do(http.MethodPost, "/v1/jobs", web(`"command": ["a"]`)); a.StatusCode != http.StatusCreated {
		t.Fatal(a.body)
	}
	uid := b.state.Latest().Job(muster.JobKey{Namespace: "default", Name: "web"}).UID
	ids := b.place(uid, "n1", 0, 4)
	for _, id := range ids {
		b.report("n1", state.AllocUpdate{ID: id, Status: muster.AllocRunning, Started: 1})
	}

	if p := plan(web(`"command": ["a"]`)); !p.Unchanged || p.Version != 1 || p.Change != nil || p.Placed+p.Waiting != 0 {
		t.Errorf("the same: %+v", p)
	}
	if p := plan(web(`"command": ["b"]`)); p.Unchanged || p.Version != 2 || p.Change == nil || p.Change.From != 1 || p.Change.Members != 4 ||
		p.Change.AtOnce != 2 || p.Change.Stopped != 2 || len(p.Change.Stops) != 2 || p.Change.Stops[0].Allocation != string(ids[0]) {
		t.Errorf("another version: %+v %+v", p, p.Change)
	}
	if p := plan(`{"replace": true, ` + web(`"command": ["b"]`)[1:]); p.Change == nil || p.Change.Stopped != 4 {
		t.Errorf("another version at once: %+v %+v", p, p.Change)
	}
	if p := plan(`{"spec": {"name": "web", "type": "service", "count": 1, "resources": {"cpu": 1, "memory": "1MiB"}, "command": ["a"]}}`); p.Change == nil || p.Change.Members != 0 || p.Change.Stopped != 3 {
		t.Errorf("fewer: %+v %+v", p, p.Change)
	}
	if p := plan(`{"spec": {"name": "web", "type": "service", "count": 100, "resources": {"cpu": 1, "memory": "1MiB"}, "command": ["a"]}}`); p.Change == nil || p.Change.Stopped != 0 || p.Placed != 60 || p.Waiting != 36 {
		t.Errorf("more: %+v %+v", p, p.Change)
	}
	for body, why := range map[string]string{
		`{"spec": {"name": "web", "command": ["a"]}}`:                   "job web is of type service, and cannot become one of type batch while it is live; stop it first",
		`{"if_version": 7, ` + web(`"command": ["b"]`)[1:]:              "job web is at version 1, not 7 as the submission demands",
		`{"spec": {"name": "web", "type": "system", "command": ["a"]}}`: "job web is of type service, and cannot become one of type system while it is live; stop it first",
	} {
		if p := plan(body); p.Refused != why || p.Placed+p.Waiting+len(p.Nodes) != 0 {
			t.Errorf("%s: %+v", body, p)
		}
	}
	// A system job is sized for the nodes there are, and its members placed.
	b.node("n2")
	if p := plan(`{"spec": {"name": "agent", "type": "system", "resources": {"cpu": 1, "memory": "1MiB"}, "command": ["a"]}}`); p.Placed != 2 || p.Waiting != 0 || len(p.Nodes) != 2 {
		t.Errorf("system: %+v", p)
	}
	// One without a name is given one.
	if p := plan(`{"spec": {"command": ["a"]}}`); p.Refused != "" || p.Placed != 1 {
		t.Errorf("nameless: %+v", p)
	}
}

// While the scheduler is paused, nobody is promised a place; and a job that was put aside is told as that.
func TestPlansOfPausedAndParked(t *testing.T) {
	b := newBench(t, 100, func(c *parts) { c.Insight = pausedInsight{} })
	b.node("n1")
	v := as[api.JobValidation](b, b.do(http.MethodPost, "/v1/jobs/validate?plan=true", `{"spec": {"name": "web", "command": ["a"]}}`))
	if v.Plan.Paused != "a test" || v.Plan.Placed != 1 {
		t.Errorf("%+v", v.Plan)
	}
	uid := b.submit("default", "web", 1)
	e := get[api.JobExplanation](b, "/v1/jobs/default/web/explain")
	if text := strings.Join(e.Text, "\n"); !strings.Contains(text, "Nothing is placed now: a test.") || strings.Contains(text, "at any moment") {
		t.Error(text)
	}
	if e := get[api.JobExplanation](b, "/v1/jobs/default/web/explain?member=0"); !strings.Contains(strings.Join(e.Text, "\n"), "Nothing is placed now: a test.") {
		t.Error(e.Text)
	}
	b.propose(&state.JobParked{UID: uid, Until: b.state.Latest().Meta().Time + 1e9, Reason: "refused again and again"})
	same, err := json.Marshal(api.JobSubmission{Spec: *b.state.Latest().JobByUID(uid).Run.Spec})
	if err != nil {
		t.Fatal(err)
	}
	v = as[api.JobValidation](b, b.do(http.MethodPost, "/v1/jobs/validate?plan=true", string(same)))
	if p := v.Plan; !p.Unchanged || p.Placed != 0 || p.Waiting != 1 || p.Why != "refused again and again" {
		t.Errorf("%+v", p)
	}
}

type pausedInsight struct{ operate.Idle }

func (pausedInsight) Paused() string { return "a test" }
