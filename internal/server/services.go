package server

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/claim"
	"github.com/musterhq/muster/internal/cloud"
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

// services are what the transports share. They live as long as the process; the loops that they
// need live as long as a turn. So each service declares what it needs of the loops in a small
// interface. This file implements these interfaces with the loops of the present leadership, and
// answers for the time without one.
type services struct {
	claims  *claim.Service
	inside  *inside.Service
	door    *door.Door
	submit  *submit.Service
	operate *operate.Service
	// planning lets one request at a time compute where members would be placed. With thousands of
	// nodes that takes CPU that the scheduler needs.
	planning *wait.Turn
	// stopping ends when the API shuts down. Streams watch it, because http.Server.Shutdown waits
	// for requests and does not end them. stop ends it, with the cause that clients are told.
	stopping context.Context
	stop     func()
}

// newServices makes the services, inner ones first: inside and door need claims. It starts nothing.
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
	arch, err := s.openArchitectures()
	if err != nil {
		return nil, err
	}
	out.submit, err = submit.New(submit.Config{
		State: s.state, Proposer: s.users(), Clock: s.raft.Now, Uploads: s.blobs, Fits: fits, Running: s.config, Planning: out.planning, InUse: &s.jobsInUse,
		Paused:        func() string { return s.known().Paused() },
		Architectures: arch.of,
		NoContainers:  func() string { return NoContainers(s.config()) },
		NoBridge:      func() string { return NoBridge(s.config()) },
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

// users returns the proposer for facts that users ask for. It refuses them while the disk is nearly
// full, except those that make room. Loops use Propose of the log, which goes on: their facts let
// the server clean up.
func (s *Server) users() state.Proposer {
	return users{ledger{s.state, s.raft.ProposeUser, s.times.commits}, ledger{s.state, s.raft.ProposeFreeing, s.times.commits}}
}

// handsOut returns the loop that hands out runners, nil while this server does not lead. The result
// is an untyped nil then, so that callers can compare it.
func (s *Server) handsOut() claim.Runners {
	l := s.stats.now.Load()
	if l == nil {
		return nil
	}
	return handsOut{l.runners}
}

// handsOut passes the requests of the claim service to the loop. The two request types have the
// same fields, so that neither package imports the other.
type handsOut struct{ *runners.Runners }

func (h handsOut) Claim(ctx context.Context, r claim.Request) (*state.Claim, error) {
	return h.Runners.Claim(ctx, runners.Request(r))
}

// nodes returns the link of the present leadership, through which nodes are reached. A caller may
// keep it for one request only: after a reload another link has the nodes.
func (s *Server) nodes() (*link.Link, error) {
	if l := s.stats.now.Load(); l != nil {
		return l.link, nil
	}
	return nil, muster.Faultf(muster.FaultUnavailable, "the server has no links to nodes now")
}

// linked returns the same link as the interface of the inside service. An error must not come with
// a link in the interface: it would not be nil.
func (s *Server) linked() (inside.Link, error) {
	l, err := s.nodes()
	if err != nil {
		return nil, err
	}
	return linked{l}, nil
}

// linked returns the tunnels of a link as the interface that the inside service declares. Go does
// not convert the result type of a method by itself.
type linked struct{ *link.Link }

func (l linked) Tunnel(ctx context.Context, a *state.Alloc, first []byte) (inside.Conn, error) {
	t, err := l.Link.Tunnel(ctx, a, first)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// known returns what the present loops know beside the state. Without a leadership it knows only
// what the log has of their memory.
func (s *Server) known() operate.Loops {
	if l := s.stats.now.Load(); l != nil {
		return knows{l}
	}
	return follows{state: s.state}
}

// knows answers the questions of services from the loops of one turn. The loops guard their own
// data; knows needs no lock.
type knows struct{ *loops }

// Usage is what the link heard last from a node: the CPU time that its sandboxes used, in seconds,
// and memory and free disk in bytes.
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

// Fleet is the fleet's last decision and its blocks.
func (k knows) Fleet() (*size.Decisions, []size.Block) {
	return k.fleet.Decisions(), k.fleet.Blocks()
}

// Blind is since when the fleet cannot list the instances of a provider, and why.
func (k knows) Blind(provider muster.ProviderName) (muster.Time, error) {
	b := k.fleet.Blind(provider)
	return b.Since, b.Err
}

// Unsold is since when the fleet cannot list the offerings of a provider, and why.
func (k knows) Unsold(provider muster.ProviderName) (muster.Time, error) {
	b := k.fleet.Unsold(provider)
	return b.Since, b.Err
}

// Troubles puts into words what the fleet knows of failing calls. It copies the fleet's records
// once, for a walk over all nodes.
func (k knows) Troubles() func(*state.Node) string {
	all := k.fleet.Troubles()
	return func(n *state.Node) string {
		// A missing provider explains every other failure of the node.
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

// Rates is how often a provider is called at most, by its driver and the configuration.
func (k knows) Rates(provider muster.ProviderName) (out []api.CallRate) {
	p, ok := cloud.As[cloud.Paced](k.providers[provider])
	if !ok {
		return nil
	}
	for _, u := range p.Paces() {
		out = append(out, api.CallRate{Provider: string(provider), Calls: u.Calls, PerSecond: u.Rate.PerSecond, Burst: max(u.Rate.Burst, 1),
			Waiting: u.Waiting, Last: api.Duration(u.Last), Waited: api.Duration(u.Waited)})
	}
	return out
}

// Unblock lets the fleet ask providers again for what they refused to a pool. It returns how many
// blocks that ended.
func (k knows) Unblock(pool muster.PoolName) int {
	return k.fleet.Unblock(pool)
}

// Unstored is what the link could not store yet.
func (k knows) Unstored(job muster.JobUID) (int, error) {
	return k.link.Unstored(job)
}

// Paused says why nothing is placed; "" if the scheduler runs. It is the value of the present turn:
// a reload changes it with the loops.
func (k knows) Paused() string {
	if k.paused {
		return explain.Paused
	}
	return ""
}
