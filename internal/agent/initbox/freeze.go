package initbox

import (
	"context"
	"errors"

	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
)

// Freeze stops all of the sandbox, init with it. See contract.Sandbox. One that is stopping is not frozen any more.
func (s *sandbox) Freeze(ctx context.Context) error {
	select {
	case s.ice <- struct{}{}:
		defer func() { <-s.ice }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	stopped := s.stopped
	s.mu.Unlock()
	if stopped || s.isDone() {
		return contract.ErrNoSandbox
	}
	f, err := s.findFreezer()
	if err == nil {
		err = f.Freeze(ctx)
	}
	if err != nil && s.isDone() {
		return contract.ErrNoSandbox // its cgroup went with it
	}
	return err
}

// Thaw lets it go on.
func (s *sandbox) Thaw() error {
	s.ice <- struct{}{} // a freeze under way is bounded
	defer func() { <-s.ice }()
	f, err := s.findFreezer()
	if err != nil {
		return err
	}
	return f.Thaw()
}

// Frozen reports whether it stands.
func (s *sandbox) Frozen() bool {
	s.ice <- struct{}{}
	defer func() { <-s.ice }()
	f, err := s.findFreezer()
	return err == nil && f.Frozen()
}

// findFreezer needs the token.
func (s *sandbox) findFreezer() (*cgroup.Freezer, error) {
	if s.freezer == nil {
		f, err := cgroup.FindFreezer(s.record.Cgroups)
		if errors.Is(err, cgroup.ErrNoFreezer) {
			err = contract.ErrNoFreezer
		}
		if err != nil {
			return nil, err
		}
		s.freezer = f
	}
	return s.freezer, nil
}
