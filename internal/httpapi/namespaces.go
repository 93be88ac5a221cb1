package httpapi

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

func (a *API) namespaceRoutes() {
	register(a, operation(http.MethodGet, "/v1/namespaces", "list-namespaces", tagNamespaces, "List namespaces",
		"Those that have or want something, or have limits; all of them together first, as *."), a.listNamespaces)

	one := operation(http.MethodGet, "/v1/namespaces/{name}", "get-namespace", tagNamespaces, "Show a namespace",
		"One that nobody has used yet is shown empty: a namespace need not be made.")
	register(a, one, func(_ context.Context, in *NamespacePath) (*namespaceOut, error) { return a.showNamespace(in) })

	set := operation(http.MethodPost, "/v1/namespaces/{name}/limits", "limit-namespace", tagNamespaces, "Set the limits of a namespace",
		"All of them: one that is left out is lifted. The limits of * bind all namespaces together. What runs is never ended for a limit.")
	set.Errors = append(set.Errors, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.NamespaceSet](a, &set, true)
	register(a, set, a.limitNamespace)
}

// NamespacePath names a namespace in the path.
type NamespacePath struct {
	Name string `path:"name" maxLength:"200" doc:"Name of the namespace; * for all of them together."`
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

func (a *API) listNamespaces(context.Context, *struct{}) (*namespaceListOut, error) {
	snap := a.cfg.State.Latest()
	names := map[muster.Namespace]bool{muster.AllNamespaces: true}
	snap.Uses(func(u *state.NamespaceUse) bool { names[u.Name] = true; return true })
	snap.EachLimits(func(l *state.NamespaceLimits) bool { names[l.Name] = true; return true })
	out := &namespaceListOut{api.NamespaceList{Namespaces: make([]api.Namespace, 0, len(names)), Index: snap.Index()}}
	weights := weightsOf(snap)
	for _, ns := range slices.Sorted(maps.Keys(names)) {
		out.Body.Namespaces = append(out.Body.Namespaces, namespaceOf(snap, ns, weights))
	}
	return out, nil
}

func (a *API) showNamespace(in *NamespacePath) (*namespaceOut, error) {
	ns, err := in.namespace()
	if err != nil {
		return nil, err
	}
	snap := a.cfg.State.Latest()
	return &namespaceOut{namespaceOf(snap, ns, weightsOf(snap))}, nil
}

type limitIn struct {
	NamespacePath
	RequestBody
}

func (a *API) limitNamespace(ctx context.Context, in *limitIn) (*namespaceOut, error) {
	ns, err := in.namespace()
	if err != nil {
		return nil, err
	}
	var b api.NamespaceSet
	if p := door.Decode(in.JSON, &b); p != nil {
		return nil, p
	}
	if err := checkSaid(b.Reason, b.Who); err != nil {
		return nil, err
	}
	if b.Who == "" {
		b.Who = anOperator
	}
	l := b.Limits
	if problems := wrongLimits(&l); len(problems) > 0 {
		return nil, problem.Wrong(problems)
	}
	row := state.NamespaceLimits{
		Name: ns, Jobs: l.Jobs, Allocs: l.Allocs, CPU: muster.MilliCPU(math.Ceil(l.CPU * 1000)), Memory: l.Memory.Bytes(), Who: b.Who, Reason: b.Reason,
	}
	if l.MaxPriority != nil {
		row.MaxPriority = *l.MaxPriority + 1
	}
	if _, _, err := a.cfg.Proposer.Propose(ctx, &state.NamespaceLimited{Limits: row}); err != nil {
		return nil, err
	}
	return a.showNamespace(&in.NamespacePath)
}

func wrongLimits(l *api.NamespaceLimits) (out []api.ProblemField) {
	const most = 1_000_000_000
	bad := func(field, format string, args ...any) {
		out = append(out, api.ProblemField{Location: "body.limits." + field, Message: fmt.Sprintf(format, args...)})
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"jobs", l.Jobs}, {"allocations", l.Allocs}} {
		if f.n < 0 || f.n > most {
			bad(f.name, "is %d; it is 0 (no limit) to %d", f.n, most)
		}
	}
	if !(l.CPU >= 0 && l.CPU <= most) {
		bad("cpu", "is %g; it is 0 (no limit) to %d cores", l.CPU, most)
	}
	if l.Memory < 0 {
		bad("memory", "is %d bytes; it cannot be negative", int64(l.Memory))
	}
	if p := l.MaxPriority; p != nil && (*p < muster.MinPriority || *p > muster.MaxPriority) {
		bad("max_priority", "is %d; it is %d to %d", *p, muster.MinPriority, muster.MaxPriority)
	}
	return out
}

// weightsOf are the weights of the classes that have or want something.
func weightsOf(snap *state.Snapshot) map[string]int {
	weights := map[string]int{}
	shares := snap.Shares()
	snap.Uses(func(u *state.NamespaceUse) bool {
		if u.Name != muster.AllNamespaces && u.Allocs+u.Waiting > 0 {
			class, weight := shares.Class(u.Name)
			weights[class] = weight
		}
		return true
	})
	return weights
}

func namespaceOf(snap *state.Snapshot, ns muster.Namespace, weights map[string]int) api.Namespace {
	u := snap.Use(ns)
	out := api.Namespace{Name: string(ns), Jobs: u.Jobs, Waiting: u.Waiting, Allocs: u.Allocs, Used: present.Resources(u.Used)}
	if ns != muster.AllNamespaces {
		out.Class, out.Weight = snap.Shares().Class(ns)
		sum := 0
		for _, w := range weights {
			sum += w
		}
		if w, counts := weights[out.Class]; counts && sum > 0 {
			out.Share = float64(w) / float64(sum)
		}
	}
	if l := snap.Limits(ns); l != nil {
		out.Limits = api.NamespaceLimits{Jobs: l.Jobs, Allocs: l.Allocs, CPU: float64(l.CPU) / 1000, Memory: api.Size(l.Memory)}
		if l.MaxPriority > 0 {
			p := l.Highest()
			out.Limits.MaxPriority = &p
		}
		out.LimitSet, out.LimitWho, out.LimitWhy = present.Time(l.Set), l.Who, l.Reason
	}
	return out
}
