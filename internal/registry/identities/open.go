package identities

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/registry"
)

// Open makes the identity of an entry of the configuration. It is a registry.Opener.
func Open(spec *api.RegistrySpec) (registry.Identity, error) {
	switch spec.Identity {
	case api.IdentityECR:
		return newECR(spec.Host)
	case api.IdentityGCP:
		return newGCP(spec.Host), nil
	case api.IdentityAzure:
		return newAzure(spec.Host), nil
	}
	return nil, fmt.Errorf("identity %s is none of ecr, gcp and azure", spec.Identity)
}

// maxAnswer and maxWords bound an answer, and what an error repeats of it, in bytes.
const maxAnswer, maxWords = 1 << 20, 500

// httpClient is for the services that the libraries do not call themselves. They redirect nobody:
// a redirect would take a token elsewhere.
func httpClient() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = 15 * time.Second
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// answer sends a request and reads the answer to it.
func answer(client *http.Client, req *http.Request) (status int, body []byte, err error) {
	resp, err := client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	return resp.StatusCode, body, err
}

// unavailable reports whether a status may pass by itself.
func unavailable(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusRequestTimeout || status >= 500
}

// says is what a service said in an answer of JSON, under one of these names; empty if nothing.
func says(body []byte, names ...string) string {
	var fields map[string]any
	d := json.NewDecoder(bytes.NewReader(body))
	if d.Decode(&fields) != nil {
		return ""
	}
	for _, n := range names {
		if s, ok := fields[n].(string); ok && s != "" {
			return words(s)
		}
	}
	return ""
}

// words is text of others in one bounded line.
func words(s string) string {
	return muster.Truncate(strings.Join(strings.Fields(s), " "), maxWords)
}

// claims reads the fields of a JSON web token, without a check: they name the identity in errors,
// and say when the token ends. The cloud that made it is who checks it.
func claims(token string, into any) error {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return errors.New("it is no JSON web token")
	}
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// notFound is the failure for an identity that the libraries of its cloud do not find.
func notFound(ctx context.Context, host, what string, err error) error {
	if ctx.Err() != nil {
		return registry.Outside("registry %s: %s were not looked up in time", host, what)
	}
	return registry.NoAccess("registry %s: the server has no %s: %s", host, what, words(err.Error()))
}
