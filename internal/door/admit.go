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

// open are the paths that need no token: they tell nothing that is secret.
func open(path string) bool {
	switch path {
	case "/", "/livez", "/readyz", "/openapi.json", "/docs":
		return true
	}
	return strings.HasPrefix(path, "/docs/")
}

// admit lets a request in by its Host, its Origin and its token, in this order.
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

// admitFrom lets a request in by where it was sent to, and by which page.
func (d *Door) admitFrom(r *http.Request) *problem.Problem {
	if r.RequestURI == "*" {
		return problem.New(http.StatusBadRequest, string(muster.FaultInvalid), "ask for a path, not for *")
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

// checkToken compares digests, in the same time whatever they are.
func (d *Door) checkToken(r *http.Request) *problem.Problem {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") || token == "" {
		return unauthorized("a token is needed; send the header Authorization: Bearer TOKEN, with the token of the server's data directory")
	}
	got := sha256.Sum256([]byte(strings.TrimSpace(token)))
	if subtle.ConstantTimeCompare(got[:], d.token[:]) != 1 {
		return unauthorized("the token is wrong")
	}
	return nil
}

// hostAllowed keeps out web pages that point a name of theirs at a loopback address.
func (d *Door) hostAllowed(r *http.Request) bool {
	if addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && addr.Network() == "unix" {
		return true // no browser gets there
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

// sameOrigin reports whether an Origin is the one that the page of this very
// server has.
func sameOrigin(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	if err != nil || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	return (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// Authorized reports whether a token is the server's own. Without authentication everybody's is.
func (d *Door) Authorized(token string) bool { return d.AuthorizedBy("Bearer " + token) }

// AuthorizedBy reports the same of the value of a header Authorization.
func (d *Door) AuthorizedBy(header string) bool {
	return d.cfg.NoAuth || d.checkToken(&http.Request{Header: http.Header{"Authorization": {header}}}) == nil
}

// Unlocked reports whether no token is asked for.
func (d *Door) Unlocked() bool { return d.cfg.NoAuth }

// holder is the claim whose secret a request shows, if it shows one that is right.
func (d *Door) holder(r *http.Request) (id muster.ClaimID, shown, right bool) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return "", false, false
	}
	return d.cfg.Claims.Holder(token)
}

// admitHolder lets the holder of a claim to its runner, and nowhere else.
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

func unauthorized(detail string) *problem.Problem {
	p := problem.New(http.StatusUnauthorized, api.CodeAuth, detail)
	p.Headers.Set("Www-Authenticate", `Bearer realm="muster"`)
	return p
}

// enterRunner checks that what is asked below /v1/runners/{id}/ is of a claimed
// runner, and notes its use until end is called. Into the sandbox of a runner an operator gets by
// its allocation as well, in whatever state it is; that is use, too.
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
