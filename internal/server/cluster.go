package server

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/cluster"
	"github.com/musterhq/muster/internal/forward"
	"github.com/musterhq/muster/internal/httpapi/servers"
	"github.com/musterhq/muster/internal/locate"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

const (
	// handOverTime bounds how long a leader that stops tries to hand leadership over.
	handOverTime = 5 * time.Second
	// lostAfter is how long a follower may be without word from the leader before it says that it is not
	// ready: some elections long.
	lostAfter = 10 * time.Second
	// readyEvery is how often a follower looks whether it is ready.
	readyEvery = 50 * time.Millisecond
)

// openCluster makes this server a member of its cluster, and returns what the log needs for it. Without
// cluster in the configuration it does nothing.
func openCluster(ctx context.Context, s *Server) (*raftlog.Cluster, error) {
	spec := s.cfg.Cluster
	if spec == nil {
		return nil, nil
	}
	own := *spec
	if own.Name == "" {
		name, err := os.Hostname()
		if err != nil {
			return nil, err
		}
		own.Name = name
	}
	var err error
	s.cluster, err = cluster.Open(ctx, cluster.Config{
		DataDir: s.cfg.DataDir, Spec: own, Start: s.opts.Start, Version: s.opts.Version, Reads: int(state.FormatNewest), API: apiAddress(&s.cfg),
		Secrets: func() (map[string][]byte, error) { return clusterSecrets(s) }, Logger: s.log,
	})
	if err != nil {
		return nil, err
	}
	return s.cluster.Raft(), nil
}

// attachCluster gives the cluster the log and the state. It comes when commits are measured.
func attachCluster(s *Server) {
	if s.cluster == nil {
		return
	}
	s.cluster.Attach(s.raft, s.state, ledgerOf(s))
	s.readable = s.cluster.Readable
}

// apiAddress is where clients on other hosts reach the API; empty if they do not.
func apiAddress(c *api.ServerConfig) string {
	if c.Cluster.API != "" {
		return c.Cluster.API
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil || host == "localhost" || host == "" {
		return ""
	}
	if ip, err := netip.ParseAddr(host); err == nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		return ""
	}
	return c.Listen
}

// clusterSecrets are the files that a joining server gets. Those that are missing are made.
func clusterSecrets(s *Server) (map[string][]byte, error) {
	if !s.cfg.NoAuth {
		if _, err := locate.EnsureToken(s.cfg.DataDir); err != nil {
			return nil, err
		}
	}
	if _, err := locate.EnsureClaimKey(s.cfg.DataDir); err != nil {
		return nil, err
	}
	if _, err := s.cloudKeys(); err != nil {
		return nil, err
	}
	return cluster.ReadSecrets(s.cfg.DataDir)
}

// forwarding is the handler of all requests: the door, and for one of several servers what passes requests
// on to the leader.
func forwarding(s *Server, services *services) http.Handler {
	if s.cluster == nil {
		return services.door
	}
	return forward.New(forward.Config{
		Local: services.door, Refuse: services.door.Refuse, Servers: s.cluster, Serving: s.leading.Load,
		From: s.cluster.From, Transport: s.cluster.Transport(), Logger: s.log,
	})
}

// runCluster serves the other servers until ctx ends, and sends the result to done. Without a cluster there
// is nothing to serve, and done gets nil when ctx ends.
func runCluster(ctx context.Context, s *Server, handler http.Handler, done chan<- error) {
	if s.cluster == nil {
		<-ctx.Done()
		done <- nil
		return
	}
	done <- s.cluster.Run(ctx, handler)
}

// handOver gives leadership to another server at the end of this one, so that nobody waits for an election.
func handOver(s *Server) {
	if s.cluster == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), handOverTime)
	defer cancel()
	s.cluster.HandOver(ctx)
}

// leadCluster is the leader's part in the cluster. The log format is raised once every server reads more.
func leadCluster(ctx context.Context, s *Server, l ledger) error {
	if s.cluster == nil {
		return nil
	}
	return s.cluster.Lead(ctx, func(ctx context.Context) error {
		was := s.state.Latest().Meta()
		if err := s.raiseFormat(ctx, l, false); err != nil {
			return err
		}
		if meta := s.state.Latest().Meta(); meta.LogFormat() > was.LogFormat() {
			// What the configuration says in words of the new format is set by the next turn.
			wait.Poke(s.renew)
		}
		return nil
	})
}

// reachesLeader says why this server cannot answer requests with the help of the leader; nil if it can.
func reachesLeader(s *Server) error {
	switch leader := s.cluster.Leader(); {
	case leader == "":
		return muster.Faultf(muster.FaultUnavailable, "the cluster has no leader")
	case leader == s.cluster.Self():
		return muster.Faultf(muster.FaultUnavailable, "the server begins to lead")
	}
	if at := s.cluster.LastContact(); time.Since(at) > lostAfter {
		return muster.Faultf(muster.FaultUnavailable, "the leader was last heard %s ago", cmp.Or(time.Since(at).Round(time.Second), lostAfter))
	}
	return nil
}

// serversOf is what operators ask about the servers.
func serversOf(s *Server) servers.Cluster {
	if s.cluster == nil {
		return alone{s}
	}
	return s.cluster
}

// alone is the cluster of a server without others.
type alone struct{ s *Server }

// List is this server.
func (a alone) List() api.ServerList {
	meta := a.s.state.Latest().Meta()
	now := time.Now().UTC()
	name, _ := os.Hostname() // a name is for people; without one there is the id
	return api.ServerList{
		Format: int(meta.LogFormat()), Reads: int(state.FormatNewest),
		Servers: []api.ServerMember{{
			ID: a.s.raft.Self(), Name: name, Role: api.RoleLeader, API: a.s.cfg.Listen, Version: a.s.opts.Version, Reads: int(state.FormatNewest),
			Applied: a.s.raft.Applied(), Heard: &now,
		}},
	}
}

// refused says why there is nothing to join, remove or transfer to.
func (alone) refused() error {
	return muster.Faultf(muster.FaultConflict, "this server is alone: its configuration has no cluster: with an address for other servers; docs/servers.md says how to get from one server to three")
}

// NewToken, Remove and Transfer are refused.
func (a alone) NewToken() (api.JoinToken, error)                { return api.JoinToken{}, a.refused() }
func (a alone) Remove(context.Context, string) error            { return a.refused() }
func (a alone) Transfer(_ context.Context, server string) error { return a.refused() }

// versionsDiffer reports whether servers of different versions are in the cluster, as during an upgrade.
func versionsDiffer(s *Server) bool {
	if s.cluster == nil {
		return false
	}
	for _, other := range state.ServersOf(s.state.Latest()) {
		if other.Version != s.opts.Version {
			return true
		}
	}
	return false
}

// unableFor is how long a server that cannot lead waits for another one to do so before it tries again.
const unableFor = 5 * time.Second

// leadOrPass is lead for one of several servers: if it cannot lead, as without a file that the configuration
// names, another one may be able to, and this one stays to vote.
func leadOrPass(s *Server) func(ctx context.Context, term uint64) error {
	if s.cluster == nil {
		return s.lead
	}
	return func(ctx context.Context, term uint64) error {
		err := s.lead(ctx, term)
		if err == nil || ctx.Err() != nil || errors.Is(err, raftlog.ErrNotLeader) || errors.Is(err, raftlog.ErrAmbiguous) {
			return err
		}
		s.log.Error("this server was elected and cannot lead; it hands leadership over if another server answers", "error", err)
		handOver(s)
		wait.For(ctx, unableFor)
		return raftlog.ErrNotLeader
	}
}
