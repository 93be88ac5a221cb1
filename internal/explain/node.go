package explain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/state"
)

// nodeRecord collects the explanation of one node. Its methods append to out, in the order of the
// sentences. One request owns it, so it needs no lock.
type nodeRecord struct {
	snap *state.Snapshot
	n    *state.Node
	now  muster.Time
	// trouble is the call for the node that its provider keeps failing. blind is why the provider's
	// instances cannot be listed. Both are "" if nothing is wrong.
	trouble, blind string
	out            api.NodeExplanation
}

// say appends a sentence.
func (e *nodeRecord) say(format string, args ...any) {
	sentencef(&e.out.Text, format, args...)
}

// in returns the time from now until t, rounded for sentences.
func (e *nodeRecord) in(t muster.Time) string { return shortly(t.Sub(e.now)) }

// explain explains the node. A node that is gone has no future to explain.
func (e *nodeRecord) explain() {
	e.dials()
	n := e.n
	if n.Stage == muster.NodeGone {
		e.out.Ends = "it is gone" + muster.Because(e.n.StageReason)
		return
	}
	// The order matters: ends needs the outputs that runs counts. The sentence about the end comes
	// last, as the summary.
	e.runs()
	e.waits()
	e.ends()
	if e.trouble != "" {
		e.say("The provider: %s.", e.trouble)
	}
	// A failing list matters only for nodes that a list decides about: those that launch, are being
	// destroyed, or are lost.
	if e.blind != "" && (n.Stage == muster.NodeLaunching || n.Stage == muster.NodeTerminating || n.Health == muster.NodeLost) {
		e.say("The provider's list of instances fails: %s.", e.blind)
	}
	if e.out.WaitsFor != "" {
		e.say("It waits for %s.", e.out.WaitsFor)
	}
	e.say("Its end: %s.", e.out.Ends)
}

// dials says the stage, health and intent of the node, who set each and why, and which of them
// keeps new work away.
func (e *nodeRecord) dials() {
	n := e.n
	e.out.Stage = api.Dial{Value: string(n.Stage), Who: cmp.Or(n.StageWho, "fleet"), Since: present.Time(n.StageSince), Reason: n.StageReason}
	// Only the link sets health. The fleet sets the stage, unless the row names an operator.
	e.out.Health = api.Dial{Value: string(n.Health), Who: "link", Since: present.Time(n.HealthSince), Reason: n.HealthReason}
	who := n.IntentWho
	if who == "" && n.IntentSince != 0 {
		who = "fleet" // it ended a timed hold, or held the node of an agent that did not obey
	}
	e.out.Intent = api.Dial{Value: string(n.Intent), Who: cmp.Or(who, "nobody"), Since: present.Time(n.IntentSince), Reason: n.IntentReason}
	e.out.Schedulable = n.Schedulable()
	e.say("Node %s of pool %s, offering %s, %g an hour.", n.ID, n.Pool, n.Offering.Name, float64(n.Offering.Price)/1e6)
	dial := func(name string, d api.Dial) {
		since := ""
		if d.Since != nil {
			since = " for " + shortly(e.now.Sub(muster.At(*d.Since)))
		}
		turned := ""
		if d.Who != "nobody" {
			turned = ", set by " + d.Who
		}
		e.say("%s: %s%s%s%s.", name, d.Value, since, turned, muster.Because(d.Reason))
	}
	dial("Stage", e.out.Stage)
	if n.Stage == muster.NodeGone {
		return
	}
	dial("Health", e.out.Health)
	dial("Intent", e.out.Intent)
	if n.BootError != "" && n.Joined == 0 {
		e.say("Its boot: %s.", n.BootError)
	}
	// A node takes work only if stage, health and intent all allow it. The first that does not is
	// named.
	switch {
	case n.Schedulable():
		e.say("It takes new work: %s free of %s.", n.Free(), n.Capacity)
		return
	case n.Stage != muster.NodeServing:
		e.out.Closed = "its stage, " + string(n.Stage)
	case n.Health != muster.NodeGood:
		e.out.Closed = "its health, " + string(n.Health)
	default:
		e.out.Closed = "its intent, " + string(n.Intent)
	}
	e.say("It takes no new work because of %s.", e.out.Closed)
}

// runs counts the live allocations of the node by job, and the ended ones whose output is not
// stored yet.
func (e *nodeRecord) runs() {
	// The jobs with the most allocations come first; equal ones by name, so that the answer is
	// stable.
	jobs := map[muster.JobKey]int{}
	e.snap.NodeAllocs(e.n.ID, func(al *state.Alloc) bool {
		jobs[al.Run.Key]++
		e.out.Allocs++
		return true
	})
	for key, k := range jobs {
		e.out.Runs = append(e.out.Runs, api.NodeRuns{Namespace: string(key.Namespace), Job: key.Name, Allocs: k})
	}
	slices.SortFunc(e.out.Runs, func(a, b api.NodeRuns) int {
		return cmp.Or(cmp.Compare(b.Allocs, a.Allocs), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Job, b.Job))
	})
	e.snap.OpenOutputs(e.n.ID, func(*state.Alloc) bool { e.out.Outputs++; return true })
	switch {
	case e.out.Allocs > 0:
		e.say("%s on it, of %s.", muster.Counted(e.out.Allocs, "live allocation"), muster.Counted(len(jobs), "job"))
	case e.n.IdleSince != 0:
		e.say("Nothing runs on it for %s.", shortly(e.now.Sub(e.n.IdleSince)))
	}
	if e.out.Outputs > 0 {
		e.say("The output of %s on it is not stored yet.", muster.Counted(e.out.Outputs, "ended allocation"))
	}
}

// waits says what the next transition of the node's stage waits for. WaitsFor stays empty for a
// node that serves and is not to leave.
func (e *nodeRecord) waits() {
	n := e.n
	switch n.Stage {
	case muster.NodeLaunching:
		e.out.WaitsFor = "provider " + string(n.Offering.Provider) + " to make its instance"
	case muster.NodeBooting, muster.NodeAdopted:
		e.out.WaitsFor = "its agent to come into service"
	case muster.NodeDraining, muster.NodeServing:
		switch leaves := n.Stage == muster.NodeDraining || n.Intent == muster.NodeDrain; {
		case n.Health == muster.NodeLost:
			e.out.WaitsFor = "contact"
		case leaves && n.Busy():
			e.out.WaitsFor = "the end of its last allocation"
		case leaves && e.out.Outputs > 0:
			e.out.WaitsFor = "the output of what ran there to be stored"
		}
	case muster.NodeStopped:
		e.out.WaitsFor = "work that needs it"
	case muster.NodeStarting:
		e.out.WaitsFor = "provider " + string(n.Offering.Provider) + " to switch its machine on"
	case muster.NodeTerminating:
		e.out.WaitsFor = "provider " + string(n.Offering.Provider) + " to confirm that its instance is gone"
	}
}

// ends says when the fleet will end the node and why, or why it will not. It puts the rules of
// packages size and mend into words, and its cases are in the order in which those packages apply
// them. A change of their order needs the same change here.
func (e *nodeRecord) ends() {
	n, p := e.n, e.snap.Pool(e.n.Pool)
	// A time of 0 means that the end depends on an event: EndsAt stays nil and only the sentence is
	// set.
	end := func(at muster.Time, format string, args ...any) {
		if at != 0 {
			t := at.Std()
			e.out.EndsAt = &t
		}
		e.out.Ends = fmt.Sprintf(format, args...)
	}
	boots := n.Stage == muster.NodeBooting || n.Stage == muster.NodeAdopted || n.Stage == muster.NodeStarting
	lasts := func(micros muster.Time) time.Duration { return time.Duration(micros) * time.Microsecond }
	switch {
	case n.Stage == muster.NodeTerminating:
		end(e.now, "it is being destroyed%s", muster.Because(n.StageReason))
	case n.Intent == muster.NodeHold && n.IntentUntil != 0:
		end(0, "not while it is held, for another %s", e.in(n.IntentUntil))
	case n.Intent == muster.NodeHold:
		end(0, "not while it is held; `muster node run %s` ends that", n.ID)
	case p == nil:
		end(0, "when it is empty: pool %s is no longer configured", n.Pool)
	// The server may have crashed between writing the intent and asking the provider. A launch
	// without an instance is given up after mend.LaunchDeadline.
	case n.Stage == muster.NodeLaunching:
		end(0, "when the provider refuses it, or has not made it within 10 minutes")
	case n.Stage == muster.NodeStopped && n.Intent == muster.NodeRun:
		due := n.StageSince.Add(lasts(p.StopTime))
		end(due, "in %s, unless it is started for work before; with more than %d stopped nodes in its pool earlier", e.in(due), p.StopMost)
	case n.Stage == muster.NodeStopped:
		end(e.now, "now: it is drained")
	case boots && n.Intent == muster.NodeDrain:
		end(e.now, "now: it is drained")
	case boots:
		due := n.StageSince.Add(lasts(p.BootTimeout))
		end(due, "in %s, unless its agent comes into service", e.in(due))
	case n.Health == muster.NodeLost:
		e.endLost(p, end)
	case n.Stage == muster.NodeDraining, n.Intent == muster.NodeDrain, n.Health == muster.NodeBroken:
		why := "it is drained"
		if n.Health == muster.NodeBroken {
			why = "the node is reported as broken"
		}
		if n.Busy() && n.Intent == muster.NodeDrain && n.IntentUntil != 0 {
			end(n.IntentUntil, "after its last allocation; what still runs in %s, its deadline, is stopped: %s", e.in(n.IntentUntil), why)
		} else if n.Busy() {
			end(0, "after its last allocation: %s", why)
		} else if due := max(n.IdleSince, n.StageSince).Add(size.OutputWait); e.out.Outputs > 0 {
			end(due, "when its output is stored, in %s at the latest: %s", e.in(due), why)
		} else {
			end(e.now, "at once: %s", why)
		}
	case n.Busy():
		end(0, "not while work runs there; then when it was idle for %s", shortly(lasts(p.IdleTimeout)))
	case n.Health == muster.NodeUnready && n.Incapable && n.IdleSince != 0 && p.IdleTimeout > 0:
		due := max(n.IdleSince, n.HealthSince).Add(lasts(p.IdleTimeout))
		if due > e.now {
			end(due, "in %s, unless it becomes ready: it has no work and can take none%s", e.in(due), muster.Because(n.HealthReason))
		} else {
			end(e.now, "now: it has no work and can take none%s; only output that is not stored yet keeps it", muster.Because(n.HealthReason))
		}
	default:
		e.endIdle(p, lasts(p.IdleTimeout), end)
	}
}

// endLost says when a lost node is given up: when its grace has passed, unless the breaker of its
// pool has tripped. A tripped breaker means that too many nodes were destroyed for nothing but lost
// contact, so the network may be at fault and not the nodes.
func (e *nodeRecord) endLost(p *state.Pool, end func(muster.Time, string, ...any)) {
	due := e.n.HealthSince.Add(time.Duration(p.Grace) * time.Microsecond)
	switch b := e.snap.Breaker(p.Name); {
	case b.IsTripped():
		end(0, "not while the breaker of pool %s has tripped (%s); `muster pool resume %s` ends that", p.Name, b.Reason, p.Name)
	case due > e.now:
		end(due, "in %s, unless contact comes back; before that if the provider's list lacks it", e.in(due))
	default:
		end(e.now, "now: contact did not come back within its grace")
	}
}

// endIdle says when a node without work is ended, or that its pool needs it.
func (e *nodeRecord) endIdle(p *state.Pool, timeout time.Duration, end func(muster.Time, string, ...any)) {
	// The fleet keeps a pool at its minimum. Nodes that leave do not count towards it.
	kept := 0
	e.snap.LiveNodes(func(o *state.Node) bool {
		if o.Pool == p.Name && o.Stage != muster.NodeTerminating && o.Stage != muster.NodeDraining && o.Intent != muster.NodeDrain {
			kept++
		}
		return true
	})
	due := e.n.IdleSince.Add(timeout)
	switch {
	case timeout <= 0:
		end(0, "not by itself: the pool has no idle time-out")
	case e.n.IdleSince == 0:
		end(0, "when it was idle for %s", shortly(timeout))
	case kept <= p.Min:
		end(0, "not while pool %s has no more than its minimum of %s", p.Name, muster.Counted(p.Min, "node"))
	case due > e.now:
		end(due, "in %s, if it stays idle and the pool keeps no spare nodes", e.in(due))
	default:
		end(0, "it has been idle for longer than %s; it is kept for waiting work, for output to be stored, or as a spare", shortly(timeout))
	}
}
