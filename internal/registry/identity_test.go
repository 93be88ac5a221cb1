package registry

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// cloud is an identity that gives numbered logins, or fails.
type cloud struct {
	mu    sync.Mutex
	asked int
	lasts time.Duration
	fails error
	// login makes the nth; nil: a password with that number.
	login func(n int) Login
}

func (c *cloud) identity(context.Context) (Login, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if c.fails != nil {
		return Login{}, c.fails
	}
	if c.login != nil {
		l := c.login(c.asked)
		l.Until, l.Who = time.Now().Add(c.lasts), "role puller"
		return l, nil
	}
	return Login{Username: "AWS", Password: muster.NewSecret(fmt.Sprint("password-", c.asked)), Until: time.Now().Add(c.lasts)}, nil
}

func (c *cloud) wants(t *testing.T, n int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked != n {
		t.Errorf("the cloud was asked %d times, want %d", c.asked, n)
	}
}

// A login is got once for all who want it, used until shortly before its end, and renewed. While
// the cloud gives no new one, the old one is used until its end.
func TestLoginIsKeptAndRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{lasts: 12 * time.Hour}
		s := newSession(c.identity)
		get := func(want string) {
			t.Helper()
			if l, err := s.get(t.Context()); err != nil || l.Password.Reveal() != want {
				t.Errorf("%s %v, want %s", l.Password.Reveal(), err, want)
			}
		}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { get("password-1") })
		}
		wg.Wait()
		c.wants(t, 1)
		time.Sleep(12*time.Hour - renewBefore - time.Second)
		get("password-1")
		c.wants(t, 1)
		c.fails = Outside("throttled")
		time.Sleep(2 * time.Second)
		get("password-1")
		get("password-1")
		c.wants(t, 2)
		time.Sleep(renewBefore - 10*time.Second)
		get("password-1")
		c.wants(t, 3)
		time.Sleep(10 * time.Second)
		// It has ended. The failure is the answer, and the cloud is asked now and then only.
		for range 5 {
			if _, err := s.get(t.Context()); err == nil || !strings.Contains(err.Error(), "throttled") {
				t.Errorf("%v", err)
			}
		}
		c.wants(t, 4)
		c.fails = nil
		time.Sleep(loginPause)
		get("password-5")
	})
}

// A login that a registry refuses is renewed, but not again and again.
func TestRefusedLoginIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{lasts: time.Hour}
		s := newSession(c.identity)
		for n, wait := range []time.Duration{0, 0, youngest, youngest / 2, youngest / 2} {
			time.Sleep(wait)
			if n > 0 {
				s.stale.Store(true)
			}
			if _, err := s.get(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		c.wants(t, 3)
	})
}

// One who leaves before the cloud answers leaves no failure for the others.
func TestLoginOfOneWhoLeaves(t *testing.T) {
	c := &cloud{lasts: time.Hour}
	s := newSession(func(ctx context.Context) (Login, error) {
		if err := ctx.Err(); err != nil {
			return Login{}, err
		}
		return c.identity(ctx)
	})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.get(gone); err == nil {
		t.Error("one who has left gets a login")
	}
	if _, err := s.get(t.Context()); err != nil {
		t.Error(err)
	}
}

// identified is a rig whose one registry has an identity.
func identified(t *testing.T, s *stand, c *cloud, kind string) *rig {
	t.Helper()
	r := newRig(t)
	spec := api.RegistrySpec{Host: s.host, Identity: kind, Insecure: true}
	var err error
	r.Registries, err = New(Config{Registries: []api.RegistrySpec{spec}, Transport: r.http, Logger: r.log,
		OpenIdentity: func(got *api.RegistrySpec) (Identity, error) {
			if got.Host != s.host {
				t.Errorf("the identity of %s is opened", got.Host)
			}
			return c.identity, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A registry that takes only passwords, as ECR, gets the login from nodes: for some minutes, and no
// longer than the login lasts.
func TestIdentityAtBasic(t *testing.T) {
	s := newStand(t, "basic")
	s.push(t, "team/app:v1")
	c := &cloud{lasts: 12 * time.Hour, login: func(int) Login { return Login{Username: user, Password: muster.NewSecret(password)} }}
	r := identified(t, s, c, api.IdentityECR)
	g := r.Grant(t.Context(), s.host+"/team/app:v1", "")
	if want := "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password)); g.Failure != nil || g.Authorization != want {
		t.Fatalf("%+v %v", g, g.Failure)
	}
	if left := time.Until(g.Until.Std()); left > passwordFor || left < passwordFor-time.Minute {
		t.Errorf("lasts %s", left)
	}
	r.Grant(t.Context(), s.host+"/team/app@sha256:"+strings.Repeat("0", 64), "")
	c.wants(t, 1)
}

// A registry with tokens gets the login from the server only, and a node a token for one repository.
func TestIdentityAtBearer(t *testing.T) {
	s := newStand(t, "bearer")
	s.push(t, "team/app:v1")
	c := &cloud{lasts: time.Hour, login: func(int) Login { return Login{Username: user, Password: muster.NewSecret(password)} }}
	g := identified(t, s, c, api.IdentityGCP).Grant(t.Context(), s.host+"/team/app:v1", "")
	if g.Failure != nil || g.Authorization != "Bearer token-for-repository:team/app:pull" {
		t.Fatalf("%+v %v", g, g.Failure)
	}
	// A refresh token goes to the token server as OAuth 2 has it.
	c.login = func(int) Login { return Login{Refresh: muster.NewSecret("refresh-of-the-test")} }
	if g = identified(t, s, c, api.IdentityAzure).Grant(t.Context(), s.host+"/team/app:v1", ""); g.Failure != nil || g.Authorization != "Bearer token-for-refresh" {
		t.Fatalf("%+v %v", g, g.Failure)
	}
}

// A failure names the registry, the identity and the right that is missing.
func TestIdentityIsDenied(t *testing.T) {
	s := newStand(t, "bearer")
	c := &cloud{lasts: time.Hour, login: func(int) Login { return Login{Username: user, Password: muster.NewSecret(password)} }}
	says := func(g wire.PullGrant, class muster.FailureClass, words ...string) {
		t.Helper()
		if g.Failure == nil || g.Failure.Class != class || g.Authorization != "" {
			t.Errorf("%+v %v", g, g.Failure)
			return
		}
		for _, w := range append(words, s.host, "team/app") {
			if !strings.Contains(g.Failure.Message, w) {
				t.Errorf("%s: it does not say %s", g.Failure.Message, w)
			}
		}
	}
	ref := s.host + "/team/app:v1"
	// What is not there, and what may not be seen, are one answer.
	says(identified(t, s, c, api.IdentityGCP).Grant(t.Context(), ref, ""), muster.FailureUser, "role puller", "roles/artifactregistry.reader")
	c.fails = NoAccess("registry %s: role puller has no right to ecr:GetAuthorizationToken", s.host)
	says(identified(t, s, c, api.IdentityECR).Grant(t.Context(), ref, ""), muster.FailureUser, "role puller", "ecr:GetAuthorizationToken")
	c.fails = Outside("registry %s: throttled", s.host)
	says(identified(t, s, c, api.IdentityECR).Grant(t.Context(), ref, ""), muster.FailureOutside, "throttled")
}

// A login that was taken back before its end is replaced in the grant that meets it, and when a
// node's pull meets it.
func TestLoginIsRotated(t *testing.T) {
	s := newStand(t, "basic")
	s.push(t, "team/app:v1")
	c := &cloud{lasts: 12 * time.Hour, login: func(n int) Login {
		return Login{Username: user, Password: muster.NewSecret([]string{"", "old", password}[n])}
	}}
	r := identified(t, s, c, api.IdentityECR)
	k := r.entry(s.host, "")
	if _, err := k.session.get(t.Context()); err != nil {
		t.Fatal(err)
	}
	// It is young: the registry is believed, and the cloud not asked again.
	if g := r.Grant(t.Context(), s.host+"/team/app:v1", ""); g.Failure == nil || g.Failure.Class != muster.FailureUser {
		t.Errorf("%+v", g)
	}
	c.wants(t, 1)
	k.session.made = time.Now().Add(-youngest)
	g := r.Grant(t.Context(), s.host+"/team/app:v1", "")
	if g.Failure != nil || !strings.HasPrefix(g.Authorization, "Basic ") {
		t.Errorf("%+v %v", g, g.Failure)
	}
	c.wants(t, 2)
	// The node says that it is refused.
	r.mu.Lock()
	kept := r.recent[grantKey{ref: g.Ref}]
	kept.made = time.Now().Add(-youngest)
	r.recent[grantKey{ref: g.Ref}] = kept
	r.mu.Unlock()
	r.Refused(g.Ref, "", g.Authorization)
	if !k.session.stale.Load() {
		t.Error("the login of a refused grant is not looked at again")
	}
}

func TestIdentityNeedsItsLibraries(t *testing.T) {
	_, err := New(Config{Registries: []api.RegistrySpec{{Host: "team.azurecr.io", Identity: api.IdentityAzure}}})
	if err == nil || !strings.Contains(err.Error(), "team.azurecr.io") || !strings.Contains(err.Error(), "lean") {
		t.Errorf("%v", err)
	}
}

// refresh answers the token server's OAuth 2 form, if a request is one.
func refresh(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodPost {
		return false
	}
	if r.PostFormValue("grant_type") != "refresh_token" || r.PostFormValue("refresh_token") != "refresh-of-the-test" || r.PostFormValue("service") != "stand" {
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	_, _ = w.Write([]byte(`{"access_token":"token-for-refresh"}`))
	return true
}
