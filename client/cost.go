package client

import (
	"context"
	"net/http"

	"github.com/musterhq/muster/api"
)

// CostQuery says what of the cost is wanted.
type CostQuery struct {
	// By is job, namespace, pool or month; empty: job.
	By string
	// Since is the first month that is counted, as 2026-09; empty: this one.
	Since string
	Limit int
}

// Cost is what was spent, and on what.
func (c ClusterAPI) Cost(ctx context.Context, q CostQuery) (*api.Cost, error) {
	v := values("by", q.By, "since", q.Since, "limit", positive(q.Limit))
	return fetch[api.Cost](ctx, c.caller, request{method: http.MethodGet, path: "/v1/cost", query: v})
}
