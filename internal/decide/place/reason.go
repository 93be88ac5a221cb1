package place

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// Reason says what became of each node that was considered for a member that
// fits nowhere. Each node is counted once, by the first thing that was in the way.
type Reason struct {
	Nodes    int     // nodes considered: all that are not gone
	Closed   []Count // take no new work: by stage, health or intent
	Filtered []Count // by the pool or constraint that they do not meet
	Avoided  int     // where the member failed before
	Short    []Shortage
	Fitting  int // nodes that would do; 0 unless the reason is asked of a member that has room
}

// Count is how many nodes something was true of.
type Count struct {
	What  string
	Nodes int
}

// Shortage is how many nodes had not enough of a dimension, how much of it a member asks for, and how much the
// one with the most had: cores, bytes, or devices. Of a port both are 0.
type Shortage struct {
	Dimension   string
	Nodes       int
	Asked, Most float64
}

// add counts one node, with what is free on it.
func (r *Reason) add(s *fit.Shape, o fit.Obstacle, n *state.Node, free fit.Space) {
	r.Nodes++
	switch o.Kind {
	case fit.None:
		r.Fitting++
	case fit.Closed:
		r.Closed = count(r.Closed, o.What)
	case fit.Filtered:
		r.Filtered = count(r.Filtered, o.What)
	case fit.Avoided:
		r.Avoided++
	case fit.Occupied:
		r.Filtered = count(r.Filtered, "distinct_hosts")
	case fit.Short:
		i := slices.IndexFunc(r.Short, func(h Shortage) bool { return h.Dimension == o.What })
		asked, has := lack(s, o.What, n, free)
		if i < 0 {
			i = len(r.Short)
			r.Short = append(r.Short, Shortage{Dimension: o.What, Asked: asked})
		}
		h := &r.Short[i]
		h.Nodes++
		h.Most = max(h.Most, has)
	}
}

// lack is how much a member asks for of what a node is short of, and how much the node has.
func lack(s *fit.Shape, dimension string, n *state.Node, free fit.Space) (asked, has float64) {
	switch dimension {
	case "cpu":
		return float64(s.Ask.CPU) / 1000, float64(free.CPU) / 1000
	case "memory":
		return float64(s.Ask.Memory), float64(free.Memory)
	case "disk":
		return float64(s.Ask.Disk), float64(free.Disk)
	}
	// Cores lack only where cpu does.
	_, asked, has = free.Taken.Lack(&muster.NamedAsk{Devices: s.Names.Devices, Ports: s.Names.Ports}, n.Devices())
	return asked, has
}

// count finds by a walk: there are few distinct obstacles.
func count(in []Count, what string) []Count {
	for i := range in {
		if in[i].What == what {
			in[i].Nodes++
			return in
		}
	}
	return append(in, Count{what, 1})
}

// sort makes the order independent of the order of nodes: most nodes first, then by name.
func (r *Reason) sort() {
	byCount := func(a, b Count) int { return cmp.Or(cmp.Compare(b.Nodes, a.Nodes), strings.Compare(a.What, b.What)) }
	slices.SortFunc(r.Closed, byCount)
	slices.SortFunc(r.Filtered, byCount)
	slices.SortFunc(r.Short, func(a, b Shortage) int {
		return cmp.Or(cmp.Compare(b.Nodes, a.Nodes), strings.Compare(a.Dimension, b.Dimension))
	})
}

// String is the reason in one sentence.
func (r Reason) String() string {
	if r.Nodes == 0 {
		return "there are no nodes"
	}
	parts := r.Obstacles()
	if r.Fitting > 0 {
		parts = append([]string{fmt.Sprintf("%d fitting", r.Fitting)}, parts...)
	}
	return muster.Counted(r.Nodes, "node") + " considered: " + strings.Join(parts, ", ")
}

// Obstacles says what keeps members from the nodes, with how many each concerns: lack of room first, then what does not change
// by itself.
func (r *Reason) Obstacles() (parts []string) {
	for _, h := range r.Short {
		if h.Asked > 0 {
			parts = append(parts, fmt.Sprintf("%d short of %s (%s asked, at most %s free)", h.Nodes, h.Dimension, amount(h.Dimension, h.Asked), amount(h.Dimension, h.Most)))
		} else {
			parts = append(parts, fmt.Sprintf("%d short of %s", h.Nodes, h.Dimension))
		}
	}
	for _, c := range r.Filtered {
		parts = append(parts, fmt.Sprintf("%d filtered by %s", c.Nodes, c.What))
	}
	if r.Avoided > 0 {
		parts = append(parts, fmt.Sprintf("%d where the member failed before", r.Avoided))
	}
	for _, c := range r.Closed {
		parts = append(parts, fmt.Sprintf("%d %s", c.Nodes, c.What))
	}
	return parts
}

func amount(dimension string, n float64) string {
	switch dimension {
	case "memory", "disk":
		return muster.Bytes(n).String()
	}
	return strconv.FormatFloat(n, 'g', -1, 64)
}

// Why is the reason alone of an Explanation, at a fraction of its cost. Of
// members that wait to be tried again it takes the one that is due the longest, with
// the nodes it failed on; of others any, as they are equal.
func Why(j *state.Job, snap *state.Snapshot, now muster.Time) Reason {
	var avoid []muster.NodeID
	if j.Untried() == 0 {
		snap.Retries(j.UID).Due(now, func(m *state.Member) bool {
			avoid = m.FailedNodes
			return false
		})
	}
	s := fit.ShapeOf(j.Run)
	var r Reason
	home := map[muster.NodeID]bool{}
	if s.Distinct && j.LiveAllocs > 0 {
		snap.JobAllocs(j.UID, 0, func(a *state.Alloc) bool {
			if a.Live() {
				home[a.Node] = true
			}
			return true
		})
	}
	snap.LiveNodes(func(n *state.Node) bool {
		free := fit.SpaceOf(n)
		o := fit.CheckSpace(s, n, free, avoid)
		if home[n.ID] && (o.Kind == fit.None || o.Kind == fit.Short) {
			o = fit.Obstacle{Kind: fit.Occupied}
		}
		r.add(s, o, n, free)
		return true
	})
	r.sort()
	return r
}
