package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// ExplainJob tells what a job waits for, from the queue to the cloud.
func (c JobAPI) ExplainJob(ctx context.Context, key muster.JobKey) (*api.JobExplanation, error) {
	return fetch[api.JobExplanation](ctx, c.caller, request{method: http.MethodGet, path: jobPath(key, "explain")})
}

// ExplainMember tells of one member of a job what it waits for, or where it would go now if it were not where it is.
func (c JobAPI) ExplainMember(ctx context.Context, key muster.JobKey, index int) (*api.JobExplanation, error) {
	return fetch[api.JobExplanation](ctx, c.caller, request{method: http.MethodGet, path: jobPath(key, "explain"), query: url.Values{"member": {strconv.Itoa(index)}}})
}

// ExplainNode tells why a node is as it is, and what becomes of it.
func (c ClusterAPI) ExplainNode(ctx context.Context, id muster.NodeID) (*api.NodeExplanation, error) {
	return fetch[api.NodeExplanation](ctx, c.caller, request{method: http.MethodGet, path: path("v1", "nodes", string(id), "explain")})
}
