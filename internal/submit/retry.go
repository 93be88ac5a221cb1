package submit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// Retry has members of a batch job that did not succeed wait again. What succeeded stays as it is,
// with its outputs. The job keeps its spec, which must still be one that could be submitted. key is
// empty, or the same for requests of which only the first shall do anything.
func (s *Service) Retry(ctx context.Context, key muster.JobKey, q *api.JobRetry, idempotency string) (*api.JobRetried, error) {
	if err := checkKey(idempotency); err != nil {
		return nil, err
	}
	if err := checkMembers(q); err != nil {
		return nil, err
	}
	j := s.cfg.State.Latest().Job(key)
	if j == nil || j.Env != nil {
		return nil, s.forgotten(key)
	}
	f := &state.JobRetried{Key: key, UID: j.UID, Members: q.Members, All: q.All, Idempotency: idempotency}
	if idempotency != "" {
		sum, err := json.Marshal(struct {
			Retry string
			*api.JobRetry
		}{key.String(), q})
		if err != nil {
			return nil, err
		}
		digest := sha256.Sum256(sum)
		f.Digest = hex.EncodeToString(digest[:])
	}
	// A repetition gets the first answer, whatever has changed since.
	if !state.Received(s.cfg.State.Latest(), key.Namespace, idempotency) {
		if err := s.mayRunAgain(ctx, j); err != nil {
			return nil, err
		}
	}
	// The reaper deletes stored output before the log says so. A job that it has begun with must not
	// live again: the outputs of members that succeeded would be missing.
	if !s.cfg.InUse.TryTake(j.UID) {
		return nil, muster.Faultf(muster.FaultUnavailable, "job %s: its stored output is being deleted, or another request retries it; try again in a minute", key)
	}
	defer s.cfg.InUse.Leave(j.UID)
	_, done, err := state.Propose(ctx, s.cfg.Proposer, f)
	if err != nil {
		return nil, err
	}
	return &api.JobRetried{
		Namespace: string(done.Key.Namespace), Name: done.Key.Name, UID: string(done.UID), Version: done.Version,
		Index: done.Index, Retried: done.Members, Unchanged: done.Repeated,
	}, nil
}

// checkMembers refuses a list of members that says nothing, too much, or something else than All.
func checkMembers(q *api.JobRetry) error {
	switch {
	case q.All && len(q.Members) > 0:
		return problem.Invalid("body.members", "and all exclude each other; leave out one of them")
	case q.Members != nil && len(q.Members) == 0:
		return problem.Invalid("body.members", "is empty; name a member, or leave it out for those that failed")
	case len(q.Members) > api.MaxRetryMembers:
		return problem.Invalid("body.members", "has %d members; at most %d can be named at once", len(q.Members), api.MaxRetryMembers)
	}
	for i, m := range q.Members {
		if m < 0 {
			return problem.Invalid(fmt.Sprintf("body.members[%d]", i), "is %d; members are counted from 0", m)
		}
	}
	return nil
}

// mayRunAgain refuses a job that could not be submitted any more as it is: because of a policy that
// came later, or inputs that were deleted.
func (s *Service) mayRunAgain(ctx context.Context, j *state.Job) error {
	if j.Standing != nil {
		return nil // the log refuses it, for a better reason
	}
	spec := j.Run.Spec.Clone()
	problems, err := s.missingUploads(ctx, spec)
	if err != nil {
		return err
	}
	if problems = append(problems, s.refused(spec)...); len(problems) == 0 {
		return nil
	}
	var why []string
	for _, p := range problems {
		why = append(why, strings.TrimSpace(p.Location+" "+p.Message))
	}
	return muster.Faultf(muster.FaultConflict, "job %s cannot be retried as it is: %s; submit it again with what has to change", j.Key, strings.Join(why, "; "))
}

// forgotten says that there is no job of a name, or none any more.
func (s *Service) forgotten(key muster.JobKey) error {
	kept := ""
	if s.cfg.Running != nil {
		kept = fmt.Sprintf(" (retention.jobs of the server is %s)", s.cfg.Running().Retention.Jobs)
	}
	return problem.NotFound("job %s: not found; a job can be retried only while the server keeps it after its end%s; submit it again", key, kept)
}
