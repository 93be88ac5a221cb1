package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/outbound"
)

// Agents are told the server's network, or that of their pool, with the password as it is in its file
// now.
func TestNodeNetwork(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	password := file("password", "s3/cret\n")
	s := &Server{cfg: api.ServerConfig{
		Network: api.NetworkConfig{Proxy: "http://proxy.invalid:3128", Username: "anna", PasswordFile: password, NoProxy: []string{".a.invalid", "10.0.0.0/8"}, CAFile: file("ca", "certificates")},
		Pools: []api.PoolSpec{
			{Name: "inside"}, {Name: "direct", Network: &api.NetworkConfig{Proxy: api.ProxyNone}}, {Name: "other", Network: &api.NetworkConfig{Proxy: "http://other.invalid:8080"}},
			{Name: "broken", Network: &api.NetworkConfig{CAFile: filepath.Join(dir, "missing")}},
		},
	}}
	told := func(pool muster.PoolName) outbound.Settings {
		t.Helper()
		b, err := s.nodeNetwork(pool)
		if err != nil {
			t.Fatal(err)
		}
		got, err := outbound.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for pool, want := range map[muster.PoolName]outbound.Settings{
		"inside": {Proxy: "http://anna:s3%2Fcret@proxy.invalid:3128", NoProxy: ".a.invalid,10.0.0.0/8", CA: "certificates", Field: "network.proxy of the server's configuration"},
		"direct": {Proxy: outbound.None, Field: "pools[direct].network.proxy of the server's configuration"},
		"other":  {Proxy: "http://other.invalid:8080", Field: "pools[other].network.proxy of the server's configuration"},
	} {
		if got := told(pool); got != want {
			t.Errorf("%s: %s, want %s", pool, got, want)
		}
	}
	file("password", "new")
	if got := told("inside").Proxy; got != "http://anna:new@proxy.invalid:3128" {
		t.Error("the password is not read anew")
	}
	if _, err := s.nodeNetwork("broken"); !muster.IsKind(err, muster.FaultInvalid) || !strings.Contains(err.Error(), "pools[broken].network.ca_file: ") {
		t.Errorf("missing file: %v", err)
	}
	s.cfg.Network = api.NetworkConfig{}
	if b, err := s.nodeNetwork("inside"); len(b) != 0 || err != nil {
		t.Errorf("agents are told %q, %v although nothing is configured", b, err)
	}
}
