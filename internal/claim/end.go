package claim

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// Claimed is the claim that has a runner now; a problem with status 410 says why there is none.
func (s *Service) Claimed(runner string) (*state.Claim, error) {
	snap := s.cfg.State.Latest()
	gone := func(format string, args ...any) error {
		return problem.New(http.StatusGone, api.CodeNotClaimed, fmt.Sprintf(format, args...))
	}
	al := snap.Alloc(muster.AllocID(runner))
	if al == nil || al.Runner == "" {
		return nil, gone("runner %s does not exist, or its end is no longer kept; `muster runner list` shows the runners", problem.Clip(runner))
	}
	c := snap.Claim(al.Claim)
	switch {
	case al.Runner == muster.RunnerClaimed && c != nil:
		return c, nil
	case c != nil:
		return nil, gone("runner %s is gone: %s", al.ID, claimEnd(c))
	case al.Runner == muster.RunnerGone:
		return nil, gone("runner %s is gone%s", al.ID, muster.Because(present.RunnerEnd(al)))
	}
	return nil, gone("runner %s is %s, and not claimed", al.ID, al.Runner)
}

// claimEnd says how a claim ended.
func claimEnd(c *state.Claim) string {
	// The reason of a released claim begins with that word.
	why := muster.Because(strings.TrimPrefix(strings.TrimPrefix(c.Reason, string(c.State)), ": "))
	switch c.State {
	case muster.ClaimExpired:
		return "its claim expired" + why
	case muster.ClaimLost:
		return "it ended" + why // by itself, or with its node
	}
	return "it was " + string(c.State) + why
}

// Release ends the claim of a runner. One that was released before stays so: a client whose first
// answer was lost repeats it.
func (s *Service) Release(ctx context.Context, runner string) error {
	c, err := s.Claimed(runner)
	if err == nil {
		_, _, err = s.cfg.Proposer.Propose(ctx, &state.ClaimReleased{Claim: c.ID})
	}
	if err == nil || s.released(runner) {
		return nil
	}
	return err
}

// released reports whether the claim of a runner ended by a release.
func (s *Service) released(runner string) bool {
	snap := s.cfg.State.Latest()
	al := snap.Alloc(muster.AllocID(runner))
	if al == nil {
		return false
	}
	c := snap.Claim(al.Claim)
	return c != nil && c.State == muster.ClaimReleased
}
