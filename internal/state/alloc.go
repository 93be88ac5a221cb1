package state

import (
	"fmt"

	"github.com/musterhq/muster"
)

func (f *PlanCommitted) apply(s *State, now muster.Time) (any, error) {
	res := &PlanResult{Index: s.meta.Index}
	before, changes := tables{}, len(s.changes)
	if f.Whole {
		s.publishUses()
		before = s.t.copy()
	}
	for i := range f.Stops {
		if why := s.stop(&f.Stops[i]); why != "" {
			res.RefusedStops = append(res.RefusedStops, StopRefusal{f.Stops[i], why})
		} else {
			res.Stopped++
		}
	}
	d := &drafts{s: s}
	for i := 0; i < len(f.Placements); {
		// A node's part is committed whole or not at all: the group is a run of
		// placements on one node.
		j := i + 1
		for j < len(f.Placements) && f.Placements[j].Node == f.Placements[i].Node {
			j++
		}
		d.placeGroup(f.Placements[i:j], now, res)
		i = j
	}
	d.write()
	if f.Whole && len(res.Refused)+len(res.RefusedStops) > 0 {
		// As if it had never been looked at; what is refused is told, and only that.
		s.t, s.changes = before, s.changes[:changes]
		s.rereadUses()
		res.Placed, res.Stopped = 0, 0
	}
	return res, nil
}

// stop tells an allocation to stop, or says why that does not hold any more. Its
// room is taken until its node says that it ended.
func (s *State) stop(st *Stop) string {
	a := s.t.alloc(st.Alloc)
	switch {
	case a == nil:
		return fmt.Sprintf("allocation %s: not found", st.Alloc)
	case !a.Live():
		return fmt.Sprintf("allocation %s has ended", st.Alloc)
	case a.Desired == muster.AllocStop:
		return fmt.Sprintf("allocation %s is stopping already", st.Alloc)
	}
	j, _ := s.t.jobsUID.Get(&Job{UID: a.UID})
	if why := j.RefuseStop(a, st.Reason); why != "" {
		return why
	}
	if st.Reason == muster.StopPreempted {
		// Equals never, and nobody gives way to who wants nothing any more.
		priority := s.t.allocPriority(a)
		switch j, ok := s.t.jobsUID.Get(&Job{UID: st.For}); {
		case !ok:
			return fmt.Sprintf("job with uid %s: not found", st.For)
		case j.Stage != muster.JobLive:
			return fmt.Sprintf("job %s is %s", j.Key, j.Stage)
		case a.Runner == muster.RunnerClaimed:
			return fmt.Sprintf("runner %s is claimed, and is never preempted", st.Alloc)
		case j.Priority() <= priority:
			return fmt.Sprintf("allocation %s has priority %d, and job %s has %d", st.Alloc, priority, j.Key, j.Priority())
		}
	}
	by := muster.JobUID("")
	if st.Reason == muster.StopPreempted {
		by = st.For
	}
	s.stopAllocFor(a, st.Reason, st.Why, by)
	return ""
}

// wanting is a placement that holds, with the rows it was found to hold by.
type wanting struct {
	Placement
	job    *Job
	member *Member // nil: never tried
}

// placeGroup commits the placements of one node that hold; a member's fault
// refuses that member, the node's fault the whole group.
func (d *drafts) placeGroup(group []Placement, now muster.Time, res *PlanResult) {
	refuse := func(p Placement, nodeFault bool, reason string) {
		res.Refused = append(res.Refused, PlanRefusal{p, reason, nodeFault})
	}
	refuseAll := func(reason string) {
		for _, p := range group {
			refuse(p, true, reason)
		}
	}
	n := d.Node(group[0].Node)
	if n == nil {
		refuseAll(fmt.Sprintf("node %s: not found", group[0].Node))
		return
	}
	if !n.Schedulable() {
		refuseAll(fmt.Sprintf("node %s is %s, %s, intent %s", n.ID, n.Stage, n.Health, n.Intent))
		return
	}
	good := make([]wanting, 0, len(group))
	var ask muster.Resources
	for _, p := range group {
		w, why := d.placeable(p)
		if why != "" {
			refuse(p, false, why)
			continue
		}
		good = append(good, w)
		ask = ask.Add(w.job.Run.Ask)
	}
	if dim := ask.Short(n.Free()); dim != "" {
		for i := range good {
			refuse(good[i].Placement, true, fmt.Sprintf("node %s: short of %s: %s asked, %s free", n.ID, dim, ask, n.Free()))
		}
		return
	}
	taken := n.Taken
	for i := range good {
		var why string
		if taken, why = taken.Take(good[i].job.Run.Names, good[i].Grant, n.Cores(), n.Devices()); why != "" {
			for i := range good {
				refuse(good[i].Placement, true, fmt.Sprintf("node %s: %s", n.ID, why))
			}
			return
		}
	}
	again := repeats(good)
	for i := range good {
		w := &good[i]
		if again {
			// Its job's row is newer by now, and the same member may come twice.
			var why string
			if *w, why = d.placeable(w.Placement); why != "" {
				refuse(w.Placement, false, why)
				continue
			}
		}
		if why := d.s.overLimit(w.job.Run); why != "" {
			refuse(w.Placement, false, why)
			continue
		}
		d.place(w, n, now)
		res.Placed++
	}
}

// repeats reports whether a job comes more than once.
func repeats(good []wanting) bool {
	if len(good) < 2 {
		return false
	}
	seen := make(map[*Job]bool, len(good))
	for i := range good {
		if seen[good[i].job] {
			return true
		}
		seen[good[i].job] = true
	}
	return false
}

// placeable checks that the member still wants exactly this attempt. The job that it finds
// is the draft if that is open, else the row.
func (d *drafts) placeable(p Placement) (wanting, string) {
	w := wanting{Placement: p}
	if d.jobWas != nil && d.jobWas.UID == p.UID {
		w.job = d.job
	} else if w.job, _ = d.s.t.jobsUID.Get(&Job{UID: p.UID}); w.job == nil {
		return w, fmt.Sprintf("job with uid %s: not found", p.UID)
	}
	switch j := w.job; {
	case j.Stage != muster.JobLive:
		return w, fmt.Sprintf("job %s is %s", j.Key, j.Stage)
	case j.Version != p.Version:
		return w, fmt.Sprintf("job %s is at version %d, planned at %d", j.Key, j.Version, p.Version)
	case p.Index < 0 || p.Index >= j.Count():
		return w, fmt.Sprintf("job %s has no member %d", j.Key, p.Index)
	}
	attempt := w.job.AttemptBase
	if p.Index < w.job.NextIndex { // those after have no row
		w.member, _ = d.s.t.members.Get(&Member{UID: p.UID, Index: p.Index})
	}
	if w.member != nil {
		attempt = w.member.Attempt
	}
	switch {
	case p.Attempt != attempt+1:
		return w, fmt.Sprintf("job %s: attempt %d of member %d is not the next one", w.job.Key, p.Attempt, p.Index)
	case w.member == nil && w.job.Env != nil && p.Index < w.job.NextIndex:
		return w, fmt.Sprintf("environment %s: runner %d is gone, and its index is not used again", w.job.Key, p.Index)
	case w.member == nil && w.job.Standing != nil && p.Index < w.job.NextIndex:
		return w, fmt.Sprintf("job %s: the node of member %d is gone, and its index is not used again", w.job.Key, p.Index)
	case w.member == nil && p.Index < w.job.NextIndex:
		// It was stopped before it was ever placed, and a retry of its job left it out.
		return w, fmt.Sprintf("job %s: member %d is %s", w.job.Key, p.Index, muster.MemberStopped)
	case w.member != nil && w.member.Status != muster.MemberWaiting:
		return w, fmt.Sprintf("job %s: member %d is %s", w.job.Key, p.Index, w.member.Status)
	}
	return w, ""
}

// place puts a member on the draft of its node.
func (d *drafts) place(w *wanting, n *Node, now muster.Time) {
	s, j := d.s, w.job
	if j != d.job {
		j = d.jobOf(j)
	}
	// The rows' own texts, so that those that came with the fact are not kept for each.
	m := &Member{UID: j.UID, Index: w.Index}
	if w.member != nil {
		*m = *w.member
	}
	m.Status, m.Attempt, m.RetryAt = muster.MemberPlaced, w.Attempt, 0
	if j.Standing != nil {
		m.turn(j, now)
	}
	if w.member != nil {
		s.putMember(w.member, m)
		j.Retrying--
	} else {
		// Members that were skipped, because their part of the plan was refused,
		// wait like those to be tried again.
		for ; j.NextIndex < w.Index; j.NextIndex++ {
			s.putMember(nil, &Member{UID: j.UID, Index: j.NextIndex, Status: muster.MemberWaiting, Attempt: j.AttemptBase, RetryAt: now})
			j.Retrying++
		}
		s.putMember(nil, m)
		j.NextIndex++
	}
	j.Placed++
	j.LiveAllocs++
	if j.Reserved == n.ID {
		// It has what was kept for it.
		j.Reserved, n.Reserved = "", nil
	}
	a := &Alloc{
		Run: j.Run, ID: m.Alloc(), UID: j.UID, Version: j.Version, Index: w.Index, Attempt: w.Attempt,
		Node: n.ID, Desired: muster.AllocRun, Status: muster.AllocPlaced, Placed: now, Share: n.take(j.Run.Ask), Grant: w.Grant,
	}
	if j.Env == nil {
		j.MaxAttempt = max(j.MaxAttempt, w.Attempt)
	} else {
		a.Runner = muster.RunnerStarting
		j.Env = j.Env.counted("", a.Runner)
	}
	s.putAlloc(nil, a, VerbAllocPlaced)
	n.Used = n.Used.Add(j.Run.Ask)
	n.Taken, _ = n.Taken.Take(j.Run.Names, w.Grant, n.Cores(), n.Devices())
	n.LiveAllocs++
	n.Served++
	n.serve(j.Run.Keys, now)
	if j.Run.System() {
		n.System++
	} else {
		n.IdleSince = 0
	}
	d.nodeVerb = VerbNodeUsed
}

// maxCPUTime, 35 years in microseconds, and maxMemory are the most that an attempt may have used.
const (
	maxCPUTime muster.Time  = 1 << 50
	maxMemory  muster.Bytes = 1 << 47
)

func (f *AllocsReported) apply(s *State, now muster.Time) (any, error) {
	if _, ok := s.t.nodes.Get(&Node{ID: f.Node}); !ok {
		return nil, muster.Faultf(muster.FaultNotFound, "node %s: not found", f.Node)
	}
	d := &drafts{s: s}
	n := 0
	for i := range f.Allocs {
		u := &f.Allocs[i]
		a := s.t.alloc(u.ID)
		// What has ended stays ended, whatever a late report says.
		if a == nil || a.Node != f.Node || !a.Live() {
			continue
		}
		if d.updateAlloc(a, u, now) {
			n++
		}
	}
	d.write()
	return n, nil
}

func (d *drafts) updateAlloc(a *Alloc, u *AllocUpdate, now muster.Time) bool {
	s := d.s
	if u.Status == a.Status {
		if u.Status == muster.AllocRunning && a.Runner == muster.RunnerStarting {
			return d.proved(a, u)
		}
		if u.Status == muster.AllocRunning && a.Ready == 0 && u.Ready != 0 && a.Run.Standing() {
			b := *a
			b.Ready = min(max(u.Ready, a.Started, a.Placed), now)
			s.putAlloc(a, &b, VerbAllocRunning)
			return true
		}
		if u.Status != muster.AllocStarting || u.Detail == a.Detail || u.Detail == "" {
			return false
		}
		b := *a
		b.Detail = u.Detail
		s.putAlloc(a, &b, VerbAllocStarting)
		return true
	}
	status, err := a.Status.To("allocation "+string(a.ID), u.Status)
	if err != nil {
		// An agent can lie or be behind; a report that would go backwards says nothing new.
		return false
	}
	b := *a
	b.Status, b.Detail = status, ""
	if status == muster.AllocStarting || status == muster.AllocRunning && a.Runner == muster.RunnerStarting && !proves(a, u) {
		b.Detail = u.Detail
	}
	if b.Image == "" {
		b.Image = u.Image
	}
	if u.Started != 0 && b.Started == 0 {
		// The node's clock is its own: keep what is told within what must be true.
		b.Started = min(max(u.Started, a.Placed), now)
	}
	if u.Ready != 0 && a.Run.Standing() && b.Ready == 0 {
		b.Ready = min(max(u.Ready, b.Started, a.Placed), now)
	}
	if status != muster.AllocEnded {
		d.ran(a, &b, proves(a, u))
		return true
	}
	b.Outcome, b.ExitCode, b.Signal, b.Failure = u.Outcome, u.ExitCode, u.Signal, u.Failure
	if b.Outcome == "" {
		b.Outcome = muster.OutcomeFailed
	}
	b.Ended = now
	if u.Ended != 0 {
		b.Ended = min(max(u.Ended, a.Placed, b.Started), now)
	}
	if u.Output != nil {
		b.Output = *u.Output
	}
	// Agents can lie. Sums over the attempts of a job must not overflow.
	b.CPU, b.PeakMemory = min(max(u.CPU, 0), maxCPUTime), min(max(u.PeakMemory, 0), maxMemory)
	d.end(a, &b, now)
	return true
}

// proves reports whether a report that it runs says as well that the runner is ready.
func proves(a *Alloc, u *AllocUpdate) bool { return a.Run.Spec.Ready == nil || u.Ready != 0 }

// proved takes in what is said of a runner that runs and was not ready until now.
func (d *drafts) proved(a *Alloc, u *AllocUpdate) bool {
	b := *a
	switch {
	case proves(a, u):
		b.Runner, b.Detail = muster.RunnerWarm, ""
	case u.Detail == a.Detail || u.Detail == "":
		return false
	default:
		b.Detail = u.Detail
	}
	d.s.putAlloc(a, &b, VerbAllocRunning)
	if j := d.Job(a.UID); j != nil && j.Env != nil && b.Runner != a.Runner {
		j.Env = j.Env.counted(a.Runner, b.Runner)
	}
	return true
}

// ran puts in a row whose command is starting or runs; ready: and, if it is a runner, may be claimed.
func (d *drafts) ran(a, b *Alloc, ready bool) {
	running := b.Status == muster.AllocRunning
	if running && ready && a.Runner == muster.RunnerStarting {
		b.Runner = muster.RunnerWarm
	}
	d.s.putAlloc(a, b, verbOfStatus(b.Status))
	if !running {
		return
	}
	d.measure(a, d.s.meta.Time)
	if j := d.Job(a.UID); j != nil && j.counts(a) {
		j.Running++
		if j.Env != nil {
			j.Env = j.Env.counted(a.Runner, b.Runner)
		}
	}
}

// end makes an allocation ended: frees its room, decides its member's next
// step, and settles its job. b is a's copy with outcome, failure and end filled in.
func (d *drafts) end(a, b *Alloc, now muster.Time) {
	s := d.s
	b.Status = muster.AllocEnded
	s.pace(b)
	if n := d.Node(a.Node); n != nil && s.meta.LogFormat() >= FormatUsage {
		n.byMonth(b.Share, b.Placed, b.Ended, func(_ Month, sp Spend) { b.Cost += sp.Cost })
	}
	if a.Runner != "" {
		b.Runner = muster.RunnerGone
	}
	// "alloc.ended" carries the outcome in the row.
	s.putAlloc(a, b, VerbAllocEnded)
	if n := d.Node(a.Node); n != nil {
		n.Used = n.Used.Sub(a.Run.Ask)
		n.Taken = n.Taken.Release(a.Run.Names, a.Grant)
		n.LiveAllocs--
		if a.Run.System() {
			n.System--
		} else if !n.Busy() {
			n.IdleSince = now
		}
		s.charge(n, b)
		d.nodeVerb = VerbNodeFreed
		d.blame(a, b)
	}
	j := d.Job(a.UID)
	if j == nil {
		return
	}
	j.LiveAllocs--
	j.OutputBytes += b.Output.BlobBytes
	if j.Standing != nil && !j.counts(a) {
		if m, ok := s.t.members.Get(&Member{UID: a.UID, Index: a.Index}); ok && m.Attempt == a.Attempt && m.Status == muster.MemberPlaced {
			s.endStanding(j, m, b, now)
		}
	} else if j.counts(a) {
		j.Placed--
		if a.Status == muster.AllocRunning {
			j.Running--
		}
		if j.Env != nil {
			s.endRunner(j, a, b, now)
		} else if m, ok := s.t.members.Get(&Member{UID: a.UID, Index: a.Index}); ok && m.Attempt == a.Attempt && m.Status == muster.MemberPlaced {
			if j.Standing != nil {
				s.endStanding(j, m, b, now)
			} else {
				n := *m
				n.next(j, b, s.t.serving(b.Node), now)
				s.putMember(m, &n)
			}
		}
	}
	if j.settle(now) {
		d.jobVerb = VerbJobEnded
	}
}

func (f *OutputStored) apply(s *State, _ muster.Time) (any, error) {
	a := s.t.alloc(f.Alloc)
	if a == nil {
		return nil, muster.Faultf(muster.FaultNotFound, "allocation %s: not found", f.Alloc)
	}
	// Of a node that is gone it may be told later how much had been stored before.
	more := a.Output.Stage == OutputIncomplete && f.Output.Stage == OutputIncomplete && f.Output.BlobBytes > a.Output.BlobBytes
	if a.Output.Stage != OutputOpen && !more {
		return nil, nil
	}
	b := *a
	files := b.Output.Files
	b.Output = f.Output
	if b.Output.Files == nil {
		b.Output.Files = files
	}
	s.putAlloc(a, &b, VerbAllocOutput)
	if j, err := s.jobByUID(a.UID); err == nil {
		c := *j
		c.OutputBytes += b.Output.BlobBytes - a.Output.BlobBytes
		s.putJob(j, &c, "")
	}
	return nil, nil
}
