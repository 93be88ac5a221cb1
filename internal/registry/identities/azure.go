package identities

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/registry"
)

// scopeAzure is of registries alone, in all clouds of Azure: the token opens nothing else.
const scopeAzure = "https://containerregistry.azure.net/.default"

// azure exchanges a token of Microsoft Entra ID for a refresh token of one registry, which its
// token server takes for tokens of single repositories. Both stay with the server.
// https://github.com/Azure/acr/blob/main/docs/AAD-OAuth.md
type azure struct {
	host string
	// base is where the registry is.
	base string
	http *http.Client
	// credential finds the identity; it is looked up for each login.
	credential func() (azcore.TokenCredential, error)
}

func newAzure(host string) registry.Identity { return newAzureAt(host, "https://"+host).login }

func newAzureAt(host, base string) *azure {
	return &azure{host: host, base: base, http: httpClient(), credential: func() (azcore.TokenCredential, error) { return findAzure(host) }}
}

// findAzure finds an identity as the tools of Azure do: in the environment, by the identity of a
// workload or of the machine (AZURE_CLIENT_ID names one of several), or of the user's az.
func findAzure(host string) (azcore.TokenCredential, error) {
	of := cloud.AzurePublic
	switch {
	case strings.HasSuffix(host, ".azurecr.cn"):
		of = cloud.AzureChina
	case strings.HasSuffix(host, ".azurecr.us"):
		of = cloud.AzureGovernment
	}
	return azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: policy.ClientOptions{Cloud: of}})
}

// login gets a refresh token.
func (a *azure) login(ctx context.Context) (registry.Login, error) {
	credential, err := a.credential()
	if err != nil {
		return registry.Login{}, notFound(ctx, a.host, "identity of Azure (set AZURE_CLIENT_ID and what goes with it, or give the machine a managed identity)", err)
	}
	token, err := credential.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{scopeAzure}})
	if err != nil {
		return registry.Login{}, a.noToken(ctx, err)
	}
	var of struct {
		App    string `json:"appid"`
		Object string `json:"oid"`
	}
	who := "the server's identity in Azure"
	if claims(token.Token, &of) == nil && of.Object != "" {
		who = "the identity in Azure with object id " + words(of.Object)
		if of.App != "" {
			who += " (client id " + words(of.App) + ")"
		}
	}
	form := url.Values{"grant_type": {"access_token"}, "service": {a.host}, "access_token": {token.Token}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+"/oauth2/exchange", strings.NewReader(form.Encode()))
	if err != nil {
		return registry.Login{}, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	status, text, err := answer(a.http, req)
	switch {
	case err != nil:
		return registry.Login{}, registry.Outside("registry %s cannot be reached for a login: %s", a.host, words(err.Error()))
	case unavailable(status):
		return registry.Login{}, registry.Outside("registry %s gives no login now: status %d", a.host, status)
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return registry.Login{}, registry.NoAccess("registry %s does not let in %s: give it the role AcrPull on the registry", a.host, who)
	case status != http.StatusOK:
		return registry.Login{}, registry.NoAccess("registry %s does not exchange the token of %s: status %d", a.host, who, status)
	}
	var out struct {
		Refresh string `json:"refresh_token"`
	}
	if json.Unmarshal(text, &out) != nil || out.Refresh == "" {
		return registry.Login{}, registry.Outside("registry %s answers without a login", a.host)
	}
	// Refresh tokens last for three hours, and say so. Of another one only so much is taken for
	// granted as the token lasts that it was made of.
	var ends struct {
		Expires int64 `json:"exp"`
	}
	until := token.ExpiresOn
	if claims(out.Refresh, &ends) == nil && ends.Expires > 0 {
		until = time.Unix(ends.Expires, 0)
	}
	return registry.Login{Refresh: muster.NewSecret(out.Refresh), Until: until, Who: who}, nil
}

// noToken is what an error of Microsoft Entra ID means.
func (a *azure) noToken(ctx context.Context, err error) error {
	var failed *azidentity.AuthenticationFailedError
	switch {
	case errors.As(err, &failed) && failed.RawResponse == nil:
		return registry.Outside("registry %s: Microsoft Entra ID cannot be reached for a token", a.host)
	case failed != nil:
		if s := failed.RawResponse.StatusCode; unavailable(s) {
			return registry.Outside("registry %s: Microsoft Entra ID gives no token now: status %d", a.host, s)
		}
		// The library's own text has the whole answer; its first line names the kind of identity.
		first, _, _ := strings.Cut(failed.Error(), "\n")
		return registry.NoAccess("registry %s: Microsoft Entra ID gives the server no token: status %d: %s", a.host, failed.RawResponse.StatusCode, words(first))
	}
	return notFound(ctx, a.host, "identity of Azure (set AZURE_CLIENT_ID and what goes with it, or give the machine a managed identity)", err)
}
