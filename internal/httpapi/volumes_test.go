package httpapi

import (
	"strconv"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// A volume that no node can have is refused when a job, its check or an environment asks for it:
// the job would wait forever.
func TestUnknownVolumeIsRefused(t *testing.T) {
	running := &api.ServerConfig{Pools: []api.PoolSpec{
		{Name: "main", Volumes: map[string]api.PoolVolume{"data": {Path: "/srv/data"}, "results": {Path: "/srv/results", Writable: true}}},
		{Name: "other", Volumes: map[string]api.PoolVolume{"scratch": {Path: "/scratch", Writable: true}}},
	}}
	b := newBench(t, 256, func(c *parts) { c.Running = func() *api.ServerConfig { return running } })
	for i, tc := range []struct{ spec, want string }{
		{`"volumes": [{"path": "/t", "tmpfs": "1MiB"}, {"name": "data", "path": "/d"}]`, ""},
		{`"volumes": [{"name": "results", "path": "/r", "writable": true}]`, ""},
		{`"pool": "main", "volumes": [{"name": "data", "path": "/d"}]`, ""},
		{`"volumes": [{"path": "/t", "tmpfs": "1MiB"}, {"name": "date", "path": "/d"}]`,
			"body.spec.volumes[1].name: no pool has a volume named date (known: data, results, scratch); see docs/volumes.md"},
		{`"pool": "other", "volumes": [{"name": "data", "path": "/d"}]`,
			"body.spec.volumes[0].name: pool other does not have a volume named data (known: scratch); see docs/volumes.md"},
		{`"volumes": [{"name": "data", "path": "/d", "writable": true}]`,
			"body.spec.volumes[0].name: volume data is read-only in pool main; ask for it without writable, or set writable in the pool's configuration; see docs/volumes.md"},
		{`"volumes": [{"name": "data", "path": "/d"}, {"name": "scratch", "path": "/s"}]`,
			"body.spec.volumes: each is in a pool, but no pool has all of them; see docs/volumes.md"},
	} {
		spec := `{"spec": {"name": "e` + strconv.Itoa(i) + `", "image": "a", ` + tc.spec + `}}`
		checked := b.do("POST", "/v1/jobs/validate", spec)
		if _, want, _ := strings.Cut(tc.want, ": "); checked.StatusCode != 200 || !strings.Contains(checked.body, want) {
			t.Errorf("validate %s: %d %s", tc.spec, checked.StatusCode, checked.body)
		}
		for _, at := range []string{"/v1/jobs", "/v1/environments"} {
			a := b.do("POST", at, spec)
			if tc.want == "" {
				if a.StatusCode != 200 && a.StatusCode != 201 {
					t.Errorf("%s %s: %d %s", at, tc.spec, a.StatusCode, a.body)
				}
				continue
			}
			p := b.problem(a, 422, "invalid")
			if len(p.Errors) != 1 || p.Errors[0].Location+": "+p.Errors[0].Message != tc.want {
				t.Errorf("%s %s: %+v", at, tc.spec, p.Errors)
			}
		}
	}
	running = &api.ServerConfig{Pools: []api.PoolSpec{{Name: "main"}}}
	job := `{"spec": {"name": "kept", "image": "a", "volumes": [{"name": "data", "path": "/d"}]}}`
	if p := b.problem(b.do("POST", "/v1/jobs", job), 422, "invalid"); len(p.Errors) != 1 || !strings.Contains(p.Errors[0].Message, "(there are none)") {
		t.Errorf("%+v", p.Errors)
	}
	// A node keeps the volumes that its agent was started with.
	b.propose(
		&state.NodeLaunching{ID: "n1", Token: "t1", Pool: "main", Offering: muster.Offering{Provider: "local", Name: "big"}},
		&state.NodeLaunched{ID: "n1", Instance: "i1"},
		&state.NodeJoined{ID: "n1", Attributes: map[string]string{muster.AttributeVolumes: "data,tmpfs"}},
	)
	if a := b.do("POST", "/v1/jobs", job); a.StatusCode != 201 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}
