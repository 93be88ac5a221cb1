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
	Pool        muster.PoolName // empty: any
	Constraints []muster.Constraint
}

// ShapeOf is the shape of a job's members. It copies the constraints: keep it
// for as long as it is needed instead of asking again.
func ShapeOf(r *state.Run) *Shape {
	return &Shape{ID: r.Shape, Ask: r.Ask, Pool: muster.PoolName(r.Spec.Pool), Constraints: r.Constraints()}
}
