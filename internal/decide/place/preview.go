package place

import (
	"fmt"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Preview is what a plan would do for a job now, were nobody ahead of it.
type Preview struct {
	// Choices are the nodes that members would go to, in the order in which they are chosen.
	Choices []Choice
	// Waiting is how many would find no room, and Stops who would give way to them.
	Waiting int
	Stops   []state.Stop
}

// Choice is a node, how many members would go to it, and the terms by which it was the best.
type Choice struct {
	Node    muster.NodeID
	Members int
	Terms   string
}

// Try plans a job of the snapshot alone, at most so many members of it, and changes nothing.
func Try(snap *state.Snapshot, j *state.Job, now muster.Time, limit int) Preview {
	var out Preview
	p := &pass{view: NewView(snap), snap: snap, now: now, limits: Limits{Placements: limit, Looks: 1 << 30}}
	p.chosen = func(f *field, o *option, n int) {
		if last := len(out.Choices) - 1; last >= 0 && out.Choices[last].Node == o.seat.row.ID {
			out.Choices[last].Members += n
			return
		}
		out.Choices = append(out.Choices, Choice{o.seat.row.ID, n, o.terms(f)})
	}
	p.job(j)
	for _, b := range p.decision.Blocked {
		out.Waiting = b.Waiting
	}
	out.Stops = p.decision.Stops
	return out
}

// terms are what an option was chosen by, in the order in which they count.
func (o *option) terms(f *field) string {
	var out []string
	if len(f.shape.Affinities)+len(f.shape.Spread) > 0 {
		out = append(out, fmt.Sprintf("preference %+.1f", o.preference))
	}
	if e := f.of[o.seat.group]; e.asks {
		out = append(out, fmt.Sprintf("devices stranded %+.2f, then free %g", e.strands(o.seat, f.shape.Ask.CPU)/100, e.after))
	} else if e.class.devices > 0 {
		out = append(out, fmt.Sprintf("%g devices free", e.rank-1))
	}
	if len(f.shape.Keys) > 0 {
		out = append(out, [...]string{"warm", "fresh", "warm for others"}[o.warmth])
	}
	word := "tightness"
	if o.seat.class.loose {
		word = "emptiness"
	}
	return strings.Join(append(out, fmt.Sprintf("%s %.2f", word, o.value)), ", ")
}
