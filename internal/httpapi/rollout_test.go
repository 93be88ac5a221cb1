package httpapi

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// meddler lets something else happen between the reading of a state and a proposal made of it.
type meddler struct {
	state.Proposer
	before func()
}

func (m *meddler) Propose(ctx context.Context, f state.Fact) (uint64, any, error) {
	if before := m.before; before != nil {
		m.before = nil
		before()
	}
	return m.Proposer.Propose(ctx, f)
}

const webSpec = `{"spec": {"name": "web", "type": "service", "count": %d, "command": [%q], "resources": {"cpu": 0.1, "memory": "1MiB"}}}`

// web submits the service and says that it is rolled out.
func web(b *bench, count int, command string) muster.JobUID {
	b.Helper()
	if a := b.do(http.MethodPost, "/v1/jobs", fmt.Sprintf(webSpec, count, command)); a.StatusCode != http.StatusCreated {
		b.Fatalf("%d %s", a.StatusCode, a.body)
	}
	j := b.state.Latest().Job(muster.JobKey{Namespace: "default", Name: "web"})
	b.propose(&state.RolloutMoved{UID: j.UID, Version: j.Version, Stage: muster.RolloutDone})
	return j.UID
}

func TestScale(t *testing.T) {
	m := &meddler{}
	b := newBench(t, 1000, func(c *parts) { m.Proposer, c.Proposer = c.Proposer, m })
	web(b, 3, "a")
	now := func() *state.Job {
		t.Helper()
		return b.state.Latest().Job(muster.JobKey{Namespace: "default", Name: "web"})
	}
	scale := func(body string) answer { return b.do(http.MethodPost, "/v1/jobs/default/web/scale", body) }
	stays := func(what string, version uint64, count int) {
		t.Helper()
		if j := now(); j.Version != version || j.Count() != count {
			t.Errorf("%s: version %d with %d members, want %d with %d", what, j.Version, j.Count(), version, count)
		}
	}

	a := scale(`{"count": 5}`)
	if done := as[api.JobSubmitted](b, a); a.StatusCode != http.StatusCreated || done.Version != 2 || done.Unchanged {
		t.Errorf("%d %+v", a.StatusCode, done)
	}
	stays("scaled", 2, 5)
	if j := now(); j.Run.Spec.Command[0] != "a" || j.Standing.Note != "scaled from 3 to 5" {
		t.Errorf("%v, note %q", j.Run.Spec.Command, j.Standing.Note)
	}
	// What the client demands is held to, whichever of the two knows better.
	p := b.problem(scale(`{"count": 7, "if_version": 1}`), 409, "conflict")
	if !strings.Contains(p.Detail, "job web is at version 2, not 1") {
		t.Errorf("%q", p.Detail)
	}
	stays("another version was demanded", 2, 5)
	if a := scale(`{"count": 6, "if_version": 2, "reason": "more of it"}`); a.StatusCode != http.StatusCreated {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	stays("as demanded", 3, 6)
	if note := now().Standing.Note; note != "more of it" {
		t.Errorf("note %q", note)
	}
	// The spec was read from version 3: what was submitted meanwhile must not be undone by it, demanded or not.
	for _, body := range []string{`{"count": 9}`, `{"count": 9, "if_version": 3}`} {
		version := now().Version
		m.before = func() { web(b, 6, fmt.Sprintf("other%d", version)) }
		if body = strings.Replace(body, `"if_version": 3`, fmt.Sprintf(`"if_version": %d`, version), 1); version < 3 {
			t.Fatal(version)
		}
		p := b.problem(scale(body), 409, "conflict")
		if !strings.Contains(p.Detail, fmt.Sprintf("is at version %d, not %d", version+1, version)) {
			t.Errorf("%q", p.Detail)
		}
		stays("changed meanwhile", version+1, 6)
		if c := now().Run.Spec.Command[0]; c != fmt.Sprintf("other%d", version) {
			t.Errorf("command %q", c)
		}
	}
	b.problem(scale(`{"count": 0}`), 422, "invalid")
	b.problem(scale(`{"count": 1000001}`), 422, "invalid")
	b.problem(b.do(http.MethodPost, "/v1/jobs/default/nope/scale", `{"count": 1}`), 404, "not-found")
	b.submit("default", "batch", 1)
	b.problem(b.do(http.MethodPost, "/v1/jobs/default/batch/scale", `{"count": 2}`), 409, "conflict")
	if a := b.do(http.MethodPost, "/v1/jobs", `{"spec": {"name": "agent", "type": "system", "command": ["a"]}}`); a.StatusCode != http.StatusCreated {
		t.Fatal(a.body)
	}
	b.problem(b.do(http.MethodPost, "/v1/jobs/default/agent/scale", `{"count": 2}`), 409, "conflict")
	b.propose(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "web"}})
	b.problem(scale(`{"count": 2}`), 409, "conflict")
}

func TestRevert(t *testing.T) {
	m := &meddler{}
	b := newBench(t, 1000, func(c *parts) { m.Proposer, c.Proposer = c.Proposer, m })
	web(b, 3, "a")
	now := func() *state.Job {
		t.Helper()
		return b.state.Latest().Job(muster.JobKey{Namespace: "default", Name: "web"})
	}
	revert := func(body string) answer { return b.do(http.MethodPost, "/v1/jobs/default/web/revert", body) }
	b.problem(revert(""), 409, "conflict")
	if p := b.problem(revert(`{"version": 7}`), 422, "invalid"); !strings.Contains(fmt.Sprint(p.Errors), "no earlier version of job web is kept") {
		t.Errorf("%+v", p)
	}
	b.problem(revert(`{"version": 1}`), 409, "conflict")
	web(b, 5, "b")
	if p := b.problem(revert(`{"version": 7}`), 422, "invalid"); !strings.Contains(fmt.Sprint(p.Errors), "versions of job web that are kept: 1") {
		t.Errorf("%+v", p)
	}
	b.problem(revert(`{"if_version": 1}`), 409, "conflict")
	b.problem(revert(`{"version": 1, "if_version": 1}`), 409, "conflict")
	m.before = func() { web(b, 5, "c") }
	b.problem(revert(`{"if_version": 2}`), 409, "conflict")
	if j := now(); j.Version != 3 || j.Run.Spec.Command[0] != "c" {
		t.Errorf("version %d runs %v", j.Version, j.Run.Spec.Command)
	}
	// Back to the newest that was healthy, with the members that there are now; then to one by its number.
	a := revert(`{"if_version": 3}`)
	if done := as[api.JobSubmitted](b, a); a.StatusCode != http.StatusCreated || done.Version != 4 {
		t.Errorf("%d %+v", a.StatusCode, done)
	}
	if j := now(); j.Run.Spec.Command[0] != "b" || j.Count() != 5 || j.Standing.Note != "back to version 2" {
		t.Errorf("%v with %d members, note %q", j.Run.Spec.Command, j.Count(), j.Standing.Note)
	}
	if a := revert(`{"version": 1, "reason": "it was fine"}`); a.StatusCode != http.StatusCreated {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if j := now(); j.Version != 5 || j.Run.Spec.Command[0] != "a" || j.Count() != 5 || j.Standing.Note != "it was fine" {
		t.Errorf("version %d: %v with %d members, note %q", j.Version, j.Run.Spec.Command, j.Count(), j.Standing.Note)
	}
	h := get[api.JobHistory](b, "/v1/jobs/default/web/history")
	if len(h.Versions) != 5 || h.Versions[0].Version != 5 || !h.Versions[0].Current || h.Versions[4].Version != 1 || h.Versions[4].Spec.Count != 3 {
		t.Errorf("%+v", h.Versions)
	}
	b.submit("default", "batch", 1)
	b.problem(b.do(http.MethodPost, "/v1/jobs/default/batch/revert", ""), 409, "conflict")
	b.problem(b.do(http.MethodPost, "/v1/jobs/default/nope/revert", ""), 404, "not-found")
}

// Members of a service that has fewer now are listed for as long as they are there, however small the pages are.
func TestListMembersOfAService(t *testing.T) {
	b := newBench(t, 1000)
	b.node("n1")
	uid := web(b, 6, "a")
	b.place(uid, "n1", 0, 5)
	members := func(job, query string) []string {
		t.Helper()
		var first []string
		for _, limit := range []int{1, 2, 100} {
			got := slices.Concat(pages(b, fmt.Sprintf("/v1/jobs/default/%s/members?limit=%d%s", job, limit, query), memberPage)...)
			if first == nil {
				first = got
			}
			if !slices.Equal(got, first) {
				t.Errorf("%s with pages of %d: %q, of 1: %q", job, limit, got, first)
			}
		}
		return first
	}
	is := func(got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	is(members("web", ""), "0:placed", "1:placed", "2:placed", "3:placed", "4:placed", "5:waiting")
	if a := b.do(http.MethodPost, "/v1/jobs/default/web/scale", `{"count": 2}`); a.StatusCode != http.StatusCreated {
		t.Fatal(a.body)
	}
	is(members("web", ""), "0:placed", "1:placed", "2:placed", "3:placed", "4:placed")
	ended := func(index int) state.AllocUpdate {
		return state.AllocUpdate{ID: muster.NewAllocID(uid, index, 1), Status: muster.AllocEnded, Outcome: muster.OutcomeStopped, Output: &state.Output{Stage: state.OutputComplete}}
	}
	b.report("n1", ended(2), ended(4))
	is(members("web", ""), "0:placed", "1:placed", "3:placed")
	is(members("web", "&status=waiting"))
	b.report("n1", ended(3))
	is(members("web", ""), "0:placed", "1:placed")
	if a := b.do(http.MethodPost, "/v1/jobs/default/web/scale", `{"count": 4}`); a.StatusCode != http.StatusCreated {
		t.Fatal(a.body)
	}
	is(members("web", ""), "0:placed", "1:placed", "2:waiting", "3:waiting")
	is(members("web", "&status=placed"), "0:placed", "1:placed")
	if l := get[api.MemberList](b, fmt.Sprintf("/v1/jobs/default/web/members?after=%d", math.MaxInt)); len(l.Members) != 0 || l.Next != "" {
		t.Errorf("%+v", l)
	}
}
