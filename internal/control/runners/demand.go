package runners

import (
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/warm"
	"github.com/musterhq/muster/internal/state"
)

// recentDemand returns the facts that record the demand of the environments of which claims came
// since the last call. Within a minute only a new peak changes a record, so that an environment with
// many claims costs the log one short row a minute.
func (r *Runners) recentDemand(now muster.Time) (out []state.Fact) {
	snap := r.cfg.State.Latest()
	if meta := snap.Meta(); meta.LogFormat() < state.FormatDemand {
		return nil
	}
	var rows []state.EnvironmentDemand
	r.mu.Lock()
	for uid := range r.counted {
		p, j := r.pools[uid], snap.JobByUID(uid)
		if p == nil || j == nil || j.Env == nil || j.Stage != muster.JobLive {
			delete(r.counted, uid)
			continue
		}
		d := warm.Record(p.picture(now, r.began), now)
		if d.Equal(j.Env.Demand) {
			delete(r.counted, uid)
			continue
		}
		// It stays marked until the log has it.
		rows = append(rows, state.EnvironmentDemand{UID: uid, Demand: d})
	}
	r.mu.Unlock()
	slices.SortFunc(rows, func(a, b state.EnvironmentDemand) int { return compareUIDs(a.UID, b.UID) })
	for part := range slices.Chunk(rows, batch) {
		out = append(out, &state.DemandSeen{Environments: part})
	}
	return out
}
