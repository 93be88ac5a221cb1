package httpapi

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// ClaimWant is a wish for a runner; 0 is none.
type ClaimWant struct {
	Environment     muster.JobUID
	TTL, Idle, Wait time.Duration
	Note            string
	Key, Digest     string
}

// Runners hands out runners while this server leads. Its methods may be called from any goroutine.
type Runners interface {
	// Claim faults: capacity (none is warm), not-found, conflict, unavailable, and those of the log.
	Claim(ctx context.Context, w ClaimWant) (*state.Claim, error)
	// Use notes that a claim's runner is used until end is called.
	Use(id muster.ClaimID) (end func())
	// Waiting is how many claims wait for a runner of an environment.
	Waiting(environment muster.JobUID) int
}

type noRunners struct{}

func (noRunners) Claim(context.Context, ClaimWant) (*state.Claim, error) {
	return nil, muster.Faultf(muster.FaultUnavailable, "this server hands out no runners")
}
func (noRunners) Use(muster.ClaimID) func() { return func() {} }
func (noRunners) Waiting(muster.JobUID) int { return 0 }

func (a *API) runnerRoutes() {
	claim := operation(http.MethodPost, "/v1/claims", "claim-runner", tagRunners, "Claim a runner",
		"The answer has the runner's id, and the secret by which it is used. With an Idempotency-Key a repeated request gets the same claim and the same secret. 503 with code none-warm: none is warm, and the claim does not wait or has waited long enough.")
	claim.DefaultStatus = http.StatusCreated
	claim.Errors = append(claim.Errors, http.StatusNotFound, http.StatusConflict, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.ClaimRequest](a, &claim, true)
	register(a, claim, a.claim)
	register(a, operation(http.MethodGet, "/v1/claims", "list-claims", tagRunners, "List claims", "By id, those included that have ended lately."), a.listClaims)
	one := operation(http.MethodGet, "/v1/claims/{claim}", "get-claim", tagRunners, "Show a claim", "")
	one.Errors = append(one.Errors, http.StatusNotFound)
	register(a, one, a.getClaim)

	register(a, operation(http.MethodGet, "/v1/runners", "list-runners", tagRunners, "List runners", "Of every environment, or of one; those that are gone only if asked for."), a.listRunners)
	show := operation(http.MethodGet, "/v1/runners/{id}", "get-runner", tagRunners, "Show a runner", "In whatever state.")
	show.Errors = append(show.Errors, http.StatusNotFound)
	register(a, show, a.getRunner)
	release := operation(http.MethodDelete, "/v1/runners/{id}", "release-runner", tagRunners, "Give a runner back", "Its claim ends, and it is destroyed. May be repeated. 410 if it was not claimed, or its claim ended otherwise.")
	release.DefaultStatus = http.StatusNoContent
	release.Errors = append(release.Errors, http.StatusGone, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	register(a, release, a.releaseRunner)
	extend := operation(http.MethodPost, "/v1/runners/{id}/extend", "extend-claim", tagRunners, "Extend a runner's claim", "Sets its deadline, from now on, or its idle time. Counts as use.")
	extend.Errors = append(extend.Errors, http.StatusGone, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.ClaimExtension](a, &extend, true)
	register(a, extend, a.extendClaim)
}

// claimSecret begins what the holder of a claim shows in place of the token.
const claimSecret = "mcs-"

// Secret lets its holder use a claim's runner. It is derived and kept nowhere, so that a
// claim that is asked for again has the same one.
func (a *API) Secret(id muster.ClaimID) muster.Secret {
	h := hmac.New(sha256.New, []byte(a.cfg.ClaimKey.Reveal()))
	_, _ = h.Write([]byte(id))
	return muster.NewSecret(claimSecret + string(id) + "-" + hex.EncodeToString(h.Sum(nil)[:20]))
}

// holder is the claim whose secret a request shows, if it shows one that is right.
func (a *API) holder(r *http.Request) (id muster.ClaimID, shown, right bool) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	rest, is := strings.CutPrefix(token, claimSecret)
	if !ok || !strings.EqualFold(scheme, "bearer") || !is {
		return "", false, false
	}
	name, _, _ := strings.Cut(rest, "-")
	id = muster.ClaimID(name)
	return id, true, hmac.Equal([]byte(token), []byte(a.Secret(id).Reveal()))
}

// admitHolder lets the holder of a claim to its runner, and nowhere else.
func (a *API) admitHolder(r *http.Request, id muster.ClaimID, right bool) *problem.Problem {
	if !right {
		return unauthorized("the claim's secret is wrong")
	}
	c := a.cfg.State.Latest().Claim(id)
	if c == nil {
		return problem.New(http.StatusGone, api.CodeNotClaimed, fmt.Sprintf("claim %s is no more", id))
	}
	for _, path := range []string{"/v1/runners/" + string(c.Runner), "/v1/claims/" + string(id), "/v1/allocations/" + string(c.Runner)} {
		if r.URL.Path != path && !strings.HasPrefix(r.URL.Path, path+"/") {
			continue
		}
		again := c.State == muster.ClaimReleased && r.Method == http.MethodDelete && r.URL.Path == "/v1/runners/"+string(c.Runner)
		if c.State != muster.ClaimHeld && !strings.HasPrefix(path, "/v1/claims/") && !again {
			_, err := a.Claimed(string(c.Runner))
			return problem.Of(err)
		}
		return nil
	}
	return problem.New(http.StatusForbidden, api.CodeForbidden, fmt.Sprintf("the secret of claim %s is for runner %s and for nothing else", id, c.Runner))
}

func unauthorized(detail string) *problem.Problem {
	p := problem.New(http.StatusUnauthorized, api.CodeAuth, detail)
	p.Headers.Set("Www-Authenticate", `Bearer realm="muster"`)
	return p
}

// enterRunner checks that what is asked below /v1/runners/{id}/ is of a claimed
// runner, and notes its use until end is called. Into the sandbox of a runner an operator gets by
// its allocation as well, in whatever state it is; that is use, too.
func (a *API) enterRunner(path string) (end func(), p *problem.Problem) {
	rest, is := strings.CutPrefix(path, "/v1/runners/")
	as, isAlloc := strings.CutPrefix(path, "/v1/allocations/")
	id, _, below := strings.Cut(rest, "/")
	switch {
	case isAlloc:
		id, _, below := strings.Cut(as, "/")
		if al := a.cfg.State.Latest().Alloc(muster.AllocID(id)); below && al != nil && al.Runner == muster.RunnerClaimed {
			return a.cfg.Runners.Use(al.Claim), nil
		}
	case is && below:
		c, err := a.Claimed(id)
		if err != nil {
			return nil, problem.Of(err)
		}
		return a.cfg.Runners.Use(c.ID), nil
	}
	return func() {}, nil
}

// Claimed is the claim that has a runner now; a problem with status 410 says why there is none.
func (a *API) Claimed(runner string) (*state.Claim, error) {
	snap := a.cfg.State.Latest()
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

type claimIn struct {
	Key string `header:"Idempotency-Key" maxLength:"128" doc:"Any text that is new for each claim meant. A request that is repeated with it gets the first one's claim; another request with it is refused with 409."`
	RequestBody
}

type claimOut struct{ Body api.Claim }

func (a *API) claim(ctx context.Context, in *claimIn) (*claimOut, error) {
	var q api.ClaimRequest
	if p := decode(in.JSON, &q); p != nil {
		return nil, p
	}
	c, err := a.Claim(ctx, &q, in.Key)
	if p := (*problem.Problem)(nil); errors.As(err, &p) && p.Code == api.CodeNoneWarm && q.Wait == 0 {
		p.Detail += "; claim with a wait, or keep more runners warm"
	}
	if err != nil {
		return nil, err
	}
	out := &claimOut{present.Claim(a.cfg.State.Latest(), c)}
	out.Body.Secret = a.Secret(c.ID).Reveal()
	return out, nil
}

// Claim makes a claim. Errors are problems and faults.
func (a *API) Claim(ctx context.Context, q *api.ClaimRequest, key string) (*state.Claim, error) {
	if q.Namespace == "" {
		q.Namespace = string(muster.DefaultNamespace)
	}
	if err := problem.Names("body.environment", q.Environment); err != nil {
		return nil, err
	}
	if err := problem.Names("body.namespace", q.Namespace); err != nil {
		return nil, err
	}
	if p := wrongTimes(q.TTL, q.Idle, q.Wait); p != nil {
		return nil, p
	}
	j, err := environment(a.cfg.State.Latest(), q.Namespace, q.Environment)
	if err == nil && j.Stage != muster.JobLive {
		err = problem.NotFound("environment %s is being deleted", q.Environment)
	}
	if err != nil {
		return nil, err
	}
	spec := j.Env.Spec
	w := ClaimWant{Environment: j.UID, TTL: spec.TTL.Std(), Idle: spec.Idle.Std(), Wait: q.Wait.Std(), Note: q.Note, Key: key}
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
	c, err := a.cfg.Runners.Claim(ctx, w)
	if muster.IsKind(err, muster.FaultCapacity) {
		return nil, problem.New(http.StatusServiceUnavailable, api.CodeNoneWarm, fmt.Sprintf("environment %s: %s%s", q.Environment, err, whyNoneWarm(a.cfg.State.Latest(), w.Environment)))
	}
	return c, err
}

// whyNoneWarm says what keeps an environment from having a warm runner: the last failure of one, or what one that starts is
// at. It costs the same however many there are.
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

type listClaimsIn struct {
	State string `query:"state" enum:"held,released,expired,lost" doc:"Only in this state. Default: all."`
	Page
}

type claimListOut struct{ Body api.ClaimList }

func (a *API) listClaims(_ context.Context, in *listClaimsIn) (*claimListOut, error) {
	snap := a.cfg.State.Latest()
	out := &claimListOut{api.ClaimList{Claims: []api.Claim{}, Index: snap.Index()}}
	snap.Claims(muster.ClaimID(in.After), func(c *state.Claim) bool {
		switch {
		case in.State != "" && string(c.State) != in.State:
			return true
		case len(out.Body.Claims) == in.Limit:
			out.Body.Next = out.Body.Claims[in.Limit-1].ID
			return false
		}
		out.Body.Claims = append(out.Body.Claims, present.Claim(snap, c))
		return true
	})
	return out, nil
}

type claimPath struct {
	Claim string `path:"claim" maxLength:"200" doc:"Id of the claim."`
}

func (a *API) getClaim(_ context.Context, in *claimPath) (*claimOut, error) {
	snap := a.cfg.State.Latest()
	if c := snap.Claim(muster.ClaimID(in.Claim)); c != nil {
		return &claimOut{present.Claim(snap, c)}, nil
	}
	return nil, problem.NotFound("claim %s: not found", problem.Clip(in.Claim))
}

type listRunnersIn struct {
	Environment string `query:"environment" maxLength:"200" doc:"Only of this environment."`
	Namespace   string `query:"namespace" maxLength:"200" doc:"Of the environment, or of all runners. Default: default, or all."`
	State       string `query:"state" enum:"starting,warm,claimed,gone" doc:"Only in this state. Default: all but gone."`
	Page
}

type runnerListOut struct{ Body api.RunnerList }

func (a *API) listRunners(_ context.Context, in *listRunnersIn) (*runnerListOut, error) {
	snap := a.cfg.State.Latest()
	only := muster.JobUID("")
	if in.Environment != "" {
		if in.Namespace == "" {
			in.Namespace = string(muster.DefaultNamespace)
		}
		j, err := (&EnvironmentPath{in.Namespace, in.Environment}).find(snap)
		if err != nil {
			return nil, err
		}
		only = j.UID
	}
	out := &runnerListOut{api.RunnerList{Runners: []api.Runner{}, Index: snap.Index()}}
	full := false
	add := func(al *state.Alloc) bool {
		switch {
		case al.Runner == "", in.State == "" && al.Runner == muster.RunnerGone, in.State != "" && string(al.Runner) != in.State,
			in.Namespace != "" && string(al.Run.Key.Namespace) != in.Namespace:
			return true
		case len(out.Body.Runners) == in.Limit:
			out.Body.Next, full = out.Body.Runners[in.Limit-1].ID, true
			return false
		}
		out.Body.Runners = append(out.Body.Runners, present.Runner(snap, al))
		return true
	}
	after, from, attempt, err := muster.AllocID(in.After).Parse()
	if err != nil && in.After != "" {
		return nil, problem.Invalid("query.after", "is %q; pass next of the page before, the id of a runner", problem.Clip(in.After))
	}
	snap.Environments(func(j *state.Job) bool {
		if only != "" && j.UID != only || j.UID < after {
			return true
		}
		first := 0
		if j.UID == after {
			first = from
		}
		snap.JobAllocs(j.UID, first, func(al *state.Alloc) bool {
			return j.UID == after && al.Index == from && al.Attempt <= attempt || add(al)
		})
		return !full
	})
	return out, nil
}

type runnerOut struct{ Body api.Runner }

func (a *API) getRunner(_ context.Context, in *AllocPath) (*runnerOut, error) {
	snap := a.cfg.State.Latest()
	al := snap.Alloc(muster.AllocID(in.ID))
	if al == nil || al.Runner == "" {
		return nil, problem.NotFound("runner %s: not found", problem.Clip(in.ID))
	}
	return &runnerOut{present.Runner(snap, al)}, nil
}

func (a *API) releaseRunner(ctx context.Context, in *AllocPath) (*struct{}, error) {
	return nil, a.Release(ctx, in.ID)
}

// Release ends the claim of a runner. One that was released before stays so: a client whose first answer was lost repeats it.
func (a *API) Release(ctx context.Context, runner string) error {
	c, err := a.Claimed(runner)
	if err == nil {
		_, _, err = a.cfg.Proposer.Propose(ctx, &state.ClaimReleased{Claim: c.ID})
	}
	if err == nil || a.released(runner) {
		return nil
	}
	return err
}

// released reports whether the claim of a runner ended by a release.
func (a *API) released(runner string) bool {
	snap := a.cfg.State.Latest()
	al := snap.Alloc(muster.AllocID(runner))
	if al == nil {
		return false
	}
	c := snap.Claim(al.Claim)
	return c != nil && c.State == muster.ClaimReleased
}

// within is the time that a claim gets from now on when it asks for ttl, 0 for no end, having lived so long already:
// never more than its environment lets claims live. One that has lived so long is left a moment, and expires.
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

// mayBe refuses to act in an allocation's sandbox as a user whom the environment of a runner does not allow. at is where
// the request names the user, "" if it names nobody.
func (a *API) mayBe(runner, at, user string) error {
	snap := a.cfg.State.Latest()
	al := snap.Alloc(muster.AllocID(runner))
	if user == "" || al == nil || al.Runner == "" {
		return nil
	}
	j := snap.JobByUID(al.UID)
	if j == nil || j.Env == nil || !j.Env.Spec.LockUser || user == j.Env.Spec.User {
		return nil
	}
	name, _ := j.Key.Environment()
	p := problem.New(http.StatusForbidden, string(muster.FaultInvalid), fmt.Sprintf("environment %s allows only its own user (lock_user); leave out %s", name, at))
	p.Errors = []api.ProblemField{{Location: at, Message: fmt.Sprintf("is %q, which lock_user of environment %s does not allow", problem.Clip(user), name)}}
	return p
}

type extendIn struct {
	AllocPath
	RequestBody
}

func (a *API) extendClaim(ctx context.Context, in *extendIn) (*claimOut, error) {
	var q api.ClaimExtension
	if p := decode(in.JSON, &q); p != nil {
		return nil, p
	}
	if p := wrongTimes(q.TTL, q.Idle, 0); p != nil {
		return nil, p
	}
	c, err := a.Claimed(in.ID)
	if err != nil {
		return nil, err
	}
	f := &state.ClaimExtended{Claim: c.ID, TTL: -1, Idle: -1}
	if q.TTL != nil {
		ttl := q.TTL.Std()
		if j := a.cfg.State.Latest().JobByUID(c.UID); j != nil && j.Env != nil {
			ttl = within(j.Env.Spec, ttl, a.cfg.Clock.Now().Sub(c.Made))
		}
		f.TTL = muster.Time(ttl.Microseconds())
	}
	if q.Idle != nil {
		f.Idle = muster.Time(q.Idle.Std().Microseconds())
	}
	_, c, err = state.Propose(ctx, a.cfg.Proposer, f)
	if err != nil {
		return nil, err
	}
	return &claimOut{present.Claim(a.cfg.State.Latest(), c)}, nil
}
