package schedule

import (
	"context"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

// step plans a window and answers for its jobs. It plans the rest again, on a newer state, as long
// as the applier refuses something, for up to maxRounds. An error is about the log and not about
// the jobs; with it step returns the jobs that have no answer yet.
func (s *Scheduler) step(ctx context.Context, w place.Window) (open []muster.JobUID, err error) {
	open = w.Jobs
	index := w.Index
	waited := 0
	for round := 1; ; round++ {
		if err := s.seen(ctx, index); err != nil {
			return open, err
		}
		d, f := s.board.plan(s, open)
		if len(d.Stops) > 0 && len(f.others) > 0 && waited < mostPatience {
			// The plan would preempt for room that other plans under way are about to take. Work of
			// higher priority takes the room from those plans instead, and nothing has to be
			// stopped. So wait for their verdicts. The plans that lose the room are made again, at
			// once the first time and then after a while (see work). mostPatience bounds the
			// waiting.
			waited++
			round--
			s.board.land(f, &d, verify.Verdict{}, errPatient)
			if err := f.after(ctx); err != nil {
				return open, err
			}
			continue
		}
		v, over, err := s.commit(ctx, w.Token, &d)
		s.board.land(f, &d, v, err)
		if err != nil || over {
			return open, err
		}
		refusals := refusedJobs(v)
		if len(refusals) == 0 {
			stuck := false
			// Only now is a job blocked: nothing was refused, so a job that fitted nowhere saw the
			// room as it is.
			done, blocked := slices.Concat(d.Done, d.Left), d.Blocked
			if again, err := s.board.mistaken(ctx, f, len(blocked) > 0); err != nil {
				return open, err
			} else if again {
				for i := range blocked {
					done = append(done, blocked[i].UID)
				}
				blocked = nil
				// The jobs become ready again at once. If their stops are refused each time, that
				// must not be a busy loop.
				stuck = len(v.RefusedStops) > 0
			}
			s.answer(w.Token, done, blocked, d.Index)
			if stuck {
				return nil, errYielded
			}
			return nil, nil
		}
		done := slices.DeleteFunc(d.Done, func(uid muster.JobUID) bool { return refusals[uid] != nil })
		s.answer(w.Token, done, nil, 0)
		open = without(open, done)
		if v.Yielded {
			// Other work has to be served first, by this worker if no other has it. The rest
			// becomes ready again.
			s.count(func(st *Stats) { st.Yielded++ })
			s.answer(w.Token, open, nil, 0)
			return nil, errYielded
		}
		if round == maxRounds {
			s.giveBack(w.Token, open, refusals)
			return nil, nil
		}
		index = v.Refresh
	}
}

// seen waits until the state and its feed here are at least as new as index.
func (s *Scheduler) seen(ctx context.Context, index uint64) error {
	if s.cfg.State.Feed().Last() >= index {
		return nil
	}
	return s.cfg.State.Feed().Wait(ctx, index-1)
}

// commit submits a plan. over reports that another worker has got the window meanwhile. The time
// limit is paused while the plan waits for the applier, which is not the worker's time.
func (s *Scheduler) commit(ctx context.Context, token uint64, d *place.Decision) (v verify.Verdict, over bool, err error) {
	if len(d.Placements)+len(d.Stops) == 0 {
		return v, false, nil
	}
	resume, err := s.cfg.Queue.Pause(token)
	if err != nil {
		s.over(err)
		return v, true, nil
	}
	v, err = s.cfg.Submit.Submit(ctx, verify.Submission{Token: token, Index: d.Index, Placements: d.Placements, Stops: d.Stops})
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

// answer acks the jobs that are done and blocks those that fitted nowhere.
func (s *Scheduler) answer(token uint64, done []muster.JobUID, blocked []place.Blocked, tried uint64) {
	if len(done) > 0 {
		s.over(s.cfg.Queue.Ack(token, done...))
	}
	if len(blocked) > 0 {
		s.count(func(st *Stats) { st.Blocked += uint64(len(blocked)) })
		s.over(s.cfg.Queue.Block(token, tried, blocked))
	}
}

// giveBack ends a window in which something was refused in each round. Jobs whose room other plans
// took simply become ready again. A job that is refused for its own sake, although it was planned
// on the newest state, is an unexplained case: a nack.
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

// refusedJobs returns one refusal for each job that has any, preferring one that is the job's own
// fault.
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

// without returns the jobs that are not done.
func without(jobs, done []muster.JobUID) []muster.JobUID {
	set := make(map[muster.JobUID]bool, len(done))
	for _, uid := range done {
		set[uid] = true
	}
	return slices.DeleteFunc(slices.Clone(jobs), func(uid muster.JobUID) bool { return set[uid] })
}
