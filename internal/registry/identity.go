package registry

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Login is what an identity of a cloud is given to show to a registry, for some time.
type Login struct {
	Username string
	Password muster.Secret
	// Refresh, in place of both, is shown to the registry's token server as an OAuth 2 refresh token.
	Refresh muster.Secret
	// Until is when it ends.
	Until time.Time
	// Who names the identity in errors, as "service account x@y". It is no secret.
	Who string
}

// Identity gets a new login from a cloud. It must not return one that it has returned before
// if the cloud gives a newer one. An error is a *muster.Failure that names the registry and,
// if a right is missing, the identity and the right.
type Identity func(ctx context.Context) (Login, error)

// Opener makes the identity that an entry of the configuration names. It asks nobody.
type Opener func(spec *api.RegistrySpec) (Identity, error)

const (
	// renewBefore is how long before its end a login is renewed, at most: the grants that are made
	// of it must be useful for a while. One that lasts shorter is renewed after three quarters of it.
	renewBefore = 10 * time.Minute
	// loginPause is for how long a cloud is not asked again after it gave no login.
	loginPause = 5 * time.Second
)

// session is the login of one registry. Only the holder of turn reads or writes the other fields.
type session struct {
	identity Identity
	// stale is set when a registry did not accept the login.
	stale atomic.Bool
	turn  *wait.Turn
	login Login
	made  time.Time
	renew time.Time
	// failed is why there was no login at the time at.
	failed error
	at     time.Time
}

func newSession(identity Identity) *session {
	return &session{identity: identity, turn: wait.NewTurn()}
}

// get returns a login that is still valid. It asks the cloud if there is none, or if the last is
// about to end; if the cloud gives no new one, the last is used until its end.
func (s *session) get(ctx context.Context) (Login, error) {
	if err := s.turn.Take(ctx); err != nil {
		return Login{}, err
	}
	defer s.turn.Leave()
	now := time.Now()
	// A young login stays although it was refused: a new one would be refused as well, and no node
	// may have a cloud asked without end.
	if s.stale.Swap(false) && now.Sub(s.made) >= youngest {
		s.login, s.renew = Login{}, time.Time{}
	}
	if now.Before(s.renew) {
		return s.login, nil
	}
	valid := now.Before(s.login.Until)
	if s.failed != nil && now.Sub(s.at) < loginPause {
		if valid {
			return s.login, nil
		}
		return Login{}, s.failed
	}
	login, err := s.identity(ctx)
	now = time.Now()
	if err != nil {
		// That a caller has left says nothing about the cloud.
		if ctx.Err() == nil {
			s.failed, s.at = err, now
		}
		if valid && now.Before(s.login.Until) {
			return s.login, nil
		}
		return Login{}, err
	}
	s.login, s.made, s.failed = login, now, nil
	s.renew = login.Until.Add(-min(renewBefore, login.Until.Sub(now)/4))
	return login, nil
}

// auth is a login as the token protocol takes it.
func (l *Login) auth() authn.Authenticator {
	if !l.Refresh.IsZero() {
		return authn.FromConfig(authn.AuthConfig{IdentityToken: l.Refresh.Reveal()})
	}
	return &authn.Basic{Username: l.Username, Password: l.Password.Reveal()}
}

// basic is the header of a login at a registry that wants the password with each request.
func basic(username, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(username+":"+password))
}

// rights are what an identity needs at the registries of its cloud, as its documentation calls them.
var rights = map[string]string{
	api.IdentityECR:   "ecr:BatchGetImage and ecr:GetDownloadUrlForLayer on the repository",
	api.IdentityGCP:   "roles/artifactregistry.reader on the repository",
	api.IdentityAzure: "AcrPull on the registry (Container Registry Repository Reader if it grants by repository)",
}

// denied is the error for an image that the registry does not show to an identity. Registries do
// not tell what is missing from what is forbidden.
func (k *known) denied(who string) *muster.Failure {
	return NoAccess("not found in registry %s, or %s may not pull it: check its spelling, and that the identity has %s", k.spec.Host, who, rights[k.spec.Identity])
}

// manifests is what a node will accept.
const manifests = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, " +
	"application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"

// errRefused is the answer of a registry that does not accept what it was shown.
var errRefused = errors.New("the registry does not accept the login")

// check asks the registry for the image with a grant, so that the error for a missing right
// names the identity: a node does not know it. Only an answer that denies counts.
func (k *known) check(ctx context.Context, rt http.RoundTripper, scheme string, ref name.Reference, g *wire.PullGrant, who string) error {
	url := scheme + "://" + ref.Context().RegistryStr() + "/v2/" + ref.Context().RepositoryStr() + "/manifests/" + ref.Identifier()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", manifests)
	req.Header.Set("Authorization", g.Authorization)
	resp, err := rt.RoundTrip(req)
	if err != nil {
		// The node meets it as well, and tries again.
		return nil
	}
	_ = resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		return errRefused
	case http.StatusForbidden, http.StatusNotFound:
		return k.denied(who)
	}
	return nil
}
