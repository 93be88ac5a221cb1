package httpapi

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// pages walks a list to its end and returns what was on each page.
func pages[T any](b *bench, path string, read func(T) (ids []string, next string)) [][]string {
	b.Helper()
	var out [][]string
	after := ""
	for {
		sep := "?"
		if strings.Contains(path, "?") {
			sep = "&"
		}
		p := path
		if after != "" {
			p += sep + "after=" + url.QueryEscape(after)
		}
		ids, next := read(get[T](b, p))
		out = append(out, ids)
		if next == "" {
			return out
		}
		if next == after || len(out) > 10_000 {
			b.Fatalf("the list does not end: after %q comes %q", after, next)
		}
		after = next
	}
}

func jobPage(l api.JobList) (ids []string, next string) {
	for _, j := range l.Jobs {
		ids = append(ids, j.Namespace+"/"+j.Name)
	}
	return ids, l.Next
}

func allocPage(l api.AllocList) (ids []string, next string) {
	for _, a := range l.Allocs {
		ids = append(ids, a.ID)
	}
	return ids, l.Next
}

func memberPage(l api.MemberList) (ids []string, next string) {
	for _, m := range l.Members {
		ids = append(ids, fmt.Sprintf("%d:%s", m.Index, m.Status))
	}
	return ids, l.Next
}

func nodePage(l api.NodeList) (ids []string, next string) {
	for _, n := range l.Nodes {
		ids = append(ids, n.ID)
	}
	return ids, l.Next
}

func sizes(pages [][]string) []int {
	var out []int
	for _, p := range pages {
		out = append(out, len(p))
	}
	return out
}

func TestListJobs(t *testing.T) {
	b := newBench(t, 1000)
	if l := get[api.JobList](b, "/v1/jobs"); l.Jobs == nil || len(l.Jobs) != 0 || l.Next != "" || l.Index != b.state.Latest().Index() {
		t.Errorf("of nothing: %+v", l)
	}
	var want []string
	for _, ns := range []string{"a", "a-b", "b"} {
		for i := range 5 {
			name := fmt.Sprintf("j%d", i)
			b.submit(ns, name, 1)
			want = append(want, ns+"/"+name)
		}
	}
	for _, limit := range []int{1, 4, 5, 14, 15, 16} {
		got := pages(b, fmt.Sprintf("/v1/jobs?limit=%d", limit), jobPage)
		if all := slices.Concat(got...); !slices.Equal(all, want) {
			t.Errorf("limit %d: %q", limit, all)
		}
		if n := (len(want) + limit - 1) / limit; len(got) != n {
			t.Errorf("limit %d: pages of %v", limit, sizes(got))
		}
	}
	for ns, want := range map[string][]string{"a": want[:5], "a-b": want[5:10], "b": want[10:], "c": nil, "0": nil} {
		if got := slices.Concat(pages(b, "/v1/jobs?limit=2&namespace="+ns, jobPage)...); !slices.Equal(got, want) {
			t.Errorf("namespace %s: %q", ns, got)
		}
	}
	b.do("POST", "/v1/jobs/a/j3/stop", "")
	if got := slices.Concat(pages(b, "/v1/jobs?limit=2&stage=ended", jobPage)...); !slices.Equal(got, []string{"a/j3"}) {
		t.Errorf("ended: %q", got)
	}
	if got := slices.Concat(pages(b, "/v1/jobs?limit=2&stage=live&namespace=a", jobPage)...); len(got) != 4 {
		t.Errorf("live: %q", got)
	}
	if got := slices.Concat(pages(b, "/v1/jobs?limit=2&status=stopped", jobPage)...); !slices.Equal(got, []string{"a/j3"}) {
		t.Errorf("stopped: %q", got)
	}
	if l := get[api.JobList](b, "/v1/jobs?sort=newest&limit=4"); len(l.Jobs) != 4 || l.More != 11 {
		t.Errorf("%d jobs, %d more", len(l.Jobs), l.More)
	}
	if got := slices.Concat(pages(b, "/v1/jobs?sort=newest&limit=4", jobPage)...); len(got) != 15 || len(slices.Compact(slices.Sorted(slices.Values(got)))) != 15 {
		t.Errorf("newest: %q", got)
	}
	j := get[api.JobList](b, "/v1/jobs?waits=true").Jobs[0]
	if j.Spec != nil || len(j.Command) == 0 {
		t.Errorf("a list has no specs, and the command: %+v", j)
	}
	if j.Status != "waiting" || j.Waits == "" {
		t.Errorf("waits for nothing: %+v", j)
	}
}

func TestListParameters(t *testing.T) {
	b := newBench(t, 100)
	for path, where := range map[string]string{
		"/v1/jobs?limit=0":                               "query.limit",
		"/v1/jobs?limit=1001":                            "query.limit",
		"/v1/jobs?limit=-1":                              "query.limit",
		"/v1/jobs?limit=x":                               "query.limit",
		"/v1/jobs?stage=dead":                            "query.stage",
		"/v1/jobs?namespace=A":                           "query.namespace",
		"/v1/jobs?after=x":                               "query.after",
		"/v1/jobs?after=a%2FB":                           "query.after",
		"/v1/jobs?stag=live":                             "query.stag",
		"/v1/jobs?status=ended":                          "query.status",
		"/v1/jobs?sort=oldest":                           "query.sort",
		"/v1/jobs?sort=newest&after=a%2Fb":               "query.after",
		"/v1/jobs?waits=perhaps":                         "query.waits",
		"/v1/jobs?limit=1&limit=2":                       "query.limit",
		"/v1/nodes?stage=x":                              "query.stage",
		"/v1/allocations?live=perhaps":                   "query.live",
		"/v1/allocations/x/output/stdin":                 "path.stream",
		"/v1/allocations/x/output/stdout?offset=-1":      "query.offset",
		"/v1/allocations/x/output/stdout?offset=1e3":     "query.offset",
		"/v1/allocations/x/outputs/-1":                   "path.n",
		"/v1/allocations/x/outputs/99999999999999999999": "path.n",
		"/v1/events?after=x":                             "query.after",
		"/v1/events?after=1.2.3":                         "query.after",
		"/v1/events?after=-1":                            "query.after",
		"/v1/jobs/A/b":                                   "path.namespace",
		"/v1/jobs/a/B":                                   "path.name",
		"/v1/jobs/a/%00":                                 "path.name",
		"/v1/jobs/a/b%2Fc":                               "path.name",
	} {
		p := b.problem(b.do("GET", path, ""), 422, "invalid")
		if len(p.Errors) != 1 || p.Errors[0].Location != where {
			t.Errorf("%s: %+v, want %s", path, p.Errors, where)
		}
	}
	b.problem(b.do("GET", "/v1/jobs?a=%zz", ""), 400, "invalid")
	b.problem(b.do("GET", "/v1/jobs?a;b", ""), 400, "invalid")
	if p := b.problem(b.do("GET", "/v1/nodes?pool="+strings.Repeat("x", 5000), ""), 422, "invalid"); len(p.Errors) != 1 || len(fmt.Sprint(p.Errors[0].Value)) > 300 {
		t.Errorf("echoed %d bytes", len(fmt.Sprint(p.Errors[0].Value)))
	}
}

func TestListMembersAndAllocs(t *testing.T) {
	b := newBench(t, 10_000)
	b.node("n1")
	b.node("n2")
	uid := b.submit("default", "j", 12)
	b.place(uid, "n1", 0, 5)
	b.place(uid, "n2", 5, 2)
	failed := &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonExit, Message: "exited with 3"}
	b.report("n1",
		state.AllocUpdate{ID: muster.NewAllocID(uid, 1, 1), Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded},
		state.AllocUpdate{ID: muster.NewAllocID(uid, 2, 1), Status: muster.AllocEnded, Outcome: muster.OutcomeFailed, ExitCode: 3, Failure: failed},
		state.AllocUpdate{ID: muster.NewAllocID(uid, 3, 1), Status: muster.AllocEnded, Outcome: muster.OutcomeFailed,
			Failure: &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonNodeFault, Message: "disk"}},
		state.AllocUpdate{ID: muster.NewAllocID(uid, 0, 1), Status: muster.AllocRunning},
	)
	want := []string{"0:placed", "1:succeeded", "2:failed", "3:waiting", "4:placed", "5:placed", "6:placed", "7:waiting", "8:waiting", "9:waiting", "10:waiting", "11:waiting"}
	for _, limit := range []int{1, 5, 7, 12, 13} {
		if got := slices.Concat(pages(b, fmt.Sprintf("/v1/jobs/default/j/members?limit=%d", limit), memberPage)...); !slices.Equal(got, want) {
			t.Errorf("limit %d: %q", limit, got)
		}
	}
	if got := slices.Concat(pages(b, "/v1/jobs/default/j/members?limit=2&status=waiting", memberPage)...); !slices.Equal(got, []string{"3:waiting", "7:waiting", "8:waiting", "9:waiting", "10:waiting", "11:waiting"}) {
		t.Errorf("waiting: %q", got)
	}
	m := get[api.MemberList](b, "/v1/jobs/default/j/members").Members
	if m[2].Attempt != 1 || m[2].Alloc == "" || m[2].Reason != "exited with 3" || m[3].RetryAt == nil || m[9].Attempt != 0 || m[9].Alloc != "" {
		t.Errorf("%+v", m)
	}
	j := get[api.Job](b, "/v1/jobs/default/j")
	if c := j.Counts; c != (api.JobCounts{Waiting: 6, Placed: 3, Running: 1, Succeeded: 1, Failed: 1}) {
		t.Errorf("counts %+v", c)
	}

	all := []string{}
	for i := range 7 {
		all = append(all, string(muster.NewAllocID(uid, i, 1)))
	}
	b.propose(&state.PlanCommitted{Placements: []state.Placement{{UID: uid, Version: 1, Index: 3, Attempt: 2, Node: "n2"}}})
	retried := string(muster.NewAllocID(uid, 3, 2))
	inOrder := slices.Insert(slices.Clone(all), 4, retried)
	for _, limit := range []int{1, 3, 8} {
		if got := slices.Concat(pages(b, fmt.Sprintf("/v1/jobs/default/j/allocations?limit=%d", limit), allocPage)...); !slices.Equal(got, inOrder) {
			t.Errorf("allocs, limit %d: %q", limit, got)
		}
	}
	if got := slices.Concat(pages(b, "/v1/jobs/default/j/allocations?limit=1&index=3", allocPage)...); !slices.Equal(got, []string{all[3], retried}) {
		t.Errorf("of member 3: %q", got)
	}
	if got := slices.Concat(pages(b, "/v1/jobs/default/j/allocations?index=0", allocPage)...); !slices.Equal(got, all[:1]) {
		t.Errorf("of member 0: %q", got)
	}
	byID := slices.Sorted(slices.Values(inOrder))
	for query, want := range map[string][]string{
		"":                   byID,
		"&node=n1":           all[:5],
		"&live=true":         {all[0], retried, all[4], all[5], all[6]},
		"&live=false":        {all[1], all[2], all[3]},
		"&live=true&node=n2": {retried, all[5], all[6]},
		"&node=n3":           nil,
	} {
		if got := slices.Concat(pages(b, "/v1/allocations?limit=2"+query, allocPage)...); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("%q: %q, want %q", query, got, want)
		}
	}
	b.problem(b.do("GET", "/v1/jobs/default/j/allocations?after=nonsense", ""), 422, "invalid")
	b.problem(b.do("GET", "/v1/jobs/default/j/members?after=-3", ""), 422, "invalid")
	if l := get[api.MemberList](b, "/v1/jobs/default/j/members?after=999999999"); len(l.Members) != 0 || l.Next != "" {
		t.Errorf("past the end: %+v", l)
	}

	al := get[api.Alloc](b, "/v1/allocations/"+all[2])
	if al.ExitCode == nil || *al.ExitCode != 3 || al.Failure == nil || al.Failure.Class != "user" || al.Outcome != "failed" || al.Job != "j" || al.Output.State != "open" || al.Ended == nil {
		t.Errorf("%+v", al)
	}
	if al := get[api.Alloc](b, "/v1/allocations/"+all[3]); al.ExitCode != nil {
		t.Errorf("an allocation that never ran has an exit code: %+v", al)
	}
	if al := get[api.Alloc](b, "/v1/allocations/"+all[1]); al.ExitCode == nil || *al.ExitCode != 0 {
		t.Errorf("one that succeeded has none: %+v", al)
	}

	// A stopped job: members without a row are stopped too.
	b.do("POST", "/v1/jobs/default/j/stop", "")
	got := slices.Concat(pages(b, "/v1/jobs/default/j/members?limit=5&status=stopped", memberPage)...)
	if !slices.Equal(got, []string{"7:stopped", "8:stopped", "9:stopped", "10:stopped", "11:stopped"}) {
		t.Errorf("stopped: %q", got)
	}
}

func TestListNodes(t *testing.T) {
	b := newBench(t, 1000)
	var want []string
	for i := range 5 {
		id := fmt.Sprintf("n%d", i)
		b.node(muster.NodeID(id))
		want = append(want, id)
	}
	b.propose(&state.NodeTerminating{ID: "n2", Reason: "idle"}, &state.NodeGone{ID: "n2", Reason: "idle"})
	for _, limit := range []int{1, 2, 5} {
		if got := slices.Concat(pages(b, fmt.Sprintf("/v1/nodes?limit=%d", limit), nodePage)...); !slices.Equal(got, want) {
			t.Errorf("limit %d: %q", limit, got)
		}
	}
	if got := slices.Concat(pages(b, "/v1/nodes?stage=gone&pool=p", nodePage)...); !slices.Equal(got, []string{"n2"}) {
		t.Errorf("gone: %q", got)
	}
	if got := slices.Concat(pages(b, "/v1/nodes?pool=q", nodePage)...); len(got) != 0 {
		t.Errorf("of another pool: %q", got)
	}
	n := get[api.Node](b, "/v1/nodes/n1")
	if n.Price != 0.5 || n.Capacity.CPU != 64 || !n.Schedulable || n.Joined == nil || n.Gone != nil || n.Offering != "big" || n.Instance != "i-n1" {
		t.Errorf("%+v", n)
	}
	if n := get[api.Node](b, "/v1/nodes/n2"); n.Reason != "idle" || n.Gone == nil || n.Schedulable {
		t.Errorf("%+v", n)
	}
}
