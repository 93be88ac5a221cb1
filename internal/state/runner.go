package state

import (
	"fmt"

	"github.com/musterhq/muster"
)

// liveRunner reports whether it is a runner that can be used or will be.
func liveRunner(a *Alloc) bool { return a.Runner != "" && a.Runner != muster.RunnerGone }

// indexRunner keeps the index of runners right.
func (t *tables) indexRunner(before, after *Alloc) {
	had := before != nil
	if had && liveRunner(before) && before.Runner != after.Runner {
		t.runners.Delete(before)
	}
	if liveRunner(after) {
		t.runners.Set(after)
	}
}

// dropRunner forgets what hangs on a purged runner.
func (t *tables) dropRunner(a *Alloc) {
	if c, ok := t.claims.Get(&Claim{ID: a.Claim}); ok && a.Claim != "" {
		t.dropClaim(c)
	}
}

// stopRunner is what the stop of a runner means to its environment, and to whoever has it.
func (s *State) stopRunner(a *Alloc, cause string) {
	if j, err := s.jobByUID(a.UID); err == nil && j.Env != nil {
		c := *j
		c.Env = j.Env.counted(a.Runner, muster.RunnerGone)
		s.putJob(j, &c, "")
	}
	if c, ok := s.t.claims.Get(&Claim{ID: a.Claim}); ok && a.Runner == muster.RunnerClaimed {
		s.endClaim(c, muster.ClaimLost, cause, s.meta.Time)
	}
}

func (f *RunnersStopped) apply(s *State, now muster.Time) (any, error) {
	n := 0
	for _, id := range f.Runners {
		a := s.t.alloc(id)
		switch {
		case a == nil || a.UID != f.UID:
		case f.Unready && a.Runner == muster.RunnerStarting:
			s.stopAlloc(a, muster.StopUnready, f.Why)
			if j, err := s.jobByUID(a.UID); err == nil && j.Env != nil && j.Stage == muster.JobLive {
				b := *j
				b.Env = j.Env.failed(f.Why, now)
				s.putJob(j, &b, "")
			}
			n++
		case !f.Unready && (a.Runner == muster.RunnerStarting || a.Runner == muster.RunnerWarm):
			s.stopAlloc(a, muster.StopSurplus, f.Why)
			n++
		}
	}
	return n, nil
}

// endRunner is what a runner's end means to its environment: c is the job's copy, a the
// row before the end, b after it. A runner is never run again; only one that has not come to run through no
// fault of its own is tried again under its index.
func (s *State) endRunner(c *Job, a, b *Alloc, now muster.Time) {
	c.Env = c.Env.counted(a.Runner, muster.RunnerGone)
	if claim, ok := s.t.claims.Get(&Claim{ID: a.Claim}); ok && a.Runner == muster.RunnerClaimed {
		s.endClaim(claim, muster.ClaimLost, endOf(b), now)
	}
	m, ok := s.t.members.Get(&Member{UID: a.UID, Index: a.Index})
	if !ok || m.Attempt != a.Attempt {
		return
	}
	gone := func() {
		s.dropMember(m)
		c.Stopped++
	}
	switch young := a.Runner == muster.RunnerWarm && b.Ended.Sub(max(b.Started, a.Placed)) < youngest; {
	case c.Stage != muster.JobLive, a.Runner == muster.RunnerGone, a.Runner == muster.RunnerClaimed, b.Outcome == muster.OutcomeStopped:
		gone()
	case a.Runner == muster.RunnerWarm && (!young || b.Outcome == muster.OutcomeLost || b.Failure != nil && b.Failure.Class == muster.FailureNode):
		gone()
	case b.Failure != nil && b.Failure.Class != muster.FailureUser:
		n := *m
		failed := c.Failed
		n.next(c, b, s.t.serving(b.Node), now)
		if n.Status == muster.MemberWaiting {
			s.putMember(m, &n)
			return
		}
		c.Failed = failed
		c.Env = c.Env.failed(n.Reason, now)
		gone()
	default:
		// Its own doing: another one would most likely end the same way.
		c.Env = c.Env.failed(endOf(b), now)
		gone()
	}
}

// failed is e after a runner that could not be started. Failures long ago count no more.
func (e *Environment) failed(why string, now muster.Time) *Environment {
	c := *e
	if now > c.StartAt().Add(startBackoffLimit) {
		c.Failures = 0
	}
	c.Failures++
	c.FailedAt, c.Failure = now, why
	return &c
}

// endOf says how an allocation ended.
func endOf(a *Alloc) string {
	switch {
	case a.Failure != nil && a.Failure.Reason == muster.ReasonNodeGone:
		return fmt.Sprintf("its node %s is gone: %s", a.Node, a.Failure.Message)
	case a.Failure != nil:
		return a.Failure.Message
	case a.StopCause != "":
		return a.StopCause
	case a.Outcome == muster.OutcomeSucceeded:
		return "its command ended"
	}
	return "it " + string(a.Outcome)
}

func (f *RunnersPurged) apply(s *State, _ muster.Time) (any, error) {
	n := 0
	for _, id := range f.Runners {
		a := s.t.alloc(id)
		if a != nil && a.Runner == muster.RunnerGone && !a.Live() {
			s.dropAlloc(a)
			n++
		}
	}
	return n, nil
}

// Runners iterates over an environment's runners in one state but gone, by index.
func (s *Snapshot) Runners(uid muster.JobUID, in muster.RunnerState, fn func(*Alloc) bool) {
	s.t.runners.Ascend(&Alloc{UID: uid, Runner: in, Index: -1}, func(a *Alloc) bool { return a.UID == uid && a.Runner == in && fn(a) })
}

// Priority at which an allocation stands against others, with its job as it is now. A claimed runner is
// above all: it is never taken away for others. Of runners that nobody has, those above the number
// that must be warm are worth nothing.
func (a *Alloc) Priority(j *Job) int {
	switch {
	case a.Runner == "" || j == nil || j.Env == nil:
		return a.Run.Priority()
	case a.Runner == muster.RunnerClaimed:
		return muster.MaxPriority + 1
	case a.Runner == muster.RunnerGone || j.Env.Starting+j.Env.Warm > j.Env.Floor:
		return muster.MinPriority
	}
	return *j.Env.Spec.Priority
}

func (t *tables) allocPriority(a *Alloc) int {
	j, _ := t.jobsUID.Get(&Job{UID: a.UID})
	return a.Priority(j)
}

// runner checks one and counts it.
func (c *checker) runner(sum *jobSum, a *Alloc) {
	if sum.runners == nil {
		sum.runners = map[muster.RunnerState]int{}
	}
	sum.runners[a.Runner]++
	if a.Runner == muster.RunnerWarm && a.Status != muster.AllocRunning {
		c.bad("runner %s is warm, and its sandbox is %s", a.ID, a.Status)
	}
	if (a.Runner == muster.RunnerGone) != (a.Desired == muster.AllocStop) {
		c.bad("runner %s is %s and shall %s", a.ID, a.Runner, a.Desired)
	}
	_, in := c.snap.t.runners.Get(a)
	if in != liveRunner(a) {
		c.bad("runner %s is %s, and in the index: %v", a.ID, a.Runner, in)
	}
	held := a.Runner == muster.RunnerClaimed
	claim := c.snap.Claim(a.Claim)
	if held && (claim == nil || claim.State != muster.ClaimHeld || claim.Runner != a.ID) {
		c.bad("runner %s is claimed, and its claim %q is not held", a.ID, a.Claim)
	}
}
