package httpapi

import (
	"context"
	"net/http"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

func (a *API) nodeRoutes() {
	register(a, operation(http.MethodGet, "/v1/nodes", "list-nodes", tagNodes, "List nodes", "By id, with those that are gone, for as long as they are remembered."), a.listNodes)

	one := operation(http.MethodGet, "/v1/nodes/{id}", "get-node", tagNodes, "Show a node", "")
	one.Errors = append(one.Errors, http.StatusNotFound)
	register(a, one, func(_ context.Context, in *NodePath) (*nodeOut, error) {
		n := a.cfg.State.Latest().Node(muster.NodeID(in.ID))
		if n == nil {
			return nil, notFound("node %s: not found", clip(in.ID))
		}
		out := &nodeOut{nodeOf(n)}
		if n.Stage.Live() {
			out.Body.Usage, out.Body.Problems = a.cfg.Insight.Usage(n.ID)
		}
		return out, nil
	})
}

// NodePath names a node in the path.
type NodePath struct {
	ID string `path:"id" maxLength:"200" doc:"Id of the node."`
}

type nodeOut struct{ Body api.Node }

type listNodesIn struct {
	Pool  string `query:"pool" maxLength:"200" doc:"Only of this pool."`
	Stage string `query:"stage" enum:"launching,booting,adopted,serving,draining,terminating,gone" doc:"Only in this stage. Default: all."`
	Page
}

type nodeListOut struct{ Body api.NodeList }

func (a *API) listNodes(_ context.Context, in *listNodesIn) (*nodeListOut, error) {
	snap := a.cfg.State.Latest()
	out := &nodeListOut{api.NodeList{Nodes: []api.Node{}, Index: snap.Index()}}
	snap.Nodes(muster.NodeID(in.After), func(n *state.Node) bool {
		switch {
		case in.Pool != "" && string(n.Pool) != in.Pool, in.Stage != "" && string(n.Stage) != in.Stage:
			return true
		case len(out.Body.Nodes) == in.Limit:
			out.Body.Next = out.Body.Nodes[in.Limit-1].ID
			return false
		}
		out.Body.Nodes = append(out.Body.Nodes, nodeOf(n))
		return true
	})
	return out, nil
}
