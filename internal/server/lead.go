package server

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/control/apply"
	"github.com/musterhq/muster/internal/control/broker"
	"github.com/musterhq/muster/internal/control/fleet"
	"github.com/musterhq/muster/internal/control/link"
	"github.com/musterhq/muster/internal/control/reach"
	"github.com/musterhq/muster/internal/control/reaper"
	"github.com/musterhq/muster/internal/control/roll"
	"github.com/musterhq/muster/internal/control/runners"
	"github.com/musterhq/muster/internal/control/schedule"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// destroyTime bounds how long an ephemeral server takes to destroy its instances at its end.
const destroyTime = 30 * time.Second

// lead is one leadership. It commits the facts that begin a term, then runs everything that only a
// leader does, until ctx ends and all of it has returned. The log calls it and waits for it: two
// leaderships of one server never overlap.
//
// The order matters. The term is in the log before a loop sends anything, so that agents can refuse
// messages of an earlier leader. The log format is raised before the loops write facts that need
// it. caughtUp is set after both. The log calls lead only when the state has everything that
// earlier leaders confirmed, so requests that read the state may be answered from then on.
func (s *Server) lead(ctx context.Context, term uint64) error {
	l := ledgerOf(s)
	fresh := s.state.Latest().Meta().Term == 0
	if err := s.beginTerm(ctx, l, term); err != nil {
		return err
	}
	if err := s.raiseFormat(ctx, l, fresh); err != nil {
		return err
	}
	if err := s.keeper.Settle(ctx, l); err != nil {
		return err
	}
	defer s.keeper.Resign()
	s.caughtUp.Store(true)
	if s.cluster != nil {
		// A server that no longer leads does not know what its successor confirms.
		defer s.caughtUp.Store(false)
		s.blobs.BeginSweeping()
	}
	// The connections to the nodes outlive a reload of the configuration: r belongs to the
	// leadership, not to the loops.
	r, err := s.reach(func(ctx context.Context, f state.Fact) error {
		_, _, err := l.Propose(ctx, f)
		return err
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	// An error of any part ends the leadership. The log decides whether to begin another one or to
	// end the server.
	g.Go(func() error { return r.Run(ctx) })
	g.Go(func() error { return s.times.follow(ctx, s.state) })
	g.Go(func() error { return leadCluster(ctx, s, l) })
	g.Go(func() error {
		for {
			again, err := s.turn(ctx, l, r)
			if err != nil || !again || ctx.Err() != nil {
				return err
			}
		}
	})
	err = g.Wait()
	// All loops have returned. From here on services answer that the server does not lead.
	s.leading.Store(false)
	s.stats.set(nil)
	return err
}

// turn runs the loops with the present configuration, until ctx ends or until a reload needs new
// loops. again is true in the second case. All loops of one turn have returned before turn does, so
// no two fleets ever act at once.
//
// A crash at any point loses only what loops have in memory. Whatever they asked of the outside
// world is in the log as an intent, and the next leader completes or undoes it.
func (s *Server) turn(ctx context.Context, l ledger, r *reach.Reach) (again bool, err error) {
	// A change of the configuration from here on restarts the loops: see reconfigure.
	config := s.config()
	s.used.Store(config)
	defer s.used.Store(nil)
	ps, err := s.newProviders(config, s.state.Latest().Meta().Cluster, r)
	if err != nil {
		return false, err
	}
	lps, err := s.loops(l, ps, r)
	if err != nil {
		return false, err
	}
	// Services reach the new loops from here on, and the providers of the new configuration.
	s.stats.set(lps)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for name, run := range lps.run() {
		g.Go(func() error {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	g.Go(func() error {
		select {
		// The loops end as they do at the end of a leadership. leading stays true, so that clients
		// are not refused in between.
		case <-s.renew:
			again = true
			cancel()
		case <-ctx.Done():
		}
		return nil
	})
	select {
	// A server that called itself ready earlier would refuse the first claims.
	case <-lps.runners.Ready():
	case <-ctx.Done():
	}
	s.leading.Store(true)
	s.startedOnce.Do(func() { close(s.started) })
	// This commit has a second purpose: announceReady waits for a change of the feed before it
	// looks at leading again, and the commit is one. A crash before the commit is harmless: the
	// next leader sets the pools again.
	if err = s.setPools(ctx, l); err != nil && ctx.Err() == nil {
		// The error is passed through the group, which ends the loops.
		g.Go(func() error { return fmt.Errorf("set pools: %w", err) })
	}
	// A goroutine writes again. It is safe to read only when the group has returned.
	err = g.Wait()
	return again, err
}

// beginTerm commits what must be in the log before anything is sent to agents: the term, and after
// a restore from a backup also a new epoch.
//
// A crash between the facts is harmless. Without EpochBegan the directory still counts as restored,
// and the next leadership begins the epoch. With EpochBegan but before TakeRestored, the next
// leadership begins one epoch more; agents only need epochs to grow.
func (s *Server) beginTerm(ctx context.Context, l ledger, term uint64) error {
	if _, _, err := l.Propose(ctx, &state.TermBegan{Term: term, Cluster: newID("c")}); err != nil {
		return fmt.Errorf("begin term %d: %w", term, err)
	}
	from, restored := s.raft.Restored()
	if !restored {
		return nil
	}
	// The check precedes the epoch. Agents obey the newest epoch, so a server that refuses to
	// continue must not begin one.
	if err := s.checkRestored(); err != nil {
		return err
	}
	// The epoch comes from the clock, so that two restores of one backup get two epochs.
	epoch := uint64(time.Now().Unix())
	if _, _, err := l.Propose(ctx, &state.EpochBegan{Epoch: epoch}); err != nil {
		return fmt.Errorf("begin epoch: %w", err)
	}
	s.log.Info("restored from a backup; a new epoch begins", "backup", from.Made, "index", from.Index, "epoch", s.state.Latest().Meta().Epoch)
	return s.raft.TakeRestored()
}

// raiseFormat raises the log format to the newest one that every server of the cluster reads. It
// cannot be undone: older versions refuse the data directory from then on. A server that reads less
// than FormatFloor keeps the cluster without a leader of this version. fresh says that the data
// directory is new: no older version could have opened it, so nothing is logged.
func (s *Server) raiseFormat(ctx context.Context, l ledger, fresh bool) error {
	meta := s.state.Latest().Meta()
	has, can := meta.LogFormat(), s.readable()
	if max(has, can) < state.FormatFloor {
		return fmt.Errorf("this version needs log format %d, and a server of the cluster reads only up to %d; upgrade it first", state.FormatFloor, can)
	}
	if can <= has {
		return nil
	}
	if _, _, err := l.Propose(ctx, &state.FormatRaised{Format: can, By: s.opts.Version}); err != nil {
		return fmt.Errorf("raise the log format from %d to %d: %w", has, can, err)
	}
	if fresh {
		return nil
	}
	s.log.Info("log format raised; older versions of muster no longer open this data directory", "from", has, "to", can)
	return nil
}

// loops are the loops of a leader, made for one turn. The fields are set before the loops run and
// never change, so reading them needs no lock; each loop guards its own data.
type loops struct {
	broker   *broker.Broker
	schedule *schedule.Scheduler
	apply    *apply.Applier
	fleet    *fleet.Fleet
	link     *link.Link
	reaper   *reaper.Reaper
	runners  *runners.Runners
	roll     *roll.Roll
	// paused says that an operator has paused the scheduler: nothing is placed.
	paused bool
	clock  clock.Clock
	// providers are those that the loops call.
	providers providers
	// reach has the connections to the nodes of the providers. The leadership owns it.
	reach *reach.Reach
}

// run returns the loops by name. The order of their start does not matter: each begins with the
// state and follows its changes.
func (l *loops) run() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"broker": l.broker.Run, "schedule": l.schedule.Run, "apply": l.apply.Run,
		"fleet": l.fleet.Run, "link": l.link.Run, "reaper": l.reaper.Run,
		"runners": l.runners.Run, "roll": l.roll.Run,
	}
}

// loops makes the loops in the order of their dependencies; it starts none. Each loop proposes
// facts through the ledger and learns of the facts of others from the state's feed. Only a few call
// each other directly: the scheduler takes evaluations from the broker and hands plans to the
// applier; the fleet asks the link when it heard from a node, and
// the link tells it what agents have read of their cloud's notices.
func (s *Server) loops(l ledger, ps providers, r *reach.Reach) (_ *loops, err error) {
	out := &loops{providers: ps, reach: r, clock: s.raft.Now, paused: s.config().Scheduler.Paused}
	if out.broker, err = broker.New(broker.Config{State: s.state, Proposer: l, Clock: s.raft.Now, Logger: s.log}); err != nil {
		return nil, err
	}
	if out.apply, err = apply.New(apply.Config{Snapshots: s.state, Proposer: l, Deliveries: out.broker, Logger: s.log}); err != nil {
		return nil, err
	}
	if out.schedule, err = schedule.New(schedule.Config{State: s.state, Clock: s.raft.Now, Queue: out.broker, Submit: out.apply, Workers: s.config().Scheduler.Workers, Paused: s.config().Scheduler.Paused, Logger: s.log}); err != nil {
		return nil, err
	}
	if out.link, err = link.New(link.Config{
		State: s.state, Proposer: l, Clock: s.raft.Now, Blobs: s.blobs, Dial: r.Dial, DialBulk: r.DialBulk, StartAgent: r.StartAgent, StartsItself: r.StartsItself,
		Enter: r.Enter, Leave: r.Leave, LeaveAllBut: r.LeaveAllBut, Problems: r.Problems, Lease: s.lease, OCIRuntime: s.ociRuntime, Grants: s.grants, ImageCache: s.cachedImages(), DiskTight: s.diskTight, Logger: s.log, Seed: newSeed(), KeepAgents: func() bool { return versionsDiffer(s) },
		OutputMost: func() int64 { return int64(s.config().Blob.Quota) },
		// The fleet is made below, and before the link runs.
		Noticed: func(id muster.NodeID, n wire.Notice) {
			out.fleet.AgentNoticed(id, cloud.Notice{Kind: cloud.NoticeKind(n.Kind), At: n.At})
		},
	}); err != nil {
		return nil, err
	}
	if out.fleet, err = s.fleet(l, ps, out.link.Heard); err != nil {
		return nil, err
	}
	if out.reaper, err = s.reaper(l); err != nil {
		return nil, err
	}
	if out.roll, err = roll.New(roll.Config{State: s.state, Proposer: l, Clock: s.raft.Now, Paused: out.paused, Logger: s.log}); err != nil {
		return nil, err
	}
	out.runners, err = runners.New(runners.Config{State: s.state, Proposer: l, Clock: s.raft.Now, Reached: out.reached, Logger: s.log})
	return out, err
}

// reached reports whether a node was heard recently. Its agent reports every few seconds at least.
// A claim should not get a runner on a node that cannot be reached now.
func (l *loops) reached(id muster.NodeID) bool {
	u, ok := l.link.Usage(id)
	return ok && l.clock.Now().Sub(u.Heard) < 2*wire.HeartbeatMillis*time.Millisecond
}

// newID returns a random id: a prefix and 8 lower-case letters and digits.
func newID(prefix string) string { return prefix + strings.ToLower(rand.Text()[:8]) }

// newSeed seeds the link's jitter. It is not a secret.
func newSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the process instead
	return binary.LittleEndian.Uint64(b[:])
}
