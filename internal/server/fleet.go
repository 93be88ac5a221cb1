package server

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/fleet"
)

// fleet makes the loop that launches and destroys instances. heard is when the link last heard from
// a node: the fleet does not give up a node that still answers.
func (s *Server) fleet(l ledger, ps providers, heard func(muster.NodeID) muster.Time) (*fleet.Fleet, error) {
	return fleet.New(fleet.Config{Heard: heard, Boot: s.bootOf, State: s.state, Proposer: l, Clock: s.raft.Now, Providers: ps, Paused: s.config().Scheduler.Paused, Logger: s.log})
}
