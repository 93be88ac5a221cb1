package submit

import (
	"cmp"
	"context"
	"fmt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/roll"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// Scale gives a service more or fewer members: that is a new version, which starts no member anew.
func (s *Service) Scale(ctx context.Context, j *state.Job, q *api.JobScale) (*state.Submitted, error) {
	if q.Count < 1 || q.Count > api.MaxCount {
		return nil, problem.Invalid("body.count", "is %d; a service has 1 to %d members; stop it to have none", q.Count, api.MaxCount)
	}
	if err := mayChange(j, "scaled", false); err != nil {
		return nil, err
	}
	spec := j.Run.Spec.Clone()
	spec.Count = q.Count
	version := j.Version
	return s.resubmit(ctx, &state.JobSubmitted{Key: j.Key, UID: j.UID, Spec: spec, IfVersion: &version, Architectures: j.Run.Architectures,
		Note: cmp.Or(q.Reason, fmt.Sprintf("scaled from %d to %d", j.Count(), q.Count))}, q.IfVersion)
}

// Revert goes back to an earlier version of a service or system job: its spec is submitted again as
// a new version, with the count and the priority that the job has now. Version 0 is the newest one
// before that was healthy.
func (s *Service) Revert(ctx context.Context, j *state.Job, q *api.JobRevert) (*state.Submitted, error) {
	if err := mayChange(j, "reverted", true); err != nil {
		return nil, err
	}
	var to *state.PastVersion
	if q.Version == 0 {
		if to = roll.Target(j); to == nil {
			return nil, muster.Faultf(muster.FaultConflict, "job %s: no earlier version with another configuration was healthy; choose one from `muster job history %s`", j.Key, j.Key)
		}
	}
	known := ""
	for i := range j.Standing.Past {
		p := &j.Standing.Past[i]
		known += fmt.Sprintf(" %d", p.Version)
		if p.Version == q.Version {
			to = p
		}
	}
	switch {
	case q.Version == j.Version:
		return nil, muster.Faultf(muster.FaultConflict, "job %s is at version %d", j.Key, j.Version)
	case to == nil && known == "":
		return nil, problem.Invalid("body.version", "is %d; no earlier version of job %s is kept", q.Version, j.Key)
	case to == nil:
		return nil, problem.Invalid("body.version", "is %d; versions of job %s that are kept:%s", q.Version, j.Key, known)
	}
	return s.resubmit(ctx, roll.Revert(j, to, cmp.Or(q.Reason, fmt.Sprintf("back to version %d", to.Version))), q.IfVersion)
}

// mayChange refuses a job that is no service, or does not live; a system job only if system is not
// set. what is the change.
func mayChange(j *state.Job, what string, system bool) error {
	switch {
	case j.Standing == nil:
		return muster.Faultf(muster.FaultConflict, "job %s is of type %s; only a service can be %s", j.Key, j.Run.Spec.Type, what)
	case j.Run.System() && !system:
		return muster.Faultf(muster.FaultConflict, "job %s is of type system: it has a member on each node that fits, and cannot be %s", j.Key, what)
	case j.Stage != muster.JobLive:
		return muster.Faultf(muster.FaultConflict, "job %s is %s and cannot be %s; submit it again", j.Key, j.Stage, what)
	}
	return nil
}

// resubmit has a spec that was accepted before as the next version of its job. The fact holds to
// the version that the spec was read from; what the client demands has to be that one.
func (s *Service) resubmit(ctx context.Context, f *state.JobSubmitted, demanded *uint64) (*state.Submitted, error) {
	if demanded != nil && f.IfVersion != nil && *demanded != *f.IfVersion {
		return nil, muster.Faultf(muster.FaultConflict, "job %s is at version %d, not %d", f.Key, *f.IfVersion, *demanded)
	}
	if problems := s.policy(f.Spec.Namespace).Problems(f.Spec); len(problems) > 0 {
		return nil, problem.Wrong(problems)
	}
	_, done, err := state.Propose(ctx, s.cfg.Proposer, f)
	return done, err
}
