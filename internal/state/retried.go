package state

import (
	"fmt"
	"strings"

	"github.com/musterhq/muster"
)

// A retry has members of a batch job that did not succeed wait again, in the same version: those that succeeded keep
// their allocations and outputs, and ids of allocations go on where they were. A job that had ended lives again.
//
// Members that were stopped before they were ever placed have no row, but are below NextIndex once their job has ended.
// Those after the last row go back behind NextIndex, so that a retry of a million of them writes one row.

func (f *JobRetried) apply(s *State, now muster.Time) (any, error) {
	if r, err := s.t.receipt(f.Key.Namespace, f.Idempotency, f.Digest); err != nil {
		return nil, err
	} else if r != nil {
		return &Retried{Key: r.Job, UID: r.UID, Version: r.Version, Index: r.Index, Members: r.Members, Repeated: true}, nil
	}
	j := s.t.job(f.Key)
	if err := f.refuse(j); err != nil {
		return nil, err
	}
	ended := j.Stage == muster.JobEnded
	if ended {
		if err := s.mayHave(j.Run); err != nil {
			return nil, err
		}
	}
	r := &retry{s: s, f: f, job: j, now: now, stopped: f.All || j.Result == muster.JobFailed}
	if len(f.Members) > 0 {
		if err := r.listed(); err != nil {
			return nil, err
		}
	} else if r.all(); r.rows == nil && r.next == j.NextIndex {
		return nil, r.none()
	}
	b := *j
	b.Failed, b.Stopped = j.Failed-r.failed, j.Stopped-r.wereStopped
	b.Retrying += len(r.rows)
	b.NextIndex = r.next
	if ended {
		var err error
		if b.Stage, err = j.Stage.To("job "+j.Key.String(), muster.JobLive); err != nil {
			return nil, muster.Faultf(muster.FaultConflict, "%v", err)
		}
		// It comes after those that were submitted meanwhile. What is stored from now on may be pruned again.
		b.Ended, b.Result, b.Reason, b.Age, b.Pruned = 0, "", "", s.meta.Index, false
	}
	// What kept its members from being placed may be mended.
	b.Parked, b.ParkedUntil = "", 0
	for i := range r.rows {
		s.putMember(r.rows[i].before, r.rows[i].after)
	}
	s.putJob(j, &b, VerbJobRetried)
	out := &Retried{Key: j.Key, UID: j.UID, Version: j.Version, Index: s.meta.Index, Members: r.failed + r.wereStopped}
	s.keepReceipt(&Receipt{Namespace: f.Key.Namespace, Key: f.Idempotency, Digest: f.Digest, Job: j.Key, UID: j.UID, Version: j.Version, Index: s.meta.Index, Members: out.Members})
	return out, nil
}

// refuse says why no member of a job can be retried.
func (f *JobRetried) refuse(j *Job) error {
	switch {
	case j == nil || j.Env != nil:
		return muster.Faultf(muster.FaultNotFound, "job %s: not found", f.Key)
	case j.UID != f.UID:
		return muster.Faultf(muster.FaultConflict, "job %s was submitted again meanwhile, as version %d; look at it before you retry it", f.Key, j.Version)
	case j.Standing != nil:
		return muster.Faultf(muster.FaultConflict, "job %s is of type %s, whose members are started again whenever they end; only members of a batch job can be retried", j.Key, j.Run.Spec.Type)
	case j.Stage == muster.JobStopping:
		return muster.Faultf(muster.FaultConflict, "job %s is stopping; retry its members when it has ended", j.Key)
	}
	return nil
}

// retry finds the members that are to wait again. It changes nothing.
type retry struct {
	s   *State
	f   *JobRetried
	job *Job
	now muster.Time
	// stopped: members that were stopped are meant as well.
	stopped bool
	// rows are those of members that wait again. failed and wereStopped count the members by what they were, those
	// without a row included; next is the job's NextIndex.
	rows                []retriedMember
	failed, wereStopped int
	next                int
}

type retriedMember struct{ before, after *Member }

// take has a member wait again. It has all its attempts, and may run on every node.
func (r *retry) take(index int, before *Member) {
	after := &Member{UID: r.job.UID, Index: index, Status: muster.MemberWaiting, Attempt: r.job.AttemptBase, RetryAt: r.now}
	if before != nil {
		after.Attempt = before.Attempt
	}
	if before != nil && before.Status == muster.MemberFailed {
		r.failed++
	} else {
		r.wereStopped++
	}
	r.rows = append(r.rows, retriedMember{before, after})
}

// all takes each member that is meant.
func (r *retry) all() {
	next := 0 // the index after the last row
	r.s.t.members.Ascend(&Member{UID: r.job.UID, Index: -1}, func(m *Member) bool {
		if m.UID != r.job.UID {
			return false
		}
		for ; next < m.Index; next++ {
			if r.stopped {
				r.take(next, nil)
			}
		}
		if m.Status == muster.MemberFailed || r.stopped && m.Status == muster.MemberStopped {
			r.take(m.Index, m)
		}
		next = m.Index + 1
		return true
	})
	r.next = r.job.NextIndex
	if r.stopped && next < r.next {
		r.wereStopped += r.next - next
		r.next = next
	}
}

// listed takes the members that the fact names, or none of them.
func (r *retry) listed() error {
	j := r.job
	r.next = j.NextIndex
	seen, refused := make(map[int]bool, len(r.f.Members)), []string(nil)
	for _, i := range r.f.Members {
		if i < 0 || i >= j.Count() {
			return muster.Faultf(muster.FaultInvalid, "job %s has no member %d: its members are 0 to %d", j.Key, i, j.Count()-1)
		}
		if seen[i] {
			continue
		}
		seen[i] = true
		m, status := get(r.s.t.members, &Member{UID: j.UID, Index: i}), muster.MemberWaiting
		switch {
		case m != nil:
			status = m.Status
		case i < j.NextIndex:
			status = muster.MemberStopped
		}
		if status == muster.MemberFailed || status == muster.MemberStopped {
			r.take(i, m)
			continue
		}
		refused = append(refused, fmt.Sprintf("member %d %s", i, map[muster.MemberStatus]string{
			muster.MemberWaiting: "is waiting", muster.MemberPlaced: "is running", muster.MemberSucceeded: "succeeded",
		}[status]))
	}
	if n := len(refused); n > 0 {
		more := ""
		if n > 3 {
			more = fmt.Sprintf(" and %d more", n-3)
		}
		return muster.Faultf(muster.FaultConflict, "job %s: %s%s, and only members that failed or were stopped can be retried; leave out the others", j.Key, strings.Join(refused[:min(n, 3)], ", "), more)
	}
	return nil
}

// none says why there is no member to retry.
func (r *retry) none() error {
	switch j := r.job; {
	case j.Stage == muster.JobEnded && j.Succeeded == j.Count():
		return muster.Faultf(muster.FaultConflict, "job %s succeeded: no member is to be retried; submit it again to run all of it", j.Key)
	case j.Stopped > 0:
		return muster.Faultf(muster.FaultConflict, "job %s: no member failed; %s of %d stopped before the end, which only a retry of all includes", j.Key, muster.Counted(j.Stopped, "member"), j.Count())
	default:
		return muster.Faultf(muster.FaultConflict, "job %s is running, and no member of it has failed; wait until one has, or stop the job and retry its members then", j.Key)
	}
}
