package config

import (
	"net/url"
	"strings"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/validate"
)

// network checks the proxy and the certificate authorities of a server or a pool. The password of a
// proxy has a file of its own, so that the configuration can be shown: a URL with one is refused,
// and not repeated.
func (c *checks) network(at string, n *api.NetworkConfig) {
	u, err := url.Parse(n.Proxy)
	switch {
	case n.Proxy == "" || n.Proxy == api.ProxyNone:
	case err == nil && u.User != nil:
		c.Add(at+".proxy", "has a user in it; give it in username, and the password in password_file")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || strings.Trim(u.Path, "/") != "":
		c.Add(at+".proxy", "is no URL of a proxy; write http://HOST:PORT, or %s", api.ProxyNone)
	}
	c.Text(at+".username", n.Username, 1024)
	for _, f := range []struct{ name, path string }{{".password_file", n.PasswordFile}, {".ca_file", n.CAFile}} {
		c.Text(at+f.name, f.path, 4095)
		if f.path != "" && !strings.HasPrefix(f.path, "/") {
			c.Add(at+f.name, "is %s; write an absolute path", validate.Quote(f.path))
		}
	}
	proxied := n.Proxy != "" && n.Proxy != api.ProxyNone
	switch {
	case (n.Username == "") != (n.PasswordFile == ""):
		c.Add(at+".username", "goes with password_file; give both or neither")
	case n.Username != "" && !proxied:
		c.Add(at+".username", "is for a proxy, and proxy names none")
	case len(n.NoProxy) > 0 && !proxied:
		c.Add(at+".no_proxy", "is for a proxy, and proxy names none")
	}
	for i, h := range n.NoProxy {
		if h == "" || strings.ContainsAny(h, ", \t\r\n@") || strings.Contains(h, "://") {
			c.Add(validate.Index(at+".no_proxy", i), "is %s; write a host, a domain as .example.org, an address or a prefix as 10.0.0.0/8", validate.Quote(h))
		}
	}
}
