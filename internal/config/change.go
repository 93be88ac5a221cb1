package config

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"github.com/musterhq/muster/api"
)

// Change is one difference between two configurations.
type Change = api.ConfigChange

// Check is what muster config check finds out about a file.
type Check struct {
	Config  *api.ServerConfig `json:"config" doc:"The file with all defaults."`
	Server  string            `json:"server,omitempty" doc:"Address of the running server that the file was compared with; empty: none."`
	Why     string            `json:"why,omitempty" doc:"Why it was compared with no server."`
	Changes []Change          `json:"changes,omitempty" doc:"What a reload of that server would change."`
	Refused string            `json:"refused,omitempty" doc:"Why that server would reject a reload; empty: no reason is known."`
	Unsure  string            `json:"unsure,omitempty" doc:"Why it is unknown whether it would reject a reload; empty: it is known."`
}

// restarts are what a server takes from its configuration when it starts, and never again.
func restarts() []string {
	return []string{"data_dir", "cluster", "listen", "allowed_hosts", "no_auth", "log", "blob.url", "low_water", "registries", "image_cache", "node_binaries", "network", "compat", "limits"}
}

// needsRestart reports whether a field is one of those, or below one.
func needsRestart(field string) bool {
	for _, r := range restarts() {
		if field == r || strings.HasPrefix(field, r+".") || strings.HasPrefix(field, r+"[") {
			return true
		}
	}
	return false
}

// Changes are the differences between the configuration that a server runs with and the next one, both with their
// defaults. Secrets are not compared: both print alike.
func Changes(running, next *api.ServerConfig) ([]Change, error) {
	was, err := flat(running)
	if err != nil {
		return nil, err
	}
	now, err := flat(next)
	if err != nil {
		return nil, err
	}
	fields := map[string]bool{}
	for f := range was {
		fields[f] = true
	}
	for f := range now {
		fields[f] = true
	}
	var out []Change
	covered := "" // a thing that came or went whole
	for _, f := range sortedFields(fields) {
		if covered != "" && strings.HasPrefix(f, covered) {
			continue
		}
		covered = ""
		a, hadA := was[f]
		b, hasB := now[f]
		if hadA == hasB && a == b {
			continue
		}
		c := Change{Field: f, From: a, To: b, Restart: needsRestart(f)}
		if !hide(&c) {
			continue
		}
		if strings.HasSuffix(f, "]") && hadA != hasB {
			covered = f + "."
			if hadA {
				c.Warning = leaving(f)
			}
		}
		out = append(out, c)
	}
	return out, nil
}

// leaving is what it means that a thing is removed.
func leaving(field string) string {
	switch {
	case strings.Contains(field, ".offerings["):
		return "nodes of it are drained and destroyed"
	case strings.HasPrefix(field, "pools["):
		return "ALL ITS NODES ARE DRAINED AND DESTROYED; work that waits for the pool will wait forever"
	case strings.HasPrefix(field, "providers[") && !strings.Contains(field, "]."):
		return "its nodes could no longer be reached or destroyed: remove its pools first, and the provider when their nodes are gone"
	}
	return ""
}

func sortedFields(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for f := range set {
		out = append(out, f)
	}
	sort.Strings(out)
	return out
}

// flat is a configuration as fields and what they are, in words. What has a name or a host is found by that, wherever it stands.
func flat(s *api.ServerConfig) (map[string]string, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var tree any
	if err := json.Unmarshal(b, &tree); err != nil {
		return nil, err
	}
	out := map[string]string{}
	flatten("", tree, out)
	return out, nil
}

func flatten(at string, v any, out map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		for k, inner := range v {
			path := k
			if at != "" {
				path = at + "." + k
			}
			flatten(path, inner, out)
		}
	case []any:
		for _, inner := range v {
			m, _ := inner.(map[string]any)
			name, ok := m["name"].(string)
			if !ok {
				name, ok = m["host"].(string)
			}
			if !ok {
				out[at] = words(v) // of things without names: the list is one
				return
			}
			path := at + "[" + name + "]"
			out[path] = "there"
			delete(m, "name")
			flatten(path, m, out)
		}
	default:
		out[at] = words(v)
	}
}

func words(v any) string {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	b, _ := json.Marshal(v) // it came from JSON
	return string(b)
}

// Running is the configuration that a server goes on with when it was given another one: what
// needs a restart stays as it is.
func Running(was *api.ServerConfig, next api.ServerConfig) api.ServerConfig {
	next.DataDir, next.Listen, next.AllowedHosts, next.NoAuth = was.DataDir, was.Listen, was.AllowedHosts, was.NoAuth
	next.Network, next.Limits, next.Compat = was.Network, was.Limits, was.Compat
	next.Log, next.Blob.URL, next.LowWater, next.Registries, next.ImageCache, next.NodeBinaries = was.Log, was.Blob.URL, was.LowWater, was.Registries, was.ImageCache, was.NodeBinaries
	return next
}
