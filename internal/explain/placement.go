package explain

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/present"
)

// mostListed bounds the classes, nodes and evictions that an explanation lists, each. Its sentences
// list fewer.
const mostListed = 100

// placing adds what placement sees: the nodes by class, the order in which they would be chosen,
// and which allocations would be evicted.
func (e *jobRecord) placing(p place.Explanation) {
	e.out.Considered, e.out.Ranked = consideredOf(&p), rankedOf(p.Ranked)
	e.out.Nodes, e.out.Evictions = plannedOf(p.Choices, mostListed), evictionsOf(p.Evictions)
	// The node that the member is on has either an obstacle or a score.
	if at := p.Present; at != nil {
		e.out.Present = &api.PresentNode{Node: string(at.Node)}
		if at.Obstacle.Kind != fit.None {
			e.out.Present.Obstacle = obstructed(at)
		} else {
			e.out.Present.Terms, e.out.Present.Score = at.Terms.String(), scoreOf(at.Terms)
		}
	}
	e.out.Text = append(e.out.Text, PlacementLines(&p)...)
}

// member explains one member: how it ended, where it is, or what it waits for. It leaves out the
// queue and the fleet, which concern the whole job; the last sentence points to that explanation.
func (e *jobRecord) member(index int) {
	j := e.job
	m := e.snap.Member(j.UID, index)
	switch {
	case m != nil && m.Status == muster.MemberPlaced:
		e.placed(index, m.Alloc())
		return
	case m != nil && m.Status != muster.MemberWaiting:
		e.say("Member %d of job %s has ended: %s%s.", index, j.Key, m.Status, muster.Because(m.Reason))
		return
	case j.Stage != muster.JobLive:
		e.say("Member %d of job %s was not placed, and will not be: the job is %s%s.", index, j.Key, j.Stage, muster.Because(j.Reason))
		return
	case m == nil:
		// A member without a row was never placed.
		e.say("Member %d of job %s, which has priority %d, was not placed yet. It needs %s.", index, j.Key, j.Priority(), j.Run.Ask)
	case m.RetryAt > e.now:
		e.out.NextAttempt, e.out.LastFailure = present.Time(m.RetryAt), m.Reason
		e.say("Member %d of job %s has failed%s; it is retried in %s.", index, j.Key, muster.Because(m.Reason), e.in(m.RetryAt))
	default:
		e.out.LastFailure = m.Reason
		e.say("Member %d of job %s has failed%s, and waits for another attempt.", index, j.Key, muster.Because(m.Reason))
	}
	e.pause()
	if j.Parked != "" {
		e.out.Parked, e.out.ParkedUntil = j.Parked, present.Time(j.ParkedUntil)
		e.say("The scheduler has parked the job: %s.", j.Parked)
	}
	e.placing(place.ExplainMember(j, index, e.snap, e.now))
	e.say("`muster explain %s` shows the work before it, and what the fleet does.", j.Key)
}

// placed explains a member that has an allocation. The decision that placed it is not recorded, so
// the explanation says where the member would be placed now.
func (e *jobRecord) placed(index int, id muster.AllocID) {
	a := e.snap.Alloc(id)
	if a == nil {
		e.say("Member %d of job %s is placed.", index, e.job.Key)
		return
	}
	e.say("Member %d of job %s is on node %s: allocation %s, %s, placed %s ago.", index, e.job.Key, a.Node, a.ID, a.Status, shortly(e.now.Sub(a.Placed)))
	if !a.Live() {
		return
	}
	e.say("Past placement decisions are not recorded. The following shows where it would be placed now if it were unplaced.")
	e.placing(place.ExplainMember(e.job, index, e.snap, e.now))
}

// consideredOf returns how many nodes fit and what keeps the others from fitting, in total and by
// class. Classes beyond mostListed are only counted.
func consideredOf(p *place.Explanation) *api.Considered {
	r := &p.All
	c := &api.Considered{
		Nodes: r.Nodes, Fitting: r.Fitting, Avoided: r.Avoided, Closed: counts(r.Closed), Filtered: counts(r.Filtered), Short: shortagesOf(r.Short), Text: r.String(),
		Classes: []api.NodeClass{},
	}
	for i := range p.Classes {
		k := &p.Classes[i]
		if i >= mostListed {
			c.MoreClasses++
			c.MoreNodes += k.Nodes
			continue
		}
		c.Classes = append(c.Classes, api.NodeClass{
			Class: k.Name, Nodes: k.Nodes, Fitting: k.Fitting, Avoided: k.Avoided, Closed: counts(k.Closed), Filtered: counts(k.Filtered), Short: shortagesOf(k.Short),
		})
	}
	return c
}

// shortagesOf returns what the nodes have too little of. The list is empty and not nil, for JSON.
func shortagesOf(in []place.Shortage) []api.Shortage {
	out := []api.Shortage{}
	for _, s := range in {
		out = append(out, api.Shortage{Resource: s.Dimension, Nodes: s.Nodes, Asked: s.Asked, Most: s.Most})
	}
	return out
}

// counts returns how many nodes each obstacle concerns.
func counts(in []place.Count) []api.ConsiderCount {
	out := []api.ConsiderCount{}
	for _, c := range in {
		out = append(out, api.ConsiderCount{What: c.What, Nodes: c.Nodes})
	}
	return out
}

// rankedOf returns the best node of each class, best first.
func rankedOf(in []place.Candidate) []api.RankedNode {
	out := []api.RankedNode{}
	for _, c := range in {
		out = append(out, api.RankedNode{Node: string(c.Node), Class: c.Class, Terms: c.Terms.String(), Score: scoreOf(c.Terms)})
	}
	return out
}

// plannedOf returns where members would be placed, for at most so many nodes.
func plannedOf(in []place.Choice, most int) []api.PlannedNode {
	out := []api.PlannedNode{}
	for _, c := range in[:min(len(in), most)] {
		out = append(out, api.PlannedNode{Node: string(c.Node), Members: c.Members, Terms: c.Terms.String(), Score: scoreOf(c.Terms)})
	}
	return out
}

// evictionsOf returns which allocations would be evicted for members that fit nowhere. Unlike the
// other lists it may be nil: JSON leaves it out.
func evictionsOf(in []place.Eviction) (out []api.Eviction) {
	for _, v := range in[:min(len(in), mostListed)] {
		e := api.Eviction{Node: string(v.Node), Terms: v.Terms.String(), Score: scoreOf(v.Terms)}
		for _, id := range v.Allocs {
			e.Allocs = append(e.Allocs, string(id))
		}
		out = append(out, e)
	}
	return out
}

// scoreOf returns the terms that a node was compared by, the term with the most weight first.
func scoreOf(in place.Terms) []api.ScoreTerm {
	out := []api.ScoreTerm{}
	for _, t := range in {
		term := api.ScoreTerm{Name: t.Name, Value: t.Value, Text: t.Text}
		for _, part := range t.Of {
			term.Of = append(term.Of, api.ScorePart{Name: part.Name, Value: part.Value, Text: part.Text})
		}
		out = append(out, term)
	}
	return out
}
