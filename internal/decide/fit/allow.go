package fit

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Allowance is what namespaces may still have, counted down while members are
// placed that are not in the snapshot yet. One that is nil allows everything. It is a value of one goroutine.
type Allowance struct {
	snap *state.Snapshot
	// uses are those of namespaces that have a limit, with what was taken; nil: it has none.
	uses map[muster.Namespace]*use
}

type use struct {
	state.NamespaceUse
	limits *state.NamespaceLimits
}

// NewAllowance is what may still be had according to a snapshot: nil if no namespace has limits.
func NewAllowance(snap *state.Snapshot) *Allowance {
	if snap.LimitCount() == 0 {
		return nil
	}
	return &Allowance{snap: snap, uses: map[muster.Namespace]*use{}}
}

func (a *Allowance) use(ns muster.Namespace) *use {
	u, known := a.uses[ns]
	if !known {
		if l := a.snap.Limits(ns); l != nil {
			u = &use{*a.snap.Use(ns), l}
		}
		a.uses[ns] = u
	}
	return u
}

// Bound is a limit that keeps members from being placed.
type Bound struct {
	// Namespace whose limit it is, maybe muster.AllNamespaces; empty: there is none.
	Namespace muster.Namespace
	Why       string
}

// Of says how many of so many members of the ask a namespace may have more, and by
// which limit not all of them.
func (a *Allowance) Of(ns muster.Namespace, ask muster.Resources, want int) (n int, bound Bound) {
	if a == nil || want <= 0 {
		return want, Bound{}
	}
	n = want
	for _, ns := range [2]muster.Namespace{ns, muster.AllNamespaces} {
		u := a.use(ns)
		if u == nil {
			continue
		}
		if fits, why := u.limits.Room(&u.NamespaceUse, ask, n); fits < n {
			n, bound = fits, Bound{ns, why}
		}
	}
	return n, bound
}

// Take counts n members of the ask in; a negative n gives them back.
func (a *Allowance) Take(ns muster.Namespace, ask muster.Resources, n int) {
	if a == nil {
		return
	}
	for _, ns := range [2]muster.Namespace{ns, muster.AllNamespaces} {
		if u := a.use(ns); u != nil {
			u.Allocs += n
			u.Used = u.Used.Add(ask.By(n))
		}
	}
}
