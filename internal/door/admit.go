package door

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
)

// open reports whether a path needs no token. Such paths tell nothing that is secret: health for
// load balancers, and the documentation.
func open(path string) bool {
	switch path {
	case "/", "/livez", "/readyz", "/openapi.json", "/docs":
		return true
	}
	return strings.HasPrefix(path, "/docs/")
}

// admit checks Host, Origin and token, in this order. A foreign web page learns nothing about
// tokens, as it is refused before.
func (d *Door) admit(r *http.Request) *problem.Problem {
	if p := d.admitFrom(r); p != nil {
		return p
	}
	if d.cfg.NoAuth || open(r.URL.Path) {
		return nil
	}
	if id, shown, right := d.holder(r); shown {
		return d.admitHolder(r, id, right)
	}
	return d.checkToken(r)
}

// admitFrom checks where a request was sent to, and which web page sent it. It keeps out pages in a
// browser on the operator's machine, which can reach a loopback address but must not use it.
func (d *Door) admitFrom(r *http.Request) *problem.Problem {
	if r.RequestURI == "*" {
		return problem.New(http.StatusBadRequest, string(muster.FaultInvalid), "ask for a path, not for *")
	}
	if marked(r.Context(), fromServerKey{}) {
		return nil
	}
	if !d.hostAllowed(r) {
		return problem.New(http.StatusMisdirectedRequest, api.CodeForbidden, fmt.Sprintf(
			"this server does not answer to the host name %q; use a loopback address, or add the name to allowed_hosts in its configuration", problem.Clip(r.Host)))
	}
	if origin := r.Header.Get("Origin"); origin != "" && !sameOrigin(origin, r) {
		return problem.New(http.StatusForbidden, api.CodeForbidden, fmt.Sprintf("requests of the web page %q are refused", problem.Clip(origin)))
	}
	return nil
}

// checkToken checks the token of a request. It compares digests, which takes the same time wherever
// they differ.
func (d *Door) checkToken(r *http.Request) *problem.Problem {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") || token == "" {
		return unauthorized("a token is required; send the header Authorization: Bearer TOKEN, with the token of the server's data directory")
	}
	got := sha256.Sum256([]byte(strings.TrimSpace(token)))
	if subtle.ConstantTimeCompare(got[:], d.token[:]) != 1 {
		return unauthorized("the token is wrong")
	}
	return nil
}

// hostAllowed reports whether the server answers to the Host of a request: a loopback address, or a
// name of the configuration. It keeps out web pages that point a name of their own at a loopback
// address (DNS rebinding).
func (d *Door) hostAllowed(r *http.Request) bool {
	if addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && addr.Network() == "unix" {
		return true // no browser connects to a socket in the file system
	}
	host := strings.ToLower(r.Host)
	if d.hosts[host] {
		return true
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	name = strings.TrimSuffix(name, ".")
	if d.hosts[name] || name == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"))
	return err == nil && ip.IsLoopback()
}

// sameOrigin reports whether an Origin is this server's own, which has a page: the documentation.
// An Origin that is more than scheme and host is no browser's.
func sameOrigin(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	if err != nil || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	return (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// Authorized reports whether a token is the server's own. If no token is needed, every one is. It
// is for mounted APIs whose clients show it in a header of another name.
func (d *Door) Authorized(token string) bool { return d.AuthorizedBy("Bearer " + token) }

// AuthorizedBy reports the same for the whole value of a header Authorization.
func (d *Door) AuthorizedBy(header string) bool {
	return d.cfg.NoAuth || d.checkToken(&http.Request{Header: http.Header{"Authorization": {header}}}) == nil
}

// Unlocked reports whether requests need no token at all.
func (d *Door) Unlocked() bool { return d.cfg.NoAuth }

// holder returns the claim whose secret a request shows in place of the token. shown is false if
// the request shows something else, and right is false if the secret is wrong.
func (d *Door) holder(r *http.Request) (id muster.ClaimID, shown, right bool) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return "", false, false
	}
	return d.cfg.Claims.Holder(token)
}

// admitHolder lets the holder of a claim use its runner, show its claim, and nothing else. A claim
// that has ended is told why; it may still be shown, and released again.
func (d *Door) admitHolder(r *http.Request, id muster.ClaimID, right bool) *problem.Problem {
	if !right {
		return unauthorized("the claim's secret is wrong")
	}
	c := d.cfg.State.Latest().Claim(id)
	if c == nil {
		return problem.New(http.StatusGone, api.CodeNotClaimed, fmt.Sprintf("claim %s is no more", id))
	}
	for _, path := range []string{"/v1/runners/" + string(c.Runner), "/v1/claims/" + string(id), "/v1/allocations/" + string(c.Runner)} {
		if r.URL.Path != path && !strings.HasPrefix(r.URL.Path, path+"/") {
			continue
		}
		again := c.State == muster.ClaimReleased && r.Method == http.MethodDelete && r.URL.Path == "/v1/runners/"+string(c.Runner)
		if c.State != muster.ClaimHeld && !strings.HasPrefix(path, "/v1/claims/") && !again {
			_, err := d.cfg.Claims.Claimed(string(c.Runner))
			return problem.Of(err)
		}
		return nil
	}
	return problem.New(http.StatusForbidden, api.CodeForbidden, fmt.Sprintf("the secret of claim %s is for runner %s and for nothing else", id, c.Runner))
}

// unauthorized tells a client which kind of token it should send.
func unauthorized(detail string) *problem.Problem {
	p := problem.New(http.StatusUnauthorized, api.CodeAuth, detail)
	p.Headers.Set("Www-Authenticate", `Bearer realm="muster"`)
	return p
}

// enterRunner notes the use of a runner until end is called. Below /v1/runners/{id}/ the runner
// must be claimed; the problem says why it is not. An operator may enter the sandbox by its
// allocation in whatever state the runner is. That is use, too: the claim must not expire under the
// operator.
func (d *Door) enterRunner(path string) (end func(), p *problem.Problem) {
	rest, is := strings.CutPrefix(path, "/v1/runners/")
	as, isAlloc := strings.CutPrefix(path, "/v1/allocations/")
	id, _, below := strings.Cut(rest, "/")
	switch {
	case isAlloc:
		id, _, below := strings.Cut(as, "/")
		if al := d.cfg.State.Latest().Alloc(muster.AllocID(id)); below && al != nil && al.Runner == muster.RunnerClaimed {
			return d.cfg.Claims.Use(al.Claim), nil
		}
	case is && below:
		c, err := d.cfg.Claims.Claimed(id)
		if err != nil {
			return nil, problem.Of(err)
		}
		return d.cfg.Claims.Use(c.ID), nil
	}
	return func() {}, nil
}
