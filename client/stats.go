package client

import (
	"context"
	"net/http"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Stats is what an allocation uses now.
func (c SandboxAPI) Stats(ctx context.Context, id muster.AllocID) (*api.AllocStats, error) {
	return fetch[api.AllocStats](ctx, c.caller, request{method: http.MethodGet, path: allocPath(id, "stats")})
}
