package state

import (
	"fmt"

	"github.com/musterhq/muster"
)

func (f *PlanCommitted) apply(s *State, now muster.Time) (any, error) {
	res := &PlanResult{Index: s.meta.Index}
	for i := 0; i < len(f.Placements); {
		// A node's part is committed whole or not at all: the group is a run of
		// placements on one node.
		j := i + 1
		for j < len(f.Placements) && f.Placements[j].Node == f.Placements[i].Node {
			j++
		}
		s.placeGroup(f.Placements[i:j], now, res)
		i = j
	}
	return res, nil
}

// placeGroup commits the placements of one node that hold; a member's fault
// refuses that member, the node's fault the whole group.
func (s *State) placeGroup(group []Placement, now muster.Time, res *PlanResult) {
	refuse := func(p Placement, nodeFault bool, reason string) {
		res.Refused = append(res.Refused, PlanRefusal{p, reason, nodeFault})
	}
	refuseAll := func(reason string) {
		for _, p := range group {
			refuse(p, true, reason)
		}
	}
	node, ok := s.t.nodes.Get(&Node{ID: group[0].Node})
	if !ok {
		refuseAll(fmt.Sprintf("node %s: not found", group[0].Node))
		return
	}
	if !node.Schedulable() {
		refuseAll(fmt.Sprintf("node %s is %s, %s, intent %s", node.ID, node.Stage, node.Health, node.Intent))
		return
	}
	good := make([]Placement, 0, len(group))
	jobs := make([]*Job, 0, len(group))
	var ask muster.Resources
	for _, p := range group {
		j, why := s.placeable(p)
		if why != "" {
			refuse(p, false, why)
			continue
		}
		good, jobs = append(good, p), append(jobs, j)
		ask = ask.Add(j.Run.Ask)
	}
	if dim := ask.Short(node.Free()); dim != "" {
		for _, p := range good {
			refuse(p, true, fmt.Sprintf("node %s: short of %s: %s asked, %s free", node.ID, dim, ask, node.Free()))
		}
		return
	}
	n := *node
	for i, p := range good {
		// The same job may come again in the group: its row is newer by then,
		// and the same member may come twice.
		j := jobs[i]
		if i > 0 {
			var why string
			if j, why = s.placeable(p); why != "" {
				refuse(p, false, why)
				continue
			}
		}
		s.place(j, p, n.take(j.Run.Ask), now)
		n.Used = n.Used.Add(j.Run.Ask)
		n.LiveAllocs++
		n.Served++
		res.Placed++
	}
	if n.LiveAllocs != node.LiveAllocs {
		n.IdleSince = 0
		s.putNode(node, &n, "node.used")
	}
}

// placeable checks that the member still wants exactly this attempt.
func (s *State) placeable(p Placement) (*Job, string) {
	j, ok := s.t.jobsUID.Get(&Job{UID: p.UID})
	switch {
	case !ok:
		return nil, fmt.Sprintf("job with uid %s: not found", p.UID)
	case j.Stage != muster.JobLive:
		return nil, fmt.Sprintf("job %s is %s", j.Key, j.Stage)
	case j.Version != p.Version:
		return nil, fmt.Sprintf("job %s is at version %d, planned at %d", j.Key, j.Version, p.Version)
	case p.Index < 0 || p.Index >= j.Count():
		return nil, fmt.Sprintf("job %s has no member %d", j.Key, p.Index)
	}
	m, tried := s.t.members.Get(&Member{UID: p.UID, Index: p.Index})
	switch {
	case !tried && p.Attempt != j.AttemptBase+1, tried && p.Attempt != m.Attempt+1:
		return nil, fmt.Sprintf("job %s: attempt %d of member %d is not the next one", j.Key, p.Attempt, p.Index)
	case tried && m.Status != muster.MemberWaiting:
		return nil, fmt.Sprintf("job %s: member %d is %s", j.Key, p.Index, m.Status)
	}
	return j, ""
}

func (s *State) place(j *Job, p Placement, share int64, now muster.Time) {
	before, tried := s.t.members.Get(&Member{UID: p.UID, Index: p.Index})
	m := &Member{UID: p.UID, Index: p.Index}
	if tried {
		*m = *before
	}
	m.Status, m.Attempt, m.RetryAt = muster.MemberPlaced, p.Attempt, 0
	b := *j
	if tried {
		s.putMember(before, m)
		b.Retrying--
	} else {
		// Members that were skipped, because their part of the plan was refused,
		// wait like those to be tried again.
		for ; b.NextIndex < p.Index; b.NextIndex++ {
			s.putMember(nil, &Member{UID: p.UID, Index: b.NextIndex, Status: muster.MemberWaiting, Attempt: j.AttemptBase, RetryAt: now})
			b.Retrying++
		}
		s.putMember(nil, m)
		b.NextIndex++
	}
	b.Placed++
	b.LiveAllocs++
	b.MaxAttempt = max(b.MaxAttempt, p.Attempt)
	s.putJob(j, &b, "")
	s.putAlloc(nil, &Alloc{
		Run: j.Run, ID: m.Alloc(), UID: p.UID, Version: p.Version, Index: p.Index, Attempt: p.Attempt,
		Node: p.Node, Desired: muster.AllocRun, Status: muster.AllocPlaced, Placed: now, Share: share,
	}, "alloc.placed")
}

func (f *AllocsReported) apply(s *State, now muster.Time) (any, error) {
	if _, ok := s.t.nodes.Get(&Node{ID: f.Node}); !ok {
		return nil, muster.Faultf(muster.FaultNotFound, "node %s: not found", f.Node)
	}
	n := 0
	for i := range f.Allocs {
		u := &f.Allocs[i]
		a, ok := s.t.allocs.Get(&Alloc{ID: u.ID})
		// What has ended stays ended, whatever a late report says.
		if !ok || a.Node != f.Node || !a.Live() {
			continue
		}
		if s.updateAlloc(a, u, now) {
			n++
		}
	}
	return n, nil
}

func (s *State) updateAlloc(a *Alloc, u *AllocUpdate, now muster.Time) bool {
	if u.Status == a.Status {
		if u.Status != muster.AllocStarting || u.Detail == a.Detail || u.Detail == "" {
			return false
		}
		b := *a
		b.Detail = u.Detail
		s.putAlloc(a, &b, "alloc.starting")
		return true
	}
	status, err := a.Status.To("allocation "+string(a.ID), u.Status)
	if err != nil {
		// An agent can lie or be behind; a report that would go backwards says nothing new.
		return false
	}
	b := *a
	b.Status, b.Detail = status, ""
	if status == muster.AllocStarting {
		b.Detail = u.Detail
	}
	if b.Image == "" {
		b.Image = u.Image
	}
	if u.Started != 0 && b.Started == 0 {
		// The node's clock is its own: keep what is told within what must be true.
		b.Started = min(max(u.Started, a.Placed), now)
	}
	if status != muster.AllocEnded {
		s.putAlloc(a, &b, "alloc."+string(status))
		if status == muster.AllocRunning {
			if j, err := s.jobByUID(a.UID); err == nil && j.Version == a.Version {
				c := *j
				c.Running++
				s.putJob(j, &c, "")
			}
		}
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
	s.end(a, &b, now)
	return true
}

// end makes an allocation ended: frees its room, decides its member's next
// step, and settles its job. b is a's copy with outcome, failure and end filled in.
func (s *State) end(a, b *Alloc, now muster.Time) {
	b.Status = muster.AllocEnded
	// "alloc.ended" carries the outcome in the row.
	s.putAlloc(a, b, "alloc.ended")
	if node, ok := s.t.nodes.Get(&Node{ID: a.Node}); ok {
		n := *node
		n.Used = n.Used.Sub(a.Run.Ask)
		n.LiveAllocs--
		if n.LiveAllocs == 0 {
			n.IdleSince = now
		}
		s.charge(&n, b)
		s.putNode(node, &n, "node.freed")
	}
	j, err := s.jobByUID(a.UID)
	if err != nil {
		return
	}
	c := *j
	c.LiveAllocs--
	c.OutputBytes += b.Output.BlobBytes
	if a.Version == j.Version {
		c.Placed--
		if a.Status == muster.AllocRunning {
			c.Running--
		}
		if m, ok := s.t.members.Get(&Member{UID: a.UID, Index: a.Index}); ok && m.Attempt == a.Attempt && m.Status == muster.MemberPlaced {
			n := *m
			n.next(&c, b, now)
			s.putMember(m, &n)
		}
	}
	s.putJob(j, &c, "")
	// The job's row in the tree is consistent; settle may end it.
	_ = s.settle(a.UID, now)
}

func (f *OutputStored) apply(s *State, _ muster.Time) (any, error) {
	a, ok := s.t.allocs.Get(&Alloc{ID: f.Alloc})
	if !ok {
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
	s.putAlloc(a, &b, "alloc.output")
	if j, err := s.jobByUID(a.UID); err == nil {
		c := *j
		c.OutputBytes += b.Output.BlobBytes - a.Output.BlobBytes
		s.putJob(j, &c, "")
	}
	return nil, nil
}
