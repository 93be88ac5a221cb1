package operate

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
)

// Providers are the clouds that nodes come from.
type Providers struct{ *desk }

// checkTimeout is how long a check may take if nothing is said.
const checkTimeout = 10 * time.Minute

// Check tries a provider: it launches one instance, waits for its agent, runs one command there,
// and destroys the instance, whatever happened before. The returned function does it, and calls say
// for each step; it is separate so that a wrong request is refused before anything is answered.
func (s *Providers) Check(name string, want api.ProviderCheck) (run func(ctx context.Context, say func(step, text string)) error, err error) {
	switch {
	case want.Timeout < 0 || want.Timeout.Std() > 24*time.Hour:
		return nil, problem.Invalid("body.timeout", "is %s; give a time above 0s and up to 24h", want.Timeout)
	case s.cfg.Check == nil:
		return nil, muster.Faultf(muster.FaultUnavailable, "providers cannot be checked here")
	}
	if want.Timeout == 0 {
		want.Timeout = api.Duration(checkTimeout)
	}
	if want.DryRun && (want.Offering != "" || len(want.Command) > 0) {
		return nil, problem.Invalid("body.dry_run", "launches nothing, so it goes with neither offering nor command")
	}
	if len(want.Command) == 0 {
		want.Command = []string{"uname", "-a"}
	}
	return func(ctx context.Context, say func(step, text string)) error {
		return s.cfg.Check(ctx, muster.ProviderName(name), want, say)
	}, nil
}
