package operate

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// Namespaces are whose work it is, and what they may have.
type Namespaces struct{ *desk }

// Limit sets all limits of a namespace: one that is left out is lifted. What runs is never ended
// for a limit.
func (s *Namespaces) Limit(ctx context.Context, ns muster.Namespace, b *api.NamespaceSet) error {
	if err := checkSaid(b.Reason, b.Who); err != nil {
		return err
	}
	b.Who = cmp.Or(b.Who, anOperator)
	l := b.Limits
	if problems := wrongLimits(&l); len(problems) > 0 {
		return problem.Wrong(problems)
	}
	row := state.NamespaceLimits{
		Name: ns, Jobs: l.Jobs, Allocs: l.Allocs, CPU: muster.MilliCPU(math.Ceil(l.CPU * 1000)), Memory: l.Memory.Bytes(), Who: b.Who, Reason: b.Reason,
	}
	if l.MaxPriority != nil {
		row.MaxPriority = *l.MaxPriority + 1
	}
	return s.propose(ctx, &state.NamespaceLimited{Limits: row})
}

// wrongLimits says which limits no namespace can have. The bounds keep sums of them from
// overflowing.
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
