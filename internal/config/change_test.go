package config

import (
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/api"
)

func TestChanges(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(c *api.ServerConfig)
		want   string // a line each; ! before what needs a restart, and warnings behind
	}{
		{"nothing", func(*api.ServerConfig) {}, ""},
		{"a limit", func(c *api.ServerConfig) { c.Pools[0].Max = 9 }, "pools[dev].max: 4 becomes 9"},
		{"another order", func(c *api.ServerConfig) {
			c.Providers[0].Offerings[0], c.Providers[0].Offerings[1] = c.Providers[0].Offerings[1], c.Providers[0].Offerings[0]
		}, ""},
		{"an address", func(c *api.ServerConfig) { c.Listen = "127.0.0.1:1" }, `listen: "127.0.0.1:4750" becomes "127.0.0.1:1" (with the next start only)`},
		{"a bucket and a quota", func(c *api.ServerConfig) { c.Blob.URL, c.Blob.Quota = "file:///x", 1 }, "blob.quota: \"20GiB\" becomes \"1B\"\nblob.url is added: \"file:///x\" (with the next start only)"},
		{"a pool more", func(c *api.ServerConfig) {
			c.Pools = append(c.Pools, api.PoolSpec{Name: "b", Provider: "local", Max: 1})
		}, "pools[b] is added: there"},
		{"a pool less", func(c *api.ServerConfig) { c.Pools = nil }, "pools[dev] is removed (was there) - ALL ITS NODES ARE DRAINED AND DESTROYED; work that waits for the pool will wait forever"},
		{"an offering less", func(c *api.ServerConfig) { c.Providers[0].Offerings = c.Providers[0].Offerings[:1] }, "providers[local].offerings[large] is removed (was there) - nodes of it are drained and destroyed"},
		{"a provider less", func(c *api.ServerConfig) { c.Providers = nil }, "providers[local] is removed (was there) - its nodes could no longer be reached or destroyed: remove its pools first, and the provider when their nodes are gone"},
		{"a time", func(c *api.ServerConfig) { c.Retention.Jobs = api.Duration(time.Hour) }, `retention.jobs: "24h" becomes "1h"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			was, now := good(), good()
			Defaults(was)
			Defaults(now)
			c.change(now)
			list, err := Changes(was, now)
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, l := range list {
				text := l.String()
				if l.Warning != "" {
					text += " - " + l.Warning
				}
				lines = append(lines, text)
			}
			if got := strings.Join(lines, "\n"); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			// What a server goes on with differs from what it was given by what needs a restart, and from what it had by the rest.
			running := Running(was, *now)
			left, err := Changes(&running, now)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range left {
				if !l.Restart {
					t.Errorf("not taken over: %s", l)
				}
			}
			done, err := Changes(was, &running)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range done {
				if d.Restart {
					t.Errorf("taken over without a restart: %s", d)
				}
			}
		})
	}
}
