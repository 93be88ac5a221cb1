package place

import (
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
)

// field is the nodes of a pass as one shape sees them: a heap of those that are
// open, feasible and had room when it was made, the best on top.
//
// Room only shrinks within a pass, so a node that is too small is dropped for
// good. A score is of the moment when the field was made or its own shape last
// used the node: what other shapes put there since has made the node tighter than its
// score says. That costs some packing when many shapes share a pass, never
// capacity, and keeps a placement from touching the fields of all other shapes.
type field struct {
	shape *fit.Shape
	nodes []spot // the pass's
	heap  []option
	// reason is made once, when the shape has first run out of room.
	reason *Reason
}

type option struct {
	node  int32
	score float64
}

func newField(s *fit.Shape, nodes []spot) *field {
	f := &field{shape: s, nodes: nodes}
	for i := range nodes {
		if fit.Check(s, nodes[i].row, nodes[i].free, nil).Kind == fit.None {
			f.heap = append(f.heap, option{int32(i), f.score(i)})
		}
	}
	for i := len(f.heap)/2 - 1; i >= 0; i-- {
		f.down(i)
	}
	return f
}

// score of a node with one more member on it.
func (f *field) score(i int) float64 {
	s := &f.nodes[i]
	return fit.Score(s.row.Capacity, s.free.Sub(f.shape.Ask))
}

// best is the node to use next, or -1. Nodes in avoid are passed over.
func (f *field) best(avoid []muster.NodeID) int {
	for len(f.heap) > 0 && !f.shape.Ask.Fits(f.nodes[f.heap[0].node].free) {
		f.pop()
	}
	if len(f.heap) == 0 {
		return -1
	}
	if len(avoid) == 0 || !slices.Contains(avoid, f.nodes[f.heap[0].node].row.ID) {
		return int(f.heap[0].node)
	}
	return f.bestBut(avoid)
}

// bestBut takes options off the heap until one will do, and puts back those
// that it passed over: at most as many as the member has failed on.
func (f *field) bestBut(avoid []muster.NodeID) int {
	var passed []option
	found := -1
	for len(f.heap) > 0 && found < 0 {
		o := f.heap[0]
		s := &f.nodes[o.node]
		switch {
		case !f.shape.Ask.Fits(s.free):
			f.pop()
		case slices.Contains(avoid, s.row.ID):
			passed = append(passed, o)
			f.pop()
		default:
			found = int(o.node)
		}
	}
	for _, o := range passed {
		f.heap = append(f.heap, o)
		f.up(len(f.heap) - 1)
	}
	return found
}

// took tells that the pass has put members on a node.
func (f *field) took(i int) {
	for h := range f.heap {
		if int(f.heap[h].node) == i {
			f.heap[h].score = f.score(i)
			f.up(h)
			return
		}
	}
}

// why says why a member that failed on the nodes in avoid fits nowhere. Equal
// members share one answer.
func (f *field) why(avoid []muster.NodeID, p *pass) Reason {
	if len(avoid) == 0 && f.reason != nil {
		return *f.reason
	}
	p.looks += len(f.nodes)
	var r Reason
	for i := range f.nodes {
		s := &f.nodes[i]
		r.add(f.shape, fit.Check(f.shape, s.row, s.free, avoid), s.free)
	}
	r.sort()
	if len(avoid) == 0 {
		f.reason = &r
	}
	return r
}

func (f *field) better(a, b option) bool {
	return fit.Better(a.score, f.nodes[a.node].row.ID, b.score, f.nodes[b.node].row.ID)
}

func (f *field) pop() {
	last := len(f.heap) - 1
	f.heap[0] = f.heap[last]
	f.heap = f.heap[:last]
	f.down(0)
}

func (f *field) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !f.better(f.heap[i], f.heap[parent]) {
			return
		}
		f.heap[i], f.heap[parent] = f.heap[parent], f.heap[i]
		i = parent
	}
}

func (f *field) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(f.heap) {
			return
		}
		if c+1 < len(f.heap) && f.better(f.heap[c+1], f.heap[c]) {
			c++
		}
		if !f.better(f.heap[c], f.heap[i]) {
			return
		}
		f.heap[c], f.heap[i] = f.heap[i], f.heap[c]
		i = c
	}
}
