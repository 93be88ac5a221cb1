package config

import (
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/validate"
)

// cluster checks what a server that is one of several needs: addresses for the others, and nothing that is
// on one server's disk or host alone.
func (c *checks) cluster(s *api.ServerConfig) {
	spec := s.Cluster
	if spec == nil {
		return
	}
	if n := spec.Name; n != "" && (len(n) > 60 || strings.ContainsFunc(n, func(r rune) bool { return r <= ' ' || r > '~' })) {
		c.Add("cluster.name", "is %s; 1 to 60 visible ASCII characters without spaces are allowed", validate.Quote(n))
	}
	if spec.Address == "" {
		c.Add("cluster.address", "is missing; give the address at which the other servers reach this one, as 10.0.0.1:4751")
	} else if host := c.hostPort("cluster.address", spec.Address); host == "0.0.0.0" || host == "::" {
		c.Add("cluster.address", "is %s, which no other server can reach; give this server's own address here, and this one as cluster.listen", spec.Address)
	}
	if spec.Address != "" && (spec.Address == s.Listen || spec.Listen != "" && spec.Listen == s.Listen) {
		c.Add("cluster.address", "is %s, which is the address of the API; the other servers need a port of their own", s.Listen)
	}
	if spec.API != "" {
		c.apiAddress("cluster.api", spec.API)
	}
	if spec.Listen != "" {
		c.hostPort("cluster.listen", spec.Listen)
	}
	if s.Blob.URL == "" {
		c.Add("blob.url", "is missing; servers of a cluster need a common place for output and uploads: a bucket, or a directory on a shared file system as file:///mnt/shared/blobs")
	}
	for i := range s.Providers {
		if why := OnlyOneServer(&s.Providers[i]); why != "" {
			c.Add(validate.Index("providers", i)+".type", "is %s: %s", s.Providers[i].Type, why)
		}
	}
}

// apiAddress checks an address that clients are given: host:port, or a URL.
func (c *checks) apiAddress(location, address string) {
	if !strings.Contains(address, "://") {
		c.hostPort(location, address)
		return
	}
	if u, err := url.Parse(address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		c.Add(location, "is %s; write host:port, or http://host:port", validate.Quote(address))
	}
}

// hostPort checks an address of a host and a port, and returns the host.
func (c *checks) hostPort(location, address string) (host string) {
	host, port, err := net.SplitHostPort(address)
	if n, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		c.Add(location, "is %s; write host:port, as 10.0.0.1:4751", validate.Quote(address))
		return ""
	}
	if host == "" && strings.HasSuffix(location, "address") {
		c.Add(location, "is %s, without a host; write host:port, as 10.0.0.1:4751", validate.Quote(address))
	}
	return host
}
