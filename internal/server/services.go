package server

import (
	"context"

	"github.com/musterhq/muster/internal/submit"
	"github.com/musterhq/muster/internal/wait"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/claim"
	"github.com/musterhq/muster/internal/control/link"
	"github.com/musterhq/muster/internal/control/runners"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// services are what the transports share. Each declares what it needs of the loops in a small interface; this file fills these in
// with the loops of the present leadership.
type services struct {
	claims *claim.Service
	inside *inside.Service
	door   *door.Door
	submit *submit.Service
	// planning is had by who computes where members would be placed.
	planning *wait.Turn
	// stopping ends when the API is shut down, by stop.
	stopping context.Context
	stop     func()
}

func (s *Server) newServices() (*services, error) {
	claims, err := claim.New(claim.Config{State: s.state, Proposer: s.users(), Clock: s.raft.Now, Runners: s.handsOut, Key: s.claimKey})
	if err != nil {
		return nil, err
	}
	stopping, stop := context.WithCancelCause(context.Background())
	in, err := inside.New(inside.Config{State: s.state, Clock: s.raft.Now, Store: s.blobs, Link: s.linked, Claims: claims, Counters: s.metrics, Stopping: stopping})
	if err != nil {
		stop(err)
		return nil, err
	}
	d, err := door.New(door.Config{
		State: s.state, Claims: claims, Token: s.token, NoAuth: s.cfg.NoAuth, AllowedHosts: s.cfg.AllowedHosts,
		CaughtUp: s.isCaughtUp, Started: s.started, Requests: s.metrics, Logger: s.log,
	})
	if err != nil {
		stop(err)
		return nil, err
	}
	planning := wait.NewTurn()
	sub, err := submit.New(submit.Config{
		State: s.state, Proposer: s.users(), Clock: s.raft.Now, Uploads: s.blobs, Fits: fits, Running: s.config, Planning: planning, Paused: insight{&s.stats}.Paused,
	})
	if err != nil {
		stop(err)
		return nil, err
	}
	return &services{claims: claims, inside: in, door: d, submit: sub, planning: planning, stopping: stopping, stop: func() { stop(problem.ErrStopping) }}, nil
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

// nodes is the link of the present leadership, by which nodes are reached.
func (s *Server) nodes() (*link.Link, error) {
	if l := s.stats.now.Load(); l != nil {
		return l.link, nil
	}
	return nil, muster.Faultf(muster.FaultUnavailable, "the server has no links to nodes now")
}

// linked is the link of the present leadership as services take it.
func (s *Server) linked() (inside.Link, error) {
	l, err := s.nodes()
	if err != nil {
		return nil, err
	}
	return linked{l}, nil
}

// linked gives sandboxes the tunnels of a link.
type linked struct{ *link.Link }

func (l linked) Tunnel(ctx context.Context, a *state.Alloc, first []byte) (inside.Conn, error) {
	t, err := l.Link.Tunnel(ctx, a, first)
	if err != nil {
		return nil, err
	}
	return t, nil
}
