package state

import (
	"fmt"
	"math"
	"unique"

	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// ShapeID is what scheduling sees of a member, as canonical text. Equal shapes
// are decided once.
type ShapeID string

const (
	// receiptTime is how long the idempotency key of a submission is remembered at least, in microseconds, unless
	// maxReceiptBytes are taken. Clients repeat requests for seconds, schedulers above them for minutes.
	receiptTime muster.Time = 10 * 60 * 1_000_000
	// maxReceiptBytes bounds the memory of receipts: about 200,000 of them, or 300 submissions a second for receiptTime.
	// Beyond it the oldest are forgotten first.
	maxReceiptBytes = 64 << 20
	// maxReceipts is the bound by number that held instead before format 2.
	maxReceipts = 10_000
)

// NewRun derives what is shared by a version's allocations. Nothing is known of its image.
func NewRun(key muster.JobKey, uid muster.JobUID, version uint64, spec *api.JobSpec) (*Run, error) {
	return NewImageRun(key, uid, version, spec, nil)
}

// NewImageRun is NewRun for a version whose image is for these architectures; empty: not known, or any.
func NewImageRun(key muster.JobKey, uid muster.JobUID, version uint64, spec *api.JobSpec, architectures []string) (*Run, error) {
	r := &Run{Key: key, UID: uid, Version: version, Spec: spec, Architectures: architectures}
	return r, r.derive()
}

// specBytes is about what a spec takes in memory: its texts and lists, and something for the rest.
func specBytes(s *api.JobSpec) int64 { return int64(1<<10 + api.TextBytes(s)) }

// SpecBytes is about what a job's specs take, those of its past versions as well.
func (j *Job) SpecBytes() int64 {
	n := j.Run.bytes
	if j.Standing != nil {
		for i := range j.Standing.Past {
			n += specBytes(j.Standing.Past[i].Spec)
		}
	}
	return n
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
	r.Names = namedAsk(&s.Resources)
	r.needs = make([]muster.Constraint, 0, len(s.Constraints)+1)
	for _, c := range s.Constraints {
		r.needs = append(r.needs, muster.Constraint{Attribute: c.Attribute, Op: c.Op, Value: c.Value, Values: c.Values})
	}
	if s.Image != "" {
		// An image needs a node that runs containers.
		r.needs = append(r.needs, muster.Constraint{Attribute: muster.AttributeContainers, Op: muster.OpIsSet})
	}
	if s.Image != "" {
		r.needs = append(r.needs, muster.Isolation(s.Isolation).Needs()...)
		if c, known := muster.ImageNeeds(r.Architectures); known {
			r.needs = append(r.needs, c)
		}
	}
	if s.Runtime != "" {
		r.needs = append(r.needs, muster.RuntimeNeeds(s.Runtime))
	}
	r.needs = append(r.needs, volumeNeeds(s.Volumes)...)
	for i := range r.needs {
		r.needs[i].Ready()
	}
	r.Keys = keysOf(r)
	r.Shape = r.shape()
	r.priority, r.count = *s.Priority, s.Count
	r.bytes = specBytes(s)
	if r.kind().Standing() {
		if s.Update == nil {
			return fmt.Errorf("job %s: spec without defaults", r.Key)
		}
		r.make = makeOf(s)
	}
	var err error
	r.retry, err = api.ParseRestartOn(s.Restart.On)
	if err != nil {
		return fmt.Errorf("job %s: restart.on: %w", r.Key, err)
	}
	return nil
}

// shape is one text for all who have this shape: it is short to compare, and kept once.
func (r *Run) shape() ShapeID {
	s := r.Spec
	b := fmt.Appendf(nil, "cpu=%d memory=%d disk=%d", r.Ask.CPU, r.Ask.Memory, r.Ask.Disk)
	if r.Names != nil {
		b = fmt.Appendf(b, " cores=%d devices=%v ports=%v", r.Names.Cores, r.Names.Devices, r.Names.Ports)
	}
	if s.Pool != "" {
		b = fmt.Appendf(b, " pool=%s", s.Pool)
	}
	for _, c := range s.Constraints {
		b = fmt.Appendf(b, " %q%s%q%q", c.Attribute, c.Op, c.Value, c.Values)
	}
	if s.Image != "" {
		b = fmt.Appendf(b, " image isolation=%s runtime=%s", s.Isolation, s.Runtime)
		if len(r.Architectures) > 0 {
			b = fmt.Appendf(b, " for=%q", r.Architectures)
		}
	}
	for _, c := range volumeNeeds(s.Volumes) {
		b = fmt.Appendf(b, " %s=%q", c.Attribute, c.Value)
	}
	for _, a := range s.Affinities {
		b = fmt.Appendf(b, " %+d%q%s%q%q", a.Weight, a.Attribute, a.Op, a.Value, a.Values)
	}
	for _, k := range r.Keys {
		b = fmt.Appendf(b, " key=%q", k)
	}
	if len(s.Spread) > 0 || s.DistinctHosts || r.System() {
		// Where the next member goes hangs on where the job's others are.
		b = fmt.Appendf(b, " job=%s/%d", r.UID, r.Version)
	}
	return unique.Make(ShapeID(b)).Value()
}

// volumeNeeds are what the volumes of a job need of a node.
func volumeNeeds(all []api.VolumeSpec) []muster.Constraint {
	var read, write []string
	for _, v := range all {
		switch {
		case v.Name == "":
			read = append(read, muster.VolumeTmpfs)
		case v.Writable:
			write = append(write, v.Name)
			fallthrough
		default:
			read = append(read, v.Name)
		}
	}
	return muster.VolumeNeeds(read, write)
}

func namedAsk(s *api.ResourcesSpec) *muster.NamedAsk {
	if s.Cores == 0 && len(s.Devices) == 0 && len(s.Ports) == 0 {
		return nil
	}
	ask := &muster.NamedAsk{Cores: s.Cores, Ports: s.Ports}
	for _, d := range s.Devices {
		a := muster.DeviceAsk{Kind: d.Kind, Models: d.Models, Count: d.Count}
		if d.Part > 0 {
			a.Count, a.Part = 0, int(math.Ceil(d.Part*muster.WholeDevice-1e-9))
		}
		ask.Devices = append(ask.Devices, a)
	}
	return ask
}

// Constraints of the job in the words of package muster; not to be changed.
func (r *Run) Constraints() []muster.Constraint { return r.needs }

func (s *State) jobByUID(uid muster.JobUID) (*Job, error) {
	j, ok := s.t.jobsUID.Get(&Job{UID: uid})
	if !ok {
		return nil, muster.Faultf(muster.FaultNotFound, "job with uid %s: not found", uid)
	}
	return j, nil
}

func (f *JobSubmitted) apply(s *State, now muster.Time) (any, error) {
	if r, err := s.t.receipt(f.Key.Namespace, f.Idempotency, f.Digest); err != nil {
		return nil, err
	} else if r != nil {
		return &Submitted{Key: r.Job, UID: r.UID, Version: r.Version, Index: r.Index, Unchanged: true, Repeated: true}, nil
	}
	if _, is := f.Key.Environment(); is {
		return nil, muster.Faultf(muster.FaultInvalid, "%s is an environment, and none is submitted as a job", f.Key)
	}
	before := s.t.job(f.Key)
	exists := before != nil
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
		case before.Run.Spec.Type != f.Spec.Type:
			return nil, muster.Faultf(muster.FaultConflict, "job %s is of type %s, and cannot become one of type %s while it is %s; stop it first", f.Key, before.Run.Spec.Type, f.Spec.Type, before.Stage)
		case before.Standing != nil:
		case !f.Replace:
			return nil, muster.Faultf(muster.FaultConflict, "job %s is %s; wait for it to end, stop it, or submit with replace to stop its members and run the new version", f.Key, before.Stage)
		}
	}
	if _, taken := s.t.jobsUID.Get(&Job{UID: out.UID}); taken && !replaces {
		return nil, muster.Faultf(muster.FaultAlreadyExists, "job uid %s is taken", out.UID)
	}
	run, err := NewImageRun(f.Key, out.UID, out.Version, f.Spec, f.Architectures)
	if err != nil {
		return nil, muster.Faultf(muster.FaultInvalid, "%v", err)
	}
	if !replaces {
		if err := s.mayHave(run); err != nil {
			return nil, err
		}
	}
	after := &Job{Run: run, UID: out.UID, Key: f.Key, Version: out.Version, Submitted: now, Age: s.meta.Index}
	if muster.JobType(f.Spec.Type).Standing() {
		after.Standing = &Standing{Rollout: muster.RolloutRolling, Version: out.Version, Began: now, Note: f.Note}
	}
	verb := VerbJobSubmitted
	if replaces && before.Standing != nil {
		s.updateJob(before, f, run, now)
		s.remember(f, out)
		return out, nil
	}
	if replaces {
		if after.Stage, err = before.Stage.To("job "+f.Key.String(), muster.JobLive); err != nil {
			return nil, muster.Faultf(muster.FaultConflict, "%v", err)
		}
		// Members start anew; attempts go on, so that no allocation id comes twice.
		after.AttemptBase, after.MaxAttempt = before.MaxAttempt, before.MaxAttempt
		after.LiveAllocs, after.OutputBytes = before.LiveAllocs, before.OutputBytes
		s.t.eachMember(before.UID, func(m *Member) { s.dropMember(m) })
		s.stopAllocs(before.UID, "replaced by version "+fmt.Sprint(out.Version))
		verb = VerbJobReplaced
	} else {
		after.Stage = muster.JobLive
		before = nil
	}
	s.putJob(before, after, verb)
	s.remember(f, out)
	return out, nil
}

// receipt is what is remembered of an idempotency key; nil: nothing. A key that was used for another request is a conflict.
func (t *tables) receipt(ns muster.Namespace, key, digest string) (*Receipt, error) {
	if key == "" {
		return nil, nil
	}
	r := get(t.receipts, &Receipt{Namespace: ns, Key: key})
	if r != nil && r.Digest != digest {
		return nil, muster.Faultf(muster.FaultConflict, "idempotency key %q was used before for another request, of job %s", key, r.Job)
	}
	return r, nil
}

// Received reports whether a request with an idempotency key is remembered: a repetition of it gets its answer.
func Received(s *Snapshot, ns muster.Namespace, key string) bool {
	return key != "" && get(s.t.receipts, &Receipt{Namespace: ns, Key: key}) != nil
}

func (s *State) remember(f *JobSubmitted, out *Submitted) {
	s.keepReceipt(&Receipt{Namespace: f.Key.Namespace, Key: f.Idempotency, Digest: f.Digest, Job: out.Key, UID: out.UID, Version: out.Version, Index: s.meta.Index})
}

// keepReceipt remembers a request that has a key, and forgets old ones.
func (s *State) keepReceipt(r *Receipt) {
	if r.Key == "" {
		return
	}
	if s.meta.LogFormat() < 2 {
		s.t.putReceipt(r)
		for s.t.receiptN.Len() > maxReceipts {
			s.t.dropOldestReceipt()
		}
		return
	}
	r.At = s.meta.Time
	s.t.putReceipt(r)
	for s.t.receiptBytes > maxReceiptBytes {
		s.t.dropOldestReceipt()
	}
	// A few for each that comes, so that no submission pays for many.
	for range 4 {
		if old, ok := s.t.receiptN.Min(); ok && old.At+receiptTime <= r.At {
			s.t.dropOldestReceipt()
		}
	}
}

func (t *tables) putReceipt(r *Receipt) {
	t.receipts.Set(r)
	t.receiptN.Set(r)
	t.receiptBytes += r.bytes()
}

func (t *tables) dropOldestReceipt() {
	if old, ok := t.receiptN.PopMin(); ok {
		t.receipts.Delete(old)
		t.receiptBytes -= old.bytes()
	}
}

// bytes is about what a receipt takes in memory: its text, its row, and its places in two trees.
func (r *Receipt) bytes() int64 {
	return int64(200 + len(r.Namespace) + len(r.Key) + len(r.Digest) + len(r.Job.Namespace) + len(r.Job.Name) + len(r.UID))
}

// dateReceipts gives receipts from before format 2 a time.
func (s *State) dateReceipts(now muster.Time) {
	for _, r := range collect(s.t.receiptN, &Receipt{}, func(*Receipt) bool { return true }) {
		dated := *r
		dated.At = now
		s.t.receipts.Set(&dated)
		s.t.receiptN.Set(&dated)
	}
}

// eachMember collects first: the tree may be changed by fn.
func (t *tables) eachMember(uid muster.JobUID, fn func(*Member)) {
	for _, m := range collect(t.members, &Member{UID: uid, Index: -1}, func(m *Member) bool { return m.UID == uid }) {
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
	for _, a := range collect(s.t.allocs, &Alloc{UID: uid, Index: -1}, func(a *Alloc) bool { return a.UID == uid }) {
		if a.Live() && a.Desired == muster.AllocRun {
			s.stopAlloc(a, muster.StopJob, cause)
		}
	}
}

// stopAlloc turns one to stop, which is never taken back.
func (s *State) stopAlloc(a *Alloc, reason muster.StopReason, cause string) {
	s.stopAllocFor(a, reason, cause, "")
}

func (s *State) stopAllocFor(a *Alloc, reason muster.StopReason, cause string, by muster.JobUID) {
	b := *a
	b.Desired, b.StopReason, b.StopCause, b.StopFor = muster.AllocStop, reason, cause, by
	if a.Runner != "" {
		b.Runner = muster.RunnerGone
		s.stopRunner(a, cause)
	}
	s.putAlloc(a, &b, VerbAllocStopping)
}

func (f *JobStopped) apply(s *State, now muster.Time) (any, error) {
	j := s.t.job(f.Key)
	if j == nil || j.Env != nil {
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
	switch {
	case j.Env != nil:
		return nil, muster.Faultf(muster.FaultConflict, "environment %s waits until something fits it", j.Key)
	case j.Stage != muster.JobLive || j.Modified != f.Modified:
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
	b.Stopped += j.Untried() + j.Retrying
	b.Retrying, b.NextIndex = 0, max(j.NextIndex, j.Count())
	s.t.eachMember(j.UID, func(m *Member) {
		if m.Status == muster.MemberWaiting {
			n := *m
			n.Status, n.RetryAt, n.Reason = muster.MemberStopped, 0, reason
			s.putMember(m, &n)
		}
	})
	s.putJob(j, &b, VerbJobStopping)
	s.stopAllocs(j.UID, reason)
	c := b
	if c.settle(now) {
		s.putJob(&b, &c, VerbJobEnded)
	}
	return nil
}

// settle ends a job's copy if nothing of it is left to do or to run.
func (j *Job) settle(now muster.Time) bool {
	if j.Stage == muster.JobEnded || j.LiveAllocs > 0 || j.Succeeded+j.Failed+j.Stopped < j.Count() || (j.Env != nil || j.Standing != nil) && j.Stage == muster.JobLive {
		return false
	}
	stage, err := j.Stage.To("job "+j.Key.String(), muster.JobEnded)
	if err != nil {
		return false
	}
	j.Stage, j.Ended, j.Parked, j.ParkedUntil = stage, now, "", 0
	if j.Result == "" || (j.Result == muster.JobStopped && j.Succeeded == j.Count()) {
		switch {
		case j.Failed > 0:
			j.Result = muster.JobFailed
			if j.Reason == "" {
				j.Reason = fmt.Sprintf("%d of %d members failed", j.Failed, j.Count())
			}
		case j.Stopped > 0:
			j.Result = muster.JobStopped
			if j.Reason == "" {
				// A retry left them out: a stop has a reason.
				j.Reason = fmt.Sprintf("%d of %d members were stopped earlier and not retried", j.Stopped, j.Count())
			}
		default:
			j.Result = muster.JobSucceeded
			j.Reason = ""
		}
	}
	return true
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
	verb := VerbJobParked
	if f.Reason == "" {
		verb, b.ParkedUntil = VerbJobUnparked, 0
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
		s.t.eachMember(uid, func(m *Member) { s.dropMember(m) })
		for _, a := range collect(s.t.allocs, &Alloc{UID: uid, Index: -1}, func(a *Alloc) bool { return a.UID == uid }) {
			s.dropAlloc(a)
		}
		s.t.jobsUID.Delete(j)
		s.t.lives.Delete(&life{key: j.Key, version: j.Version})
		if newest, ok := s.t.names.Get(&life{key: j.Key}); ok && newest.uid == uid {
			s.t.names.Delete(newest)
			// An earlier life that is kept for longer has the name again.
			s.t.lives.Descend(&life{key: j.Key, version: math.MaxUint64}, func(earlier *life) bool {
				if earlier.key == j.Key {
					s.t.names.Set(earlier)
				}
				return false
			})
		}
		s.t.endedJobs.Delete(j)
		s.t.endedBytes -= j.SpecBytes()
		s.useJob(j, nil)
		s.changed(Change{Verb: VerbJobPurged, JobBefore: j})
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
		for _, a := range collect(s.t.allocs, &Alloc{UID: uid, Index: -1}, func(a *Alloc) bool { return a.UID == uid }) {
			if a.Output.BlobBytes > 0 {
				b := *a
				b.Output.Stage, b.Output.Why, b.Output.Files, b.Output.BlobBytes = OutputPruned, "deleted to keep the quota of stored output", nil, 0
				s.putAlloc(a, &b, "")
			}
		}
		b := *j
		b.Pruned, b.OutputBytes = true, 0
		s.putJob(j, &b, VerbJobOutputPruned)
	}
	return nil, nil
}
