package client

import (
	"context"
	"net/http"

	"github.com/musterhq/muster/api"
)

// Servers are the servers of the cluster. If stale, the server that is asked answers by what it knows itself,
// also while the cluster has no leader.
func (c ClusterAPI) Servers(ctx context.Context, stale bool) (*api.ServerList, error) {
	r := request{method: http.MethodGet, path: "/v1/servers"}
	if stale {
		r.query = map[string][]string{"stale": {"true"}}
	}
	return fetch[api.ServerList](ctx, c.caller, r)
}

// JoinToken makes a token with which servers may join the cluster.
func (c ClusterAPI) JoinToken(ctx context.Context) (*api.JoinToken, error) {
	return fetch[api.JoinToken](ctx, c.caller, request{method: http.MethodPost, path: "/v1/servers/join-token", once: true})
}

// RemoveServer takes a server out of the cluster, by name or id.
func (c ClusterAPI) RemoveServer(ctx context.Context, server string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: path("v1", "servers", server), once: true}, nil)
}

// TransferLeadership lets a server lead, by name or id.
func (c ClusterAPI) TransferLeadership(ctx context.Context, server string) error {
	return c.call(ctx, request{method: http.MethodPost, path: path("v1", "servers", server, "transfer"), once: true}, nil)
}
