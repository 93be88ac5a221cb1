package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

func TestNamespaces(t *testing.T) {
	b := newBench(t, 256)
	list := get[api.NamespaceList](b, "/v1/namespaces")
	if len(list.Namespaces) != 1 || list.Namespaces[0].Name != "*" {
		t.Fatalf("an empty cluster has %+v", list.Namespaces)
	}
	if _, _, err := b.log.entry(&state.SharesSet{Rules: []state.ShareRule{{Match: "team-*", Class: "teams", Weight: 3}, {Match: "solo", Weight: 1}}}); err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{"team-a", "team-b", "solo"} {
		if a := b.do("POST", "/v1/jobs", `{"spec":{"name":"j","namespace":"`+ns+`","command":["true"],"count":2}}`); a.StatusCode != http.StatusCreated {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
	}
	team := get[api.Namespace](b, "/v1/namespaces/team-a")
	if team.Class != "teams" || team.Weight != 3 || team.Share != 0.75 || team.Jobs != 1 || team.Waiting != 2 {
		t.Errorf("got %+v", team)
	}
	if all := get[api.Namespace](b, "/v1/namespaces/*"); all.Jobs != 3 || all.Waiting != 6 || all.Class != "" {
		t.Errorf("all of them: %+v", all)
	}
	if none := get[api.Namespace](b, "/v1/namespaces/nobody"); none.Jobs != 0 || none.Class != "namespace nobody" {
		t.Errorf("one that nobody has used: %+v", none)
	}
	set := as[api.Namespace](b, b.do("POST", "/v1/namespaces/team-a/limits", `{"limits":{"jobs":1,"cpu":0.5,"memory":"1GiB","max_priority":90},"reason":"why","who":"me"}`))
	if set.Limits.Jobs != 1 || set.Limits.CPU != 0.5 || set.Limits.Memory != 1<<30 || *set.Limits.MaxPriority != 90 || set.LimitWho != "me" || set.LimitWhy != "why" || set.LimitSet == nil {
		t.Errorf("set: %+v", set)
	}
	if names := get[api.NamespaceList](b, "/v1/namespaces"); len(names.Namespaces) != 4 {
		t.Errorf("list: %+v", names)
	}
}

// Limits refuse with 429 and a reason; a priority that is too high with 422 and the field.
func TestLimitsRefuse(t *testing.T) {
	b := newBench(t, 256)
	submit := func(spec string) answer { return b.do("POST", "/v1/jobs", `{"spec":`+spec+`}`) }
	b.do("POST", "/v1/namespaces/a/limits", `{"limits":{"jobs":1,"cpu":2}}`)
	if a := submit(`{"name":"one","namespace":"a","command":["true"]}`); a.StatusCode != http.StatusCreated {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	for _, tc := range []struct {
		spec   string
		status int
		says   string
	}{
		{`{"name":"two","namespace":"a","command":["true"]}`, http.StatusTooManyRequests, "namespace a may have 1 job "},
		{`{"name":"two","namespace":"b","command":["true"],"priority":71}`, http.StatusUnprocessableEntity, "body.spec.priority"},
		{`{"name":"two","namespace":"b","command":["true"],"priority":70}`, http.StatusCreated, ""},
	} {
		if a := submit(tc.spec); a.StatusCode != tc.status || !strings.Contains(a.body, tc.says) {
			t.Errorf("%s: %d %s", tc.spec, a.StatusCode, a.body)
		}
	}
	if a := b.do("POST", "/v1/jobs/validate", `{"spec":{"name":"x","command":["true"],"priority":99}}`); !strings.Contains(a.body, "70 at most") {
		t.Errorf("validate says nothing of the priority: %s", a.body)
	}
	b.do("POST", "/v1/namespaces/a/limits", `{"limits":{"cpu":0.5}}`)
	if a := submit(`{"name":"wide","namespace":"a","command":["true"],"resources":{"cpu":1}}`); a.StatusCode != http.StatusTooManyRequests || !strings.Contains(a.body, "may have 0.5 cores") {
		t.Errorf("a member above the limit: %d %s", a.StatusCode, a.body)
	}
	for _, body := range []string{`{"limits":{"jobs":-1}}`, `{"limits":{"cpu":-1}}`, `{"limits":{"max_priority":101}}`, `{"limits":{"memory":"-1GiB"}}`, `{"limit":{}}`, `{"limits":{"job":1}}`, `[]`, ``} {
		if a := b.do("POST", "/v1/namespaces/a/limits", body); a.StatusCode/100 != 4 {
			t.Errorf("%s: %d %s", body, a.StatusCode, a.body)
		}
	}
	if a := b.do("POST", "/v1/namespaces/No.Name/limits", `{"limits":{}}`); a.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("a name that is none: %d %s", a.StatusCode, a.body)
	}
}
