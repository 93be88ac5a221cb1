package submit

import (
	"context"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// SetEnvironment makes an environment, or changes the one of the name. The spec gets its defaults.
// With IfVersion the environment must be at that version.
func (s *Service) SetEnvironment(ctx context.Context, q *api.EnvironmentSetting) (*state.EnvironmentChange, error) {
	return s.proposeEnvironment(ctx, &q.Spec, state.EnvironmentSet{IfVersion: q.IfVersion})
}

// ReplaceEnvironment gives the environment was, as it was read, another spec; nil: there was none
// of the name. If somebody has changed it meanwhile, in whatever, nothing is done, and the error is
// a fault of kind conflict. It is a rollout: runners that nobody has are replaced also where the
// spec is the same.
func (s *Service) ReplaceEnvironment(ctx context.Context, was *state.Job, spec *api.EnvironmentSpec) (*state.EnvironmentChange, error) {
	if was == nil {
		none := uint64(0)
		return s.proposeEnvironment(ctx, spec, state.EnvironmentSet{IfVersion: &none})
	}
	return s.proposeEnvironment(ctx, spec, state.EnvironmentSet{IfSet: &was.Env.Set, Rollout: true})
}

// proposeEnvironment gives a spec its defaults, checks it, and proposes f with it. The checks are
// those of a job, by the same rules.
func (s *Service) proposeEnvironment(ctx context.Context, spec *api.EnvironmentSpec, f state.EnvironmentSet) (*state.EnvironmentChange, error) {
	spec.Defaults()
	problems := spec.Validate()
	if len(problems) == 0 {
		var err error
		if problems, err = s.missingUploads(ctx, spec.Job()); err != nil {
			return nil, err
		}
	}
	if len(problems) == 0 {
		runner := spec.Job()
		problems = s.disallowed(runner)
		spec.Isolation = runner.Isolation
	}
	if len(problems) == 0 {
		f.Architectures, problems = s.architectures(ctx, spec.Job())
	}
	if len(problems) > 0 {
		for i := range problems {
			problems[i].Location = joined("body.spec", problems[i].Location)
		}
		return nil, problem.Wrong(problems)
	}
	f.Key, f.UID, f.Spec = muster.EnvironmentKey(muster.Namespace(spec.Namespace), spec.Name), muster.JobUID(random(10)), spec
	_, changed, err := state.Propose(ctx, s.cfg.Proposer, &f)
	return changed, err
}

// DeleteEnvironment deletes an environment. Runners that nobody has end at once; claimed ones live
// on until they are released or expire, unless claimed is set.
func (s *Service) DeleteEnvironment(ctx context.Context, j *state.Job, claimed bool) error {
	_, _, err := s.cfg.Proposer.Propose(ctx, &state.EnvironmentDeleted{Key: j.Key, Claimed: claimed})
	return err
}
