package gce

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

const (
	// scope is what the driver's tokens are for.
	scope = "https://www.googleapis.com/auth/compute"
	// maxAnswer bounds an answer. A page of 500 instances without their metadata has about 1 MB.
	maxAnswer = 64 << 20
)

// readCredentials finds the credentials. They renew their tokens by themselves, after the call that
// found them, so they must not depend on its context.
func (p *Provider) readCredentials(context.Context) (oauth2.TokenSource, error) {
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, p.client)
	if p.cfg.CredentialsFile == "" {
		found, err := google.FindDefaultCredentials(ctx, scope)
		if err != nil {
			return nil, &muster.Fault{Kind: muster.FaultAuth, Message: "no credentials were found: name a file in credentials.file, or run the server with a service account", Err: err}
		}
		return found.TokenSource, nil
	}
	refused := func(err error) error {
		return &muster.Fault{Kind: muster.FaultAuth, Message: "credentials.file " + p.cfg.CredentialsFile, Err: err}
	}
	b, err := os.ReadFile(p.cfg.CredentialsFile)
	if err != nil {
		return nil, refused(err)
	}
	var kind struct {
		Type string `json:"type"`
	}
	// What is in the file reaches no error.
	if json.Unmarshal(b, &kind) != nil || kind.Type == "" {
		return nil, refused(errors.New("it is not a JSON file of credentials as gcloud writes them"))
	}
	found, err := google.CredentialsFromJSONWithType(ctx, b, google.CredentialsType(kind.Type), scope)
	if err != nil {
		return nil, refused(err)
	}
	return found.TokenSource, nil
}

// token is a valid token. The library's call knows no context, so it may outlive this one.
func (p *Provider) token(ctx context.Context) (*oauth2.Token, error) {
	source := p.cfg.Tokens
	if source == nil {
		var err error
		if source, err = p.tokens.Get(ctx); err != nil {
			return nil, err
		}
	}
	type result struct {
		token *oauth2.Token
		err   error
	}
	got := make(chan result, 1)
	go func() {
		t, err := source.Token()
		got <- result{t, err}
	}()
	select {
	case r := <-got:
		return r.token, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// do makes one call and reads its answer into out. An error is a *muster.Fault.
func (p *Provider) do(ctx context.Context, c call, method, path string, query url.Values, in, out any) error {
	if ctx.Err() != nil {
		return &muster.Fault{Kind: muster.FaultTransient, Message: c.what + ": not sent", Err: ctx.Err()}
	}
	token, err := p.token(ctx)
	if err != nil {
		return unauthenticated(c, err)
	}
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return muster.Faultf(muster.FaultInvalid, "%s: %v", c.what, err)
		}
		body = bytes.NewReader(b)
	}
	address := p.cfg.Endpoint + "/projects/" + url.PathEscape(cmp.Or(c.project, p.cfg.Project)) + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	ctx, sent := driver.Trace(ctx)
	q, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return muster.Faultf(muster.FaultInvalid, "%s: %v", c.what, err)
	}
	if in != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	token.SetAuthHeader(q)
	resp, err := p.client.Do(q)
	if err != nil {
		return sent.Fault(c.what, c.effect, err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode >= 300 {
		return p.refused(c, resp.StatusCode, resp.Header, b)
	}
	if err == nil {
		err = json.Unmarshal(b, out)
	}
	if err != nil {
		return &muster.Fault{Kind: c.effect.Unclear(), Message: c.what + ": the answer makes no sense", Err: err}
	}
	return nil
}

// unauthenticated is the fault of a call for which there was no token: nothing was sent.
func unauthenticated(c call, err error) *muster.Fault {
	f := &muster.Fault{Kind: muster.FaultTransient, Message: c.what + ": no access token; not sent", Err: err}
	var own *muster.Fault
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &own):
		f.Kind = own.Kind
	case errors.As(err, &refused) && refused.Response != nil && refused.Response.StatusCode < 500 && refused.Response.StatusCode != http.StatusTooManyRequests:
		f.Kind = muster.FaultAuth
		// The whole answer of the token service is in the library's error.
		f.Err = fmt.Errorf("the token service answered %d %s", refused.Response.StatusCode, refused.ErrorCode)
	}
	return f
}
