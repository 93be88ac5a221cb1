package present

import (
	"math"
	"strconv"
	"strings"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// EventID writes a position in the feed for clients: "index.part", or "index" after all changes of
// an entry. ParseEventID reads it back.
func EventID(p state.Position) string {
	if p.Part == math.MaxInt {
		return strconv.FormatUint(p.Index, 10)
	}
	return strconv.FormatUint(p.Index, 10) + "." + strconv.Itoa(p.Part)
}

// ParseEventID reads what EventID writes, and reports whether s is one.
func ParseEventID(s string) (state.Position, bool) {
	index, part, divided := strings.Cut(s, ".")
	i, err := strconv.ParseUint(index, 10, 64)
	if err != nil {
		return state.Position{}, false
	}
	if !divided {
		return state.AfterIndex(i), true
	}
	n, err := strconv.ParseUint(part, 10, 31)
	return state.Position{Index: i, Part: int(n)}, err == nil
}

// EventHead is the event of a change, with the names of what changed and nothing else: enough for a
// reader's filters, and cheap. EventBody adds the rest. It is nil for changes that are no events.
func EventHead(c *state.Change) *api.Event {
	ev := &api.Event{ID: EventID(c.Position()), Index: c.Index, Time: c.At.Std(), Type: string(c.Verb)}
	switch j, al, n := changed(c.Job, c.JobBefore), changed(c.Alloc, c.AllocBefore), changed(c.Node, c.NodeBefore); {
	case j != nil:
		ev.Namespace, ev.Job, ev.JobUID = string(j.Key.Namespace), j.Key.Name, string(j.UID)
	case al != nil:
		ev.Namespace, ev.Job, ev.JobUID = string(al.Run.Key.Namespace), al.Run.Key.Name, string(al.UID)
		ev.Alloc, ev.Node = string(al.ID), string(al.Node)
	case n != nil:
		// The event of an allocation tells of its use of a node already, and a change of the cached
		// images interests the scheduler alone.
		if c.Verb == state.VerbNodeUsed || c.Verb == state.VerbNodeFreed || c.Verb == state.VerbNodeImages {
			return nil
		}
		ev.Node = string(n.ID)
	case c.Claim != nil:
		ev.Namespace, ev.Job, ev.JobUID, ev.Alloc = string(c.Claim.Env.Namespace), c.Claim.Env.Name, string(c.Claim.UID), string(c.Claim.Runner)
	case c.Breaker != nil:
		ev.Pool = string(c.Breaker.Pool)
	case c.Limits != nil:
		ev.Namespace = string(c.Limits.Name)
	default:
		return nil
	}
	return ev
}

// EventBody adds to an event the row as it is after the change, unless it was deleted, and the
// sentence for people.
func EventBody(ev *api.Event, c *state.Change) {
	switch j, al, n := changed(c.Job, c.JobBefore), changed(c.Alloc, c.AllocBefore), changed(c.Node, c.NodeBefore); {
	case j != nil:
		if c.Job != nil {
			now := Job(c.Job)
			ev.JobNow = &now
		}
		ev.Text = jobText(c.Verb, j)
	case al != nil:
		if c.Alloc != nil {
			now := Alloc(c.Alloc)
			ev.AllocNow = &now
		}
		ev.Text = allocText(c.Verb, al)
	case n != nil:
		if c.Node != nil {
			now := Node(c.Node)
			ev.NodeNow = &now
		}
		ev.Text = nodeText(c.Verb, n)
	case c.Claim != nil:
		ev.Text = claimText(c.Verb, c.Claim)
	case c.Breaker != nil:
		ev.Text = breakerText(c.Verb, c.Breaker)
	case c.Limits != nil:
		ev.Text = limitsText(c.Limits)
	}
}

// changed is the row after a change, or the last one before if the row was deleted.
func changed[T any](now, before *T) *T {
	if now == nil {
		return before
	}
	return now
}
