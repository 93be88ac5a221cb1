package client

import (
	"context"
	"net/http"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Pools are all of them.
func (c ClusterAPI) Pools(ctx context.Context) (*api.PoolList, error) {
	return fetch[api.PoolList](ctx, c.caller, request{method: http.MethodGet, path: "/v1/pools"})
}

// Pool is one pool.
func (c ClusterAPI) Pool(ctx context.Context, name muster.PoolName) (*api.Pool, error) {
	return fetch[api.Pool](ctx, c.caller, request{method: http.MethodGet, path: path("v1", "pools", string(name))})
}

// ResumePool lets nodes of a pool be destroyed again after its breaker has tripped.
func (c ClusterAPI) ResumePool(ctx context.Context, name muster.PoolName, o api.PoolResume) (*api.Pool, error) {
	r, err := jsonBody(request{method: http.MethodPost, path: path("v1", "pools", string(name), "resume")}, o)
	if err != nil {
		return nil, err
	}
	return fetch[api.Pool](ctx, c.caller, r)
}

// CheckProvider tries a provider out on a real instance. Progress, if not nil, is called for each
// step. It is tried once: an error of the check itself is an *api.Problem that says what went wrong there.
func (c ClusterAPI) CheckProvider(ctx context.Context, name muster.ProviderName, o api.ProviderCheck, progress func(api.CheckProgress)) error {
	r := request{method: http.MethodPost, path: path("v1", "providers", string(name), "check"), once: true}
	return follow(ctx, c.caller, r, o, "checking provider "+string(name), func(p api.CheckProgress) (done bool, err error) {
		switch {
		case p.Problem != nil:
			return true, p.Problem
		case p.OK:
			return true, nil
		case progress != nil:
			progress(p)
		}
		return false, nil
	})
}
