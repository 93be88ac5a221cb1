package agent

import (
	"context"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/outputs"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// collect makes a tar of each declared output. It is not ok when the allocation is to stop or the
// agent ends first.
func (al *allocation) collect(ctx context.Context) (list []wire.OutputReport, f *muster.Failure, ok bool) {
	ctx, cancel := al.untilStop(ctx)
	defer cancel()
	return outputs.Collect(ctx, al.plan().Work(), al.spec.Outputs, al.dir)
}
