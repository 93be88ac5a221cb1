package state

import (
	"cmp"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// An environment is a job whose members are runners. What makes it one is here and in
// runner.go: its members are wanted one after another and not by a count in its spec, a runner that ends is
// replaced by one with another index, and runners of every version count.

// Environment is what the row of a job has in addition if its members are runners.
// Like the row it never changes. Of the runners below the job's NextIndex, those
// that wait for another attempt count as starting, and those that are none of starting, warm and claimed are gone.
type Environment struct {
	Spec *api.EnvironmentSpec `cbor:"1,keyasint"`
	// Wanted is how many runners there shall ever have been; Priority that of those that wait.
	Wanted   int `cbor:"2,keyasint,omitempty"`
	Priority int `cbor:"3,keyasint,omitempty"`
	// Starting, Warm and Claimed count allocations.
	Starting int `cbor:"4,keyasint,omitempty"`
	Warm     int `cbor:"5,keyasint,omitempty"`
	Claimed  int `cbor:"6,keyasint,omitempty"`
	// Stock is how many are wanted warm, Floor how many of those at the environment's priority, Why why.
	Stock int    `cbor:"7,keyasint,omitempty"`
	Floor int    `cbor:"8,keyasint,omitempty"`
	Why   string `cbor:"9,keyasint,omitempty"`
	// Failures in a row to start one, the last at FailedAt because of Failure.
	Failures int         `cbor:"10,keyasint,omitempty"`
	FailedAt muster.Time `cbor:"11,keyasint,omitempty"`
	Failure  string      `cbor:"12,keyasint,omitempty"`
	// Claims counts all that there ever were.
	Claims    uint64      `cbor:"13,keyasint,omitempty"`
	LastClaim muster.Time `cbor:"14,keyasint,omitempty"`
	// Alert is since when too few are warm; 0: there are enough.
	Alert muster.Time `cbor:"15,keyasint,omitempty"`
	// Set is the index of the log at which Spec was set; 0: before that was kept.
	Set uint64 `cbor:"16,keyasint,omitempty"`
	// Demand is what claims did lately; nil: that was not recorded.
	Demand *WarmDemand `cbor:"17,keyasint,omitempty"`
}

// startBackoff and its limit: how long nothing is started after a start that failed by the
// environment's own doing. Who lives for less than youngest failed to start.
const (
	startBackoff      = time.Second
	startBackoffLimit = 5 * time.Minute
	youngest          = 10 * time.Second
)

// StartAt is when runners may be started again after failures; 0: now.
func (e *Environment) StartAt() muster.Time {
	if e.Failures == 0 {
		return 0
	}
	return e.FailedAt.Add(backoff(startBackoff, startBackoffLimit, e.Failures))
}

// counted is e after a runner's move; from "" for one that was placed.
func (e *Environment) counted(from, to muster.RunnerState) *Environment {
	c := *e
	c.count(from, -1)
	c.count(to, 1)
	return &c
}

func (e *Environment) count(state muster.RunnerState, by int) {
	switch state {
	case muster.RunnerStarting:
		e.Starting += by
	case muster.RunnerWarm:
		e.Warm += by
	case muster.RunnerClaimed:
		e.Claimed += by
	}
}

// environments are the trees of runners and claims.
type environments struct {
	envs    *btree.BTreeG[*Job]   // jobs that are one, by uid
	runners *btree.BTreeG[*Alloc] // not gone, by uid, state, index
	claims  *btree.BTreeG[*Claim] // by id
	keys    *btree.BTreeG[*Claim] // those with an idempotency key, by uid, key
	due     *btree.BTreeG[*Claim] // held ones by due time, id
}

func newEnvironments() environments {
	return environments{
		envs: tree(func(a, b *Job) int { return compareStrings(a.UID, b.UID) }),
		runners: tree(func(a, b *Alloc) int {
			return cmp.Or(compareStrings(a.UID, b.UID), compareStrings(a.Runner, b.Runner), cmp.Compare(a.Index, b.Index))
		}),
		claims: tree(func(a, b *Claim) int { return compareStrings(a.ID, b.ID) }),
		keys: tree(func(a, b *Claim) int {
			return cmp.Or(compareStrings(a.UID, b.UID), strings.Compare(a.Idempotency, b.Idempotency))
		}),
		due: tree(func(a, b *Claim) int { return cmp.Or(cmp.Compare(a.Due(), b.Due()), compareStrings(a.ID, b.ID)) }),
	}
}

func (e *environments) copy() environments {
	return environments{envs: e.envs.Copy(), runners: e.runners.Copy(), claims: e.claims.Copy(), keys: e.keys.Copy(), due: e.due.Copy()}
}

func (f *EnvironmentSet) apply(s *State, now muster.Time) (any, error) {
	name, ok := f.Key.Environment()
	if !ok || f.Spec == nil || f.Spec.Warm.Min == nil || f.Spec.Priority == nil {
		return nil, muster.Faultf(muster.FaultInvalid, "environment %s: spec without defaults", f.Key)
	}
	before := s.t.job(f.Key)
	exists := before != nil
	replaces := exists && before.Stage == muster.JobLive
	var version uint64
	if exists {
		version = before.Version
	}
	if at := f.IfVersion; at != nil && (replaces && *at != version || !replaces && *at != 0) {
		if !replaces {
			return nil, muster.Faultf(muster.FaultConflict, "environment %s does not exist; version %d of it is demanded", name, *at)
		}
		return nil, muster.Faultf(muster.FaultConflict, "environment %s is at version %d, not %d as is demanded", name, version, *at)
	}
	if at := f.IfSet; at != nil && (!replaces || before.Env.Set != *at) {
		return nil, muster.Faultf(muster.FaultConflict, "environment %s was changed meanwhile", name)
	}
	if replaces {
		return s.changeEnvironment(before, f)
	}
	// One that is being deleted lives on beside it, until its last runner is given back.
	if _, taken := s.t.jobsUID.Get(&Job{UID: f.UID}); taken {
		return nil, muster.Faultf(muster.FaultAlreadyExists, "environment uid %s is taken", f.UID)
	}
	run, err := NewImageRun(f.Key, f.UID, version+1, f.Spec.Job(), f.Architectures)
	if err != nil {
		return nil, muster.Faultf(muster.FaultInvalid, "%v", err)
	}
	j := &Job{Run: run, UID: f.UID, Key: f.Key, Version: version + 1, Stage: muster.JobLive, Submitted: now, Age: s.meta.Index,
		Env: &Environment{Spec: f.Spec, Set: s.meta.Index, Priority: *f.Spec.Priority, LastClaim: now}}
	s.putJob(nil, j, VerbEnvironmentSet)
	return &EnvironmentChange{UID: f.UID, Version: j.Version, Index: s.meta.Index, New: true}, nil
}

// changeEnvironment gives a live one another spec. Only what decides how a runner runs
// makes a new version; runners of earlier ones live on.
func (s *State) changeEnvironment(before *Job, f *EnvironmentSet) (any, error) {
	out := &EnvironmentChange{UID: before.UID, Version: before.Version, Index: s.meta.Index}
	if before.Env.Spec.Equal(f.Spec) && !f.Rollout {
		out.Unchanged = true
		if before.Env.Failures > 0 {
			// Whoever sets it again has mended what is not in it, an image or a node, and is not to wait.
			after, env := *before, *before.Env
			env.Failures, env.FailedAt, env.Failure = 0, 0, ""
			after.Env = &env
			s.putJob(before, &after, VerbEnvironmentSet)
		}
		return out, nil
	}
	after, env := *before, *before.Env
	env.Spec, env.Set = f.Spec, s.meta.Index
	spec := f.Spec.Job()
	if f.Rollout || !before.Run.Spec.Equal(spec) || before.Env.Spec.Frozen != f.Spec.Frozen {
		out.Version++
		run, err := NewImageRun(f.Key, before.UID, out.Version, spec, f.Architectures)
		if err != nil {
			return nil, muster.Faultf(muster.FaultInvalid, "%v", err)
		}
		after.Run, after.Version = run, out.Version
		// What kept the old one from starting may be mended.
		env.Failures, env.FailedAt, env.Failure = 0, 0, ""
		after.Parked, after.ParkedUntil = "", 0
	}
	after.Env = &env
	s.putJob(before, &after, VerbEnvironmentSet)
	return out, nil
}

func (f *EnvironmentDeleted) apply(s *State, now muster.Time) (any, error) {
	name, _ := f.Key.Environment()
	j := s.t.job(f.Key)
	if j == nil || j.Env == nil || j.Stage == muster.JobEnded || j.Stage == muster.JobStopping && !f.Claimed {
		return nil, muster.Faultf(muster.FaultNotFound, "environment %s: not found", name)
	}
	const why = "its environment was deleted"
	if j.Stage == muster.JobLive {
		b, env := *j, *j.Env
		var err error
		if b.Stage, err = j.Stage.To("environment "+name, muster.JobStopping); err != nil {
			return nil, err
		}
		b.Reason, b.Result, b.Parked, b.ParkedUntil = "deleted", muster.JobStopped, "", 0
		env.Wanted, env.Stock, env.Floor, env.Why = b.NextIndex, 0, 0, ""
		b.Env = &env
		s.putJob(j, &b, VerbEnvironmentDeleted)
		s.dropWaiting(j.UID, b.Retrying)
	}
	for _, a := range collect(s.t.runners, &Alloc{UID: j.UID, Index: -1}, func(a *Alloc) bool { return a.UID == j.UID }) {
		if f.Claimed || a.Runner != muster.RunnerClaimed {
			s.stopAlloc(a, muster.StopJob, why)
		}
	}
	if last, err := s.jobByUID(j.UID); err == nil {
		b := *last
		if b.settle(now) {
			s.putJob(last, &b, VerbJobEnded)
		}
	}
	return j, nil
}

// dropWaiting gives up the last n members that wait for another attempt.
func (s *State) dropWaiting(uid muster.JobUID, n int) {
	if n <= 0 {
		return
	}
	var waiting []*Member
	s.t.eachMember(uid, func(m *Member) {
		if m.Status == muster.MemberWaiting {
			waiting = append(waiting, m)
		}
	})
	waiting = waiting[max(len(waiting)-n, 0):]
	for _, m := range waiting {
		s.dropMember(m)
	}
	if j, err := s.jobByUID(uid); err == nil {
		b := *j
		b.Retrying -= len(waiting)
		b.Stopped += len(waiting)
		s.putJob(j, &b, "")
	}
}

func (f *RunnersWanted) apply(s *State, _ muster.Time) (any, error) {
	j, err := s.jobByUID(f.UID)
	switch {
	case err != nil:
		return nil, err
	case j.Env == nil || j.Stage != muster.JobLive:
		return nil, muster.Faultf(muster.FaultConflict, "job %s is no live environment", j.Key)
	case f.Count-j.NextIndex > 2*api.MaxWarm:
		return nil, muster.Faultf(muster.FaultInvalid, "environment %s: %d more runners wanted at once", j.Key, f.Count-j.NextIndex)
	}
	b, env := *j, *j.Env
	// What has been placed meanwhile stays.
	env.Wanted = max(f.Count, j.NextIndex)
	env.Priority, env.Stock, env.Floor, env.Why, env.Alert = f.Priority, f.Stock, f.Floor, f.Why, f.Alert
	if f.Demand != nil {
		env.Demand = f.Demand.bounded()
	}
	if env == *j.Env && !f.Drop {
		return nil, nil
	}
	var verb Verb // none: no change is told
	switch {
	case env.Alert != 0 && j.Env.Alert == 0:
		verb = VerbEnvironmentAlerted
	case env.Alert == 0 && j.Env.Alert != 0:
		verb = VerbEnvironmentRecovered
	case env.Wanted != j.Env.Wanted || env.Stock != j.Env.Stock || env.Priority != j.Env.Priority:
		verb = VerbEnvironmentWants
	}
	b.Env = &env
	s.putJob(j, &b, verb)
	if f.Drop {
		s.dropWaiting(j.UID, j.Retrying)
	}
	return nil, nil
}

// Environment by key; nil if there is none that is not ended.
func (s *Snapshot) Environment(namespace muster.Namespace, name string) *Job {
	j := s.Job(muster.EnvironmentKey(namespace, name))
	if j == nil || j.Env == nil || j.Stage == muster.JobEnded {
		return nil
	}
	return j
}

// Environments iterates by uid over the jobs that are environments and have not ended.
func (s *Snapshot) Environments(fn func(*Job) bool) { s.t.envs.Scan(fn) }

// Runners tells an environment's by state.
func (j *Job) Runners() api.RunnerCounts {
	c := api.RunnerCounts{Created: j.NextIndex, Starting: j.Retrying + j.Env.Starting, Warm: j.Env.Warm, Claimed: j.Env.Claimed}
	c.Gone = c.Created - c.Starting - c.Warm - c.Claimed
	return c
}

// environment checks what an environment counts.
func (c *checker) environment(j *Job, sum *jobSum) {
	stopping := sum.runners[muster.RunnerGone]
	for state, n := range map[muster.RunnerState]int{muster.RunnerStarting: j.Env.Starting, muster.RunnerWarm: j.Env.Warm, muster.RunnerClaimed: j.Env.Claimed} {
		if sum.runners[state] != n {
			c.bad("environment %s says %d runners are %s, counted are %d", j.Key, n, state, sum.runners[state])
		}
	}
	r := j.Runners()
	if r.Gone != j.Succeeded+j.Failed+j.Stopped+stopping || r.Gone < 0 {
		c.bad("environment %s: %d runners are gone, %d ended and %d stop", j.Key, r.Gone, j.Succeeded+j.Failed+j.Stopped, stopping)
	}
	if _, in := c.snap.t.envs.Get(j); in != (j.Stage != muster.JobEnded) {
		c.bad("environment %s is %s, and in the index: %v", j.Key, j.Stage, in)
	}
}
