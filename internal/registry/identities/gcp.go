package identities

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"cloud.google.com/go/compute/metadata"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/registry"
)

const (
	// scopeGCP is what the token may be used for, within the roles of its account.
	scopeGCP = "https://www.googleapis.com/auth/cloud-platform"
	// userGCP is the user name that goes with an access token.
	// https://cloud.google.com/artifact-registry/docs/docker/authentication#token
	userGCP = "oauth2accesstoken"
)

// gcp shows an access token of Google Cloud to a registry, which gives a token for a repository in
// exchange. The access token stays with the server.
type gcp struct {
	host string
	http *http.Client
}

func newGCP(host string) registry.Identity { return (&gcp{host: host, http: httpClient()}).login }

// login gets an access token of the key file that GOOGLE_APPLICATION_CREDENTIALS names, of the
// user's gcloud, or of the machine's service account.
func (g *gcp) login(ctx context.Context) (registry.Login, error) {
	ctx = context.WithValue(ctx, oauth2.HTTPClient, g.http)
	credentials, err := google.FindDefaultCredentials(ctx, scopeGCP)
	if err != nil {
		return registry.Login{}, notFound(ctx, g.host, "credentials of Google Cloud (set GOOGLE_APPLICATION_CREDENTIALS, or give the machine a service account)", err)
	}
	who := g.who(ctx, credentials.JSON)
	token, err := credentials.TokenSource.Token()
	if err != nil {
		return registry.Login{}, g.refusal(err, who)
	}
	until := token.Expiry
	if until.IsZero() {
		until = time.Now().Add(5 * time.Minute)
	}
	return registry.Login{Username: userGCP, Password: muster.NewSecret(token.AccessToken), Until: until, Who: who}, nil
}

// who names the account of a key file, or of the machine if there is none.
func (g *gcp) who(ctx context.Context, file []byte) string {
	var key struct {
		Email string `json:"client_email"`
	}
	if len(file) > 0 {
		if json.Unmarshal(file, &key) != nil || key.Email == "" {
			return "the Google account of the server's credentials file"
		}
		return "service account " + words(key.Email)
	}
	email, err := metadata.NewClient(nil).EmailWithContext(ctx, "default")
	if err != nil || email == "" {
		return "the machine's service account"
	}
	return "service account " + words(email)
}

// refusal is what an error of the token service means.
func (g *gcp) refusal(err error, who string) error {
	status, said := 0, ""
	var answered *oauth2.RetrieveError
	var meta *metadata.Error
	var undefined metadata.NotDefinedError
	switch {
	case errors.As(err, &answered):
		status, said = answered.Response.StatusCode, says(answered.Body, "error")+" "+says(answered.Body, "error_description")
	case errors.As(err, &meta):
		status, said = meta.Code, "refused by the metadata service"
	case errors.As(err, &undefined):
		status, said = http.StatusNotFound, "the machine has no service account"
	default:
		// The library does not tell errors of the network apart.
		return registry.Outside("registry %s: Google Cloud cannot be reached for a token of %s: %s", g.host, who, words(err.Error()))
	}
	if unavailable(status) {
		return registry.Outside("registry %s: Google Cloud gives no token to %s now: status %d", g.host, who, status)
	}
	return registry.NoAccess("registry %s: Google Cloud gives no token to %s: status %d: %s", g.host, who, status, strings.TrimSpace(said))
}
