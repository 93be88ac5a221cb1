package reaper

import (
	"context"
	"errors"
	"fmt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/state"
)

// attempts purges old attempts of jobs that have not ended: of each member all but the newest ended
// ones.
func (r *Reaper) attempts(ctx context.Context) error {
	var jobs []muster.JobUID
	r.cfg.State.Latest().Jobs(muster.JobKey{}, func(j *state.Job) bool {
		// Attempts are numbered without gaps, so a job whose highest attempt is small cannot have
		// too many. Package runners purges runners. A system job has a member for each node, and a
		// member goes with its node, so the number says nothing there.
		if j.Stage != muster.JobEnded && j.Env == nil && (j.MaxAttempt > r.cfg.Attempts || j.Run.System()) {
			jobs = append(jobs, j.UID)
		}
		return true
	})
	var errs []error
	for _, uid := range jobs {
		// A failure for one job does not keep the others from being purged.
		if err := r.attemptsOf(ctx, uid); err != nil && len(errs) < 10 {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return errors.Join(errs...)
}

// attemptsOf purges the old attempts of one job, batch by batch. In each batch the blobs are
// deleted before the fact that forgets the allocations. After a crash in between, the next sweep
// finds the allocations again and deletes what is left.
func (r *Reaper) attemptsOf(ctx context.Context, uid muster.JobUID) error {
	for from := 0; ctx.Err() == nil; {
		old := oldAttempts(r.cfg.State.Latest(), uid, from, r.cfg.Attempts, r.cfg.Kept())
		if len(old) == 0 {
			return nil
		}
		f := &state.AllocsPurged{}
		for _, a := range old {
			if a.Output.Stage == state.OutputIncomplete || a.Output.BlobBytes > 0 || len(a.Run.Spec.Outputs) > 0 {
				if err := r.cfg.Blobs.DeletePrefix(ctx, blob.AllocPrefix(a.Run.Key.Namespace, a.UID, a.ID)); err != nil {
					return fmt.Errorf("delete the output of allocation %s: %w", a.ID, err)
				}
			}
			f.Allocs = append(f.Allocs, a.ID)
		}
		_, n, err := state.Propose(ctx, r.cfg.Proposer, f)
		if err != nil {
			return fmt.Errorf("purge %d earlier attempts: %w", len(f.Allocs), err)
		}
		r.log.Debug("earlier attempts forgotten", "job", old[0].Run.Key.String(), "attempts", n)
		if n != len(f.Allocs) || len(old) < batch {
			// The state refused some, or no more are left. The next sweep goes on.
			return nil
		}
		// Nothing is left to purge of the members before this one. Looking at them again for each
		// batch would take quadratic time. A system job needs all its members each time, because
		// the attempts of those that are gone are counted together.
		if last := old[len(old)-1]; !last.Run.System() {
			from = last.Index
		}
	}
	return ctx.Err()
}

// oldAttempts returns up to a batch of ended attempts of a job above the number to keep of each
// member, the oldest first, beginning at a member. Members of a system job that went with their
// nodes count as one member. An attempt that changed after index kept is left alone: it may not be in
// the history yet.
func oldAttempts(snap *state.Snapshot, uid muster.JobUID, from, keep int, kept uint64) (out []*state.Alloc) {
	// ended has those of the current member, left those of members that went with their nodes, the
	// oldest first.
	var ended []*state.Alloc
	var left []*state.Alloc
	j := snap.JobByUID(uid)
	// take handles a member once all its attempts are in ended. It reports whether to go on.
	take := func() bool {
		if j != nil && j.Run.System() && len(ended) > 0 && snap.Member(uid, ended[0].Index) == nil {
			left = append(left, ended...)
			ended = ended[:0]
			return true
		}
		if over := len(ended) - keep; over > 0 {
			out = append(out, ended[:over]...)
		}
		ended = ended[:0]
		return len(out) < batch
	}
	snap.JobAllocs(uid, from, func(a *state.Alloc) bool {
		if len(ended) > 0 && ended[0].Index != a.Index && !take() {
			return false
		}
		// An attempt whose output is still being stored is left alone: the output would belong to
		// nothing.
		if !a.Live() && a.Output.Stage != state.OutputOpen && a.Modified <= kept {
			ended = append(ended, a)
		}
		return true
	})
	take()
	if over := len(left) - keep; over > 0 {
		out = append(out, left[:over]...)
	}
	return out[:min(len(out), batch)]
}
