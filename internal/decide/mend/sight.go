package mend

import (
	"cmp"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

const (
	// Apart is how far apart the first and the last of the lists must be that confirm that an
	// instance is gone.
	Apart = time.Second
	// Agreement and ListLag are those of a Sight that has none of its own.
	Agreement = 10 * time.Second
	ListLag   = 10 * time.Second
)

// Instance is one machine in a provider's list.
type Instance struct {
	ID       muster.InstanceID
	Token    muster.Token
	Node     muster.NodeID
	Pool     muster.PoolName
	Offering muster.OfferingName
	Zone     string
	Market   muster.Market
	Intent   muster.NodeIntent
	// Failed says why it will never run, as its provider does; empty: nothing says so.
	Failed string
}

// List is what a provider answered to one listing.
type List struct {
	// Asked is when the listing began.
	Asked muster.Time
	// Complete: it is all of our instances. Otherwise it shows only what is there.
	Complete  bool
	Instances []Instance
}

// Sight is what is known from the lists of one provider. The zero value has seen none.
type Sight struct {
	Provider muster.ProviderName
	// ListLag is how long a list may lack an instance that was just made. Agreement is as Apart,
	// where nothing but lists says that the instance is gone and work would be given up for it.
	ListLag, Agreement time.Duration
	// newest is when the newest complete list was asked for; 0: never.
	newest muster.Time
	// there is what the newest list showed, by token, and what any later incomplete one did.
	there map[muster.Token]muster.InstanceID
	// absent are the tokens whose instance is missing by lists that may be believed, missed by any.
	absent, missed map[muster.Token]absence
	// failed are the instances that the newest list showed as failed, and why.
	failed map[muster.Token]string
}

func (s *Sight) listLag() time.Duration { return cmp.Or(s.ListLag, ListLag) }

// absence is an unbroken row of complete lists, each after the last sign of life, that lack an
// instance: when the first and the last of them were asked for.
type absence struct{ first, last muster.Time }

// and is the row with one more list; what was before the last sign of life is not of it.
func (a absence) and(asked, alive muster.Time) absence {
	if a.first == 0 || a.first < alive {
		a.first = asked
	}
	a.last = asked
	return a
}

// Take takes in a list. The snapshot must have been taken after the list was answered.
func (s *Sight) Take(l *List, snap *state.Snapshot) {
	if l.Complete || s.there == nil {
		s.there = make(map[muster.Token]muster.InstanceID, len(l.Instances))
		s.failed = map[muster.Token]string{}
	}
	for i := range l.Instances {
		if why := l.Instances[i].Failed; why != "" {
			s.failed[l.Instances[i].Token] = why
		} else {
			delete(s.failed, l.Instances[i].Token)
		}
		s.there[l.Instances[i].Token] = l.Instances[i].ID
		delete(s.absent, l.Instances[i].Token)
	}
	if !l.Complete {
		return
	}
	s.newest = l.Asked
	absent, missed := s.absent, s.missed
	s.absent, s.missed = map[muster.Token]absence{}, map[muster.Token]absence{}
	believed := !s.contradicted(l, snap)
	snap.LiveNodes(func(n *state.Node) bool {
		_, here := s.there[n.Token]
		alive, silent := s.lastAlive(n)
		if n.Offering.Provider != s.Provider || here || !silent {
			return true
		}
		if l.Asked >= alive {
			s.missed[n.Token] = missed[n.Token].and(l.Asked, alive)
		}
		switch row := absent[n.Token]; {
		case l.Asked >= alive && (believed || n.Stage == muster.NodeTerminating):
			s.absent[n.Token] = row.and(l.Asked, alive)
		case row.first >= alive && row.first != 0:
			// This list proves nothing, either way.
			s.absent[n.Token] = row
		}
		return true
	})
}

// contradicted reports whether a complete list lacks a node that is in contact: then what else it lacks may
// be there as well. What is to be destroyed is left out of it: there the list is asked whether what was done has happened.
func (s *Sight) contradicted(l *List, snap *state.Snapshot) bool {
	found := false
	snap.LiveNodes(func(n *state.Node) bool {
		if n.Offering.Provider == s.Provider {
			_, here := s.there[n.Token]
			_, silent := s.lastAlive(n)
			found = !here && !silent && l.Asked >= n.Launched.Add(s.listLag())
		}
		return !found
	})
	return found
}

// lastAlive is the moment up to which an instance is known or has to be
// believed to be there. Not ok: contact is there now.
func (s *Sight) lastAlive(n *state.Node) (at muster.Time, ok bool) {
	switch n.Stage {
	case muster.NodeBooting, muster.NodeAdopted:
		return n.StageSince.Add(s.listLag()), true
	case muster.NodeServing, muster.NodeDraining:
		return n.HealthSince, n.Health == muster.NodeLost || n.Health == muster.NodeBroken
	}
	return n.StageSince, true
}

// gone reports whether the instance of a node is confirmed to be gone. If it is
// only missing so far, next is when another list could confirm it. Witnessed: something beside the lists says so too.
func (s *Sight) gone(n *state.Node, witnessed bool) (gone bool, next muster.Time) {
	return s.confirmed(s.absent, n, witnessed)
}

// seemsGone is gone by whatever lists said for a moment, believed or not.
func (s *Sight) seemsGone(n *state.Node) bool {
	gone, _ := s.confirmed(s.missed, n, true)
	return gone
}

func (s *Sight) confirmed(by map[muster.Token]absence, n *state.Node, witnessed bool) (gone bool, next muster.Time) {
	row, ok := by[n.Token]
	alive, silent := s.lastAlive(n)
	if !ok || !silent || row.first < alive {
		return false, 0
	}
	due := row.first.Add(Apart)
	if n.LiveAllocs > 0 && !witnessed {
		due = row.first.Add(cmp.Or(s.Agreement, Agreement))
	}
	if row.last >= due {
		return true, 0
	}
	return false, min(max(due, s.newest), s.newest.Add(lookAgain))
}

// has is the instance of a token, if the newest list showed one.
func (s *Sight) has(t muster.Token) (muster.InstanceID, bool) {
	id, ok := s.there[t]
	return id, ok
}

// Has reports whether the newest list showed an instance of the token.
func (s *Sight) Has(t muster.Token) bool {
	_, ok := s.has(t)
	return ok
}

// lacks reports whether a complete list asked for at or after a moment did not show the token.
func (s *Sight) lacks(t muster.Token, since muster.Time) bool {
	_, here := s.there[t]
	return !here && s.newest != 0 && s.newest >= since
}
