package warm

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Bounds of a decision.
const (
	// Window is how far back claims and starts are remembered.
	Window = 10 * time.Minute
	// unknownStart is how long a start is taken to last before one was seen.
	unknownStart = 2 * time.Second
	// unheard is how much longer than its own times allow an agent may take to say that a runner is ready, or has failed.
	unheard = 30 * time.Second
	// lookAgain is how soon a runner is judged anew whose node is out of contact.
	lookAgain = 10 * time.Second
	// atOnce is how many runners of an environment may be on their way.
	atOnce = 256
	// moveWithin is for how long the runners of a node that drains are kept for successors elsewhere to come first. After it they
	// end all the same: no drain waits for what nobody has.
	moveWithin = time.Minute
)

// Demand is what claims of one environment did in the last Window.
type Demand struct {
	// Waiting is how many claims wait for a runner now.
	Waiting int
	// Arrivals are how many claims came in each second, the oldest first; the last is the present second.
	Arrivals []int
	// Starts are how long starts took, from the wish to warm.
	Starts []time.Duration
	// Since is when claims began to be counted: what came before is not among Arrivals. 0: long ago.
	Since muster.Time
	// Before is what earlier leaders recorded; nil: nothing.
	Before *state.WarmDemand
}

// Decision is what to do about an environment.
type Decision struct {
	// Stock is how many shall be warm, Floor how many of them at the environment's priority; Why why so many.
	Stock, Floor int
	Why          string
	// Count and Priority are those of state.RunnersWanted; Drop takes back what waits for another attempt.
	Count, Priority int
	Drop            bool
	// Stop are runners to end, StopWhy why.
	Stop    []muster.AllocID
	StopWhy string
	// Unready are runners that run and of which nobody says whether they are ready, UnreadyWhy what is said of that.
	Unready    []muster.AllocID
	UnreadyWhy string
	// Short: fewer are warm than the environment's alert allows.
	Short bool
	// Wake is when to look again if nothing changes; 0: when something does.
	Wake muster.Time
}

// Stock is how many runners an environment wants warm, and why.
//
// At least min and at most max; between them as many as were ever claimed within the time of one start,
// so that the claims of such a moment find each a warm one. After a quiet time only min.
func Stock(env *state.Environment, d Demand, now muster.Time) (n int, why string) {
	w := &env.Spec.Warm
	least := *w.Min
	if t := w.Target; t != nil {
		return *t, fmt.Sprintf("%d is the target", *t)
	}
	if quiet := w.Quiet.Std(); now.Sub(env.LastClaim) >= quiet {
		return least, fmt.Sprintf("the minimum: nothing was claimed for %s", w.Quiet)
	}
	start := d.start()
	peak := max(busiest(d.Arrivals, spanOf(start)), d.recorded(now))
	// Who counts began anew has not seen what the stock is there for, and must not end it for that.
	if before := min(env.Stock, w.Max); d.Since != 0 && !d.isRecorded() && now.Sub(d.Since) < Window && peak < before && before > least {
		return before, fmt.Sprintf("as many as before the server began to count claims again, %s ago", now.Sub(d.Since).Round(time.Second))
	}
	switch {
	case peak <= least:
		return least, fmt.Sprintf("the minimum: in the last 10 minutes at most %d were claimed within %s, the time of a start", peak, round(start))
	case peak > w.Max:
		return w.Max, fmt.Sprintf("the maximum: in the last 10 minutes %d were claimed within %s, the time of a start", peak, round(start))
	}
	return peak, fmt.Sprintf("in the last 10 minutes as many were claimed within %s, the time of a start", round(start))
}

// start is how long nine in ten starts take at most, by what earlier leaders recorded as long as this
// one has seen none.
func (d *Demand) start() time.Duration {
	if len(d.Starts) == 0 && d.Before != nil && d.Before.Start > 0 {
		return muster.Time.Sub(d.Before.Start, 0)
	}
	return slowStart(d.Starts)
}

// spanOf is the time of a start in whole seconds.
func spanOf(start time.Duration) int { return int((start + time.Second - 1) / time.Second) }

// recorded is the largest peak within the Window before now that earlier leaders recorded.
func (d *Demand) recorded(now muster.Time) (most int) {
	if d.Before == nil {
		return 0
	}
	for _, p := range d.Before.Peaks {
		if p.Minute.Add(time.Minute) > now.Add(-Window) {
			most = max(most, p.Claims)
		}
	}
	return most
}

// isRecorded reports whether earlier leaders recorded a demand until this one began to count. After a
// long time without a leader the record says nothing about what is wanted now. It counts a little
// longer than its peaks do, so that whoever leads when the last one is over ends the stock.
func (d *Demand) isRecorded() bool {
	if d.Before == nil || len(d.Before.Peaks) == 0 {
		return false
	}
	return d.Since.Sub(d.Before.Peaks[len(d.Before.Peaks)-1].Minute) < Window+2*time.Minute
}

// Record is the demand up to now as the next leader is to know it: the peak of each minute within the
// Window. Times of starts are rounded up, so that the record does not change with each start.
func Record(d Demand, now muster.Time) *state.WarmDemand {
	out := &state.WarmDemand{}
	if start := d.start(); len(d.Starts) > 0 || d.Before != nil && d.Before.Start > 0 {
		rounded := 100 * time.Millisecond
		for rounded < start {
			rounded += rounded / 4
		}
		out.Start = muster.Time(rounded.Microseconds())
	}
	peaks := map[muster.Time]int{}
	minute := func(t muster.Time) muster.Time { return t - t%muster.Time(time.Minute.Microseconds()) }
	if d.Before != nil {
		for _, p := range d.Before.Peaks {
			peaks[p.Minute] = p.Claims
		}
	}
	span, sum := max(spanOf(d.start()), 1), 0
	for i, n := range d.Arrivals {
		if sum += n; i >= span {
			sum -= d.Arrivals[i-span]
		}
		at := minute(now.Add(-time.Duration(len(d.Arrivals)-1-i) * time.Second))
		peaks[at] = max(peaks[at], sum)
	}
	for at, n := range peaks {
		if n > 0 && at.Add(time.Minute) > now.Add(-Window) && at <= now {
			out.Peaks = append(out.Peaks, state.Peak{Minute: at, Claims: n})
		}
	}
	slices.SortFunc(out.Peaks, func(a, b state.Peak) int { return cmp.Compare(a.Minute, b.Minute) })
	return out
}

func round(d time.Duration) time.Duration {
	if d > 10*time.Second {
		return d.Round(time.Second)
	}
	return d.Round(10 * time.Millisecond)
}

// slowStart is what nine in ten starts do not exceed.
func slowStart(starts []time.Duration) time.Duration {
	if len(starts) == 0 {
		return unknownStart
	}
	s := slices.Sorted(slices.Values(starts))
	return max(s[(len(s)*9)/10], time.Millisecond)
}

// busiest is the largest sum over so many neighbours.
func busiest(counts []int, span int) int {
	span = max(span, 1)
	most, sum := 0, 0
	for i, n := range counts {
		sum += n
		if i >= span {
			sum -= counts[i-span]
		}
		most = max(most, sum)
	}
	return most
}

// Plan decides about the live environment j.
func Plan(snap *state.Snapshot, j *state.Job, d Demand, now muster.Time) Decision {
	env := j.Env
	var out Decision
	out.Stock, out.Why = Stock(env, d, now)
	out.Floor = min(*env.Spec.Warm.Min, out.Stock) + d.Waiting
	out.Short = float64(env.Warm) < env.Spec.Alert.Below*float64(out.Stock)
	out.Count, out.Priority = j.NextIndex+j.Untried(), env.Priority
	if now.Sub(env.LastClaim) < env.Spec.Warm.Quiet.Std() && env.Spec.Warm.Target == nil {
		out.Wake = now.Add(time.Second)
	}

	// What never becomes warm goes first: what is planned below takes it for gone in the next round.
	if due := out.unready(snap, j, now); due != 0 && (out.Wake == 0 || due < out.Wake) {
		out.Wake = due
	}
	if len(out.Unready) > 0 {
		out.Count, out.Priority = env.Wanted, env.Priority
		return out
	}

	fresh, old, leaving := split(snap, j, now)
	if leaving.next != 0 && (out.Wake == 0 || leaving.next < out.Wake) {
		out.Wake = leaving.next
	}
	want := out.Stock + d.Waiting
	placed := len(fresh.warm) + len(fresh.starting) + len(old.warm) + len(old.starting)
	outdated := len(old.warm) + len(old.starting)
	target := want
	if outdated > 0 && want > 0 {
		target++ // its successor comes first
	}
	switch coming := target - placed - j.Retrying; {
	case coming >= 0 && now < env.StartAt():
		// What could not be started is not tried again before its time.
		out.Count = j.NextIndex
		if at := env.StartAt(); out.Wake == 0 || at < out.Wake {
			out.Wake = at
		}
	case coming >= 0:
		out.Count = j.NextIndex + min(coming, atOnce)
		out.Priority = muster.MinPriority
		if short := out.Floor - placed - j.Retrying; short > 0 || j.Retrying > 0 && placed < out.Floor {
			// What must be there goes first, and alone, at the environment's priority.
			out.Priority = *env.Spec.Priority
			if short > 0 {
				out.Count = j.NextIndex + min(short, atOnce)
			}
		}
	default:
		out.Count = j.NextIndex
		if over := -coming; j.Retrying > 0 {
			out.Drop = true // all of them; what is still wanted comes anew
		} else {
			out.Stop, out.StopWhy = surplus(fresh, old, over), "more runners are warm than wanted"
		}
	}
	if len(out.Stop) == 0 && outdated > 0 {
		coming := len(fresh.starting) + j.Retrying // successors, on their way
		if over := len(fresh.warm) + outdated - want; over > 0 && (len(fresh.warm) > 0 || coming == 0) || want == 0 {
			out.Stop, out.StopWhy = surplus(kind{}, old, max(min(over, outdated), 1)), "its environment has a newer version, or its node drains"
		}
	}
	if len(leaving.ids) > 0 {
		out.Stop, out.StopWhy = append(leaving.ids, out.Stop...), leaving.why
	}
	return out
}

// unready finds runners whose readiness is overdue, and tells when the next one's is; 0: of none. The agent itself gives
// up in time, so this is for one that does not know of readiness, or hangs in it. While a node is out of
// contact its runners may be ready, and nobody hears of it.
func (d *Decision) unready(snap *state.Snapshot, j *state.Job, now muster.Time) (next muster.Time) {
	snap.Runners(j.UID, muster.RunnerStarting, func(a *state.Alloc) bool {
		r := a.Run.Spec.Ready
		if r == nil || a.Status != muster.AllocRunning {
			return true
		}
		// Before this leader began nobody may have been there to hear of it.
		since, due := max(a.Started, a.Placed, snap.Meta().LeaderSince), now.Add(lookAgain)
		if n := snap.Node(a.Node); n != nil && n.Health != muster.NodeLost {
			since = max(since, n.HealthSince)
			due = since.Add(r.GiveUp.Std() + r.Interval.Std() + r.Timeout.Std() + a.Run.Spec.KillGrace.Std() + unheard)
		}
		switch {
		case due > now:
			if next == 0 || due < next {
				next = due
			}
		default:
			d.Unready = append(d.Unready, a.ID)
			d.UnreadyWhy = fmt.Sprintf("not ready within %s, and its node %s does not say why: its agent may be older than the server, or hang", now.Sub(since).Round(time.Second), a.Node)
		}
		return true
	})
	return next
}

// kind are unclaimed runners of the present version, or of earlier ones.
type kind struct{ warm, starting []muster.AllocID }

// leaving are runners that end now because of their nodes, and when more of them do.
type leaving struct {
	ids  []muster.AllocID
	why  string
	next muster.Time
}

// split sorts the runners that nobody has. Those on a node that drains are like outdated ones, whose successors come first, for a
// while; after it, or on a node that is broken, they are of no use.
func split(snap *state.Snapshot, j *state.Job, now muster.Time) (fresh, old kind, out leaving) {
	for _, in := range []muster.RunnerState{muster.RunnerStarting, muster.RunnerWarm} {
		snap.Runners(j.UID, in, func(a *state.Alloc) bool {
			k := &fresh
			if a.Version != j.Version {
				k = &old
			}
			switch n := snap.Node(a.Node); {
			case n == nil:
			case n.Health == muster.NodeBroken:
				out.end(a, "its node "+string(n.ID)+" is broken")
				return true
			case n.Stage == muster.NodeDraining || n.Intent == muster.NodeDrain:
				due := max(n.StageSince, n.IntentSince).Add(moveWithin)
				if n.Stage == muster.NodeDraining {
					due = n.StageSince.Add(moveWithin)
				}
				if now >= due {
					out.end(a, "its node "+string(n.ID)+" drains")
					return true
				}
				if k = &old; out.next == 0 || due < out.next {
					out.next = due
				}
			}
			if in == muster.RunnerWarm {
				k.warm = append(k.warm, a.ID)
			} else {
				k.starting = append(k.starting, a.ID)
			}
			return true
		})
	}
	return fresh, old, out
}

func (l *leaving) end(a *state.Alloc, why string) {
	if len(l.ids) < atOnce {
		l.ids, l.why = append(l.ids, a.ID), why
	}
}

// surplus are n runners to do without: outdated ones before others, those that do not run yet
// before those that do, the newest first.
func surplus(fresh, old kind, n int) []muster.AllocID {
	var out []muster.AllocID
	for _, ids := range [][]muster.AllocID{old.starting, old.warm, fresh.starting, fresh.warm} {
		for i := len(ids) - 1; i >= 0 && len(out) < n; i-- {
			out = append(out, ids[i])
		}
	}
	return out
}
