package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// line of a trace.
type line struct {
	at   time.Duration
	text string
}

// note adds a line to the trace.
func (c *Cluster) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trace = append(c.trace, line{time.Since(c.began), fmt.Sprintf(format, args...)})
}

func (c *Cluster) fail(err error) {
	c.note("WRONG: %v", err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, err)
}

// Err is what was found wrong first.
func (c *Cluster) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.errs) == 0 {
		return nil
	}
	return c.errs[0]
}

// Trace is what happened, a line each. What happened at one moment is in the order of the alphabet: it came in any.
func (c *Cluster) Trace() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.SortStableFunc(c.trace, func(a, b line) int { return cmp.Or(cmp.Compare(a.at, b.at), strings.Compare(a.text, b.text)) })
	var b strings.Builder
	for _, l := range c.trace {
		fmt.Fprintf(&b, "%10s  %s\n", l.at.Round(time.Millisecond), l.text)
	}
	return b.String()
}

func refusal(err error) string {
	if err == nil {
		return ""
	}
	return " REFUSED: " + err.Error()
}

// describe is a fact in a few words.
func describe(f state.Fact) string {
	name := strings.TrimPrefix(fmt.Sprintf("%T", f), "*state.")
	switch f := f.(type) {
	case *state.OutputStored:
		return fmt.Sprintf("%s %s %s", name, f.Alloc, f.Output.Stage)
	case *state.NodeJoined:
		return fmt.Sprintf("%s %s", name, f.ID)
	case *state.NodeLaunched:
		return fmt.Sprintf("%s %s %s", name, f.ID, f.Instance)
	case *state.NodeDraining:
		return fmt.Sprintf("%s %s: %s", name, f.ID, f.Reason)
	case *state.PoolTripped:
		return fmt.Sprintf("%s %s: %s", name, f.Pool, f.Reason)
	case *state.PlanCommitted:
		parts := make([]string, len(f.Placements))
		for i, p := range f.Placements {
			parts[i] = fmt.Sprintf("%s on %s", muster.NewAllocID(p.UID, p.Index, p.Attempt), p.Node)
		}
		return name + " " + strings.Join(parts, ", ")
	case *state.AllocsReported:
		parts := make([]string, len(f.Allocs))
		for i, a := range f.Allocs {
			parts[i] = strings.TrimSpace(fmt.Sprintf("%s %s %s", a.ID, a.Status, a.Outcome))
		}
		return fmt.Sprintf("%s %s: %s", name, f.Node, strings.Join(parts, ", "))
	case *state.NodeLaunching:
		return fmt.Sprintf("%s %s %s: %s", name, f.ID, f.Offering.Name, f.Reason)
	case *state.NodeHealthChanged:
		return fmt.Sprintf("%s %s %s: %s", name, f.ID, f.Health, f.Reason)
	case *state.NodeGone:
		return fmt.Sprintf("%s %s: %s", name, f.ID, f.Reason)
	case *state.NodeTerminating:
		return fmt.Sprintf("%s %s: %s", name, f.ID, f.Reason)
	case *state.JobSubmitted:
		return fmt.Sprintf("%s %s: %d × %v", name, f.Key, f.Spec.Count, f.Spec.Command)
	case *state.JobRetried:
		return fmt.Sprintf("%s %s", name, f.Key)
	case *state.JobStopped:
		return fmt.Sprintf("%s %s", name, f.Key)
	}
	return name
}
