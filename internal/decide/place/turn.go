package place

import (
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/share"
	"github.com/musterhq/muster/internal/state"
)

// band serves jobs of one priority: within a class of namespaces first come, first
// served; the classes in turns, by what they have for their weight (package share).
func (p *pass) band(jobs []*state.Job) {
	if p.oneClass(jobs) {
		for _, j := range jobs {
			p.job(j)
		}
		return
	}
	turns := share.NewTurns(p.snap, p.view.capacity)
	for _, j := range jobs {
		turns.Add(j)
	}
	open := map[muster.JobUID]*setting{}
	for {
		j, most := turns.Next()
		if j == nil {
			return
		}
		s := open[j.UID]
		if s == nil {
			if s = p.begin(j); s == nil {
				turns.Placed(0, true)
				continue
			}
			open[j.UID] = s
		}
		// A turn that is not used up ends the job's turns: the rest of it fits nowhere, or may not be.
		placed := p.serve(s, most)
		through := placed < most || s.open() == 0
		if through {
			p.finish(s)
		}
		turns.Placed(placed, through)
	}
}

// oneClass reports whether there is nobody to take turns with.
func (p *pass) oneClass(jobs []*state.Job) bool {
	first := jobs[0].Key.Namespace
	other := slices.IndexFunc(jobs, func(j *state.Job) bool { return j.Key.Namespace != first })
	if other < 0 {
		return true
	}
	shares := p.snap.Shares()
	class, _ := shares.Class(first)
	return !slices.ContainsFunc(jobs[other:], func(j *state.Job) bool {
		if j.Key.Namespace == first {
			return false
		}
		c, _ := shares.Class(j.Key.Namespace)
		return c != class
	})
}
