package httpapi

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// clusterStub keeps the configuration of a cluster.
type clusterStub struct {
	shown *api.AppliedConfig
	asked []api.ConfigApply
}

func (s *clusterStub) Show() (*api.AppliedConfig, error) {
	if s.shown == nil {
		return nil, muster.Faultf(muster.FaultNotFound, "no configuration is in force yet")
	}
	return s.shown, nil
}

func (s *clusterStub) Apply(_ context.Context, r *api.ConfigApply) (*api.ConfigApplied, error) {
	s.asked = append(s.asked, *r)
	return &api.ConfigApplied{Version: 7, DryRun: r.DryRun}, nil
}

// withConfig lets a bench have a configuration.
func withConfig(s *clusterStub) func(*parts) {
	return func(p *parts) {
		p.Running = func() *api.ServerConfig { return &api.ServerConfig{} }
		p.Applied = s
	}
}

func TestConfigurationOfTheCluster(t *testing.T) {
	s := &clusterStub{}
	b := newBench(t, 100, withConfig(s))
	const path = "/v1/config/applied"
	if a := b.do("GET", path, ""); a.StatusCode != http.StatusNotFound {
		t.Errorf("none: %d %s", a.StatusCode, a.body)
	}
	s.shown = &api.AppliedConfig{Version: 3, Config: []byte(`{"pools":[{"name":"p"}]}`), Self: "s"}
	if a := b.do("GET", path, ""); a.StatusCode != http.StatusOK || !strings.Contains(a.body, `"version":3`) || !strings.Contains(a.body, `"config":{"pools":[{"name":"p"}]}`) {
		t.Errorf("one: %d %s", a.StatusCode, a.body)
	}
	for body, want := range map[string]string{
		"":                                 "request body is required",
		`{"config":{"poolz":[]}}`:          `body.config.poolz`,
		`{"config":{"pools":[{"max":0}]}}`: `body.config.pools[0].max`,
		`{"config":{"pools":"p"}}`:         `body.config.pools`,
		`{"config":{},"config":{}}`:        `body.config`,
		`{"config":{`:                      "the body is not JSON",
	} {
		if a := b.do("PUT", path, body); a.StatusCode/100 != 4 || !strings.Contains(a.body, want) {
			t.Errorf("%s: %d %s", body, a.StatusCode, a.body)
		}
	}
	if len(s.asked) > 0 {
		t.Errorf("applied: %+v", s.asked)
	}
	a := b.do("PUT", path, `{"config":{"pools":[{"name":"p","provider":"l","max":4}]},"if_version":3,"dry_run":true}`)
	if a.StatusCode != http.StatusOK || !strings.Contains(a.body, `"version":7`) || len(s.asked) != 1 {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	if q := s.asked[0]; !q.DryRun || *q.IfVersion != 3 || q.Config.Pools[0].Max != 4 {
		t.Errorf("%+v", q)
	}
	if a := b.do("PUT", path, `{}`, func(r *http.Request) { r.Header.Del("Authorization") }); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: %d", a.StatusCode)
	}
}
