package schedule

import (
	"context"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

// step plans a window and answers for its jobs. With an error, which is about
// the log and not about the jobs, it returns those that have no answer yet.
func (s *Scheduler) step(ctx context.Context, w place.Window) (open []muster.JobUID, err error) {
	open = w.Jobs
	index := w.Index
	for round := 1; ; round++ {
		snap, err := s.snapshot(ctx, index)
		if err != nil {
			return open, err
		}
		d := s.plan(snap, open)
		v, over, err := s.commit(ctx, w.Token, d.Placements)
		if err != nil || over {
			return open, err
		}
		refusals := refusedJobs(v)
		if len(refusals) == 0 {
			// Only now: whoever fitted nowhere saw the room as it really is.
			s.answer(w.Token, slices.Concat(d.Done, d.Left), d.Blocked, d.Index)
			return nil, nil
		}
		done := slices.DeleteFunc(d.Done, func(uid muster.JobUID) bool { return refusals[uid] != nil })
		s.answer(w.Token, done, nil, 0)
		open = without(open, done)
		if round == maxRounds {
			s.giveBack(w.Token, open, refusals)
			return nil, nil
		}
		index = v.Refresh
	}
}

// snapshot waits until the state here is as new as index.
func (s *Scheduler) snapshot(ctx context.Context, index uint64) (*state.Snapshot, error) {
	for {
		if snap := s.cfg.State.Latest(); snap.Index() >= index {
			return snap, nil
		}
		if err := s.cfg.State.Feed().Wait(ctx, index-1); err != nil {
			return nil, err
		}
	}
}

func (s *Scheduler) plan(snap *state.Snapshot, jobs []muster.JobUID) place.Decision {
	began := time.Now()
	d := place.Plan(snap, jobs, max(muster.At(began), snap.Meta().Time), s.cfg.Limits)
	took := time.Since(began)
	s.count(func(st *Stats) {
		st.Passes++
		st.Planning += took
	})
	s.log.Debug("planned", "jobs", len(jobs), "index", d.Index, "placements", len(d.Placements), "blocked", len(d.Blocked), "left", len(d.Left), "took", took)
	return d
}

// commit submits a plan; over says that the window has gone to somebody else meanwhile.
func (s *Scheduler) commit(ctx context.Context, token uint64, placements []state.Placement) (v verify.Verdict, over bool, err error) {
	if len(placements) == 0 {
		return v, false, nil
	}
	resume, err := s.cfg.Queue.Pause(token)
	if err != nil {
		s.over(err)
		return v, true, nil
	}
	v, err = s.cfg.Submit.Submit(ctx, verify.Submission{Token: token, Placements: placements})
	if late := resume(); late != nil {
		s.over(late)
		over = true
	}
	s.count(func(st *Stats) {
		st.Placements += uint64(len(v.Placements))
		st.Refusals += uint64(len(v.Refused))
	})
	return v, over, err
}

// answer acks those who are through and blocks those who fitted nowhere.
func (s *Scheduler) answer(token uint64, done []muster.JobUID, blocked []place.Blocked, tried uint64) {
	if len(done) > 0 {
		s.over(s.cfg.Queue.Ack(token, done...))
	}
	if len(blocked) > 0 {
		s.count(func(st *Stats) { st.Blocked += uint64(len(blocked)) })
		s.over(s.cfg.Queue.Block(token, tried, blocked))
	}
}

// giveBack ends a window in which something was refused in each round. Where
// others took the room, the jobs just come out again. A job that is refused for
// its own sake although the plan was made on the newest state is not understood: a nack.
func (s *Scheduler) giveBack(token uint64, open []muster.JobUID, refusals map[muster.JobUID]*state.PlanRefusal) {
	s.count(func(st *Stats) { st.GivenBack++ })
	var again []muster.JobUID
	for _, uid := range open {
		if r := refusals[uid]; r != nil && !r.NodeFault {
			s.log.Warn("a job's plan is refused again and again", "job", uid, "reason", r.Reason)
			s.over(s.cfg.Queue.Nack(token, r.Reason, uid))
			continue
		}
		again = append(again, uid)
	}
	s.answer(token, again, nil, 0)
}

// refusedJobs has one refusal of each job that had any: the job's own fault if there is one.
func refusedJobs(v verify.Verdict) map[muster.JobUID]*state.PlanRefusal {
	if len(v.Refused) == 0 {
		return nil
	}
	out := make(map[muster.JobUID]*state.PlanRefusal, len(v.Refused))
	for i := range v.Refused {
		r := &v.Refused[i]
		if have := out[r.Placement.UID]; have == nil || have.NodeFault && !r.NodeFault {
			out[r.Placement.UID] = r
		}
	}
	return out
}

func without(jobs, done []muster.JobUID) []muster.JobUID {
	set := make(map[muster.JobUID]bool, len(done))
	for _, uid := range done {
		set[uid] = true
	}
	return slices.DeleteFunc(slices.Clone(jobs), func(uid muster.JobUID) bool { return set[uid] })
}
