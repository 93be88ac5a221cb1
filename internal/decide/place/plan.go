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
	// Looks at a group of equal nodes on behalf of a shape that is new to the view: a pass ends before the shape that
	// would exceed them, but for the first one.
	Looks int
}

// Plan is View.Plan on a view of the snapshot alone.
func Plan(snap *state.Snapshot, jobs []muster.JobUID, now muster.Time, limits Limits) Decision {
	return NewView(snap).Plan(snap, jobs, now, limits)
}

// Plan finds nodes for members of the jobs that want an allocation now: jobs
// by priority, highest first, then age; within a job members to be tried again,
// the longest due first, then those never placed, by index. What of them is placed is counted in from then on.
//
// The order of nodes is that of the comment of field. The snapshot tells of the jobs; it must not be older than the view.
func (v *View) Plan(snap *state.Snapshot, jobs []muster.JobUID, now muster.Time, limits Limits) Decision {
	limits.Placements = max(limits.Placements, 1)
	p := &pass{view: v, snap: snap, now: now, limits: limits, allow: fit.NewAllowance(snap)}
	p.decision.Index = min(snap.Index(), v.at.Index)
	queue := p.queue(jobs)
	for len(queue) > 0 {
		n := 1
		for n < len(queue) && queue[n].Priority() == queue[0].Priority() {
			n++
		}
		p.band(queue[:n])
		queue = queue[n:]
	}
	p.number()
	return p.decision
}

// pass is the working set of one Plan.
type pass struct {
	view   *View
	snap   *state.Snapshot
	now    muster.Time
	limits Limits

	touched  []*seat // that were given something
	looks    int
	planned  int
	allow    *fit.Allowance
	full     bool // a limit was reached
	decision Decision
	// chosen is told of each node that members are put on, evicted of the allocations that are preempted; nil: nobody asks.
	chosen  func(s *setting, o *option, members int)
	evicted func(*eviction)

	// Of preemption: who is to give way, what is left of nodes where it is waited for, and for whom there is nobody.
	leaving map[muster.AllocID]bool
	claimed map[*seat]fit.Space
	// lower is used again by every node that a preemption looks at.
	lower  []victim
	spared map[evictionKey]bool
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
	return cmp.Or(cmp.Compare(b.Priority(), a.Priority()), cmp.Compare(a.Age, b.Age), strings.Compare(string(a.UID), string(b.UID)))
}

// job places what it can of one job and says in the decision what became of it.
func (p *pass) job(j *state.Job) {
	if s := p.begin(j); s != nil {
		p.serve(s, j.Waiting())
		p.finish(s)
	}
}

// begin takes a job up; nil if the pass has no time for it.
func (p *pass) begin(j *state.Job) *setting {
	if p.full {
		p.decision.Left = append(p.decision.Left, j.UID)
		return nil
	}
	f := p.field(j)
	if f == nil {
		p.full = true
		p.decision.Left = append(p.decision.Left, j.UID)
		return nil
	}
	s := &setting{field: f, job: j, untried: j.Untried(), spread: f.tallyOf(j, p.snap), lifted: f.clear(j, p.snap)}
	if j.Run.System() && j.Retrying > 0 {
		p.snap.Retries(j.UID).Due(p.now, func(m *state.Member) bool { s.due = append(s.due, m); return true })
		p.homes(s)
	} else {
		s.retry = retriesOf(p.snap, j, p.now)
	}
	return s
}

// serve places at most so many members of a job, and says how many.
func (p *pass) serve(s *setting, most int) (placed int) {
	p.hide(s)
	before := s.placed
	allowed, bound := p.allow.Of(s.job.Key.Namespace, s.field.shape.Ask, min(most, s.open()))
	s.allowed = allowed
	if s.homes != nil {
		p.returns(s)
	} else {
		p.retries(s)
	}
	p.untried(s)
	if s.allowed == 0 && bound.Namespace != "" {
		_, s.bound = p.allow.Of(s.job.Key.Namespace, s.field.shape.Ask, 1)
	}
	p.show(s)
	return s.placed - before
}

// hide takes the nodes that have a member of a job on distinct hosts out of sight, show brings them back for others.
func (p *pass) hide(s *setting) {
	for _, seat := range s.lifted {
		if !seat.lifted {
			p.view.lift(seat)
			seat.lifted = true
		}
	}
}

func (p *pass) show(s *setting) {
	for _, seat := range s.lifted {
		seat.lifted = false
		p.view.sit(seat)
	}
}

// finish says what became of a job.
func (p *pass) finish(s *setting) {
	waiting, avoid := s.waiting+s.retry.blocked+s.open(), s.retry.avoid
	if s.homes != nil {
		avoid = s.avoid
	}
	if s.untried > 0 {
		avoid = nil
	}
	switch uid := s.job.UID; {
	case p.full:
		p.decision.Left = append(p.decision.Left, uid)
	case waiting > 0 && s.bound.Namespace != "":
		p.decision.Blocked = append(p.decision.Blocked, Blocked{UID: uid, Shape: s.field.shape, Waiting: waiting, Bound: s.bound})
	case waiting > 0:
		p.hide(s)
		if p.evicted == nil {
			p.preempt(s, waiting, avoid)
		} else { // whoever is told needs no more than that
			p.preempt(s, min(waiting, p.limits.Placements), avoid)
		}
		full := s.field.best(nil, s.spread).seat == nil
		p.show(s)
		p.decision.Blocked = append(p.decision.Blocked, Blocked{UID: uid, Shape: s.field.shape, Waiting: waiting, Full: full, Avoid: avoid})
	default:
		p.decision.Done = append(p.decision.Done, uid)
	}
}

// setting is what the members of one job share in a pass.
type setting struct {
	field  *field
	job    *state.Job
	spread *tally
	lifted []*seat
	// retry are members to be tried again, untried how many were never placed.
	retry   retryQueue
	untried int
	placed  int
	// Of a system job, instead of retry: due are members to be tried again that were not looked at yet, waiting is how
	// many fit nowhere, avoid what all of them avoid.
	due     []*state.Member
	waiting int
	avoid   []muster.NodeID
	// allowed is how many more may be placed this time, for its turn and for limits; bound is the limit that was reached.
	allowed int
	bound   fit.Bound
	// homes are the nodes of a system job's members that wait to come back to them, missed those where one found no room.
	homes  map[int]*seat
	missed []*seat
}

// open is how many members were not looked at yet.
func (s *setting) open() int { return len(s.due) + s.retry.open + s.untried }

// first is the member that is due the longest; nil: none is due.
func (s *setting) first() *state.Member {
	if len(s.due) > 0 {
		return s.due[0]
	}
	return s.retry.peek()
}

// retries places members to be tried again.
func (p *pass) retries(s *setting) {
	q := &s.retry
	for s.allowed > 0 && !p.full {
		m := q.peek()
		if m == nil {
			return
		}
		if q.useless(m.FailedNodes) {
			q.pass()
			continue
		}
		o := s.field.best(m.FailedNodes, s.spread)
		switch {
		case o.seat == nil:
			q.narrowTo(s.field, s.spread, m.FailedNodes)
			if len(q.room) == 0 {
				q.blockAll()
				return
			}
			q.pass()
		case p.planned >= p.limits.Placements:
			p.full = true
			return
		default:
			p.give(s, &o, gift{s.job, m, 1})
			q.take()
		}
	}
}

// returns places members of a system job on the nodes that they come back to.
func (p *pass) returns(s *setting) {
	for ; len(s.due) > 0 && s.allowed > 0 && !p.full; s.due = s.due[1:] {
		m := s.due[0]
		o := option{seat: s.home(m)}
		switch {
		case o.seat == nil:
			if home := s.homes[m.Index]; home != nil {
				s.missed = append(s.missed, home)
			}
			if s.waiting == 0 {
				s.avoid = m.FailedNodes
			} else if len(s.avoid) > 0 {
				s.avoid = both(s.avoid, m.FailedNodes)
			}
			s.waiting++
		case p.planned >= p.limits.Placements:
			p.full = true
			return
		default:
			p.give(s, &o, gift{s.job, m, 1})
		}
	}
}

// untried places members that were never placed.
func (p *pass) untried(s *setting) {
	// Where the next best node hangs on what the last was given, they go one by one.
	single := len(s.field.shape.Spread) > 0 || s.field.shape.Distinct || s.field.shape.Names.Scarce()
	for s.untried > 0 && s.allowed > 0 && !p.full {
		o := s.field.best(nil, s.spread)
		if o.seat == nil {
			return
		}
		if p.planned >= p.limits.Placements {
			p.full = true
			return
		}
		n := 1
		if !single && !o.seat.class.loose {
			n = s.field.shape.Ask.Times(o.seat.space.Resources, min(s.untried, s.allowed, p.limits.Placements-p.planned))
		}
		p.give(s, &o, gift{s.job, nil, n})
		s.untried -= n
	}
}

// both are the nodes that are in a and in b. It changes neither: they belong to rows.
func both(a, b []muster.NodeID) []muster.NodeID {
	return slices.DeleteFunc(slices.Clone(a), func(id muster.NodeID) bool { return !slices.Contains(b, id) })
}

// field is the nodes as the job's shape sees them; nil when that would be more
// looks than the pass may take.
func (p *pass) field(j *state.Job) *field {
	if f := p.view.fields[j.Run.Shape]; f != nil {
		return f
	}
	if p.looks > 0 && p.looks+len(p.view.made) > p.limits.Looks {
		return nil
	}
	p.looks += len(p.view.made)
	return p.view.field(j.Run)
}

// give puts members on a node.
func (p *pass) give(s *setting, o *option, g gift) {
	to := o.seat
	if p.chosen != nil {
		p.chosen(s, o, g.count)
	}
	if len(to.given) == 0 {
		p.touched = append(p.touched, to)
	}
	to.given = append(to.given, g)
	p.planned += g.count
	s.placed += g.count
	s.allowed -= g.count
	p.allow.Take(g.job.Key.Namespace, s.field.shape.Ask, g.count)
	v, shape := p.view, s.field.shape
	if s.spread != nil {
		s.spread.add(s.field.of[to.group].bucket.values, g.count)
	}
	v.lift(to)
	to.space = shape.Take(to.space, to.row.Cores(), to.row.Devices(), g.count)
	if shape.Distinct && !to.lifted {
		to.lifted = true
		s.lifted = append(s.lifted, to)
	}
	v.sit(to)
}

// number turns gifts into placements: by node, members never placed numbered in
// that order. All of them are out from now on.
func (p *pass) number() {
	if p.planned == 0 {
		return
	}
	slices.SortFunc(p.touched, func(a, b *seat) int { return strings.Compare(string(a.row.ID), string(b.row.ID)) })
	out := make([]state.Placement, 0, p.planned)
	next := map[muster.JobUID]int{}
	for _, s := range p.touched {
		taken := p.view.taken(s)
		put := func(pl state.Placement, run *state.Run) {
			taken = grant(&pl, run.Names, taken, s.row)
			out = append(out, pl)
			p.view.promise(pl.Alloc(), promise{pl.Node, run, pl.Grant})
		}
		for _, g := range s.given {
			pl := state.Placement{UID: g.job.UID, Version: g.job.Version, Node: s.row.ID}
			if g.member != nil {
				pl.Index, pl.Attempt = g.member.Index, g.member.Attempt+1
				put(pl, g.job.Run)
				continue
			}
			first, ok := next[g.job.UID]
			if !ok {
				first = g.job.NextIndex
			}
			pl.Attempt = g.job.AttemptBase + 1
			for k := range g.count {
				pl.Index = first + k
				put(pl, g.job.Run)
			}
			next[g.job.UID] = first + g.count
		}
		s.given = nil
	}
	p.decision.Placements = out
}

// grant names what a placement is given.
func grant(p *state.Placement, ask *muster.NamedAsk, taken muster.Taken, n *state.Node) muster.Taken {
	if ask == nil {
		return taken
	}
	p.Grant, _ = taken.Give(ask, n.Cores(), n.Devices())
	taken, _ = taken.Take(ask, p.Grant, n.Cores(), n.Devices())
	return taken
}
