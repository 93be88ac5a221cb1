package agent

import (
	"context"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/inputs"
)

// placeInputs puts the inputs into the work directory. When the allocation is
// to stop or the agent ends it returns early, without a failure: the caller looks at that next.
func (a *Agent) placeInputs(ctx context.Context, al *alloc) *muster.Failure {
	ctx, cancel := al.untilStop(ctx)
	defer cancel()
	if err := al.makeWork(); err != nil {
		return contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "work directory: %v", err)
	}
	return a.inputs.Place(ctx, inputs.Placement{Alloc: al.id, Work: al.work(), Inputs: al.spec.Inputs, GiveUp: millis(al.spec.GiveUpInputMillis)})
}
