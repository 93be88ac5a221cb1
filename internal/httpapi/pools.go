package httpapi

import (
	"context"
	"net/http"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
)

// poolHandlers handle what is below /v1/pools. Pools come from the configuration; requests cannot
// make or change them.
type poolHandlers struct{ *API }

func (a poolHandlers) routes() {
	register(a.API, operation(http.MethodGet, "/v1/pools", "list-pools", tagPools, "List pools", "By name, with their nodes."), func(context.Context, *struct{}) (*poolListOut, error) {
		return &poolListOut{a.cfg.Operate.Pools.List()}, nil
	})

	one := operation(http.MethodGet, "/v1/pools/{name}", "get-pool", tagPools, "Show a pool", "")
	one.Errors = append(one.Errors, http.StatusNotFound)
	register(a.API, one, func(_ context.Context, in *PoolPath) (*poolOut, error) {
		return a.showPool(a.cfg.Operate.Pools.Show(in.Name))
	})

	resume := operation(http.MethodPost, "/v1/pools/{name}/resume", "resume-pool", tagPools, "Resume a pool",
		"Lets nodes be destroyed again after the pool's breaker has tripped, and starts its count at 0. Ends the pool's blocks: the provider is asked again for what it refused, as after its credentials were corrected.")
	resume.Errors = append(resume.Errors, http.StatusNotFound, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.PoolResume](a.API, &resume, false)
	register(a.API, resume, a.resumePool)
}

// PoolPath names a pool in the path.
type PoolPath struct {
	Name string `path:"name" maxLength:"200" doc:"Name of the pool."`
}

type (
	poolOut     struct{ Body api.Pool }
	poolListOut struct{ Body api.PoolList }
)

type resumeIn struct {
	PoolPath
	RequestBody
}

func (a poolHandlers) resumePool(ctx context.Context, in *resumeIn) (*poolOut, error) {
	var b api.PoolResume
	if len(in.JSON) > 0 {
		if p := door.Decode(in.JSON, &b); p != nil {
			return nil, p
		}
	}
	return a.showPool(a.cfg.Operate.Pools.Resume(ctx, in.Name, &b))
}

// showPool answers with a pool, or with err if it is not nil.
func (a poolHandlers) showPool(p *api.Pool, err error) (*poolOut, error) {
	if err != nil {
		return nil, err
	}
	return &poolOut{*p}, nil
}
