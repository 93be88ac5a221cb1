package present

import (
	"math"
	"strconv"
	"strings"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// EventID writes a position in the feed for clients: "index.part", or "index" for the position
// after all changes of an entry. One log entry may cause many changes; part counts them. The format
// is part of the API: clients send it back to resume. ParseEventID reads it.
func EventID(p state.Position) string {
	if p.Part == math.MaxInt {
		return strconv.FormatUint(p.Index, 10)
	}
	return strconv.FormatUint(p.Index, 10) + "." + strconv.Itoa(p.Part)
}

// ParseEventID reads what EventID writes, and reports whether s is one. A part must fit into 31
// bits, so that it is the same int on every machine.
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

// EventHead returns the event of a change with the names of what changed and nothing else. That is
// enough for the filters of a reader and cheap, so that a reader with narrow filters costs little.
// EventBody adds the rest. EventHead returns nil for changes that are not shown as events.
func EventHead(c *state.Change) *api.Event {
	ev := &api.Event{ID: EventID(c.Position()), Index: c.Index, Time: c.At.Std(), Type: string(c.Verb)}
	switch j, al, n := changed(c.Job, c.JobBefore), changed(c.Alloc, c.AllocBefore), changed(c.Node, c.NodeBefore); {
	case j != nil:
		ev.Namespace, ev.Job, ev.JobUID = string(j.Key.Namespace), j.Key.Name, string(j.UID)
	case al != nil:
		ev.Namespace, ev.Job, ev.JobUID = string(al.Run.Key.Namespace), al.Run.Key.Name, string(al.UID)
		ev.Alloc, ev.Node = string(al.ID), string(al.Node)
	case n != nil:
		// The event of the allocation shows its use of a node already, and a change of the cached
		// images concerns the scheduler alone.
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
	case c.Image != nil:
	// Other changes concern the server alone. They have a position in the feed like all others.
	default:
		return nil
	}
	return ev
}

// EventBody adds to an event the row as it is after the change, unless the row was deleted, and the
// sentence for people. The order of the cases must be that of EventHead.
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
	case c.Image != nil:
		ev.Text = imageText(c.Verb, c.Image)
	}
}

// changed returns the row after a change, or the last one before it if the row was deleted.
func changed[T any](now, before *T) *T {
	if now == nil {
		return before
	}
	return now
}
