package roll

import (
	"fmt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// MaxFailures is how often in a row a member may end by its own doing without having been healthy: then the rollout has failed.
const MaxFailures = 3

// Verdict is what is to be done about a job. At most one of Size, Stops, Stage and Revert is set.
type Verdict struct {
	// Size is how many members a system job shall have had; nil: as many as it says.
	Size *state.SystemSized
	// Stops are members to end now.
	Stops []state.Stop
	// Stage is what the rollout has come to, Reason why; empty: it goes on, or is over already.
	Stage  muster.RolloutStage
	Reason string
	// Revert is the version to go back to.
	Revert *state.PastVersion
	// Wake is when to look again if nothing changes; 0: when something does.
	Wake muster.Time
}

// Progress is how far a job is in running what it says.
type Progress struct {
	// Wanted members; Updated of them have an allocation that runs as the job says now, Healthy of those are
	// healthy. Available are healthy in any version and were not told to stop.
	Wanted, Updated, Healthy, Available int
}

// ProgressOf counts a live standing job's members.
func ProgressOf(snap *state.Snapshot, j *state.Job, now muster.Time) Progress {
	return survey(snap, j, now).Progress
}

// Plan decides about a live standing job.
func Plan(snap *state.Snapshot, j *state.Job, now muster.Time) Verdict {
	if j.Run.System() {
		if size := sizeOf(snap, j); size != nil {
			return Verdict{Size: size}
		}
	}
	s := survey(snap, j, now)
	v := Verdict{Wake: s.wake}
	rolling := j.Standing.Rollout == muster.RolloutRolling
	switch {
	case rolling && s.failed != "":
		v.Stage, v.Reason = muster.RolloutFailed, s.failed
		return v
	case rolling && s.Wanted > 0 && s.Healthy == s.Wanted:
		v.Stage = muster.RolloutDone
		return v
	case j.Standing.Rollout == muster.RolloutFailed && j.Run.Spec.Update.AutoRevert && j.Standing.Reverts == 0:
		if v.Revert = Target(j); v.Revert != nil {
			return v
		}
	}
	s.choose(&v, rolling)
	return v
}

// count is what a survey knows of a job's members.
type count struct {
	Progress
	job *state.Job
	// changing are members that are on their way to run as the job says: they wait, start, are not healthy yet, or
	// have been told to stop.
	changing int
	// sick are outdated members that are not healthy, old those that are; leaving are on nodes that drain, healthy or not.
	sick, old, leavingSick, leaving []*state.Alloc
	failed                          string
	wake                            muster.Time
	// leader is when the present leader began: before, nobody asked members whether they are healthy.
	leader muster.Time
}

// survey looks at each member once.
func survey(snap *state.Snapshot, j *state.Job, now muster.Time) *count {
	s := &count{job: j, leader: snap.Meta().LeaderSince}
	s.Wanted = j.Untried() + j.Retrying + j.Placed
	s.changing = j.Untried()
	snap.Members(j.UID, 0, func(m *state.Member) bool {
		if m.Index >= j.Count() {
			return false
		}
		switch m.Status {
		case muster.MemberWaiting:
			s.changing++
			s.waiting(m, now)
		case muster.MemberPlaced:
			if a := snap.Alloc(m.Alloc()); a != nil {
				s.placed(snap, m, a, now)
			}
		}
		return true
	})
	return s
}

// waiting judges a member without an allocation: it fails only by its own doing.
func (s *count) waiting(m *state.Member, now muster.Time) {
	if t := m.Turn; t != nil && t.Make == s.job.Run.Make() && t.Failures > 0 {
		s.judge(m, t.Since, now)
	}
}

func (s *count) placed(snap *state.Snapshot, m *state.Member, a *state.Alloc, now muster.Time) {
	n := snap.Node(a.Node)
	reached := n != nil && n.Health != muster.NodeLost
	at, runs := a.HealthyAt(s.job.Run.Spec.Update)
	healthy := runs && at <= now && reached
	outdated := s.job.Outdated(a)
	if !outdated {
		s.Updated++
		if healthy && a.Desired == muster.AllocRun {
			s.Healthy++
		}
	}
	// A node that drains is left; members of a system job stay there until it goes.
	leaves := n != nil && (n.Stage == muster.NodeDraining || n.Intent == muster.NodeDrain) && !s.job.Run.System()
	switch {
	case a.Desired == muster.AllocStop:
		s.changing++
	case healthy:
		s.Available++
		switch {
		case leaves:
			s.leaving = append(s.leaving, a)
		case outdated:
			s.old = append(s.old, a)
		}
	case !reached:
		// Whether it runs is not known, and it could not be told to stop.
		s.changing++
	case leaves:
		s.leavingSick = append(s.leavingSick, a)
	case outdated:
		s.sick = append(s.sick, a)
		if runs {
			s.wakeAt(at)
		}
	default:
		s.changing++
		if runs {
			s.wakeAt(at)
		}
		if t := m.Turn; t != nil {
			since := max(a.Placed, n.HealthSince) // out of contact it was told nothing
			if t.Failures > 0 {
				since = t.Since
			}
			s.judge(m, since, now)
		}
	}
}

// judge says whether a member that is not healthy yet has failed.
func (s *count) judge(m *state.Member, since, now muster.Time) {
	limit := s.job.Run.Spec.Update.HealthyDeadline
	due := max(since, s.job.Standing.Began, s.leader).Add(limit.Std())
	t := m.Turn
	why := ""
	switch {
	case t.Failures >= MaxFailures:
		why = fmt.Sprintf("member %d failed %d times in a row without being healthy, the last time: %s", m.Index, t.Failures, t.Failure)
	case now < due:
		s.wakeAt(due)
		return
	case t.Failures > 0:
		why = fmt.Sprintf("member %d was not healthy within %s: %s", m.Index, limit, t.Failure)
	default:
		why = fmt.Sprintf("member %d was not healthy within %s", m.Index, limit)
	}
	if s.failed == "" {
		s.failed = why
	}
}

func (s *count) wakeAt(t muster.Time) {
	if s.wake == 0 || t < s.wake {
		s.wake = t
	}
}

// choose says who ends next. Those that are not healthy go first, as nothing is lost with them: at most max_parallel at a time
// are on their way to another version. Healthy ones only as long as no more than max_parallel of those wanted are missing.
func (s *count) choose(v *Verdict, rolling bool) {
	j := s.job
	k := j.Run.Spec.Update.MaxParallel
	stop := func(a *state.Alloc, reason muster.StopReason) {
		why := fmt.Sprintf("its job is at version %d", j.Version)
		if reason == muster.StopMoved {
			why = fmt.Sprintf("node %s drains", a.Node)
		}
		v.Stops = append(v.Stops, state.Stop{Alloc: a.ID, Reason: reason, For: j.UID, Why: why})
	}
	for _, a := range s.leavingSick {
		stop(a, muster.StopMoved)
		s.changing++
	}
	if rolling {
		for _, a := range s.sick {
			if s.changing < k {
				stop(a, muster.StopUpdated)
				s.changing++
			}
		}
	}
	missing := s.Wanted - s.Available
	for _, a := range s.leaving {
		if missing < k {
			stop(a, muster.StopMoved)
			missing++
		}
	}
	if rolling {
		for _, a := range s.old {
			if missing < k {
				stop(a, muster.StopUpdated)
				missing++
			}
		}
	}
}

// Target is the newest version that was rolled out and runs otherwise than the present one.
func Target(j *state.Job) *state.PastVersion {
	for i := len(j.Standing.Past) - 1; i >= 0; i-- {
		p := &j.Standing.Past[i]
		if p.Rollout != muster.RolloutDone {
			continue
		}
		if run, err := state.NewRun(j.Key, j.UID, p.Version, p.Spec); err == nil && run.Make() != j.Run.Make() {
			return p
		}
	}
	return nil
}

// sizeOf is how many members a system job wants: one for each node that fits and has none. Nil if it says so.
func sizeOf(snap *state.Snapshot, j *state.Job) *state.SystemSized {
	missing := Missing(snap, j)
	f := &state.SystemSized{UID: j.UID, Version: j.Version}
	// Who waits to come back to its node is one of those.
	const never = muster.Time(1<<63 - 1)
	snap.Retries(j.UID).Due(never, func(m *state.Member) bool {
		a := snap.Alloc(m.Alloc())
		if a == nil || !missing[a.Node] {
			f.Drop = append(f.Drop, m.Index)
		} else {
			delete(missing, a.Node)
		}
		return true
	})
	f.Count = j.NextIndex + len(missing)
	if f.Count == j.Count() && len(f.Drop) == 0 {
		return nil
	}
	return f
}

// Missing are the nodes that should have a member of a system job and have none: they may be given work, meet what
// the job demands, and are large enough. Whether there is room for it now is another matter.
func Missing(snap *state.Snapshot, j *state.Job) map[muster.NodeID]bool {
	shape := fit.ShapeOf(j.Run)
	missing := map[muster.NodeID]bool{}
	snap.LiveNodes(func(n *state.Node) bool {
		if n.Schedulable() && fit.Feasible(shape, n) == "" && shape.Short(fit.Space{Resources: n.Capacity}, n.Devices()) == "" {
			missing[n.ID] = true
		}
		return true
	})
	if j.LiveAllocs > 0 {
		snap.JobAllocs(j.UID, 0, func(a *state.Alloc) bool {
			if a.Live() {
				delete(missing, a.Node)
			}
			return true
		})
	}
	return missing
}

// String says how far it is, for people.
func (p Progress) String() string {
	return fmt.Sprintf("%d of %d members run the version, %d of them healthy", p.Updated, p.Wanted, p.Healthy)
}

// Revert submits an earlier version of a job again: how many members it has and how urgent they are stays as it is.
func Revert(j *state.Job, to *state.PastVersion, why string) *state.JobSubmitted {
	spec := to.Spec.Clone()
	spec.Count, spec.Priority = j.Run.Spec.Count, j.Run.Spec.Priority
	version := j.Version
	return &state.JobSubmitted{Key: j.Key, UID: j.UID, Spec: spec, IfVersion: &version, Note: why, Reverts: to.Version, Architectures: to.Architectures}
}
