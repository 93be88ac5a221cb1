package client

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// SetEnvironment makes an environment or changes it. Done again it changes nothing more.
func (c SandboxAPI) SetEnvironment(ctx context.Context, s api.EnvironmentSetting) (*api.EnvironmentSet, error) {
	r, err := jsonBody(request{method: http.MethodPost, path: "/v1/environments"}, s)
	if err != nil {
		return nil, err
	}
	return fetch[api.EnvironmentSet](ctx, c.caller, r)
}

func environmentPath(namespace, name string) string {
	return path("v1", "environments", namespace, name)
}

// Environment is one environment.
func (c SandboxAPI) Environment(ctx context.Context, namespace, name string) (*api.Environment, error) {
	return fetch[api.Environment](ctx, c.caller, request{method: http.MethodGet, path: environmentPath(namespace, name)})
}

// Environments goes through the environments of a namespace, "" for all. After an error it ends.
func (c SandboxAPI) Environments(ctx context.Context, namespace string) iter.Seq2[api.Environment, error] {
	return pages(func(after string) ([]api.Environment, string, error) {
		l := &api.EnvironmentList{}
		err := c.call(ctx, request{method: http.MethodGet, path: "/v1/environments", query: values("namespace", namespace, "after", after, "limit", "1000")}, l)
		return l.Environments, l.Next, err
	})
}

// DeleteEnvironment ends an environment; claimed runners live on unless claimed is set.
func (c SandboxAPI) DeleteEnvironment(ctx context.Context, namespace, name string, claimed bool) error {
	q := url.Values{}
	if claimed {
		q.Set("claimed", "true")
	}
	err := c.call(ctx, request{method: http.MethodDelete, path: environmentPath(namespace, name), query: q}, nil)
	return err
}

// Claim has a runner given to the caller. The same key makes it the same claim, however
// often it is asked for; "" draws one. See IsNoneWarm. A claim that waits is repeated for as long as
// it may wait when the server that it waits at goes away, or leads no more.
func (c SandboxAPI) Claim(ctx context.Context, q api.ClaimRequest, key string) (*api.Claim, error) {
	if key == "" {
		key = NewKey()
	}
	r, err := jsonBody(request{method: http.MethodPost, path: "/v1/claims", slow: q.Wait > 0, header: http.Header{"Idempotency-Key": {key}}}, q)
	if err != nil {
		return nil, err
	}
	if q.Wait > 0 {
		// What is left of the wait. The length of the body differs with it.
		r.until = time.Now().Add(q.Wait.Std())
		r.size, r.body = -1, func() (io.ReadCloser, error) {
			rest := q
			rest.Wait = api.Duration(min(q.Wait.Std(), max(time.Until(r.until), 0).Round(time.Millisecond)))
			b, err := json.Marshal(rest)
			return io.NopCloser(bytes.NewReader(b)), err
		}
	}
	return fetch[api.Claim](ctx, c.caller, r)
}

// IsNoneWarm reports whether a claim found no warm runner in its time.
func IsNoneWarm(err error) bool { return Code(err) == api.CodeNoneWarm }

// Claims goes through the claims, those included that have ended lately. After an error it ends.
func (c SandboxAPI) Claims(ctx context.Context, state muster.ClaimState) iter.Seq2[api.Claim, error] {
	return pages(func(after string) ([]api.Claim, string, error) {
		l := &api.ClaimList{}
		err := c.call(ctx, request{method: http.MethodGet, path: "/v1/claims", query: values("state", string(state), "after", after, "limit", "1000")}, l)
		return l.Claims, l.Next, err
	})
}

// RunnerQuery selects runners. Zero fields select all but those that are gone.
type RunnerQuery struct {
	Namespace, Environment string
	State                  muster.RunnerState
}

// Runners goes through the runners. After an error it ends.
func (c SandboxAPI) Runners(ctx context.Context, q RunnerQuery) iter.Seq2[api.Runner, error] {
	return pages(func(after string) ([]api.Runner, string, error) {
		l := &api.RunnerList{}
		err := c.call(ctx, request{method: http.MethodGet, path: "/v1/runners",
			query: values("namespace", q.Namespace, "environment", q.Environment, "state", string(q.State), "after", after, "limit", "1000")}, l)
		return l.Runners, l.Next, err
	})
}

// Runner is one runner, in whatever state.
func (c SandboxAPI) Runner(ctx context.Context, id muster.AllocID) (*api.Runner, error) {
	return fetch[api.Runner](ctx, c.caller, request{method: http.MethodGet, path: path("v1", "runners", string(id))})
}

// Release releases a claimed runner. It may be repeated. A runner that was not claimed, or whose claim ended otherwise, is refused: see IsGone.
func (c SandboxAPI) Release(ctx context.Context, id muster.AllocID) error {
	err := c.call(ctx, request{method: http.MethodDelete, path: path("v1", "runners", string(id))}, nil)
	return err
}

// Extend sets the deadline of a runner's claim, from now on, or its idle time.
func (c SandboxAPI) Extend(ctx context.Context, id muster.AllocID, e api.ClaimExtension) (*api.Claim, error) {
	r, err := jsonBody(request{method: http.MethodPost, path: path("v1", "runners", string(id), "extend")}, e)
	if err != nil {
		return nil, err
	}
	return fetch[api.Claim](ctx, c.caller, r)
}
