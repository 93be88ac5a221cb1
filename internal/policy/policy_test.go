package policy

import (
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
)

func TestPolicies(t *testing.T) {
	list := []api.PolicySpec{
		{Match: "ci", Registries: []string{"docker.io/library", "ghcr.io/team", "oci:/srv/images"}},
		{Match: "team-*", NoProcess: true, NoHostNetwork: true, Isolation: []string{"container-userns", "runsc"}},
	}
	for name, c := range map[string]struct {
		spec api.JobSpec
		// rule that is broken; "" if none is.
		rule string
	}{
		"no policy":                {api.JobSpec{Namespace: "default", Template: api.Template{Network: "host"}}, ""},
		"a process":                {api.JobSpec{Namespace: "team-a"}, "image no_process"},
		"host network":             {api.JobSpec{Namespace: "team-a", Template: api.Template{Image: "a", Network: "host"}}, "network no_host_network"},
		"weaker":                   {api.JobSpec{Namespace: "team-a", Template: api.Template{Image: "a", Isolation: "container"}}, "isolation isolation"},
		"a kind of its own":        {api.JobSpec{Namespace: "team-a", Template: api.Template{Image: "a", Isolation: "runsc"}}, ""},
		"another kind":             {api.JobSpec{Namespace: "team-a", Template: api.Template{Image: "a", Isolation: "kata"}}, "isolation isolation"},
		"none":                     {api.JobSpec{Namespace: "team-a", Template: api.Template{Image: "a"}}, ""},
		"a short name":             {api.JobSpec{Namespace: "ci", Template: api.Template{Image: "python:3.13"}}, ""},
		"the hub's other name":     {api.JobSpec{Namespace: "ci", Template: api.Template{Image: "index.docker.io/library/python"}}, ""},
		"not of the library":       {api.JobSpec{Namespace: "ci", Template: api.Template{Image: "evil/python"}}, "image registries"},
		"a prefix":                 {api.JobSpec{Namespace: "ci", Template: api.Template{Image: "ghcr.io/team/a/b@sha256:" + strings.Repeat("0", 64)}}, ""},
		"half a name":              {api.JobSpec{Namespace: "ci", Template: api.Template{Image: "ghcr.io/team-evil/a"}}, "image registries"},
		"a registry with its port": {api.JobSpec{Namespace: "ci", Template: api.Template{Image: "ghcr.io:444/team/a"}}, "image registries"},
		"a layout":                 {api.JobSpec{Namespace: "ci", Template: api.Template{Image: "oci:/srv/images/app:v1"}}, ""},
		"a layout elsewhere":       {api.JobSpec{Namespace: "ci", Template: api.Template{Image: "oci:/srv/images/../../etc/app"}}, "image registries"},
		"an archive":               {api.JobSpec{Namespace: "ci", Template: api.Template{Image: "docker-archive:/srv/images/app.tar"}}, "image registries"},
		"a process there":          {api.JobSpec{Namespace: "ci"}, ""},
		"no image's name":          {api.JobSpec{Namespace: "ci", Template: api.Template{Image: "ghcr.io/team/A:b:c"}}, "image registries"},
	} {
		p := For(list, c.spec.Namespace)
		c.spec.Isolation = p.Isolation(c.spec.Image, c.spec.Isolation)
		broken := p.Problems(&c.spec)
		switch {
		case c.rule == "" && len(broken) > 0:
			t.Errorf("%s: %+v", name, broken)
		case c.rule == "":
		case len(broken) != 1:
			t.Errorf("%s: %d problems", name, len(broken))
		default:
			field, rule, _ := strings.Cut(c.rule, " ")
			if broken[0].Location != field || !strings.Contains(broken[0].Message, "the operator's "+rule+" of policies[") || !strings.Contains(broken[0].Message, "namespace "+c.spec.Namespace) {
				t.Errorf("%s: %+v", name, broken[0])
			}
		}
	}
}
