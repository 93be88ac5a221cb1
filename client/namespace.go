package client

import (
	"context"
	"net/http"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Namespaces are those that have or want something or have limits, all of them together (muster.AllNamespaces) first.
func (c ClusterAPI) Namespaces(ctx context.Context) (*api.NamespaceList, error) {
	return fetch[api.NamespaceList](ctx, c.caller, request{method: http.MethodGet, path: "/v1/namespaces"})
}

// Namespace is one of them, or muster.AllNamespaces.
func (c ClusterAPI) Namespace(ctx context.Context, name muster.Namespace) (*api.Namespace, error) {
	return fetch[api.Namespace](ctx, c.caller, request{method: http.MethodGet, path: path("v1", "namespaces", string(name))})
}

// LimitNamespace sets all limits of a namespace; those that are zero are lifted.
func (c ClusterAPI) LimitNamespace(ctx context.Context, name muster.Namespace, s api.NamespaceSet) (*api.Namespace, error) {
	r, err := jsonBody(request{method: http.MethodPost, path: path("v1", "namespaces", string(name), "limits")}, s)
	if err != nil {
		return nil, err
	}
	return fetch[api.Namespace](ctx, c.caller, r)
}
