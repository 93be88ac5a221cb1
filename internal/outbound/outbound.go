// Package outbound decides which proxy the HTTP requests of a program go through, and which
// certificate authorities it trusts.
//
// A server has it from `network` in its configuration, an agent from its server, and both from the
// usual environment variables (HTTP_PROXY, HTTPS_PROXY, NO_PROXY, in capitals or not) where the
// configuration names no proxy. Use changes http.DefaultTransport, of which the transports of
// cloud APIs, registries, images and inputs are clones.
//
// Addresses of this machine and of the metadata services of clouds never go through a proxy: the
// answer would be about the proxy's machine, and would tell it secrets. The password of a proxy is
// in no error and no text that this package makes.
package outbound

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/net/http/httpproxy"
)

// None as a proxy means that there is none, whatever the environment says.
const None = "none"

// Settings say how a program reaches what is outside. The zero value is what the environment says.
// It holds a password: never log it with %v of its fields; String and LogValue leave it out.
type Settings struct {
	// Proxy is the proxy's URL, http or https, with a user and a password if it needs them. Empty:
	// the environment's. None: none.
	Proxy string `json:"proxy,omitempty"`
	// NoProxy are hosts, domains, addresses and prefixes to which connections are direct, as in the
	// environment variable NO_PROXY, separated by commas. It is used only with Proxy.
	NoProxy string `json:"no_proxy,omitempty"`
	// CA are certificates in PEM, trusted in addition to those of the system.
	CA string `json:"ca,omitempty"`
	// Field is what errors name as the place of Proxy: the field of the configuration.
	Field string `json:"field,omitempty"`
}

// String is the settings without the proxy's password.
func (s Settings) String() string {
	return fmt.Sprintf("proxy %q of %s, no proxy %q, %d bytes of certificates", Shown(s.Proxy), s.Field, s.NoProxy, len(s.CA))
}

// GoString is String, so that %#v does not show the password either.
func (s Settings) GoString() string { return s.String() }

// Shown is the URL of a proxy without user and password.
func Shown(proxy string) string {
	u, err := url.Parse(proxy)
	if err != nil {
		return "(not a URL)"
	}
	u.User = nil
	return u.String()
}

// Read reads settings from the file that Write has written.
func Read(path string) (Settings, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Settings{}, err
	}
	return Parse(b)
}

// Parse reads settings from JSON. Its error does not repeat the text, which may have a password.
func Parse(b []byte) (Settings, error) {
	var s Settings
	if json.Unmarshal(b, &s) != nil {
		return s, errors.New("network settings: not JSON as a server writes it")
	}
	return s, nil
}

// Encode is the settings as JSON, with the password: for a file or a pipe that only their reader sees.
func (s Settings) Encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings only
	}
	return b
}

// exempt are the destinations that never go through a proxy, as entries of NO_PROXY: link-local
// addresses, where clouds have their metadata service, those that some clouds have elsewhere, and
// Google's name of it. This machine itself is exempt without an entry.
const exempt = "169.254.0.0/16,fe80::/10,100.100.100.200/32,168.63.129.16/32,192.0.0.192/32,fd00:ec2::/32,fd20:ce::/32,metadata.google.internal"

// resolved is what settings come to with the environment.
func (s Settings) resolved() *httpproxy.Config {
	var c *httpproxy.Config
	switch s.Proxy {
	case "":
		c = httpproxy.FromEnvironment()
	case None:
		return &httpproxy.Config{}
	default:
		c = &httpproxy.Config{HTTPProxy: s.Proxy, HTTPSProxy: s.Proxy, NoProxy: s.NoProxy}
	}
	c.NoProxy = strings.Trim(c.NoProxy+","+exempt, ",")
	return c
}

// Use makes http.DefaultTransport, and what is cloned from it afterwards, follow the settings. It
// is called once, before the program makes requests. It changes nothing where it returns an error.
func (s Settings) Use() error {
	t, err := s.apply(http.DefaultTransport.(*http.Transport).Clone())
	if err == nil {
		http.DefaultTransport = t
	}
	return err
}

// apply makes t follow the settings.
func (s Settings) apply(t *http.Transport) (*http.Transport, error) {
	c := s.resolved()
	proxy := c.ProxyFunc()
	for _, p := range []string{c.HTTPProxy, c.HTTPSProxy} {
		if err := check(p); err != nil {
			return nil, fmt.Errorf("%s: %w", s.source(), err)
		}
	}
	t.Proxy = func(r *http.Request) (*url.URL, error) { return proxy(r.URL) }
	if s.CA != "" {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM([]byte(s.CA)) {
			return nil, errors.New("network.ca_file: has no certificate in PEM")
		}
		if t.TLSClientConfig == nil {
			t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		t.TLSClientConfig.RootCAs = pool
	}
	from := s.source()
	t.OnProxyConnectResponse = func(_ context.Context, p *url.URL, req *http.Request, answer *http.Response) error {
		if answer.StatusCode == http.StatusOK {
			return nil
		}
		return fmt.Errorf("proxy %s (%s) refused a connection to %s: %s", Shown(p.String()), from, req.Host, answer.Status)
	}
	t.DialContext = Named(t, from, t.DialContext)
	return t, nil
}

// check refuses the URL of a proxy that cannot be one. Its error shows no password.
func check(proxy string) error {
	if proxy == "" {
		return nil
	}
	if !strings.Contains(proxy, "://") {
		proxy = "http://" + proxy // as environment variables may have it
	}
	u, err := url.Parse(proxy)
	if err != nil || u.Hostname() == "" {
		return errors.New("is not the URL of a proxy; write http://HOST:PORT")
	}
	switch u.Scheme {
	case "http", "https", "socks5", "socks5h":
		return nil
	}
	return fmt.Errorf("is a proxy of the kind %s; want http or https", u.Scheme)
}

// source is the place that an operator looks at for the proxy.
func (s Settings) source() string {
	if s.Proxy != "" {
		return s.Field
	}
	return "environment variables HTTPS_PROXY, HTTP_PROXY"
}

// Dialer opens a connection, as http.Transport.DialContext.
type Dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// Named is dial with errors that name the proxy where it was the proxy that could not be reached,
// and where it is set: from.
func Named(t *http.Transport, from string, dial Dialer) Dialer {
	proxies := Addresses(t)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil && proxies[address] {
			return nil, fmt.Errorf("proxy %s (%s) cannot be reached: %w", address, from, err)
		}
		return c, err
	}
}

// Addresses are the addresses of the proxies of a transport, as it dials them.
func Addresses(t *http.Transport) map[string]bool {
	all := map[string]bool{}
	if t.Proxy == nil {
		return all
	}
	for _, scheme := range []string{"http", "https"} {
		u, err := t.Proxy(&http.Request{URL: &url.URL{Scheme: scheme, Host: "proxied.invalid", Path: "/"}})
		if err != nil || u == nil {
			continue
		}
		port := u.Port()
		if port == "" {
			port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
		}
		all[net.JoinHostPort(u.Hostname(), port)] = true
	}
	return all
}

// systemDirs is where Go's programs look for certificates when SSL_CERT_DIR is not set.
const systemDirs = "/etc/ssl/certs:/etc/pki/tls/certs"

// Environ sets the environment variables of this process to the settings: for the libraries of
// buckets, which have transports of their own, and for the programs of providers. dir is a directory
// for the certificates, which is made. It is called before the first request: what Go reads of
// these variables it reads once.
func (s Settings) Environ(dir string) error {
	c := s.resolved()
	values := map[string]string{"NO_PROXY": c.NoProxy}
	if s.Proxy != "" {
		values["HTTP_PROXY"], values["HTTPS_PROXY"] = c.HTTPProxy, c.HTTPSProxy
	}
	if s.CA != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "network-ca.pem"), []byte(s.CA), 0o600); err != nil {
			return err
		}
		dirs := os.Getenv("SSL_CERT_DIR")
		if dirs == "" {
			dirs = systemDirs
		}
		if err := os.Setenv("SSL_CERT_DIR", dirs+":"+dir); err != nil {
			return err
		}
	}
	for name, value := range values {
		for _, name := range []string{name, strings.ToLower(name)} {
			if err := os.Setenv(name, value); err != nil {
				return err
			}
		}
	}
	return nil
}
