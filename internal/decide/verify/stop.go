package verify

import (
	"fmt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// Submission finds what of a plan holds, stops and all, and counts that in. Of a
// whole one either everything holds or nothing.
func (l *Ledger) Submission(s *Submission) Verdict {
	stops, refused := l.stops(s.Stops)
	odd := l.unchanged(s)
	v := l.Plan(s.Placements)
	v.Odd = odd.among(v.Refused)
	v.Stops, v.RefusedStops = stops, refused
	if !s.Whole || len(v.Refused)+len(v.RefusedStops) == 0 {
		return v
	}
	for i := len(v.Placements) - 1; i >= 0; i-- {
		l.giveBack(v.Placements[i])
	}
	for _, st := range v.Stops {
		delete(l.stopped, st.Alloc)
	}
	v.Placements, v.Stops = nil, nil
	return v
}

// CountStops takes in stops that were found true before and are on their way into the log.
// They free nothing: room counts until the node says that the allocation ended.
func (l *Ledger) CountStops(stops []state.Stop) {
	for _, st := range stops {
		l.stopped[st.Alloc] = true
	}
}

func (l *Ledger) stops(stops []state.Stop) (held []state.Stop, refused []state.StopRefusal) {
	for _, st := range stops {
		if why := l.stop(&st); why != "" {
			refused = append(refused, state.StopRefusal{Stop: st, Reason: why})
			continue
		}
		l.stopped[st.Alloc] = true
		held = append(held, st)
	}
	return held, refused
}

// stop says why an allocation must not be told to stop, or cannot be. The state says the same.
func (l *Ledger) stop(st *state.Stop) string {
	a := l.snap.Alloc(st.Alloc)
	switch {
	case a == nil:
		return fmt.Sprintf("allocation %s: not found", st.Alloc)
	case !a.Live():
		return fmt.Sprintf("allocation %s has ended", st.Alloc)
	case a.Desired == muster.AllocStop || l.stopped[st.Alloc]:
		return fmt.Sprintf("allocation %s is stopping already", st.Alloc)
	case st.Reason != muster.StopPreempted:
		return l.job(a.UID).row.RefuseStop(a, st.Reason)
	}
	priority := a.Priority(l.snap.JobByUID(a.UID))
	switch j := l.job(st.For).row; {
	case j == nil:
		return fmt.Sprintf("job with uid %s: not found", st.For)
	case j.Stage != muster.JobLive:
		return fmt.Sprintf("job %s is %s", j.Key, j.Stage)
	case a.Runner == muster.RunnerClaimed:
		return fmt.Sprintf("runner %s is claimed, and is never preempted", st.Alloc)
	case j.Priority() <= priority:
		return fmt.Sprintf("allocation %s has priority %d, and job %s has %d", st.Alloc, priority, j.Key, j.Priority())
	}
	return ""
}

func (l *Ledger) giveBack(p state.Placement) {
	j := l.jobs[p.UID]
	j.untake(p)
	n := l.nodes[p.Node]
	n.free = fit.Space{Resources: n.free.Add(j.row.Run.Ask), Taken: n.free.Taken.Release(j.row.Run.Names, p.Grant)}
	if n.given && n.row.Reserved.UID == p.UID {
		n.given = false
		n.free.Resources = n.free.Sub(n.row.Reserved.Room)
	}
	delete(n.distinct, p.UID)
}
