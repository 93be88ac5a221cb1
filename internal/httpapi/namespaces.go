package httpapi

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// namespaceHandlers handle what is below /v1/namespaces.
type namespaceHandlers struct{ *API }

func (a namespaceHandlers) routes() {
	register(a.API, operation(http.MethodGet, "/v1/namespaces", "list-namespaces", tagNamespaces, "List namespaces",
		"Those that have or want something, or have limits; all of them together first, as *."), a.listNamespaces)

	one := operation(http.MethodGet, "/v1/namespaces/{name}", "get-namespace", tagNamespaces, "Show a namespace",
		"One that nobody has used yet is shown empty: a namespace need not be made.")
	register(a.API, one, func(_ context.Context, in *NamespacePath) (*namespaceOut, error) { return a.showNamespace(in) })

	set := operation(http.MethodPost, "/v1/namespaces/{name}/limits", "limit-namespace", tagNamespaces, "Set the limits of a namespace",
		"All of them: one that is left out is lifted. The limits of * bind all namespaces together. What runs is never ended for a limit.")
	set.Errors = append(set.Errors, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.NamespaceSet](a.API, &set, true)
	register(a.API, set, a.limitNamespace)
}

// NamespacePath names a namespace in the path.
type NamespacePath struct {
	Name string `path:"name" maxLength:"200" doc:"Name of the namespace; * for all together."`
}

func (p *NamespacePath) namespace() (muster.Namespace, error) {
	if p.Name == string(muster.AllNamespaces) {
		return muster.AllNamespaces, nil
	}
	if err := problem.Names("path.name", p.Name); err != nil {
		return "", err
	}
	return muster.Namespace(p.Name), nil
}

type (
	namespaceOut     struct{ Body api.Namespace }
	namespaceListOut struct{ Body api.NamespaceList }
)

func (a namespaceHandlers) listNamespaces(context.Context, *struct{}) (*namespaceListOut, error) {
	snap := a.cfg.State.Latest()
	names := map[muster.Namespace]bool{muster.AllNamespaces: true}
	snap.Uses(func(u *state.NamespaceUse) bool { names[u.Name] = true; return true })
	snap.EachLimits(func(l *state.NamespaceLimits) bool { names[l.Name] = true; return true })
	out := &namespaceListOut{api.NamespaceList{Namespaces: make([]api.Namespace, 0, len(names)), Index: snap.Index()}}
	weights := present.Weights(snap)
	for _, ns := range slices.Sorted(maps.Keys(names)) {
		out.Body.Namespaces = append(out.Body.Namespaces, present.Namespace(snap, ns, weights))
	}
	return out, nil
}

func (a namespaceHandlers) showNamespace(in *NamespacePath) (*namespaceOut, error) {
	ns, err := in.namespace()
	if err != nil {
		return nil, err
	}
	snap := a.cfg.State.Latest()
	return &namespaceOut{present.Namespace(snap, ns, present.Weights(snap))}, nil
}

type limitIn struct {
	NamespacePath
	RequestBody
}

func (a namespaceHandlers) limitNamespace(ctx context.Context, in *limitIn) (*namespaceOut, error) {
	ns, err := in.namespace()
	if err != nil {
		return nil, err
	}
	var b api.NamespaceSet
	if p := door.Decode(in.JSON, &b); p != nil {
		return nil, p
	}
	if err := a.cfg.Operate.Namespaces.Limit(ctx, ns, &b); err != nil {
		return nil, err
	}
	return a.showNamespace(&in.NamespacePath)
}
