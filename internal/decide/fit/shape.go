package fit

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Shape is what scheduling sees of a member. Members of equal shapes are
// interchangeable but for the nodes that each has failed on.
type Shape struct {
	ID          state.ShapeID
	Ask         muster.Resources
	Names       *muster.NamedAsk // nil: nothing
	Pool        muster.PoolName  // empty: any
	Constraints []muster.Constraint
	Affinities  []Affinity
	Spread      []Spread
	// Keys are its affinity keys, the one that counts most first.
	Keys []muster.AffinityKey
	// Distinct: at most one member on a node.
	Distinct bool
}

// Affinity is a condition that a node had better meet, by so much.
type Affinity struct {
	muster.Constraint
	Weight int
}

// Spread is an attribute over whose values members are spread.
type Spread struct {
	Attribute string
	Weight    int
	// Targets are percents by value; none: all values alike.
	Targets map[string]int
}

// DependsOnSiblings reports whether where the next member goes depends on where the job has others.
func (s *Shape) DependsOnSiblings() bool { return s.Distinct || len(s.Spread) > 0 }

// ShapeOf is the shape of a job's members. Keep it for as long as it is needed instead of asking again.
func ShapeOf(r *state.Run) *Shape {
	s := &Shape{ID: r.Shape, Ask: r.Ask, Names: r.Names, Pool: muster.PoolName(r.Spec.Pool), Constraints: r.Constraints(), Keys: r.Keys, Distinct: r.Spec.DistinctHosts || r.System()}
	for _, a := range r.Spec.Affinities {
		k := muster.Constraint{Attribute: a.Attribute, Op: a.Op, Value: a.Value, Values: a.Values}
		k.Ready()
		s.Affinities = append(s.Affinities, Affinity{k, a.Weight})
	}
	for _, a := range r.Spec.Spread {
		sp := Spread{Attribute: a.Attribute, Weight: a.Weight}
		for _, t := range a.Targets {
			if sp.Targets == nil {
				sp.Targets = map[string]int{}
			}
			sp.Targets[t.Value] = t.Percent
		}
		s.Spread = append(s.Spread, sp)
	}
	return s
}
