package server

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/fleet"
)

func (s *Server) fleet(l ledger, ps providers, heard func(muster.NodeID) muster.Time) (*fleet.Fleet, error) {
	return fleet.New(fleet.Config{Heard: heard, State: s.state, Proposer: l, Clock: s.raft.Now, Providers: ps, Paused: s.config().Scheduler.Paused, Logger: s.log})
}
