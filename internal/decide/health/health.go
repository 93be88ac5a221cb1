// Package health says what a node's signals mean: what its health dial should
// show, why, and when to look again.
//
// It must never learn whether a probe call returned, only what was last heard and
// when: a call that hangs must not keep a node good. It is pure. The link asks it,
// whenever contact changes and when the time comes that it named.
package health

import (
	"fmt"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

const (
	// LostAfter is how long contact may be gone before a node is lost: long
	// enough to dial again or to start a dead agent, short enough that a dead instance is looked into at once.
	LostAfter = time.Second
	// FirstContact is how long a new leader tries to reach a node before it is
	// lost. What the leader before had heard does not count against the node.
	FirstContact = 15 * time.Second
)

// Contact is what the link knows of a node's agent.
type Contact struct {
	// Began is when this leader's link to the node began.
	Began muster.Time
	// Up: its report stream is open and not silent for too long.
	Up bool
	// Heard is when something last came from it; 0: nothing since Began.
	Heard muster.Time
	// Refused is why the agent does not obey, in words; empty if it does.
	Refused string
	// Unready is why it cannot run anything now, in words; empty if it can. Broken is why it never will again.
	Unready, Broken string
	// Proved is the HealthSince of the node's row for which a probe has passed: a later turn of
	// the dial asks for another one. NotReady is why the last one for Asked did not pass, in words, and Again when the next may be made.
	Proved, Asked muster.Time
	NotReady      string
	Again         muster.Time
	// Strays is how many allocations run there that the state does not know and that
	// are left to end by themselves: a backup was restored, or they are too many to stop
	// without a cause (Spared).
	Strays int
	Spared bool
	// Away is why the agent was not reached when that was last tried, in words; empty: not known.
	Away string
	// Denied: the provider says that no instance is there to start an agent on.
	Denied bool
	// Boot is why the agent of an instance that has not served yet could not be
	// started when that was last tried, in words.
	Boot string
}

// Verdict is what the dial should show.
type Verdict struct {
	Health muster.NodeHealth
	Reason string
	// Denied goes with a node that is lost.
	Denied bool
	// Incapable goes with one that is unready: it says itself that it can take no work. One that obeys another server, or runs what
	// nobody knows, is none of these.
	Incapable bool
	// Wake is when to judge again if nothing changes; 0: never.
	Wake muster.Time
	// Probe: all that is missing is a probe that passes.
	Probe bool
}

// Judge says what a node's health is. Nodes that have not served yet stay
// unready: their deadline is the boot time-out.
func Judge(n *state.Node, grace time.Duration, c Contact, now muster.Time) Verdict {
	stay := Verdict{Health: n.Health, Reason: n.HealthReason, Denied: n.Denied, Incapable: n.Incapable}
	served := n.Stage == muster.NodeServing || n.Stage == muster.NodeDraining
	switch {
	case !served && n.Stage != muster.NodeBooting && n.Stage != muster.NodeAdopted:
		return stay
	case n.Health == muster.NodeBroken:
		// The node said so itself; only its end changes that.
		return stay
	case c.Broken != "":
		return dial(n, muster.NodeBroken, c.Broken)
	case n.Health == muster.NodeFlaky && n.SidelinedUntil <= now && (c.Up || c.Refused != "" || c.Unready != ""):
		m := *n
		m.Health, m.HealthReason, m.HealthSince = muster.NodeUnready, "to be probed after its quarantine", now
		v := Judge(&m, grace, c, now)
		v.Probe = false // the dial turns first
		return v
	case c.Refused != "":
		return dial(n, muster.NodeUnready, c.Refused)
	case c.Unready != "":
		v := dial(n, muster.NodeUnready, c.Unready)
		v.Incapable = v.Health == muster.NodeUnready
		return v
	case !served && c.Boot != "" && n.Health == muster.NodeUnready:
		return dial(n, muster.NodeUnready, c.Boot)
	case !served:
		return stay
	case c.Up && c.Strays > 0:
		// They are left to end by themselves: until then the node is neither free nor idle.
		why := " since a backup was restored"
		if c.Spared {
			why = ", too many to stop without a cause in the log"
		}
		return dial(n, muster.NodeUnready, "it runs "+muster.Counted(c.Strays, "allocation")+" that nothing is known of"+why)
	case c.Up && n.Health == muster.NodeLost:
		return back(n, grace, now)
	case c.Up && n.Health == muster.NodeUnready:
		return prove(n, c, now)
	case c.Up:
		if n.Health == muster.NodeFlaky {
			stay.Wake = n.SidelinedUntil
		}
		return stay
	case c.Denied:
		v := dial(n, muster.NodeLost, "no contact, and the provider says that the instance is not there")
		v.Denied = true
		return v
	}
	last, limit := c.Heard, LostAfter
	if last < c.Began {
		last, limit = c.Began, FirstContact
		if grace > 0 {
			limit = min(limit, grace)
		}
	}
	// It answered when it joined, after a probe that may have taken long.
	due := max(last, n.Joined).Add(limit)
	if now < due {
		stay.Wake = due
		return stay
	}
	return dial(n, muster.NodeLost, away(n, c))
}

// away is why a node is lost. While it stays lost the reason follows the last attempt: a host may first refuse
// connections and later show another host key.
func away(n *state.Node, c Contact) string {
	switch {
	case n.Health == muster.NodeLost && (n.Denied || c.Away == ""):
		return n.HealthReason
	case c.Away == "":
		return "its agent cannot be reached"
	}
	return "its agent cannot be reached: " + c.Away
}

// back is for a node whose contact is back.
func back(n *state.Node, grace time.Duration, now muster.Time) Verdict {
	switch gone := now.Sub(n.HealthSince); {
	case n.SidelinedUntil > now:
		return Verdict{Health: muster.NodeFlaky, Reason: "contact is back, and its quarantine is not over"}
	case n.SidelinedUntil != 0, grace > 0 && gone > grace:
		return Verdict{Health: muster.NodeUnready, Reason: fmt.Sprintf("to be probed: contact is back after %s", gone.Round(time.Second))}
	}
	return Verdict{Health: muster.NodeGood}
}

// prove is for a node in contact that says nothing against itself: it is good as soon as a probe for this
// turn of the dial has passed.
func prove(n *state.Node, c Contact, now muster.Time) Verdict {
	if c.Proved == n.HealthSince {
		return Verdict{Health: muster.NodeGood}
	}
	v := Verdict{Health: muster.NodeUnready, Reason: n.HealthReason, Incapable: n.Incapable}
	if c.Asked == n.HealthSince && c.NotReady != "" {
		v.Reason, v.Incapable = c.NotReady, true
		if c.Again > now {
			v.Wake = c.Again
			return v
		}
	}
	v.Probe = true
	return v
}

// dial is a verdict of a health, for nodes whose dial may be turned there.
func dial(n *state.Node, h muster.NodeHealth, reason string) Verdict {
	if h == muster.NodeUnready && n.Health == muster.NodeFlaky {
		// Sidelined already, and for a longer time than this may last.
		return Verdict{Health: n.Health, Reason: n.HealthReason}
	}
	return Verdict{Health: h, Reason: reason, Denied: n.Denied && h == muster.NodeLost}
}
