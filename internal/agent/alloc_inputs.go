package agent

import (
	"context"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/inputs"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// placeInputs puts the inputs into the work directory.
func (al *allocation) placeInputs(ctx context.Context) error {
	if len(al.spec.Inputs) == 0 {
		return nil
	}
	al.publish(starting)
	ctx, cancel := al.untilStop(ctx)
	defer cancel()
	if err := al.plan().MakeWork(); err != nil {
		return contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "work directory: %v", err)
	}
	want := inputs.Placement{Alloc: al.id, Work: al.plan().Work(), Inputs: al.spec.Inputs, GiveUp: wire.Millis(al.spec.GiveUpInputMillis)}
	if f := al.node.inputs.Place(ctx, want); f != nil {
		return f
	}
	return al.halted(ctx)
}
