package claim

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// Request is a wish for a runner.
type Request struct {
	// UID is the environment's.
	UID muster.JobUID
	// TTL and Idle of the claim; 0: none. Wait is how long to wait if no runner is warm.
	TTL, Idle, Wait time.Duration
	// Note is the holder's own text.
	Note string
	// Key and Digest of a request that may be repeated; empty if it is not.
	Key, Digest string
}

// Runners hands out runners. Its methods may be called from any goroutine.
type Runners interface {
	// Claim faults: capacity (none is warm), not-found, conflict, unavailable, and those of the
	// log.
	Claim(ctx context.Context, r Request) (*state.Claim, error)
	// Use notes that a claim's runner is used until end is called.
	Use(id muster.ClaimID) (end func())
	// Waiting is how many claims wait for a runner of an environment.
	Waiting(environment muster.JobUID) int
}

// State is what is read.
type State interface {
	Latest() *state.Snapshot
}

// Config of a Service.
type Config struct {
	State    State
	Proposer state.Proposer
	// Clock is the log's; nil: the system's.
	Clock clock.Clock
	// Runners is the loop that hands out runners, while this server leads; else it returns nil.
	// Optional: without it there are no claims.
	Runners func() Runners
	// Key is what the secrets of claims are derived from. Needed if there is Runners.
	Key muster.Secret
}

// Service makes, extends and ends claims. Its methods may be called from any goroutine, and keep
// nothing between calls. Errors are problems and faults.
type Service struct{ cfg Config }

// New makes a Service. It starts nothing.
func New(c Config) (*Service, error) {
	switch {
	case c.State == nil, c.Proposer == nil:
		return nil, errors.New("claims: state and proposer are needed")
	case c.Runners == nil:
		c.Runners = func() Runners { return nil }
	case c.Key.IsZero():
		return nil, errors.New("claims: there are runners, and no key for the secrets of claims")
	}
	return &Service{c}, nil
}

// Use notes that a claim's runner is used until end is called.
func (s *Service) Use(id muster.ClaimID) (end func()) {
	if r := s.cfg.Runners(); r != nil {
		return r.Use(id)
	}
	return func() {}
}

// Waiting is how many claims wait for a runner of an environment now.
func (s *Service) Waiting(environment muster.JobUID) int {
	if r := s.cfg.Runners(); r != nil {
		return r.Waiting(environment)
	}
	return 0
}

// Claim makes a claim. key is empty, or the same for requests of which only the first shall make
// one. A problem with the code none-warm says that no runner is warm, and why.
func (s *Service) Claim(ctx context.Context, q *api.ClaimRequest, key string) (*state.Claim, error) {
	q.Namespace = cmp.Or(q.Namespace, string(muster.DefaultNamespace))
	if err := problem.Names("body.environment", q.Environment); err != nil {
		return nil, err
	}
	if err := problem.Names("body.namespace", q.Namespace); err != nil {
		return nil, err
	}
	if p := wrongTimes(q.TTL, q.Idle, q.Wait); p != nil {
		return nil, p
	}
	j := s.cfg.State.Latest().Environment(muster.Namespace(q.Namespace), q.Environment)
	switch {
	case j == nil:
		return nil, problem.NotFound("environment %s: not found", muster.JobKey{Namespace: muster.Namespace(q.Namespace), Name: q.Environment})
	case j.Stage != muster.JobLive:
		return nil, problem.NotFound("environment %s is being deleted", q.Environment)
	}
	spec := j.Env.Spec
	w := Request{UID: j.UID, TTL: spec.TTL.Std(), Idle: spec.Idle.Std(), Wait: q.Wait.Std(), Note: q.Note, Key: key}
	if q.TTL != nil {
		w.TTL = q.TTL.Std()
	}
	w.TTL = within(spec, w.TTL, 0)
	if q.Idle != nil {
		w.Idle = q.Idle.Std()
	}
	if key != "" {
		// How long the client waits is no part of what it wants.
		asked := *q
		asked.Wait = 0
		b, err := json.Marshal(&asked)
		if err != nil {
			return nil, fmt.Errorf("digest of claim: %w", err)
		}
		sum := sha256.Sum256(b)
		w.Digest = hex.EncodeToString(sum[:])
	}
	r := s.cfg.Runners()
	if r == nil {
		return nil, muster.Faultf(muster.FaultUnavailable, "the server hands out no runners now")
	}
	c, err := r.Claim(ctx, w)
	if muster.IsKind(err, muster.FaultCapacity) {
		return nil, problem.New(http.StatusServiceUnavailable, api.CodeNoneWarm, fmt.Sprintf("environment %s: %s%s", q.Environment, err, whyNoneWarm(s.cfg.State.Latest(), w.UID)))
	}
	return c, err
}

// whyNoneWarm says what keeps an environment from having a warm runner: the last failure of one, or
// what one that starts is at. It costs the same however many there are.
func whyNoneWarm(snap *state.Snapshot, uid muster.JobUID) string {
	j := snap.JobByUID(uid)
	if j == nil || j.Env == nil {
		return ""
	}
	if j.Env.Failures > 0 && j.Env.Failure != "" {
		return "; the last runner that was started failed: " + j.Env.Failure
	}
	why := ""
	snap.Retries(uid).Due(1<<62, func(m *state.Member) bool {
		why = m.Reason
		return false
	})
	if why != "" {
		return "; the last runner that was started failed: " + why
	}
	snap.Runners(uid, muster.RunnerStarting, func(al *state.Alloc) bool {
		why = al.Detail
		return false
	})
	switch {
	case why != "":
		return "; the first that is starting: " + why
	case j.Waiting() > 0:
		return fmt.Sprintf("; %s without a place on a node", muster.Counted(j.Waiting(), "runner"))
	}
	return ""
}

// wrongTimes refuses time-outs that no claim can have.
func wrongTimes(ttl, idle *api.Duration, wait api.Duration) *problem.Problem {
	var bad []api.ProblemField
	for _, t := range []struct {
		name string
		d    *api.Duration
		most api.Duration
	}{{"ttl", ttl, api.MaxClaimTime}, {"idle", idle, api.MaxClaimTime}, {"wait", &wait, api.MaxClaimWait}} {
		if t.d != nil && (*t.d < 0 || *t.d > t.most) {
			bad = append(bad, api.ProblemField{Location: "body." + t.name, Message: fmt.Sprintf("is %s; it is 0s to %s", t.d, t.most)})
		}
	}
	if len(bad) == 0 {
		return nil
	}
	p := problem.Wrong(bad)
	p.Status, p.Title = http.StatusBadRequest, http.StatusText(http.StatusBadRequest)
	return p
}

// within is the time that a claim gets from now on when it asks for ttl, 0 for no end, having lived
// so long already: never more than its environment lets claims live. One that has lived so long is
// left a moment, and expires.
func within(spec *api.EnvironmentSpec, ttl, lived time.Duration) time.Duration {
	if spec.MaxTTL == 0 {
		return ttl
	}
	left := max(spec.MaxTTL.Std()-lived, time.Microsecond)
	if ttl == 0 {
		return left
	}
	return min(ttl, left)
}

// Extend sets the deadline of a runner's claim, from now on, or its idle time; what is not given
// stays as it is. It counts as use.
func (s *Service) Extend(ctx context.Context, runner string, q *api.ClaimExtension) (*state.Claim, error) {
	if p := wrongTimes(q.TTL, q.Idle, 0); p != nil {
		return nil, p
	}
	c, err := s.Claimed(runner)
	if err != nil {
		return nil, err
	}
	f := &state.ClaimExtended{Claim: c.ID, TTL: -1, Idle: -1}
	if q.TTL != nil {
		ttl := q.TTL.Std()
		if j := s.cfg.State.Latest().JobByUID(c.UID); j != nil && j.Env != nil {
			ttl = within(j.Env.Spec, ttl, s.cfg.Clock.Now().Sub(c.Made))
		}
		f.TTL = muster.Time(ttl.Microseconds())
	}
	if q.Idle != nil {
		f.Idle = muster.Time(q.Idle.Std().Microseconds())
	}
	_, c, err = state.Propose(ctx, s.cfg.Proposer, f)
	return c, err
}
