package place

import (
	"cmp"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// Limits bounds one pass, so that an urgent evaluation never waits long for
// another one's plan. What is left over comes again.
type Limits struct {
	// Placements of one plan. At least one.
	Placements int
	// Looks at a node on behalf of a shape: a pass ends before the shape that
	// would exceed them, but for the first one.
	Looks int
}

// Plan finds nodes for members of the jobs that want an allocation now: jobs
// by priority, highest first, then age; within a job members to be tried again,
// the longest due first, then those never placed, by index. A shape that found no
// room is not looked at again in the pass.
//
// Nodes are taken in the order of fit.Score, tightest first.
func Plan(snap *state.Snapshot, jobs []muster.JobUID, now muster.Time, limits Limits) Decision {
	limits.Placements = max(limits.Placements, 1)
	p := &pass{snap: snap, now: now, limits: limits, shapes: map[state.ShapeID]*field{}}
	p.decision.Index = snap.Index()
	for _, j := range p.queue(jobs) {
		p.job(j)
	}
	p.number()
	return p.decision
}

// pass is the working set of one Plan.
type pass struct {
	snap   *state.Snapshot
	now    muster.Time
	limits Limits

	nodes    []spot // by node id; nil until the first job wants something
	loaded   bool
	shapes   map[state.ShapeID]*field
	looks    int
	planned  int
	full     bool // a limit was reached
	decision Decision
}

// spot is a node with the room that the pass has not given away.
type spot struct {
	row  *state.Node
	free muster.Resources
	// given are the members that the pass puts there.
	given []gift
}

// gift is one member to be tried again, or a number of members never placed.
type gift struct {
	job    *state.Job
	member *state.Member
	count  int
}

// queue brings the jobs that want something into the order of the pass.
func (p *pass) queue(uids []muster.JobUID) []*state.Job {
	jobs := make([]*state.Job, 0, len(uids))
	for _, uid := range uids {
		if j := p.snap.JobByUID(uid); j != nil && j.Waiting() > 0 && j.Parked == "" {
			jobs = append(jobs, j)
		} else {
			p.decision.Done = append(p.decision.Done, uid)
		}
	}
	slices.SortFunc(jobs, Order)
	return slices.CompactFunc(jobs, func(a, b *state.Job) bool { return a.UID == b.UID })
}

// Order is the one in which jobs are served: priority, highest first, then age.
func Order(a, b *state.Job) int {
	return cmp.Or(cmp.Compare(b.Run.Priority(), a.Run.Priority()), cmp.Compare(a.Age, b.Age), strings.Compare(string(a.UID), string(b.UID)))
}

// job places what it can of one job and says in the decision what became of it.
func (p *pass) job(j *state.Job) {
	if p.full {
		p.decision.Left = append(p.decision.Left, j.UID)
		return
	}
	f := p.field(j)
	if f == nil {
		p.full = true
		p.decision.Left = append(p.decision.Left, j.UID)
		return
	}
	waiting := 0
	var avoid []muster.NodeID // of all members that fit nowhere
	if j.Retrying > 0 {
		p.snap.DueRetries(j.UID, p.now, func(m *state.Member) bool {
			switch i := f.best(m.FailedNodes); {
			case i < 0:
				if waiting == 0 {
					avoid = m.FailedNodes
				} else if len(avoid) > 0 {
					avoid = both(avoid, m.FailedNodes)
				}
				waiting++
			case p.planned >= p.limits.Placements:
				p.full = true
				return false
			default:
				p.give(f, i, gift{j, m, 1})
			}
			return true
		})
	}
	untried := j.Untried()
	for untried > 0 && !p.full {
		i := f.best(nil)
		if i < 0 {
			break
		}
		if p.planned >= p.limits.Placements {
			p.full = true
			break
		}
		n := f.shape.Ask.Times(p.nodes[i].free, min(untried, p.limits.Placements-p.planned))
		p.give(f, i, gift{j, nil, n})
		untried -= n
	}
	if untried > 0 {
		avoid = nil
	}
	switch waiting += untried; {
	case p.full:
		p.decision.Left = append(p.decision.Left, j.UID)
	case waiting > 0:
		p.decision.Blocked = append(p.decision.Blocked, Blocked{
			UID: j.UID, Shape: f.shape, Waiting: waiting, Full: f.best(nil) < 0, Avoid: avoid, Why: f.why(avoid, p),
		})
	default:
		p.decision.Done = append(p.decision.Done, j.UID)
	}
}

// both are the nodes that are in a and in b. It changes neither: they belong to rows.
func both(a, b []muster.NodeID) []muster.NodeID {
	return slices.DeleteFunc(slices.Clone(a), func(id muster.NodeID) bool { return !slices.Contains(b, id) })
}

// field is the nodes as one shape sees them, made when the pass first needs it;
// nil when that would be more looks than the pass may take.
func (p *pass) field(j *state.Job) *field {
	if f := p.shapes[j.Run.Shape]; f != nil {
		return f
	}
	if !p.loaded {
		p.loaded = true
		p.nodes = make([]spot, 0, p.snap.LiveNodeCount())
		p.snap.LiveNodes(func(n *state.Node) bool {
			p.nodes = append(p.nodes, spot{row: n, free: fit.Room(n)})
			return true
		})
	}
	if p.looks > 0 && p.looks+len(p.nodes) > p.limits.Looks {
		return nil
	}
	p.looks += len(p.nodes)
	f := newField(fit.ShapeOf(j.Run), p.nodes)
	p.shapes[j.Run.Shape] = f
	return f
}

func (p *pass) give(f *field, i int, g gift) {
	s := &p.nodes[i]
	ask := f.shape.Ask
	n := muster.Resources{CPU: ask.CPU * muster.MilliCPU(g.count), Memory: ask.Memory * muster.Bytes(g.count), Disk: ask.Disk * muster.Bytes(g.count)}
	s.free = s.free.Sub(n)
	s.given = append(s.given, g)
	p.planned += g.count
	f.took(i)
}

// number turns gifts into placements: by node, members never placed numbered in that order.
func (p *pass) number() {
	if p.planned == 0 {
		return
	}
	out := make([]state.Placement, 0, p.planned)
	next := map[muster.JobUID]int{}
	for i := range p.nodes {
		s := &p.nodes[i]
		for _, g := range s.given {
			pl := state.Placement{UID: g.job.UID, Version: g.job.Version, Node: s.row.ID}
			if g.member != nil {
				pl.Index, pl.Attempt = g.member.Index, g.member.Attempt+1
				out = append(out, pl)
				continue
			}
			first, ok := next[g.job.UID]
			if !ok {
				first = g.job.NextIndex
			}
			pl.Attempt = g.job.AttemptBase + 1
			for k := range g.count {
				pl.Index = first + k
				out = append(out, pl)
			}
			next[g.job.UID] = first + g.count
		}
	}
	p.decision.Placements = out
}
