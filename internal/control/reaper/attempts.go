package reaper

import (
	"context"
	"errors"
	"fmt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/state"
)

// attempts purges what members of jobs that live have left behind: of each member all but the newest ended attempts.
func (r *Reaper) attempts(ctx context.Context) error {
	var jobs []muster.JobUID
	r.cfg.State.Latest().Jobs(muster.JobKey{}, func(j *state.Job) bool {
		// As no attempt comes twice, a member of a job with so few cannot have more. Runners are purged by who makes them.
		// Of a system job each node has a member of its own, which goes with it.
		if j.Stage != muster.JobEnded && j.Env == nil && (j.MaxAttempt > r.cfg.Attempts || j.Run.System()) {
			jobs = append(jobs, j.UID)
		}
		return true
	})
	var errs []error
	for _, uid := range jobs {
		// What cannot be deleted of one job keeps nothing of the others.
		if err := r.attemptsOf(ctx, uid); err != nil && len(errs) < 10 {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return errors.Join(errs...)
}

func (r *Reaper) attemptsOf(ctx context.Context, uid muster.JobUID) error {
	for from := 0; ctx.Err() == nil; {
		old := oldAttempts(r.cfg.State.Latest(), uid, from, r.cfg.Attempts)
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
			return nil // what is left comes with the next sweep
		}
		// Of the members before it nothing is left to purge: looked at again for each batch they would cost the square of their
		// number. Of a system job those that went are told by all of them.
		if last := old[len(old)-1]; !last.Run.System() {
			from = last.Index
		}
	}
	return ctx.Err()
}

// oldAttempts are up to a batch of ended attempts of a job beyond those that are kept of each member, the oldest first, from one member
// on. Members of a system job that went with their nodes count as one.
func oldAttempts(snap *state.Snapshot, uid muster.JobUID, from, keep int) (out []*state.Alloc) {
	var ended []*state.Alloc // of one member, the oldest first
	var left []*state.Alloc  // of members that went with their nodes, the oldest first
	j := snap.JobByUID(uid)
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
		// Output that is still on its way would be stored for nobody.
		if !a.Live() && a.Output.Stage != state.OutputOpen {
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
