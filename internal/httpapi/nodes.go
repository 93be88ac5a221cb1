package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

func (a *API) nodeRoutes() {
	register(a, operation(http.MethodGet, "/v1/nodes", "list-nodes", tagNodes, "List nodes", "By id, with those that are gone, for as long as they are remembered."), a.listNodes)

	one := operation(http.MethodGet, "/v1/nodes/{id}", "get-node", tagNodes, "Show a node", "With its history.")
	one.Errors = append(one.Errors, http.StatusNotFound)
	register(a, one, func(_ context.Context, in *NodePath) (*nodeOut, error) {
		n, err := a.findNode(in)
		if err != nil {
			return nil, err
		}
		return a.showNode(n), nil
	})

	order := func(verb, summary, description string) huma.Operation {
		op := operation(http.MethodPost, "/v1/nodes/{id}/"+verb, verb+"-node", tagNodes, summary, description)
		op.Errors = append(op.Errors, http.StatusNotFound, http.StatusConflict, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
		return op
	}
	hold := order("hold", "Hold a node", "It gets no new work, and nothing destroys it, until it is set to run or the time is over. What runs there goes on.")
	jsonBody[api.NodeHold](a, &hold, false)
	register(a, hold, a.holdNode)
	drain := order("drain", "Drain a node", "It gets no new work, and is destroyed when nothing runs there any more; after the deadline what is left is stopped, and runs elsewhere. Setting it to run takes that back for as long as it serves.")
	jsonBody[api.NodeDrain](a, &drain, false)
	register(a, drain, a.drainNode)
	run := order("run", "Set a node to run", "It may get work again: the end of a hold, or of a drain.")
	jsonBody[api.NodeOrder](a, &run, false)
	register(a, run, func(ctx context.Context, in *nodeOrderIn) (*nodeOut, error) {
		var b api.NodeOrder
		if err := in.order(&b); err != nil {
			return nil, err
		}
		return a.setIntent(ctx, in, &state.NodeIntentSet{Intent: muster.NodeRun, Reason: b.Reason, Who: b.Who})
	})
	destroy := order("destroy", "Destroy a node", "It is drained for good, or with now destroyed at once: then what runs there is lost. One that is held is refused. On one that is being destroyed already it changes nothing.")
	jsonBody[api.NodeDestroy](a, &destroy, false)
	register(a, destroy, a.destroyNode)
}

// NodePath names a node in the path.
type NodePath struct {
	ID string `path:"id" maxLength:"200" doc:"Id of the node."`
}

type nodeOut struct{ Body api.Node }

func (a *API) findNode(in *NodePath) (*state.Node, error) {
	n := a.cfg.State.Latest().Node(muster.NodeID(in.ID))
	if n == nil {
		return nil, problem.NotFound("node %s: not found", problem.Clip(in.ID))
	}
	return n, nil
}

func (a *API) showNode(n *state.Node) *nodeOut {
	out := &nodeOut{present.NodeWithHistory(n, a.cfg.Clock.Now())}
	if n.Stage.Live() {
		out.Body.Trouble = a.cfg.Insight.Troubles()(n)
		out.Body.Usage, out.Body.Problems = a.cfg.Insight.Usage(n.ID)
		if n.Intent != muster.NodeHold {
			out.Body.Lease = a.lease(n.Pool)
		}
	}
	return out
}

// lease is how long nodes of a pool wait for a server before they end themselves; 0: for ever.
func (a *API) lease(name muster.PoolName) api.Duration {
	if a.cfg.Running == nil {
		return 0
	}
	return a.cfg.Running().Pool(string(name)).Lease
}

type listNodesIn struct {
	Pool  string `query:"pool" maxLength:"200" doc:"Only of this pool."`
	Stage string `query:"stage" enum:"launching,booting,adopted,serving,draining,terminating,gone" doc:"Only in this stage. Default: all."`
	Page
}

type nodeListOut struct{ Body api.NodeList }

func (a *API) listNodes(_ context.Context, in *listNodesIn) (*nodeListOut, error) {
	snap := a.cfg.State.Latest()
	out := &nodeListOut{api.NodeList{Nodes: []api.Node{}, Index: snap.Index()}}
	troubleOf := a.cfg.Insight.Troubles()
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

const (
	// maxSaid bounds what an operator says of what he does, longestHold for how long that may be.
	maxSaid, maxWho = 1000, 200
	longestHold     = 10 * 365 * 24 * time.Hour
)

// order decodes the body of an order, which may be left out.
func (in *nodeOrderIn) order(v any) error {
	if len(in.JSON) == 0 {
		return nil
	}
	if p := door.Decode(in.JSON, v); p != nil {
		return p
	}
	return nil
}

// checkSaid bounds what goes into the log as it is.
func checkSaid(reason, who string) error {
	switch {
	case len(reason) > maxSaid:
		return problem.Invalid("body.reason", "has %d bytes; at most %d", len(reason), maxSaid)
	case len(who) > maxWho:
		return problem.Invalid("body.who", "has %d bytes; at most %d", len(who), maxWho)
	}
	return nil
}

func (a *API) holdNode(ctx context.Context, in *nodeOrderIn) (*nodeOut, error) {
	var b api.NodeHold
	if err := in.order(&b); err != nil {
		return nil, err
	}
	until, err := a.untilAfter("body.for", b.For)
	if err != nil {
		return nil, err
	}
	return a.setIntent(ctx, in, &state.NodeIntentSet{Intent: muster.NodeHold, Reason: b.Reason, Who: b.Who, Until: until})
}

// untilAfter is when a time that begins now is over; 0 if none is given.
func (a *API) untilAfter(field string, d api.Duration) (muster.Time, error) {
	switch {
	case d.Std() < 0 || d.Std() > longestHold:
		return 0, problem.Invalid(field, "is %s; give a time above 0s and below ten years, or leave it out", d)
	case d == 0:
		return 0, nil
	}
	return a.cfg.Clock.Now().Add(d.Std()), nil
}

func (a *API) drainNode(ctx context.Context, in *nodeOrderIn) (*nodeOut, error) {
	var b api.NodeDrain
	if err := in.order(&b); err != nil {
		return nil, err
	}
	until, err := a.untilAfter("body.deadline", b.Deadline)
	if err != nil {
		return nil, err
	}
	return a.setIntent(ctx, in, &state.NodeIntentSet{Intent: muster.NodeDrain, Reason: b.Reason, Who: b.Who, Until: until})
}

func (a *API) setIntent(ctx context.Context, in *nodeOrderIn, f *state.NodeIntentSet) (*nodeOut, error) {
	if err := checkSaid(f.Reason, f.Who); err != nil {
		return nil, err
	}
	n, err := a.findNode(&in.NodePath)
	if err != nil {
		return nil, err
	}
	if f.ID = n.ID; f.Who == "" {
		f.Who = anOperator
	}
	if _, _, err := a.cfg.Proposer.Propose(ctx, f); err != nil {
		return nil, err
	}
	return a.shownNow(n), nil
}

// anOperator stands for who does not say who he is.
const anOperator = "operator"

// shownNow is the node after what was done to it.
func (a *API) shownNow(n *state.Node) *nodeOut {
	if now := a.cfg.State.Latest().Node(n.ID); now != nil {
		n = now
	}
	return a.showNode(n)
}

func (a *API) destroyNode(ctx context.Context, in *nodeOrderIn) (*nodeOut, error) {
	var b api.NodeDestroy
	if err := in.order(&b); err != nil {
		return nil, err
	}
	if err := checkSaid(b.Reason, b.Who); err != nil {
		return nil, err
	}
	n, err := a.findNode(&in.NodePath)
	if err != nil {
		return nil, err
	}
	who := b.Who
	if who == "" {
		who = anOperator
	}
	reason := "destroyed by an operator" + muster.Because(b.Reason)
	var f state.Fact
	switch served := n.Stage == muster.NodeServing || n.Stage == muster.NodeDraining; {
	case n.Stage == muster.NodeGone || n.Stage == muster.NodeTerminating:
	case n.Intent == muster.NodeHold:
		return nil, muster.Faultf(muster.FaultConflict, "node %s is held%s; set it to run or drain first", n.ID, muster.Because(n.IntentReason))
	case b.Now || !served:
		f = &state.NodeTerminating{ID: n.ID, Reason: reason, Who: who}
	case n.Stage == muster.NodeServing:
		// The fleet ends it when nothing runs there and its output is stored: now, if that is so.
		f = &state.NodeDraining{ID: n.ID, Reason: reason, Who: who}
	}
	if f != nil {
		if _, _, err := a.cfg.Proposer.Propose(ctx, f); err != nil {
			return nil, err
		}
	}
	return a.shownNow(n), nil
}
