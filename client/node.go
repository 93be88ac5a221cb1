package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// NodeQuery selects nodes. Zero fields select all.
type NodeQuery struct {
	Pool  muster.PoolName
	Stage muster.NodeStage
	After string
	Limit int
}

// Nodes is a page of nodes.
func (c ClusterAPI) Nodes(ctx context.Context, q NodeQuery) (*api.NodeList, error) {
	v := values("pool", string(q.Pool), "stage", string(q.Stage), "after", q.After, "limit", positive(q.Limit))
	return fetch[api.NodeList](ctx, c.caller, request{method: http.MethodGet, path: "/v1/nodes", query: v})
}

// AllNodes goes through the pages. After an error it ends.
func (c ClusterAPI) AllNodes(ctx context.Context, q NodeQuery) iter.Seq2[api.Node, error] {
	return pages(func(after string) ([]api.Node, string, error) {
		q.After, q.Limit = after, whole(q.Limit)
		l, err := c.Nodes(ctx, q)
		return l.Nodes, l.Next, err
	})
}

// Node is one node.
func (c ClusterAPI) Node(ctx context.Context, id muster.NodeID) (*api.Node, error) {
	return fetch[api.Node](ctx, c.caller, request{method: http.MethodGet, path: path("v1", "nodes", string(id))})
}

// HoldNode keeps a node from new work and from being destroyed. Doing it again is no harm.
func (c ClusterAPI) HoldNode(ctx context.Context, id muster.NodeID, o api.NodeHold) (*api.Node, error) {
	return c.orderNode(ctx, id, "hold", o)
}

// DrainNode keeps a node from new work, and has it destroyed when it is empty.
func (c ClusterAPI) DrainNode(ctx context.Context, id muster.NodeID, o api.NodeDrain) (*api.Node, error) {
	return c.orderNode(ctx, id, "drain", o)
}

// RunNode lets a node have work again.
func (c ClusterAPI) RunNode(ctx context.Context, id muster.NodeID, o api.NodeOrder) (*api.Node, error) {
	return c.orderNode(ctx, id, "run", o)
}

// DestroyNode has a node destroyed: when it is empty, or now.
func (c ClusterAPI) DestroyNode(ctx context.Context, id muster.NodeID, o api.NodeDestroy) (*api.Node, error) {
	return c.orderNode(ctx, id, "destroy", o)
}

func (c ClusterAPI) orderNode(ctx context.Context, id muster.NodeID, verb string, order any) (*api.Node, error) {
	r, err := jsonBody(request{method: http.MethodPost, path: path("v1", "nodes", string(id), verb)}, order)
	if err != nil {
		return nil, err
	}
	return fetch[api.Node](ctx, c.caller, r)
}
