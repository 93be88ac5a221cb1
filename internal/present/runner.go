package present

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// Environment shows an environment without its spec. waiting is how many claims wait for one of its
// runners. Waiting claims are not in the state: only the loop that hands out runners knows them.
func Environment(snap *state.Snapshot, j *state.Job, waiting int) api.Environment {
	name, _ := j.Key.Environment()
	e := api.Environment{
		Namespace: string(j.Key.Namespace), Name: name, UID: string(j.UID), Version: j.Version, Stage: string(j.Stage),
		Runners: j.Runners(), Wanted: j.Env.Stock, Why: j.Env.Why, Waiting: waiting, Unplaced: j.Waiting(),
		Claims: j.Env.Claims, Failure: j.Env.Failure, Created: j.Submitted.Std(), Alert: Time(j.Env.Alert),
	}
	// After a runner failed to start, the next start waits, longer with each failure in a row.
	if j.Env.Failures > 0 {
		e.RetryAt = Time(j.Env.StartAt())
	}
	// Warm runners of an earlier version are replaced one by one.
	snap.Runners(j.UID, muster.RunnerWarm, func(al *state.Alloc) bool {
		if al.Version != j.Version {
			e.Outdated++
		}
		return true
	})
	return e
}

// Claim shows a claim, with the node and the ports of its runner while the state still has the
// runner. It never shows the claim's secret, which is not in the state: a transport adds it to the
// one answer that may have it.
func Claim(snap *state.Snapshot, c *state.Claim) api.Claim {
	name, _ := c.Env.Environment()
	out := api.Claim{
		ID: string(c.ID), Namespace: string(c.Env.Namespace), Environment: name, Runner: string(c.Runner), State: string(c.State), Why: c.Reason,
		Note: c.Note, Made: c.Made.Std(), Deadline: Time(c.Deadline), Idle: api.Duration(c.Idle.Sub(0)), Used: Time(c.Used), Ended: Time(c.Ended),
	}
	if al := snap.Alloc(c.Runner); al != nil {
		out.Node, out.Ports = string(al.Node), al.Run.Spec.Ports
	}
	return out
}

// Runner shows a runner with its claim. The reason of a runner that is gone is that of the end of
// its claim, or else the runner's own.
func Runner(snap *state.Snapshot, al *state.Alloc) api.Runner {
	name, _ := al.Run.Key.Environment()
	out := api.Runner{
		ID: string(al.ID), Namespace: string(al.Run.Key.Namespace), Environment: name, Version: al.Version, State: string(al.Runner), Why: al.Detail,
		Node: string(al.Node), Image: al.Image, Placed: al.Placed.Std(), Started: Time(al.Started), Ended: Time(al.Ended),
	}
	if al.Runner == muster.RunnerGone {
		out.Why = RunnerEnd(al)
	}
	if c := snap.Claim(al.Claim); c != nil {
		claim := Claim(snap, c)
		out.Claim = &claim
		if c.Reason != "" {
			out.Why = c.Reason
		}
	}
	return out
}

// RunnerEnd says why a runner ended: its failure, or why it is stopping; "" if neither is
// recorded.
func RunnerEnd(al *state.Alloc) string {
	if al.Failure != nil {
		return al.Failure.Message
	}
	return al.StopCause
}
