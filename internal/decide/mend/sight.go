package mend

import (
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

const (
	// Apart is how far apart the first and the last of the lists must be that
	// confirm that an instance is gone.
	Apart = time.Second
	// ListLag is how long a list may lack an instance that was just made.
	ListLag = 10 * time.Second
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
	// newest is when the newest complete list was asked for; 0: never.
	newest muster.Time
	// there is what the newest list showed, by token, and what any later incomplete one did.
	there map[muster.Token]muster.InstanceID
	// absent is when the first was asked for of an unbroken row of complete lists, each after
	// the last sign of life, that lack the instance of a token.
	absent map[muster.Token]muster.Time
}

// Take takes in a list. The snapshot must have been taken after the list was answered.
func (s *Sight) Take(l *List, snap *state.Snapshot) {
	if l.Complete || s.there == nil {
		s.there = make(map[muster.Token]muster.InstanceID, len(l.Instances))
	}
	for i := range l.Instances {
		s.there[l.Instances[i].Token] = l.Instances[i].ID
		delete(s.absent, l.Instances[i].Token)
	}
	if !l.Complete {
		return
	}
	s.newest = l.Asked
	before := s.absent
	s.absent = map[muster.Token]muster.Time{}
	snap.LiveNodes(func(n *state.Node) bool {
		if n.Offering.Provider != s.Provider {
			return true
		}
		if _, here := s.there[n.Token]; here {
			return true
		}
		alive, ever := lastAlive(n)
		if first := before[n.Token]; first != 0 && first >= alive {
			s.absent[n.Token] = first
		} else if ever && l.Asked >= alive {
			s.absent[n.Token] = l.Asked
		}
		return true
	})
}

// lastAlive is the moment up to which an instance is known or has to be
// believed to be there. Not ok: contact is there now.
func lastAlive(n *state.Node) (at muster.Time, ok bool) {
	switch n.Stage {
	case muster.NodeBooting, muster.NodeAdopted:
		return n.StageSince.Add(ListLag), true
	case muster.NodeServing, muster.NodeDraining:
		return n.HealthSince, n.Health == muster.NodeLost || n.Health == muster.NodeBroken
	}
	return n.StageSince, true
}

// gone reports whether the instance of a node is confirmed to be gone. If it is
// only missing so far, next is when another list could confirm it.
func (s *Sight) gone(n *state.Node) (gone bool, next muster.Time) {
	first, ok := s.absent[n.Token]
	alive, ever := lastAlive(n)
	if !ok || !ever || first < alive {
		return false, 0
	}
	return s.newest >= first.Add(Apart), first.Add(Apart)
}

// has is the instance of a token, if the newest list showed one.
func (s *Sight) has(t muster.Token) (muster.InstanceID, bool) {
	id, ok := s.there[t]
	return id, ok
}

// lacks reports whether a complete list asked for at or after a moment did not show the token.
func (s *Sight) lacks(t muster.Token, since muster.Time) bool {
	_, here := s.there[t]
	return !here && s.newest != 0 && s.newest >= since
}
