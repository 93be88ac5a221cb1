package server

import (
	"context"

	"github.com/musterhq/muster/internal/claim"
	"github.com/musterhq/muster/internal/control/runners"
	"github.com/musterhq/muster/internal/state"
)

// services are what the transports share. Each declares what it needs of the loops in a small interface; this file fills these in
// with the loops of the present leadership.
type services struct {
	claims *claim.Service
}

func (s *Server) newServices() (*services, error) {
	claims, err := claim.New(claim.Config{State: s.state, Proposer: s.users(), Clock: s.raft.Now, Runners: s.handsOut, Key: s.claimKey})
	if err != nil {
		return nil, err
	}
	return &services{claims: claims}, nil
}

// users takes what is proposed for users: it is refused while the disk is nearly full, but for what makes room.
func (s *Server) users() state.Proposer {
	return users{ledger{s.state, s.raft.ProposeUser, s.times.commits}, ledger{s.state, s.raft.ProposeFreeing, s.times.commits}}
}

// handsOut is the loop that hands out runners, nil while this server does not lead.
func (s *Server) handsOut() claim.Runners {
	l := s.stats.now.Load()
	if l == nil {
		return nil
	}
	return handsOut{l.runners}
}

// handsOut gives claims the requests of the service.
type handsOut struct{ *runners.Runners }

func (h handsOut) Claim(ctx context.Context, r claim.Request) (*state.Claim, error) {
	return h.Runners.Claim(ctx, runners.Request(r))
}
