package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/state"
)

// nodeHandlers handle what is below /v1/nodes. Orders to nodes (hold, drain, run, destroy) are
// facts: the answer comes when the order is durable, and the loops carry it out afterwards, also
// after a crash. Each may be repeated.
type nodeHandlers struct{ *API }

func (a nodeHandlers) routes() {
	register(a.API, operation(http.MethodGet, "/v1/nodes", "list-nodes", tagNodes, "List nodes", "By id, with those that are gone, for as long as they are remembered."), a.listNodes)

	one := operation(http.MethodGet, "/v1/nodes/{id}", "get-node", tagNodes, "Show a node", "With its history.")
	one.Errors = append(one.Errors, http.StatusNotFound)
	register(a.API, one, func(_ context.Context, in *NodePath) (*nodeOut, error) {
		n, err := a.cfg.Operate.Nodes.Get(in.ID)
		return a.showNode(n, err)
	})

	order := func(verb, summary, description string) huma.Operation {
		op := operation(http.MethodPost, "/v1/nodes/{id}/"+verb, verb+"-node", tagNodes, summary, description)
		op.Errors = append(op.Errors, http.StatusNotFound, http.StatusConflict, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
		return op
	}
	hold := order("hold", "Hold a node", "It gets no new work, and nothing destroys it, until it is set to run or the time is over. What runs there goes on.")
	jsonBody[api.NodeHold](a.API, &hold, false)
	register(a.API, hold, a.holdNode)
	drain := order("drain", "Drain a node", "It gets no new work, and is destroyed when nothing runs there any more; after the deadline what is left is stopped, and runs elsewhere. Setting it to run takes that back for as long as it serves.")
	jsonBody[api.NodeDrain](a.API, &drain, false)
	register(a.API, drain, a.drainNode)
	run := order("run", "Set a node to run", "It may get work again: the end of a hold, or of a drain.")
	jsonBody[api.NodeOrder](a.API, &run, false)
	register(a.API, run, func(ctx context.Context, in *nodeOrderIn) (*nodeOut, error) {
		var b api.NodeOrder
		if err := in.order(&b); err != nil {
			return nil, err
		}
		n, err := a.cfg.Operate.Nodes.Run(ctx, in.ID, &b)
		return a.showNode(n, err)
	})
	destroy := order("destroy", "Destroy a node", "It is drained for good, or with now destroyed at once: then what runs there is lost. One that is held is refused. On one that is being destroyed already it changes nothing.")
	jsonBody[api.NodeDestroy](a.API, &destroy, false)
	register(a.API, destroy, a.destroyNode)
}

// NodePath names a node in the path.
type NodePath struct {
	ID string `path:"id" maxLength:"200" doc:"Id of the node."`
}

type nodeOut struct{ Body api.Node }

type listNodesIn struct {
	Pool  string `query:"pool" maxLength:"200" doc:"Only this pool."`
	Stage string `query:"stage" enum:"launching,booting,adopted,serving,draining,stopped,starting,terminating,gone" doc:"Only in this stage. Default: all."`
	Page
}

type nodeListOut struct{ Body api.NodeList }

func (a nodeHandlers) listNodes(_ context.Context, in *listNodesIn) (*nodeListOut, error) {
	snap := a.cfg.State.Latest()
	out := &nodeListOut{api.NodeList{Nodes: []api.Node{}, Index: snap.Index()}}
	troubleOf := a.cfg.Loops().Troubles()
	snap.Nodes(muster.NodeID(in.After), func(n *state.Node) bool {
		switch {
		case in.Pool != "" && string(n.Pool) != in.Pool, in.Stage != "" && string(n.Stage) != in.Stage:
			return true
		case len(out.Body.Nodes) == in.Limit:
			out.Body.Next = out.Body.Nodes[in.Limit-1].ID
			return false
		}
		row := present.Node(n)
		if n.Stage.Live() {
			row.Trouble = troubleOf(n)
		}
		out.Body.Nodes = append(out.Body.Nodes, row)
		return true
	})
	return out, nil
}

type nodeOrderIn struct {
	NodePath
	RequestBody
}

// order decodes the body of an order into v. The body is optional; without one v keeps its zero
// values.
func (in *nodeOrderIn) order(v any) error {
	if len(in.JSON) == 0 {
		return nil
	}
	if p := door.Decode(in.JSON, v); p != nil {
		return p
	}
	return nil
}

func (a nodeHandlers) holdNode(ctx context.Context, in *nodeOrderIn) (*nodeOut, error) {
	var b api.NodeHold
	if err := in.order(&b); err != nil {
		return nil, err
	}
	n, err := a.cfg.Operate.Nodes.Hold(ctx, in.ID, &b)
	return a.showNode(n, err)
}

func (a nodeHandlers) drainNode(ctx context.Context, in *nodeOrderIn) (*nodeOut, error) {
	var b api.NodeDrain
	if err := in.order(&b); err != nil {
		return nil, err
	}
	n, err := a.cfg.Operate.Nodes.Drain(ctx, in.ID, &b)
	return a.showNode(n, err)
}

func (a nodeHandlers) destroyNode(ctx context.Context, in *nodeOrderIn) (*nodeOut, error) {
	var b api.NodeDestroy
	if err := in.order(&b); err != nil {
		return nil, err
	}
	n, err := a.cfg.Operate.Nodes.Destroy(ctx, in.ID, &b)
	return a.showNode(n, err)
}

// showNode answers with a node, or with err if it is not nil. Its form fits the results of the
// service's calls.
func (a nodeHandlers) showNode(n *state.Node, err error) (*nodeOut, error) {
	if err != nil {
		return nil, err
	}
	return &nodeOut{a.cfg.Operate.Nodes.Show(n)}, nil
}
