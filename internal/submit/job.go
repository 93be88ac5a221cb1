package submit

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/explain"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// State is what is read.
type State interface {
	Latest() *state.Snapshot
}

// Config of a Service. All but those marked optional are needed.
type Config struct {
	State    State
	Proposer state.Proposer
	// Clock is the log's; nil: the system's.
	Clock   clock.Clock
	Uploads Uploads
	// UploadLimit is the most bytes that an upload may have. 0: 4 GiB.
	UploadLimit int64
	// Fits says whether some offering or node can hold a member of a job, and in one sentence
	// where, or what it is short of. The spec has its defaults.
	Fits func(spec *api.JobSpec, snap *state.Snapshot) (ok bool, why string)
	// Architectures finds out for which architectures an image is; none if that is not known, or makes no
	// difference. Optional: without, images are for any.
	Architectures func(ctx context.Context, ns muster.Namespace, image string) []string
	// Running is the configuration that the server runs with now: its policies count. Optional:
	// without, everything is allowed.
	Running func() *api.ServerConfig
	// Planning lets those who compute where members would be placed do so one at a time. Optional.
	Planning *wait.Turn
	// InUse are the jobs that are being retried, or whose stored output is being deleted: the reaper
	// has the same. Optional.
	InUse *wait.InUse[muster.JobUID]
	// Paused says why nothing is placed at all; "" if the scheduler runs. Optional.
	Paused func() string
	// NoContainers says why no node can ever run containers; "" if one may. Optional.
	NoContainers func() string
	// NoBridge says the same of containers with a network of their own. Optional.
	NoBridge func() string
}

// Service takes in jobs and environments. Its methods may be called from any goroutine, and keep
// nothing between calls. Errors are problems and faults; fields of problems are named as in the
// body of a request, such as body.spec.count.
type Service struct{ cfg Config }

// New makes a Service. It starts nothing.
func New(c Config) (*Service, error) {
	if c.State == nil || c.Proposer == nil || c.Uploads == nil || c.Fits == nil {
		return nil, errors.New("submissions: state, proposer, uploads and fits are needed")
	}
	c.UploadLimit = cmp.Or(c.UploadLimit, usualUploadLimit)
	if c.Planning == nil {
		c.Planning = wait.NewTurn()
	}
	if c.InUse == nil {
		c.InUse = &wait.InUse[muster.JobUID]{}
	}
	if c.Paused == nil {
		c.Paused = func() string { return "" }
	}
	return &Service{c}, nil
}

// Job submits a job: it makes one, or a new version of one that is there, or changes nothing. The
// spec gets its defaults. key is empty, or the same for requests of which only the first shall do
// anything. A job without a name gets one.
func (s *Service) Job(ctx context.Context, q *api.JobSubmission, key string) (*state.Submitted, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	f := &state.JobSubmitted{Idempotency: key, IfVersion: q.IfVersion, Replace: q.Replace}
	if key != "" {
		// Of what was asked, before a name is made and whatever the JSON looked like.
		sum, err := q.Digest()
		if err != nil {
			return nil, err
		}
		f.Digest = hex.EncodeToString(sum[:])
	}
	q.Spec.Defaults()
	problems := q.Spec.Validate()
	if len(problems) == 0 {
		var err error
		if problems, err = s.missingUploads(ctx, &q.Spec); err != nil {
			return nil, err
		}
	}
	if len(problems) == 0 {
		problems = s.refused(&q.Spec)
	}
	if len(problems) == 0 {
		f.Architectures, problems = s.architectures(ctx, &q.Spec)
	}
	if len(problems) > 0 {
		for i := range problems {
			problems[i].Location = joined("body.spec", problems[i].Location)
		}
		return nil, problem.Wrong(problems)
	}
	unnamed := q.Spec.Name == ""
	if unnamed {
		q.Spec.Name = nameOf(muster.Namespace(q.Spec.Namespace), key)
	}
	// The name comes from the key: a job that has it is that of an earlier try, also when the key
	// itself is forgotten.
	onlyNew := unnamed && key != "" && !q.Replace && q.IfVersion == nil
	if onlyNew {
		f.IfVersion = new(uint64)
	}
	f.Key = muster.JobKey{Namespace: muster.Namespace(q.Spec.Namespace), Name: q.Spec.Name}
	f.UID = newUID(time.Now())
	f.Spec = &q.Spec
	_, done, err := state.Propose(ctx, s.cfg.Proposer, f)
	if onlyNew && muster.IsKind(err, muster.FaultConflict) {
		if j := s.cfg.State.Latest().Job(f.Key); j != nil && j.Run.Spec.Equal(f.Spec) {
			return &state.Submitted{Key: j.Key, UID: j.UID, Version: j.Version, Index: j.Age, Unchanged: true}, nil
		}
		return nil, muster.Faultf(muster.FaultConflict, "idempotency key %q was used before for another request, of job %s; use a new key for each job", key, f.Key)
	}
	return done, err
}

// checkKey refuses an idempotency key that cannot be shown.
func checkKey(key string) error {
	if i := strings.IndexFunc(key, func(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) }); i >= 0 {
		return &muster.Fault{Kind: muster.FaultInvalid, Field: "header.Idempotency-Key", Message: fmt.Sprintf("has at position %d what is neither text nor a space; send any printable text", i+1)}
	}
	return nil
}

// Validate says what is wrong with a job, what it is with its defaults, and whether a member fits
// anywhere; with plan also what a submission would do now. Nothing is proposed.
func (s *Service) Validate(ctx context.Context, q *api.JobSubmission, plan bool) (*api.JobValidation, error) {
	q.Spec.Defaults()
	problems := q.Spec.Validate()
	if len(problems) == 0 {
		problems = s.refused(&q.Spec)
	}
	var architectures []string
	if len(problems) == 0 {
		architectures, problems = s.architectures(ctx, &q.Spec)
	}
	out := &api.JobValidation{Spec: q.Spec, Problems: problems}
	if len(problems) == 0 {
		snap := s.cfg.State.Latest()
		out.Fits, out.Why = s.cfg.Fits(placedSpec(&q.Spec, architectures), snap)
		if plan {
			if err := s.cfg.Planning.Take(ctx); err != nil {
				return nil, err
			}
			defer s.cfg.Planning.Leave()
			out.Plan = planOf(q, architectures, snap, s.cfg.Clock.Now())
			out.Plan.Paused = s.cfg.Paused()
		}
	}
	return out, nil
}

// planOf is what a submission would do now. A job without a name gets one, as if it were submitted.
func planOf(s *api.JobSubmission, architectures []string, snap *state.Snapshot, now muster.Time) *api.JobPlan {
	f := &state.JobSubmitted{
		Key: muster.JobKey{Namespace: muster.Namespace(s.Spec.Namespace), Name: s.Spec.Name},
		UID: newUID(time.Now()), Spec: &s.Spec, IfVersion: s.IfVersion, Replace: s.Replace, Architectures: architectures,
	}
	if f.Key.Name == "" {
		f.Key.Name = "job-" + random(5)
	}
	return explain.DryRun(snap, f, now)
}

// Stop stops a job: nothing of it is placed again, and what runs is told to stop. The note says
// what was not done, and why; empty if the job was stopped.
func (s *Service) Stop(ctx context.Context, j *state.Job, reason string) (now *state.Job, note string, err error) {
	if j.Stage == muster.JobLive {
		// What it was when the stop came: another's may have been first.
		if _, j, err = state.Propose(ctx, s.cfg.Proposer, &state.JobStopped{Key: j.Key, Reason: reason}); err != nil {
			return nil, "", err
		}
	}
	switch j.Stage {
	case muster.JobStopping:
		note = fmt.Sprintf("job %s is stopping already", j.Key)
	case muster.JobEnded:
		note = fmt.Sprintf("job %s has ended already", j.Key)
	}
	if now := s.cfg.State.Latest().Job(j.Key); now != nil {
		j = now
	}
	return j, note, nil
}
