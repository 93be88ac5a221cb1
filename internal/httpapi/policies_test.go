package httpapi

import (
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
)

// A policy holds for whatever is submitted: jobs, their checks and earlier versions, and environments.
func TestPoliciesAreAskedOfSubmissions(t *testing.T) {
	running := &api.ServerConfig{}
	b := newBench(t, 256, func(c *parts) { c.Running = func() *api.ServerConfig { return running } })
	service := func(namespace, command string) string {
		return `{"spec": {"name": "s", "type": "service", "namespace": "` + namespace + `", "command": ["` + command + `"]}}`
	}
	for _, command := range []string{"a", "b"} {
		if a := b.do("POST", "/v1/jobs", service("team-a", command)); a.StatusCode >= 300 {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
	}
	running = &api.ServerConfig{Policies: []api.PolicySpec{{Match: "team-*", NoProcess: true, Isolation: []string{"container-userns"}}}}
	for _, r := range [][2]string{
		{"/v1/jobs", service("team-a", "c")},
		{"/v1/environments", `{"spec": {"name": "e", "namespace": "team-a"}}`},
		{"/v1/environments", `{"spec": {"name": "e", "namespace": "team-a", "image": "a", "isolation": "container"}}`},
		{"/v1/jobs/team-a/s/revert", `{"version": 1}`},
		{"/v1/jobs/team-a/s/scale", `{"count": 3}`},
	} {
		at := r[0]
		if p := b.problem(b.do("POST", at, r[1]), 422, "invalid"); len(p.Errors) != 1 || !strings.Contains(p.Errors[0].Message, "policies[0] (match: team-*)") {
			t.Errorf("%s: %+v", at, p)
		}
	}
	checked := b.do("POST", "/v1/jobs/validate", service("team-a", "c"))
	if !strings.Contains(checked.body, "no_process") {
		t.Errorf("%d %s", checked.StatusCode, checked.body)
	}
	if a := b.do("POST", "/v1/jobs", service("other", "a")); a.StatusCode != 201 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if a := b.do("POST", "/v1/jobs", `{"spec": {"name": "i", "namespace": "team-a", "image": "a"}}`); a.StatusCode != 201 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if j := get[api.Job](b, "/v1/jobs/team-a/i"); j.Spec.Isolation != "container-userns" {
		t.Errorf("isolation is %q", j.Spec.Isolation)
	}
}
