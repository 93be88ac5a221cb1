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

func TestProxyJump(t *testing.T) {
	for _, tt := range []struct {
		change func(s *api.SSHSpec)
		want   string
	}{
		{func(s *api.SSHSpec) { s.ProxyJump = "jump@bastion.example.org:2222" }, ""}, // by known_hosts
		{func(s *api.SSHSpec) { s.ProxyJump = "10.0.0.9" }, ""},
		{func(s *api.SSHSpec) { s.ProxyJump = "a@b,c@d" }, `proxy_jump: is "a@b,c@d"; there can be one bastion only`},
		{func(s *api.SSHSpec) { s.ProxyJumpKeyFile = "/k" }, "proxy_jump_key_file: is for proxy_jump, which is missing"},
		{func(s *api.SSHSpec) { s.ProxyJumpHostKeys = []string{"k"} }, "proxy_jump_host_keys: are for proxy_jump, which is missing"},
		{func(s *api.SSHSpec) { s.ProxyJump, s.ProxyJumpKeyFile = "b", "k" }, `proxy_jump_key_file: is "k"; write an absolute path`},
	} {
		c := good()
		c.Providers[0] = labProvider()
		tt.change(c.Providers[0].SSH)
		var got []string
		for _, p := range Validate(c) {
			got = append(got, p.Location+": "+p.Message)
		}
		want := tt.want
		if want != "" {
			want = "providers[0].ssh." + want
		}
		if text := strings.Join(got, "\n"); text != want {
			t.Errorf("got  %s\nwant %s", text, want)
		}
	}
	c := good()
	c.Providers[0] = cloudProvider()
	c.Providers[0].SSH.ProxyJump = "jump@bastion"
	if p := Validate(c); len(p) != 1 || !strings.HasPrefix(p[0].Message, "are missing; write the bastion's public key here") {
		t.Errorf("an unknown bastion: %+v", p)
	}
}
