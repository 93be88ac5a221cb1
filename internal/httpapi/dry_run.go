package httpapi

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/explain"
	"github.com/musterhq/muster/internal/state"
)

// planning is a semaphore: one request at a time computes where members would be placed. With thousands of nodes and
// members that takes CPU that the scheduler and other requests need.
type planning chan struct{}

func newPlanning() planning { return make(planning, 1) }

func (p planning) begin(ctx context.Context) error {
	select {
	case p <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p planning) end() { <-p }

// planOf is what a submission would do now. A job without a name gets one, as if it were submitted.
func planOf(s *api.JobSubmission, snap *state.Snapshot, now muster.Time) *api.JobPlan {
	f := &state.JobSubmitted{
		Key: muster.JobKey{Namespace: muster.Namespace(s.Spec.Namespace), Name: s.Spec.Name},
		UID: newUID(time.Now()), Spec: &s.Spec, IfVersion: s.IfVersion, Replace: s.Replace,
	}
	if f.Key.Name == "" {
		f.Key.Name = "job-" + random(5)
	}
	return explain.DryRun(snap, f, now)
}
