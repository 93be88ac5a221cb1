package state

import "github.com/musterhq/muster"

// Suppose answers what would come of a fact, were it the next one: the state after it, and apply's value or refusal. Nothing
// is changed and nothing is proposed; the state supposed has an index of its own that no log entry has. Any number may call
// it at once. It costs as little as a snapshot: trees are shared, and only what the fact touches is copied.
func (s *Snapshot) Suppose(f Fact, at muster.Time) (*Snapshot, any, error) {
	now := max(at, s.meta.Time)
	next := &State{t: s.share(), meta: s.meta, costRows: maxJobCosts, sumRows: maxNamespaceCosts, uses: map[muster.Namespace]*NamespaceUse{}, used: map[muster.Namespace]bool{}}
	next.meta.Index++
	next.meta.Time = now
	next.t.uses.Scan(func(u *NamespaceUse) bool {
		row := *u
		next.uses[u.Name] = &row
		return true
	})
	v, err := f.apply(next, now)
	if err != nil {
		return s, nil, err
	}
	next.publish()
	return next.Latest(), v, nil
}

// share copies the trees. The copy marks the original as shared, so that two at once would write the same word.
func (s *Snapshot) share() tables {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.t.copy()
}
