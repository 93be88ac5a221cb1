package state

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Jobs of type service and system are standing: their members run until they are stopped. What makes
// them so is here: a member that ends waits to run again, allocations of every version count, and another version is
// given to members one after another (package decide/roll says which, control/roll has it done).
//
// A system job has no count of its own. Like an environment it counts how many members there ever were: one more when a
// node comes that has none, and a member whose node is gone is stopped for good.

// Standing is what the row of a job has in addition if it is standing. Like the row it never changes.
type Standing struct {
	// Wanted is how many members a system job shall ever have had.
	Wanted int `cbor:"1,keyasint,omitempty"`
	// Rollout is where the job is in giving its members what is new in Version, the first of those that
	// run alike; since Began, and if it is over until Ended. Reason says why it failed.
	Rollout muster.RolloutStage `cbor:"2,keyasint"`
	Version uint64              `cbor:"3,keyasint"`
	Began   muster.Time         `cbor:"4,keyasint"`
	Ended   muster.Time         `cbor:"5,keyasint,omitempty"`
	Reason  string              `cbor:"6,keyasint,omitempty"`
	// Stable is the newest version that was rolled out to the end; 0: none was.
	Stable uint64 `cbor:"7,keyasint,omitempty"`
	// Note is why the present version was submitted, if who did so said it.
	Note string `cbor:"8,keyasint,omitempty"`
	// Reverts is the version whose spec the present one has again, if it was submitted to go back; 0: it was not.
	Reverts uint64 `cbor:"10,keyasint,omitempty"`
	// Past are versions before the present one, the oldest first; at most maxPast.
	Past []PastVersion `cbor:"9,keyasint,omitempty"`
}

// PastVersion is a version that a standing job had.
type PastVersion struct {
	Version   uint64       `cbor:"1,keyasint"`
	Submitted muster.Time  `cbor:"2,keyasint"`
	Spec      *api.JobSpec `cbor:"3,keyasint"`
	Note      string       `cbor:"4,keyasint,omitempty"`
	// Rollout is what had become of it.
	Rollout muster.RolloutStage `cbor:"5,keyasint"`
	Reason  string              `cbor:"6,keyasint,omitempty"`
	// Architectures are those that its image is for, as Run has them.
	Architectures []string `cbor:"7,keyasint,omitempty"`
}

// maxPast bounds how many versions are remembered beside the present one.
const maxPast = 10

// Turn is how a member of a standing job does in the version that it was last placed in.
type Turn struct {
	// Make is that of the run; Since when it was first placed in it, or when an attempt of it ended that had been healthy.
	Make  string      `cbor:"1,keyasint"`
	Since muster.Time `cbor:"2,keyasint"`
	// Failures of its own since then, and the last.
	Failures int    `cbor:"3,keyasint,omitempty"`
	Failure  string `cbor:"4,keyasint,omitempty"`
}

// kind of a run.
func (r *Run) kind() muster.JobType { return muster.JobType(r.Spec.Type) }

// Standing reports whether its members run until they are stopped.
func (r *Run) Standing() bool { return r.kind().Standing() }

// System reports whether the job has one member on each node that fits.
func (r *Run) System() bool { return r.kind() == muster.JobSystem }

// Make names what a member of a standing job is started as: runs of equal make are alike to
// it, and it is not started anew when its job goes from one to the other. Empty if the job is not standing.
func (r *Run) Make() string { return r.make }

// makeOf leaves out what says how many members there are, when they are placed and how they are updated.
func makeOf(s *api.JobSpec) string {
	c := *s
	c.Count, c.Priority, c.Update, c.Restart = 1, nil, nil, api.RestartSpec{}
	sum := sha256.Sum256(c.Canonical())
	return hex.EncodeToString(sum[:12])
}

// Outdated reports whether an allocation runs otherwise than its job says now.
func (j *Job) Outdated(a *Alloc) bool { return a.Run != j.Run && a.Run.make != j.Run.make }

// HealthyAt is since when, without a break, an allocation is healthy if it goes on running as it does; ok is
// false if it does not run.
func (a *Alloc) HealthyAt(u *api.UpdateSpec) (at muster.Time, ok bool) {
	since := a.works()
	return since.Add(u.MinHealthyTime.Std()), since != 0 && a.Status == muster.AllocRunning
}

// works is since when an allocation has run, or has been ready if it shows that; 0: it has not.
func (a *Alloc) works() muster.Time {
	switch {
	case a.Run.Spec.Ready != nil:
		return a.Ready
	case a.Started == 0 && a.Status != muster.AllocRunning:
		return 0
	}
	return max(a.Started, a.Placed)
}

// update gives a live standing job another spec.
func (s *State) updateJob(before *Job, f *JobSubmitted, run *Run, now muster.Time) {
	after, st := *before, *before.Standing
	past := PastVersion{Version: before.Version, Submitted: before.Submitted, Spec: before.Run.Spec, Note: st.Note, Rollout: st.Rollout, Reason: st.Reason,
		Architectures: before.Run.Architectures}
	st.Past = append(slices.Clone(st.Past[max(len(st.Past)-maxPast+1, 0):]), past)
	st.Note, st.Reverts = f.Note, f.Reverts
	after.Run, after.Version, after.Submitted = run, run.Version, now
	after.Parked, after.ParkedUntil = "", 0
	after.Reserved = "" // room was kept for what a member asked for
	alike := before.Run.make == run.make
	if !alike || st.Rollout == muster.RolloutFailed {
		st.Rollout, st.Began, st.Ended, st.Reason = muster.RolloutRolling, now, 0, ""
	}
	if !alike {
		st.Version = run.Version
	} else if st.Rollout == muster.RolloutDone {
		st.Stable = run.Version
	}
	after.Standing = &st
	var stop []*Alloc
	if n := after.Count(); n != before.Count() {
		stop = s.resize(&after, before.Count(), n, now)
	}
	s.t.eachMember(before.UID, func(m *Member) {
		n := *m
		if m.Status == muster.MemberWaiting && m.RetryAt > now {
			// What kept it from running may be mended.
			n.RetryAt, n.UserFailures, n.OutsideFailures = now, 0, 0
		}
		if st.Began == now && m.Turn != nil && m.Turn.Failures > 0 {
			t := *m.Turn
			t.Failures, t.Failure = 0, ""
			n.Turn = &t
		}
		if n.RetryAt != m.RetryAt || n.Turn != m.Turn {
			s.putMember(m, &n)
		}
	})
	s.putJob(before, &after, VerbJobUpdated)
	for _, a := range stop {
		s.stopAlloc(a, muster.StopSurplus, fmt.Sprintf("version %d of its job wants fewer members", run.Version))
	}
	if f.Replace && !alike {
		for _, a := range collect(s.t.allocs, &Alloc{UID: before.UID, Index: -1}, func(a *Alloc) bool { return a.UID == before.UID }) {
			if a.Live() && a.Desired == muster.AllocRun && after.Outdated(a) {
				s.stopAlloc(a, muster.StopUpdated, fmt.Sprintf("replaced by version %d", run.Version))
			}
		}
	}
}

// resize changes how many members a service has: j is its copy. Members beyond the count keep their row, so that
// no attempt comes twice when they are wanted again. It returns who is to stop.
func (s *State) resize(j *Job, was, n int, now muster.Time) (stop []*Alloc) {
	low, high := min(was, n), max(was, n)
	members := collect(s.t.members, &Member{UID: j.UID, Index: low}, func(m *Member) bool { return m.UID == j.UID && m.Index < high })
	for _, m := range members {
		sign := 1
		if n < was {
			sign = -1
		}
		c := *m
		switch m.Status {
		case muster.MemberPlaced:
			j.Placed += sign
			a := s.t.alloc(m.Alloc())
			if a != nil && a.Status == muster.AllocRunning {
				j.Running += sign
			}
			if a != nil && sign < 0 && a.Desired == muster.AllocRun {
				stop = append(stop, a)
			}
		case muster.MemberWaiting:
			j.Retrying--
			c.Status, c.RetryAt, c.Reason = muster.MemberStopped, 0, "its job wants fewer members"
			s.putMember(m, &c)
		case muster.MemberStopped:
			j.Retrying++
			c.Status, c.RetryAt, c.Reason = muster.MemberWaiting, now, ""
			s.putMember(m, &c)
		}
	}
	return stop
}

// endStanding is what the end of an allocation means to its member: j is the job's copy, a the allocation's last row.
func (s *State) endStanding(j *Job, m *Member, a *Alloc, now muster.Time) {
	n := *m
	if a.Index >= j.Count() {
		// Beyond the count of a smaller version, and counted no more.
		n.Status, n.Reason = muster.MemberStopped, a.StopCause
		s.putMember(m, &n)
		return
	}
	left := a.Outcome == muster.OutcomeLost || a.StopReason == muster.StopMoved || a.StopReason == muster.StopSurplus
	switch {
	case j.Stage != muster.JobLive:
		n.Status, n.Reason = muster.MemberStopped, a.StopCause
		j.Stopped++
		s.putMember(m, &n)
		return
	case j.Run.System() && left:
		s.dropMember(m)
		j.Stopped++
		return
	}
	n.again(j, a, s.t.serving(a.Node), now)
	j.Retrying++
	s.putMember(m, &n)
}

// again has a member of a standing job wait for its next attempt: with a back-off, by class, if it ended by itself.
func (m *Member) again(j *Job, a *Alloc, serving int, now muster.Time) {
	ran := time.Duration(0)
	if since := a.works(); since != 0 {
		ran = a.Ended.Sub(since)
	}
	spec := &j.Run.Spec.Restart
	ours := m.Turn != nil && m.Turn.Make == a.Run.make
	if healthy := ran >= j.Run.Spec.Update.MinHealthyTime.Std(); ours && healthy {
		m.Turn, ours = &Turn{Make: m.Turn.Make, Since: now}, false
	}
	wait := func(d time.Duration, reason string) {
		m.Status, m.RetryAt, m.Reason = muster.MemberWaiting, now.Add(d), reason
	}
	if a.Outcome == muster.OutcomeStopped && a.Failure == nil || a.Desired == muster.AllocStop {
		wait(0, a.StopCause)
		return
	}
	if ran > spec.BackoffMax.Std() {
		m.UserFailures, m.OutsideFailures = 0, 0
	}
	f := a.Failure
	if ran > 0 {
		m.FailedNodes = nil
	}
	switch {
	case a.Outcome == muster.OutcomeSucceeded:
		f = &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonExit, Message: "its command ended with exit code 0"}
	case f == nil:
		f = &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonNodeFault, Message: "ended without a reason"}
	}
	switch f.Class {
	case muster.FailureUser:
		m.UserFailures++
		if ours {
			t := *m.Turn
			t.Failures, t.Failure = t.Failures+1, f.Message
			m.Turn = &t
		}
		wait(backoff(spec.Backoff.Std(), spec.BackoffMax.Std(), m.UserFailures), f.Message)
	case muster.FailureOutside:
		m.OutsideFailures++
		wait(backoff(time.Second, spec.BackoffMax.Std(), m.OutsideFailures), f.Message)
	default:
		if full(f) && !j.Run.System() {
			m.avoidFull(a.Node, serving)
		}
		// A node that is gone has nothing to do with the next; one that fails is put aside by its own count, and
		// a member that waits for ever for another node would be worse than one that comes back to it.
		if a.Outcome != muster.OutcomeLost {
			m.OutsideFailures++
		}
		wait(backoff(time.Second, spec.BackoffMax.Std(), m.OutsideFailures), fmt.Sprintf("node %s: %s", a.Node, f.Message))
		if m.OutsideFailures <= 1 {
			m.RetryAt = now
		}
	}
}

// turn notes that a member of a standing job is placed.
func (m *Member) turn(j *Job, now muster.Time) {
	if m.Turn == nil || m.Turn.Make != j.Run.make {
		m.Turn = &Turn{Make: j.Run.make, Since: now}
		m.UserFailures, m.OutsideFailures = 0, 0
	}
}

func (f *RolloutMoved) apply(s *State, now muster.Time) (any, error) {
	j, err := s.jobByUID(f.UID)
	if err != nil {
		return nil, err
	}
	if j.Standing == nil || j.Stage != muster.JobLive || j.Version != f.Version {
		return nil, muster.Faultf(muster.FaultConflict, "job %s changed meanwhile", j.Key)
	}
	b, st := *j, *j.Standing
	if st.Rollout, err = st.Rollout.To("rollout of job "+j.Key.String(), f.Stage); err != nil {
		return nil, &muster.Fault{Kind: muster.FaultConflict, Err: err}
	}
	st.Ended, st.Reason = now, f.Reason
	if f.Stage == muster.RolloutDone {
		st.Stable = j.Version
	}
	b.Standing = &st
	s.putJob(j, &b, verbOfRollout(f.Stage))
	return nil, nil
}

func (f *SystemSized) apply(s *State, _ muster.Time) (any, error) {
	j, err := s.jobByUID(f.UID)
	if err != nil {
		return nil, err
	}
	if j.Stage != muster.JobLive || j.Version != f.Version || !j.Run.System() {
		return nil, muster.Faultf(muster.FaultConflict, "job %s changed meanwhile", j.Key)
	}
	if f.Count-j.NextIndex > api.MaxCount {
		return nil, muster.Faultf(muster.FaultInvalid, "job %s: %d more members wanted at once", j.Key, f.Count-j.NextIndex)
	}
	b, st := *j, *j.Standing
	for _, i := range f.Drop {
		m, ok := s.t.members.Get(&Member{UID: j.UID, Index: i})
		if ok && m.Status == muster.MemberWaiting {
			s.dropMember(m)
			b.Retrying--
			b.Stopped++
		}
	}
	// What has been placed meanwhile stays.
	st.Wanted = max(f.Count, j.NextIndex)
	if st.Wanted == j.Standing.Wanted && b.Retrying == j.Retrying {
		return nil, nil
	}
	b.Standing = &st
	s.putJob(j, &b, VerbJobSized)
	return nil, nil
}

func (f *AllocsPurged) apply(s *State, _ muster.Time) (any, error) {
	n := 0
	for _, id := range f.Allocs {
		a := s.t.alloc(id)
		if a == nil || a.Live() || a.outputOpen() {
			continue
		}
		j, err := s.jobByUID(a.UID)
		if m, ok := s.t.members.Get(&Member{UID: a.UID, Index: a.Index}); ok && m.Attempt == a.Attempt {
			// A member's newest attempt is what its row speaks of. The rows of an ended job go with it.
			if err != nil || j.Stage != muster.JobEnded {
				continue
			}
			s.dropMember(m)
		}
		if err == nil && a.Output.BlobBytes > 0 {
			c := *j
			c.OutputBytes -= a.Output.BlobBytes
			s.putJob(j, &c, "")
		}
		s.dropAlloc(a)
		n++
	}
	return n, nil
}

// StandingJobs iterates by uid over service and system jobs that have not ended.
func (s *Snapshot) StandingJobs(fn func(*Job) bool) { s.t.standingJobs.Scan(fn) }

// RefuseStop says why an allocation is not to be stopped for another version, or "". The verifier says the same.
func (j *Job) RefuseStop(a *Alloc, reason muster.StopReason) string {
	switch {
	case reason != muster.StopUpdated:
		return ""
	case j == nil || j.Stage != muster.JobLive:
		return fmt.Sprintf("the job of allocation %s runs no more", a.ID)
	case !j.Outdated(a):
		return fmt.Sprintf("allocation %s runs as job %s says", a.ID, j.Key)
	}
	return ""
}

// standingJob checks what a standing job counts.
func (c *checker) standingJob(j *Job) {
	if _, in := c.snap.t.standingJobs.Get(j); in != (j.Stage != muster.JobEnded) {
		c.bad("job %s is %s, and in the index: %v", j.Key, j.Stage, in)
	}
	placed, waiting := 0, 0
	c.snap.Members(j.UID, 0, func(m *Member) bool {
		switch {
		case m.Index >= j.NextIndex:
			c.bad("job %s: member %d has a row, and the first without is %d", j.Key, m.Index, j.NextIndex)
		case m.Index >= j.Count() && m.Status == muster.MemberWaiting:
			c.bad("job %s: member %d waits, beyond its count", j.Key, m.Index)
		case m.Index >= j.Count():
		case m.Status == muster.MemberPlaced:
			placed++
		case m.Status == muster.MemberWaiting:
			waiting++
		}
		return true
	})
	if placed != j.Placed || waiting != j.Retrying {
		c.bad("job %s says %d members are placed and %d wait, their rows %d and %d", j.Key, j.Placed, j.Retrying, placed, waiting)
	}
}
