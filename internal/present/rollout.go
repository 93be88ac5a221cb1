package present

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/roll"
	"github.com/musterhq/muster/internal/state"
)

// Rollout shows the progress of the rollout of a service or system job; nil for every other job. A
// member is available once it has been healthy for long enough, so the figures depend on now. A now
// before the time of the snapshot counts as that time: the clocks of two servers differ a little.
// Updated members run as the job says now, and Healthy is a part of them. Available members are
// healthy in any version, because an earlier version serves until it is replaced.
func Rollout(snap *state.Snapshot, j *state.Job, now muster.Time) *api.Rollout {
	st := j.Standing
	if st == nil {
		return nil
	}
	p := roll.ProgressOf(snap, j, max(now, snap.Meta().Time))
	return &api.Rollout{
		Stage: string(st.Rollout), Version: st.Version, Began: st.Began.Std(), Ended: Time(st.Ended), Reason: st.Reason,
		Stable: st.Stable, Reverts: st.Reverts, Note: st.Note,
		Wanted: p.Wanted, Updated: p.Updated, Healthy: p.Healthy, Available: p.Available,
	}
}
