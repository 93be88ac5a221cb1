package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
)

func TestContainersThatNoNodeWillEverRun(t *testing.T) {
	program := filepath.Join(t.TempDir(), "crun")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	config := func(kind string, runtimes ...string) *api.ServerConfig {
		c := &api.ServerConfig{Providers: []api.ProviderSpec{{Name: "p", Type: kind}}}
		for _, r := range runtimes {
			c.Pools = append(c.Pools, api.PoolSpec{Name: "a", Provider: "p", OCIRuntime: r})
		}
		return c
	}
	root := os.Geteuid() == 0
	for name, tt := range map[string]struct {
		cfg  *api.ServerConfig
		root string // part of the reason for a server that is root; "" if containers may run
	}{
		"the program is there":     {config("local", program), ""},
		"it is missing":            {config("local", program+"x"), program + "x is not on this host"},
		"none":                     {config("local", "none"), "oci_runtime: none"},
		"one of two pools has one": {config("local", "none", program), ""},
		"other hosts are unknown":  {config("static", program+"x"), ""},
		"no pools yet":             {config("local"), ""},
	} {
		got := NoContainers(tt.cfg)
		if root && (got == "") != (tt.root == "") || root && !strings.Contains(got, tt.root) {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := NoContainers(config("local", program)); !root && got != "" && !strings.Contains(got, "for an ordinary user") {
		t.Errorf("an ordinary user: %q", got)
	}
}
