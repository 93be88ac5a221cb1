package server

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/claim"
	"github.com/musterhq/muster/internal/control/link"
	"github.com/musterhq/muster/internal/control/runners"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/explain"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/operate"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/submit"
	"github.com/musterhq/muster/internal/wait"
)

// services are what the transports share. Each declares what it needs of the loops in a small
// interface. This file fills those in with the loops of the present leadership, and says what is
// told while there is none.
type services struct {
	claims  *claim.Service
	inside  *inside.Service
	door    *door.Door
	submit  *submit.Service
	operate *operate.Service
	// planning is the turn to compute where members would be placed. With thousands of nodes that
	// takes CPU which the scheduler needs.
	planning *wait.Turn
	// stopping ends when the API is shut down, by stop.
	stopping context.Context
	stop     func()
}

// newServices makes the services, inner ones first. It starts nothing.
func (s *Server) newServices() (_ *services, err error) {
	stopping, stop := context.WithCancelCause(context.Background())
	defer func() {
		if err != nil {
			stop(err)
		}
	}()
	out := &services{stopping: stopping, stop: func() { stop(problem.ErrStopping) }, planning: wait.NewTurn()}
	out.claims, err = claim.New(claim.Config{
		State: s.state, Proposer: s.users(), Clock: s.raft.Now, Runners: s.handsOut, Key: s.claimKey,
	})
	if err != nil {
		return nil, err
	}
	out.inside, err = inside.New(inside.Config{
		State: s.state, Clock: s.raft.Now, Store: s.blobs, Link: s.linked, Claims: out.claims, Counters: s.metrics, Stopping: stopping,
	})
	if err != nil {
		return nil, err
	}
	out.submit, err = submit.New(submit.Config{
		State: s.state, Proposer: s.users(), Clock: s.raft.Now, Uploads: s.blobs, Fits: fits, Running: s.config, Planning: out.planning,
		Paused: func() string { return s.known().Paused() },
	})
	if err != nil {
		return nil, err
	}
	out.operate, err = operate.New(operate.Config{
		State: s.state, Proposer: s.users(), Clock: s.raft.Now, Loops: s.known, Running: s.config, Check: s.check,
		Link: func() (operate.Link, error) { return s.nodes() },
	})
	if err != nil {
		return nil, err
	}
	out.door, err = door.New(door.Config{
		State: s.state, Claims: out.claims, Token: s.token, NoAuth: s.cfg.NoAuth, AllowedHosts: s.cfg.AllowedHosts,
		CaughtUp: s.isCaughtUp, Started: s.started, Requests: s.metrics, Logger: s.log,
	})
	return out, err
}

// users takes what is proposed for users: it is refused while the disk is nearly full, but for what
// makes room.
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

// handsOut hands the requests of the service to the loop. The two types have the same fields.
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

// linked returns the tunnels of a link as the interface that the service declares.
type linked struct{ *link.Link }

func (l linked) Tunnel(ctx context.Context, a *state.Alloc, first []byte) (inside.Conn, error) {
	t, err := l.Link.Tunnel(ctx, a, first)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// known is what the loops of the present leadership know beside the state. Without a leadership it
// is nothing.
func (s *Server) known() operate.Loops {
	if l := s.stats.now.Load(); l != nil {
		return knows{l}
	}
	return operate.Idle{}
}

// knows answers the questions of services from loops.
type knows struct{ *loops }

// Usage is what the link heard last.
func (k knows) Usage(id muster.NodeID) (*api.NodeUsage, []string) {
	u, ok := k.link.Usage(id)
	if !ok || u.Heard == 0 {
		return nil, u.Problems
	}
	heard := u.Heard.Std()
	return &api.NodeUsage{
		CPUSeconds: (time.Duration(u.CPUMicros) * time.Microsecond).Seconds(), Memory: int64(u.Memory), FreeDisk: u.FreeDisk, Heard: &heard,
	}, u.Problems
}

// Fleet is what the fleet decided last.
func (k knows) Fleet() (*size.Decisions, []size.Block) {
	return k.fleet.Decisions(), k.fleet.Blocks()
}

// Blind is what the fleet noted of lists of instances.
func (k knows) Blind(provider muster.ProviderName) (muster.Time, error) {
	b := k.fleet.Blind(provider)
	return b.Since, b.Err
}

// Unsold is what the fleet noted of lists of offerings.
func (k knows) Unsold(provider muster.ProviderName) (muster.Time, error) {
	b := k.fleet.Unsold(provider)
	return b.Since, b.Err
}

// Troubles puts what the fleet knows of failing calls into words.
func (k knows) Troubles() func(*state.Node) string {
	all := k.fleet.Troubles()
	return func(n *state.Node) string {
		if why := k.fleet.Unmanaged(n); why != "" {
			return why
		}
		t := all[n.ID]
		if t.Err == nil {
			return ""
		}
		return explain.Trouble(t.Call, t.Times, t.Since, t.Err)
	}
}

// Unblock has the providers asked again for what they refused to a pool, and returns how many
// blocks that ended.
func (k knows) Unblock(pool muster.PoolName) int {
	return k.fleet.Unblock(pool)
}

// Unstored is what the link has not stored yet.
func (k knows) Unstored(job muster.JobUID) (int, error) {
	return k.link.Unstored(job)
}

// Paused says why nothing is placed at all, if so.
func (k knows) Paused() string {
	if k.paused {
		return explain.Paused
	}
	return ""
}
