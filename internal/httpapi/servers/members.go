package servers

import (
	"context"
	"net/http"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/httpapi/route"
)

// Cluster has the servers of the cluster. One of a server alone lists that server and refuses the rest.
type Cluster interface {
	List() api.ServerList
	// NewToken makes a token with which a server may join.
	NewToken() (api.JoinToken, error)
	// Remove and Transfer take a name or an id.
	Remove(ctx context.Context, server string) error
	Transfer(ctx context.Context, server string) error
}

// members registers the operations about who is in the cluster.
func (h handlers) members() {
	c := h.cfg.Cluster
	if c == nil {
		return
	}
	type listOut struct{ Body api.ServerList }
	route.Register(h.router, route.Operation(http.MethodGet, "/v1/servers", "list-servers", Tag, "List the servers of the cluster", "By name. With stale=true every server answers by what it knows itself."),
		func(context.Context, *struct{}) (*listOut, error) { return &listOut{c.List()}, nil })

	token := route.Operation(http.MethodPost, "/v1/servers/join-token", "make-join-token", Tag, "Make a join token",
		"With it, servers may join the cluster for an hour. They get the secrets of the cluster, so keep the token as safe as those.")
	token.Errors = append(token.Errors, http.StatusConflict)
	type tokenOut struct{ Body api.JoinToken }
	route.Register(h.router, token, func(context.Context, *struct{}) (*tokenOut, error) {
		t, err := c.NewToken()
		return &tokenOut{t}, err
	})

	changes := []int{http.StatusNotFound, http.StatusConflict, http.StatusServiceUnavailable}
	remove := route.Operation(http.MethodDelete, "/v1/servers/{server}", "remove-server", Tag, "Remove a server from the cluster",
		"Refused if no majority of the servers that stay answers. The removed server ends; its data directory stays.")
	remove.Errors = append(remove.Errors, changes...)
	route.Register(h.router, remove, func(ctx context.Context, in *serverPath) (*struct{}, error) { return nil, c.Remove(ctx, in.Server) })

	transfer := route.Operation(http.MethodPost, "/v1/servers/{server}/transfer", "transfer-leadership", Tag, "Let a server lead", "It leads within a second or so; requests wait for it.")
	transfer.Errors = append(transfer.Errors, changes...)
	route.Register(h.router, transfer, func(ctx context.Context, in *serverPath) (*struct{}, error) { return nil, c.Transfer(ctx, in.Server) })
}

type serverPath struct {
	Server string `path:"server" maxLength:"200" doc:"Name or id of the server."`
}
