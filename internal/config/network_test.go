package config

import (
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
)

func TestNetwork(t *testing.T) {
	proxy := func(change func(n *api.NetworkConfig)) api.NetworkConfig {
		n := api.NetworkConfig{Proxy: "http://proxy.example.org:3128", Username: "muster", PasswordFile: "/etc/muster/proxy", NoProxy: []string{".example.org", "10.0.0.0/8"}, CAFile: "/etc/muster/ca.pem"}
		change(&n)
		return n
	}
	for _, tt := range []struct {
		n    api.NetworkConfig
		want string
	}{
		{api.NetworkConfig{}, ""},
		{api.NetworkConfig{Proxy: "none", CAFile: "/ca.pem"}, ""},
		{proxy(func(*api.NetworkConfig) {}), ""},
		{proxy(func(n *api.NetworkConfig) { n.Proxy = "http://muster:s3cret@proxy:3128" }), "proxy: has a user in it; give it in username, and the password in password_file"},
		{proxy(func(n *api.NetworkConfig) { n.Proxy = "proxy.example.org:3128" }), "proxy: is no URL of a proxy; write http://HOST:PORT, or none"},
		{proxy(func(n *api.NetworkConfig) { n.Proxy = "socks5://proxy:1080" }), "proxy: is no URL of a proxy; write http://HOST:PORT, or none"},
		{proxy(func(n *api.NetworkConfig) { n.PasswordFile = "" }), "username: goes with password_file; give both or neither"},
		{proxy(func(n *api.NetworkConfig) { n.PasswordFile = "proxy" }), `password_file: is "proxy"; write an absolute path`},
		{proxy(func(n *api.NetworkConfig) { n.CAFile = "ca.pem" }), `ca_file: is "ca.pem"; write an absolute path`},
		{proxy(func(n *api.NetworkConfig) { n.Proxy = "none" }), "username: is for a proxy, and proxy names none"},
		{api.NetworkConfig{NoProxy: []string{"a"}}, "no_proxy: is for a proxy, and proxy names none"},
		{proxy(func(n *api.NetworkConfig) { n.NoProxy = []string{"a", "b,c"} }), `no_proxy[1]: is "b,c"; write a host, a domain as .example.org, an address or a prefix as 10.0.0.0/8`},
	} {
		for _, at := range []string{"network", "pools[0].network"} {
			c := good()
			if at == "network" {
				c.Network = tt.n
			} else {
				c.Pools[0].Network = &tt.n
			}
			var got []string
			for _, p := range Validate(c) {
				got = append(got, p.Location+": "+p.Message)
			}
			want := tt.want
			if want != "" {
				want = at + "." + want
			}
			if text := strings.Join(got, "\n"); text != want {
				t.Errorf("got  %s\nwant %s", text, want)
			}
			if strings.Contains(strings.Join(got, ""), "s3cret") {
				t.Error("a password is shown")
			}
		}
	}
}
