package state

import (
	"fmt"
	"math"
	"strings"
	"unique"

	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// ShapeID is what scheduling sees of a member, as canonical text. Equal shapes
// are decided once.
type ShapeID string

// maxReceipts bounds how many idempotency keys are remembered.
const maxReceipts = 10_000

// NewRun derives what is shared by a version's allocations.
func NewRun(key muster.JobKey, uid muster.JobUID, version uint64, spec *api.JobSpec) (*Run, error) {
	r := &Run{Key: key, UID: uid, Version: version, Spec: spec}
	return r, r.derive()
}

func (r *Run) derive() error {
	s := r.Spec
	if s == nil || s.Priority == nil || s.Count < 1 {
		return fmt.Errorf("job %s: spec without defaults", r.Key)
	}
	r.Ask = muster.Resources{
		// A tenth of a thousandth of a core is rounded up: nobody gets more than they hold.
		CPU:    muster.MilliCPU(math.Ceil(s.Resources.CPU * 1000)),
		Memory: s.Resources.Memory.Bytes(),
		Disk:   s.Resources.Disk.Bytes(),
	}
	var b strings.Builder
	fmt.Fprintf(&b, "cpu=%d memory=%d disk=%d", r.Ask.CPU, r.Ask.Memory, r.Ask.Disk)
	if s.Pool != "" {
		fmt.Fprintf(&b, " pool=%s", s.Pool)
	}
	for _, c := range s.Constraints {
		fmt.Fprintf(&b, " %q%s%q%q", c.Attribute, c.Op, c.Value, c.Values)
	}
	if s.Image != "" {
		b.WriteString(" image")
	}
	// One text for all who have this shape: it is short to compare, and kept once.
	r.Shape = unique.Make(ShapeID(b.String())).Value()
	r.priority, r.count = *s.Priority, s.Count
	var err error
	r.retry, err = api.ParseRestartOn(s.Restart.On)
	if err != nil {
		return fmt.Errorf("job %s: restart.on: %w", r.Key, err)
	}
	return nil
}

// Constraints of the job in the words of package muster. An image needs a node that runs containers.
func (r *Run) Constraints() []muster.Constraint {
	out := make([]muster.Constraint, len(r.Spec.Constraints), len(r.Spec.Constraints)+1)
	for i, c := range r.Spec.Constraints {
		out[i] = muster.Constraint{Attribute: c.Attribute, Op: c.Op, Value: c.Value, Values: c.Values}
	}
	if r.Spec.Image != "" {
		out = append(out, muster.Constraint{Attribute: muster.AttributeContainers, Op: muster.OpIsSet})
	}
	return out
}

func (s *State) jobByUID(uid muster.JobUID) (*Job, error) {
	j, ok := s.t.jobsUID.Get(&Job{UID: uid})
	if !ok {
		return nil, muster.Faultf(muster.FaultNotFound, "job with uid %s: not found", uid)
	}
	return j, nil
}

func (f *JobSubmitted) apply(s *State, now muster.Time) (any, error) {
	if f.Idempotency != "" {
		if r, ok := s.t.receipts.Get(&Receipt{Namespace: f.Key.Namespace, Key: f.Idempotency}); ok {
			if r.Digest != f.Digest {
				return nil, muster.Faultf(muster.FaultConflict, "idempotency key %q was used before for another request, of job %s", f.Idempotency, r.Job)
			}
			return &Submitted{Key: r.Job, UID: r.UID, Version: r.Version, Index: r.Index, Unchanged: true, Repeated: true}, nil
		}
	}
	before, exists := s.t.jobs.Get(&Job{Key: f.Key})
	var version uint64
	if exists {
		version = before.Version
	}
	if f.IfVersion != nil && *f.IfVersion != version {
		return nil, muster.Faultf(muster.FaultConflict, "job %s is at version %d, not %d as the submission demands", f.Key, version, *f.IfVersion)
	}
	out := &Submitted{Key: f.Key, UID: f.UID, Version: version + 1, Index: s.meta.Index}
	// A job that has ended keeps its row and its allocations until they are
	// forgotten after their time; under its name begins another one.
	replaces := exists && before.Stage != muster.JobEnded
	if replaces {
		out.UID = before.UID
		switch {
		case before.Stage == muster.JobLive && before.Run.Spec.Equal(f.Spec) && !f.Replace:
			out.Version, out.Unchanged = before.Version, true
			s.remember(f, out)
			return out, nil
		case before.Stage == muster.JobStopping:
			return nil, muster.Faultf(muster.FaultConflict, "job %s is stopping; submit again when it has ended", f.Key)
		case !f.Replace:
			return nil, muster.Faultf(muster.FaultConflict, "job %s is %s; wait for it to end, stop it, or submit with replace to stop its members and run the new version", f.Key, before.Stage)
		}
	}
	if _, taken := s.t.jobsUID.Get(&Job{UID: out.UID}); taken && !replaces {
		return nil, muster.Faultf(muster.FaultAlreadyExists, "job uid %s is taken", out.UID)
	}
	run, err := NewRun(f.Key, out.UID, out.Version, f.Spec)
	if err != nil {
		return nil, muster.Faultf(muster.FaultInvalid, "%v", err)
	}
	after := &Job{Run: run, UID: out.UID, Key: f.Key, Version: out.Version, Submitted: now, Age: s.meta.Index}
	verb := "job.submitted"
	if replaces {
		if after.Stage, err = before.Stage.To("job "+f.Key.String(), muster.JobLive); err != nil {
			return nil, muster.Faultf(muster.FaultConflict, "%v", err)
		}
		// Members start anew; attempts go on, so that no allocation id comes twice.
		after.AttemptBase, after.MaxAttempt = before.MaxAttempt, before.MaxAttempt
		after.LiveAllocs, after.OutputBytes = before.LiveAllocs, before.OutputBytes
		s.eachMember(before.UID, func(m *Member) { s.dropMember(m) })
		s.stopAllocs(before.UID, "replaced by version "+fmt.Sprint(out.Version))
		verb = "job.replaced"
	} else {
		after.Stage = muster.JobLive
		before = nil
	}
	s.putJob(before, after, verb)
	s.remember(f, out)
	return out, nil
}

func (s *State) remember(f *JobSubmitted, out *Submitted) {
	if f.Idempotency == "" {
		return
	}
	r := &Receipt{Namespace: f.Key.Namespace, Key: f.Idempotency, Digest: f.Digest, Job: out.Key, UID: out.UID, Version: out.Version, Index: s.meta.Index}
	s.t.receipts.Set(r)
	s.t.receiptN.Set(r)
	for s.t.receiptN.Len() > maxReceipts {
		if old, ok := s.t.receiptN.PopMin(); ok {
			s.t.receipts.Delete(old)
		}
	}
}

// eachMember collects first: the tree may be changed by fn.
func (s *State) eachMember(uid muster.JobUID, fn func(*Member)) {
	for _, m := range collect(s.t.members, &Member{UID: uid, Index: -1}, func(m *Member) bool { return m.UID == uid }) {
		fn(m)
	}
}

func collect[T any](t *btree.BTreeG[T], from T, while func(T) bool) []T {
	var out []T
	t.Ascend(from, func(v T) bool {
		if !while(v) {
			return false
		}
		out = append(out, v)
		return true
	})
	return out
}

// stopAllocs turns every live allocation of a job to stop.
func (s *State) stopAllocs(uid muster.JobUID, cause string) {
	for _, a := range collect(s.t.jobAllocs, &Alloc{UID: uid, Index: -1}, func(a *Alloc) bool { return a.UID == uid }) {
		if a.Live() && a.Desired == muster.AllocRun {
			b := *a
			b.Desired, b.StopCause = muster.AllocStop, cause
			s.putAlloc(a, &b, "alloc.stopping")
		}
	}
}

func (f *JobStopped) apply(s *State, now muster.Time) (any, error) {
	j, ok := s.t.jobs.Get(&Job{Key: f.Key})
	if !ok {
		return nil, muster.Faultf(muster.FaultNotFound, "job %s: not found", f.Key)
	}
	if j.Stage != muster.JobLive {
		return j, nil
	}
	reason := "stopped by user"
	if f.Reason != "" {
		reason += ": " + f.Reason
	}
	return j, s.windDown(j, reason, muster.JobStopped, now)
}

func (f *JobFailed) apply(s *State, now muster.Time) (any, error) {
	j, err := s.jobByUID(f.UID)
	if err != nil {
		return nil, err
	}
	if j.Stage != muster.JobLive || j.Modified != f.Modified {
		return nil, muster.Faultf(muster.FaultConflict, "job %s changed meanwhile", j.Key)
	}
	return nil, s.windDown(j, f.Reason, muster.JobFailed, now)
}

// windDown ends what waits at once and tells what runs to stop.
func (s *State) windDown(j *Job, reason string, result muster.JobOutcome, now muster.Time) error {
	b := *j
	var err error
	if b.Stage, err = j.Stage.To("job "+j.Key.String(), muster.JobStopping); err != nil {
		return err
	}
	b.Reason, b.Result = reason, result
	b.Parked, b.ParkedUntil = "", 0
	b.Stopped += j.Count() - j.NextIndex + j.Retrying
	b.Retrying, b.NextIndex = 0, j.Count()
	s.eachMember(j.UID, func(m *Member) {
		if m.Status == muster.MemberWaiting {
			n := *m
			n.Status, n.RetryAt, n.Reason = muster.MemberStopped, 0, reason
			s.putMember(m, &n)
		}
	})
	s.putJob(j, &b, "job.stopping")
	s.stopAllocs(j.UID, reason)
	return s.settle(j.UID, now)
}

// settle ends the job if nothing of it is left to do or to run.
func (s *State) settle(uid muster.JobUID, now muster.Time) error {
	j, err := s.jobByUID(uid)
	if err != nil {
		return err
	}
	if j.Stage == muster.JobEnded || j.LiveAllocs > 0 || j.Succeeded+j.Failed+j.Stopped < j.Count() {
		return nil
	}
	b := *j
	if b.Stage, err = j.Stage.To("job "+j.Key.String(), muster.JobEnded); err != nil {
		return err
	}
	b.Ended, b.Parked, b.ParkedUntil = now, "", 0
	if b.Result == "" || (b.Result == muster.JobStopped && b.Succeeded == b.Count()) {
		switch {
		case b.Failed > 0:
			b.Result = muster.JobFailed
			if b.Reason == "" {
				b.Reason = fmt.Sprintf("%d of %d members failed", b.Failed, b.Count())
			}
		case b.Stopped > 0:
			b.Result = muster.JobStopped
		default:
			b.Result = muster.JobSucceeded
			b.Reason = ""
		}
	}
	s.putJob(j, &b, "job.ended")
	return nil
}

func (f *JobParked) apply(s *State, _ muster.Time) (any, error) {
	j, err := s.jobByUID(f.UID)
	if err != nil {
		return nil, err
	}
	if j.Stage != muster.JobLive || (f.Reason != "" && j.Waiting() == 0) {
		return nil, muster.Faultf(muster.FaultConflict, "job %s is %s and has %d members waiting", j.Key, j.Stage, j.Waiting())
	}
	b := *j
	b.Parked, b.ParkedUntil = f.Reason, f.Until
	verb := "job.parked"
	if f.Reason == "" {
		verb, b.ParkedUntil = "job.unparked", 0
	}
	s.putJob(j, &b, verb)
	return nil, nil
}

func (f *JobsPurged) apply(s *State, _ muster.Time) (any, error) {
	n := 0
	for _, uid := range f.UIDs {
		j, ok := s.t.jobsUID.Get(&Job{UID: uid})
		if !ok || j.Stage != muster.JobEnded {
			continue
		}
		s.eachMember(uid, func(m *Member) { s.dropMember(m) })
		for _, a := range collect(s.t.jobAllocs, &Alloc{UID: uid, Index: -1}, func(a *Alloc) bool { return a.UID == uid }) {
			s.dropAlloc(a)
		}
		s.t.lives.Delete(j)
		if now, ok := s.t.jobs.Get(j); ok && now.UID == uid {
			s.t.jobs.Delete(j)
			// An earlier life that is kept for longer has the name again.
			s.t.lives.Descend(&Job{Key: j.Key, Version: math.MaxUint64}, func(earlier *Job) bool {
				if earlier.Key == j.Key {
					s.t.jobs.Set(earlier)
				}
				return false
			})
		}
		s.t.jobsUID.Delete(j)
		s.t.endedJobs.Delete(j)
		s.changed(Change{Verb: "job.purged", JobBefore: j})
		n++
	}
	return n, nil
}

func (f *JobOutputPruned) apply(s *State, _ muster.Time) (any, error) {
	for _, uid := range f.UIDs {
		j, ok := s.t.jobsUID.Get(&Job{UID: uid})
		if !ok || j.Stage != muster.JobEnded {
			continue
		}
		for _, a := range collect(s.t.jobAllocs, &Alloc{UID: uid, Index: -1}, func(a *Alloc) bool { return a.UID == uid }) {
			if a.Output.BlobBytes > 0 {
				b := *a
				b.Output.Stage, b.Output.Why, b.Output.Files, b.Output.BlobBytes = OutputPruned, "deleted to keep the quota of stored output", nil, 0
				s.putAlloc(a, &b, "")
			}
		}
		b := *j
		b.Pruned, b.OutputBytes = true, 0
		s.putJob(j, &b, "job.output-pruned")
	}
	return nil, nil
}
