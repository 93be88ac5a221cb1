package httpapi

import (
	"context"
	"net/http"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/httpapi/schema"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// allocHandlers handle what is below /v1/allocations, except sandboxes and output. They only read:
// the scheduler makes allocations, and jobs are stopped through /v1/jobs.
type allocHandlers struct{ *API }

func (a allocHandlers) routes() {
	register(a.API, operation(http.MethodGet, "/v1/allocations", "list-allocs", tagAllocs, "List allocations", "By id."), a.listAllocs)

	one := operation(http.MethodGet, "/v1/allocations/{id}", "get-alloc", tagAllocs, "Show an allocation", "")
	one.Errors = append(one.Errors, http.StatusNotFound)
	register(a.API, one, func(_ context.Context, in *AllocPath) (*allocOut, error) {
		snap := a.cfg.State.Latest()
		al, err := in.find(snap)
		if err != nil {
			return nil, err
		}
		return &allocOut{present.AllocOnNode(snap, al)}, nil
	})
}

// AllocPath names an allocation in the path.
type AllocPath struct {
	ID string `path:"id" maxLength:"200" doc:"Id of the allocation."`
}

func (p *AllocPath) find(snap *state.Snapshot) (*state.Alloc, error) {
	if al := snap.Alloc(muster.AllocID(p.ID)); al != nil {
		return al, nil
	}
	return nil, problem.NotFound("allocation %s: not found", problem.Clip(p.ID))
}

type allocOut struct{ Body api.Alloc }

type allocListOut struct{ Body api.AllocList }

// add puts an allocation on the page. It returns false if the page is full, and sets next to the
// last id of the page: the next page begins after it.
func (o *allocListOut) add(snap *state.Snapshot, al *state.Alloc, limit int) bool {
	if len(o.Body.Allocs) == limit {
		o.Body.Next = o.Body.Allocs[limit-1].ID
		return false
	}
	o.Body.Allocs = append(o.Body.Allocs, present.AllocOnNode(snap, al))
	return true
}

type listAllocsIn struct {
	Node string                `query:"node" maxLength:"200" doc:"Only on this node."`
	Live schema.Optional[bool] `query:"live" doc:"true: only those that have not ended; false: only those that have. Default: all."`
	Page
}

func (a allocHandlers) listAllocs(_ context.Context, in *listAllocsIn) (*allocListOut, error) {
	snap := a.cfg.State.Latest()
	after, node := muster.AllocID(in.After), muster.NodeID(in.Node)
	out := &allocListOut{api.AllocList{Allocs: []api.Alloc{}, Index: snap.Index()}}
	visit := func(al *state.Alloc) bool {
		if node != "" && al.Node != node || in.Live.Given && al.Live() != in.Live.Value {
			return true
		}
		return out.add(snap, al, in.Limit)
	}
	// Of the indexes of the state, the one with the fewest rows to visit is used. All of them are
	// in the order of ids.
	switch live := in.Live.Given && in.Live.Value; {
	case live && node != "":
		snap.NodeAllocs(node, func(al *state.Alloc) bool { return al.ID <= after || visit(al) })
	case live:
		snap.LiveAllocsAfter(after, visit)
	default:
		snap.Allocs(after, visit)
	}
	return out, nil
}
