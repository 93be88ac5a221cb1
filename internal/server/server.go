package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cluster"
	"github.com/musterhq/muster/internal/clusterconfig"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/conns"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/explain"
	"github.com/musterhq/muster/internal/history"
	"github.com/musterhq/muster/internal/httpapi"
	"github.com/musterhq/muster/internal/imagecache"
	"github.com/musterhq/muster/internal/images"
	"github.com/musterhq/muster/internal/locate"
	"github.com/musterhq/muster/internal/metrics"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/registry"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// feedSize is how many changes the feed keeps for readers that resume: some seconds of a busy
// server, hours of a quiet one.
const feedSize = 1 << 16

// shutdownTime is how long requests in flight may take when the server stops. After that their
// connections are closed.
const shutdownTime = 5 * time.Second

// Options are what is not in the configuration file.
type Options struct {
	// Ephemeral says that the server destroys its instances when it ends. The caller removes the
	// data directory.
	Ephemeral bool
	Version   string
	Logger    *slog.Logger
	// NodeBinary is the path of the muster-node program. If it is empty, the program is looked up
	// beside this one and then in PATH.
	NodeBinary string
	// OpenBucket opens the bucket of blob.url. It is nil in a program without the drivers of buckets.
	OpenBucket blob.Opener
	// OpenCloud makes the provider of a cloud. It is nil in a program without the drivers of clouds.
	OpenCloud cloud.Opener
	// OpenIdentity makes the identity of a registry's entry. It is nil in a program without the
	// libraries of clouds.
	OpenIdentity registry.Opener
	// Start says how the server becomes a member of a cluster. See cluster.Start.
	Start cluster.Start
	// Ready is called once with the address, when the server leads and serves requests.
	Ready func(address string)
	// Read reads the configuration again; Reload says when. Without Read the configuration is never
	// reloaded.
	Read   func() (*api.ServerConfig, error)
	Reload <-chan struct{}
	// Fatal is called with the first storage error. The default prints one sentence and exits with
	// status 74.
	Fatal func(error)
	// among is the place of this server among others; nil: it is alone.
	among *raftlog.Cluster
}

// Server has the parts of a running server. Run makes it and closes it. Fields without a comment
// about locking are set by open and do not change afterwards.
type Server struct {
	// cfg is this server's file as it was at the start. What the server runs with is config.
	cfg api.ServerConfig
	// keeper knows the configuration in force and this server's file.
	keeper *clusterconfig.Keeper
	// used is the configuration that the loops and the pools of the state have now; nil while there
	// are no loops.
	used atomic.Pointer[api.ServerConfig]
	// renew has room for one token. A reload puts it there when the loops must start again; turn
	// takes it.
	renew chan struct{}
	opts  Options
	log   *slog.Logger
	state *state.State
	raft  *raftlog.Log
	// keysOnce guards keys and keysErr: see cloudKeys.
	keysOnce sync.Once
	keys     *keys
	keysErr  error
	blobs    *blob.Store
	// jobsInUse are the jobs that are being retried, or whose stored output is being deleted.
	jobsInUse wait.InUse[muster.JobUID]
	// images keeps the images that are loaded here, for the API and for the reaper.
	images *images.Service
	// history keeps ended jobs beyond the state. Its loop runs with the process.
	history *history.Store
	// grants has the credentials for pulling images. Nodes get those that they need, for a while.
	grants *registry.Registries
	// imageCache has what nodes pulled; nil: the configuration wants none. Its loop runs with the
	// process.
	imageCache *imagecache.Cache
	// leading is set while the loops run. caughtUp is set once the state has everything that was
	// confirmed before this start, and stays set.
	leading, caughtUp atomic.Bool
	// started is closed when leading is set for the first time. Requests that arrive during the
	// start wait for it.
	started         chan struct{}
	startedOnce     sync.Once
	metrics         *metrics.Metrics
	token, claimKey muster.Secret
	stats           loopStats
	times           *times
	// cluster has the other servers; nil for a server alone. clusterRuns says that run has taken it over.
	cluster     *cluster.Cluster
	clusterRuns bool
	// readable returns the newest log format that every server of the cluster reads. A single
	// server asks only itself; a cluster asks each of its members.
	readable func() state.Format
}

// Run runs a server until ctx ends or a part fails, then stops it in order (see run). It leaves
// sandboxes alone: they go on, and the next start finds them.
//
// A wrong configuration is an *api.Problem that names each wrong field. Run returns nil if ctx
// ended it.
func Run(ctx context.Context, cfg api.ServerConfig, opts Options) (err error) {
	config.Defaults(&cfg)
	if problems := config.Validate(&cfg); len(problems) > 0 {
		return &api.Problem{Status: http.StatusUnprocessableEntity, Title: "the configuration is wrong", Detail: "the configuration is wrong", Errors: problems}
	}
	s, err := open(ctx, cfg, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	// The port is taken before the log runs: a server that cannot listen must not begin a
	// leadership. The kernel queues connections until Serve; clients see a server that starts and
	// not a refusal.
	ln, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		// Only the error number is kept, because the rest repeats the address.
		var errno syscall.Errno
		if errors.As(err, &errno) { // the rest repeats the address
			err = errno
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("the API cannot listen on %s: %w; stop the program that listens there, or use another address: --listen of muster dev, listen in the configuration", cfg.Listen, err)
		}
		return fmt.Errorf("the API cannot listen on %s: %w", cfg.Listen, err)
	}
	limited := conns.New(ln, conns.Config{Total: cfg.Limits.Connections, PerAddress: cfg.Limits.ConnectionsPerAddress})
	s.measureConnections(s.metrics.Registry(), limited)
	s.warnOfPlainText(ln.Addr())
	// The routes must be complete before requests are served. That includes the APIs of other
	// systems.
	handler, err := s.api()
	if err != nil {
		_ = ln.Close()
		return err
	}
	// Clients find the server from here on. They may connect before it is ready; the door makes
	// them wait or says so.
	if err := s.announce(ln.Addr().String()); err != nil {
		_ = ln.Close()
		return err
	}
	if opts.Ephemeral {
		// Deferred after close, so it runs before it: no client is sent to a server whose log is
		// closed.
		defer func() { _ = locate.RemoveCurrent(cfg.DataDir) }()
	}
	return s.run(ctx, limited, handler)
}

// run serves until ctx ends or a part fails.
//
// The order of the end matters. The API and the loops stop first: their contexts end together. The
// API refuses new requests and gives those in flight shutdownTime; the loops return as soon as they
// can. The log stops last. Its context does not end with ctx, so that requests and loops can still
// commit what they have begun. An ephemeral server destroys its instances between the two: its
// loops can launch nothing more, and the log still has the cluster's id.
//
// A crash instead of this order loses no confirmed write. Only requests in flight are left without
// an answer.
func (s *Server) run(ctx context.Context, ln net.Listener, handler *http.Server) error {
	logCtx, endLog := context.WithCancel(context.WithoutCancel(ctx))
	defer endLog()
	// raftDone has room for one, so that the log's goroutine ends even if nobody reads its error.
	raftDone := make(chan error, 1)
	go func() { raftDone <- s.raft.Run(logCtx) }()
	// The log's messages go through the cluster's connections, so those end after the log.
	clusterCtx, endCluster := context.WithCancel(context.WithoutCancel(ctx))
	defer endCluster()
	clusterDone := make(chan error, 1)
	s.clusterRuns = true
	go runCluster(clusterCtx, s, handler.Handler, clusterDone)

	g, gctx := errgroup.WithContext(ctx)
	// Each of these goroutines ends with gctx. The first that returns an error ends all others.
	g.Go(func() error {
		err := s.raft.Lead(gctx, leadOrPass(s))
		// The next leader answers what this server is still asked, while its own requests end.
		handOver(s)
		return err
	})
	g.Go(func() error { return s.keeper.Watch(gctx, s.reconfigure) })
	g.Go(func() error { return s.countBlobs(gctx) })
	g.Go(func() error { return s.watchDisk(gctx) })
	g.Go(func() error { return s.history.Run(gctx) })
	if s.imageCache != nil {
		g.Go(func() error { return s.imageCache.Run(gctx) })
	}
	if s.opts.Read != nil {
		g.Go(func() error { return s.reloads(gctx) })
	}
	g.Go(func() error { return s.announceReady(gctx, ln.Addr().String()) })
	g.Go(func() error {
		if err := handler.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-gctx.Done()
		s.log.Info("stopping; nodes and what runs on them stay until a server on this data directory ends them", "nodes", s.state.Latest().LiveNodeCount())
		end, cancel := context.WithTimeout(context.WithoutCancel(gctx), shutdownTime)
		defer cancel()
		// Streams end by themselves: Shutdown ends the context that they watch (services.stop).
		// What still runs after the time is cut.
		if handler.Shutdown(end) != nil {
			_ = handler.Close()
		}
		return nil
	})
	// A log that stops by itself takes the server with it.
	g.Go(func() error {
		select {
		case err := <-raftDone:
			// The error goes back into the channel, because the end of run reads it again.
			raftDone <- err
			// A log that stops without an error has still stopped.
			if err == nil {
				err = errors.New("the log stopped")
			}
			return err
		case <-gctx.Done():
			return nil
		}
	})
	// So does a cluster that this server was removed from.
	g.Go(func() error {
		select {
		case err := <-clusterDone:
			clusterDone <- err
			return err
		case <-gctx.Done():
			return nil
		}
	})
	err := g.Wait()
	if s.opts.Ephemeral {
		err = errors.Join(err, s.destroyAll())
	}
	endLog()
	if logErr := <-raftDone; err == nil && logErr != nil {
		err = logErr
	}
	endCluster()
	if clusterErr := <-clusterDone; err == nil && clusterErr != nil {
		err = clusterErr
	}
	// The caller asked for the end. That is no error.
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil
	}
	return err
}

// open makes the parts of a server, from the bottom up: the state, the log that drives it, tokens,
// the blob store, metrics. raftlog.Open restores the newest snapshot into the state. Nothing is
// proposed or served before run. If open fails, it closes what it has opened.
func open(ctx context.Context, cfg api.ServerConfig, opts Options) (_ *Server, err error) {
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	if cfg.DataDir, err = filepath.Abs(cfg.DataDir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	s := &Server{cfg: cfg, renew: make(chan struct{}, 1), started: make(chan struct{}), opts: opts, log: opts.Logger,
		// One server: it reads what this version reads.
		readable: func() state.Format { return state.FormatNewest }}
	if s.state, err = state.New(feedSize); err != nil {
		return nil, err
	}
	if err = s.openKeeper(); err != nil {
		return nil, err
	}
	if s.grants, err = registry.New(registry.Config{Registries: cfg.Registries, OpenIdentity: opts.OpenIdentity, Logger: opts.Logger}); err != nil {
		return nil, err
	}
	// A server that joins gets its place in the log, and the secrets of the cluster, before the log is opened.
	among, err := openCluster(ctx, s)
	if err != nil {
		return nil, err
	}
	// Opening takes the lock of the data directory. What comes after it may write there.
	s.raft, err = raftlog.Open(raftlog.Config{
		Dir: filepath.Join(cfg.DataDir, "log"), Machine: machine{s.state}, Logger: opts.Logger, LowWater: lowWater(cfg.LowWater), Fatal: opts.Fatal, Cluster: cmp.Or(among, opts.among),
	})
	// The log is in a directory below; users know the one that they have named.
	if locked := (*raftlog.LockedError)(nil); errors.As(err, &locked) {
		return nil, errors.Join(fmt.Errorf("data directory %s: %w", cfg.DataDir, locked), closeCluster(s))
	}
	if err != nil {
		return nil, errors.Join(err, closeCluster(s))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if !cfg.NoAuth {
		if s.token, err = locate.EnsureToken(cfg.DataDir); err != nil {
			return nil, err
		}
	}
	if s.claimKey, err = locate.EnsureClaimKey(cfg.DataDir); err != nil {
		return nil, err
	}
	s.blobs, err = blob.New(blob.Config{
		URL: cfg.Blob.URL, Dir: filepath.Join(cfg.DataDir, "blobs"), Open: opts.OpenBucket, DiskLow: s.diskLow, Shared: cfg.Cluster != nil, Logger: opts.Logger,
	})
	if err != nil {
		return nil, err
	}
	if err = s.openImageCache(); err != nil {
		return nil, err
	}
	s.metrics = metrics.New(metrics.Config{State: s.state, Clock: s.raft.Now, BlobBytes: s.blobs.Usage, Version: opts.Version})
	s.metrics.Registry().MustRegister(newBreakers(s.state.Latest, s.raft.Now))
	s.measure(s.metrics.Registry())
	attachCluster(s)
	s.metrics.Registry().MustRegister(clusterMetrics{s})
	s.measureConfig(s.metrics.Registry())
	if s.imageCache != nil {
		measureImageCache(s.metrics.Registry(), s.imageCache.Stats)
	}
	s.images, err = images.New(images.Config{
		State: s.state, Proposer: s.users(), Clock: s.raft.Now, Blobs: s.blobs, Dir: cfg.DataDir, DiskLow: s.diskLow, Logger: opts.Logger,
		Quota: func() int64 { return int64(s.config().Blob.Quota) },
	})
	if err != nil {
		return nil, err
	}
	s.history, err = history.New(history.Config{
		State: s.state, Dir: cfg.DataDir, Clock: s.raft.Now, Retention: func() time.Duration { return s.config().Retention.History.Std() }, Logger: opts.Logger,
	})
	return s, err
}

// close closes what open has opened, in the reverse order. It may follow run, which has closed the
// log already; Close does nothing then.
func (s *Server) close() error {
	var errs []error
	if s.blobs != nil {
		errs = append(errs, s.blobs.Close())
	}
	errs = append(errs, s.raft.Close(), closeCluster(s))
	return errors.Join(errs...)
}

// closeCluster closes the port for the other servers, unless run has taken it over.
func closeCluster(s *Server) error {
	if s.cluster == nil || s.clusterRuns {
		return nil
	}
	return s.cluster.Close()
}

// lowWater is the configured low-water mark of free disk in bytes, for any size of the file system;
// nil for the log's default.
func lowWater(mark api.Size) func(uint64) uint64 {
	if mark == 0 {
		return nil
	}
	return func(uint64) uint64 { return uint64(mark) }
}

// diskLow says why nothing more may be written for users now; nil if it may. The blob store asks it
// before each upload.
func (s *Server) diskLow() error {
	if s.raft.DiskLow() {
		return muster.Faultf(muster.FaultDiskLow, "the disk of data directory %s is nearly full; free some space", s.cfg.DataDir)
	}
	return nil
}

// diskTight says why output is not stored now; nil if it may be. Output stops earlier than other
// writes (at one and a half times the low-water mark), so that it cannot take the space that the
// log needs.
func (s *Server) diskTight() error {
	u, err := s.raft.Disk()
	switch {
	case err != nil:
		return err
	case u.Tight():
		return fmt.Errorf("%s has %s free, and output is stored from %s on (one and a half times low_water); free space on its file system", s.cfg.DataDir, muster.Bytes(u.Free), muster.Bytes(u.TightMark()))
	}
	return nil
}

// diskEvery is how often watchDisk looks at the free disk.
const diskEvery = 5 * time.Second

// watchDisk logs when the disk of the data directory is nearly full, and when it has room again. It
// logs each change once. It decides nothing: the log and the link check the disk by themselves.
func (s *Server) watchDisk(ctx context.Context) error {
	tick := time.NewTicker(diskEvery)
	defer tick.Stop()
	for tight, low := false, false; ; {
		u, err := s.raft.Disk()
		switch {
		case err == nil && u.Tight() && !u.Low() && !tight:
			s.log.Warn("the disk is nearly full: output stays on its node, and members with declared outputs do not end until there is space. Free space on its file system, or lower low_water",
				"data_dir", s.cfg.DataDir, "free", muster.Bytes(u.Free), "needed", muster.Bytes(u.TightMark()), "low_water", muster.Bytes(u.Mark))
		case err == nil && u.Low() && !low:
			s.log.Error("the disk is nearly full: new jobs, new environments and uploads are refused; stopping, releasing and deleting still work. Free space on its file system, or lower low_water",
				"data_dir", s.cfg.DataDir, "free", muster.Bytes(u.Free), "low_water", muster.Bytes(u.Mark))
		case err == nil && !u.Tight() && tight:
			s.log.Info("the disk has space again", "data_dir", s.cfg.DataDir, "free", muster.Bytes(u.Free))
		}
		// An error keeps the last known values, so that one failed call causes no messages.
		if err == nil {
			tight, low = u.Tight(), u.Low()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// announce writes the address where clients on this host look for it: in the data directory, and in
// the user's own directory for clients that get no address at all.
func (s *Server) announce(address string) error {
	// A server that listens on all addresses is reached on loopback from this host.
	if host, port, err := net.SplitHostPort(address); err == nil {
		if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
			address = net.JoinHostPort("127.0.0.1", port)
		}
	}
	if err := locate.WriteServer(s.cfg.DataDir, address); err != nil {
		return err
	}
	if err := locate.WriteCurrent(address, s.cfg.DataDir); err != nil {
		// A service user may have no home directory. The data directory still has the address.
		s.log.Debug("the address of this server could not be recorded for clients on this host", "error", err)
	}
	return nil
}

// warnOfPlainText warns at each start if the API listens outside of this host: the network can read
// what crosses it, tokens first of all.
func (s *Server) warnOfPlainText(at net.Addr) {
	if a, ok := at.(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		s.log.Warn("the API listens on a public address without TLS: tokens, secrets and output cross the network in plain text; "+
			"listen on loopback behind a TLS proxy, or only in a trusted network", "address", at.String())
	}
}

// announceReady calls Options.Ready once the server leads.
func (s *Server) announceReady(ctx context.Context, address string) error {
	for {
		// The index is read before the check. If the server becomes ready between the two, the
		// commit that follows (turn sets the pools) moves the feed past seen, and Wait returns at
		// once.
		seen := s.state.Feed().Last()
		if s.ready() == nil {
			break
		}
		if !awaitChange(ctx, s, seen) {
			return nil
		}
	}
	s.log.Info("ready", "address", address, "data_dir", s.cfg.DataDir)
	if s.opts.Ready != nil {
		s.opts.Ready(address)
	}
	return nil
}

// awaitChange waits for the next change of the state. Among several servers it waits for a moment only:
// another one may have become leader, which changes nothing here.
func awaitChange(ctx context.Context, s *Server, seen uint64) bool {
	if s.cluster != nil {
		return wait.For(ctx, readyEvery)
	}
	return s.state.Feed().Wait(ctx, seen) == nil
}

// ready says why the server cannot serve writes now; nil if it can: it leads, or it knows who does.
func (s *Server) ready() error {
	switch {
	case s.leading.Load():
		return nil
	case s.cluster != nil:
		return reachesLeader(s)
	}
	return muster.Faultf(muster.FaultUnavailable, "the server is starting")
}

// isCaughtUp says why reads may miss what was confirmed before this start; nil if they cannot.
// After tells clients when to try again.
func (s *Server) isCaughtUp() error {
	if !s.caughtUp.Load() {
		return &muster.Fault{Kind: muster.FaultUnavailable, Message: "the server is starting: it reads its log", After: time.Second}
	}
	return nil
}

// countBlobs counts the stored output at the start and once an hour. The store keeps a running
// total between counts, which is not exact. A count also removes files that a crash left
// unfinished.
func (s *Server) countBlobs(ctx context.Context) error {
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for {
		if err := s.blobs.Count(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("stored output could not be counted", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// api makes the HTTP server with all routes. Loops, Leads and Ready are functions: they answer for
// the leadership of the moment of the request.
func (s *Server) api() (*http.Server, error) {
	services, err := s.newServices()
	if err != nil {
		return nil, err
	}
	_, err = httpapi.New(httpapi.Config{
		State:  s.state,
		Clock:  s.raft.Now,
		Inside: services.inside,
		Door:   services.door, Stopping: services.stopping,
		Claims: services.claims,
		Submit: services.submit, Planning: services.planning,
		Backup: func(ctx context.Context, w io.Writer) error {
			_, err := s.raft.Backup(ctx, w)
			return err
		},
		Images:  s.images,
		History: s.history,
		Operate: services.operate, Loops: func() explain.Loops { return s.known() },
		Running: s.config, Applied: applied{s},
		Ready:   s.ready,
		Cluster: serversOf(s),
		Leads:   s.raft.IsLeader,
		Metrics: s.metrics,
		Version: s.opts.Version,
		Logger:  s.log,
	})
	if err != nil {
		return nil, err
	}
	if err := s.mountCompat(services); err != nil {
		return nil, err
	}
	out := services.door.Server(services.stop)
	out.Handler = forwarding(s, services)
	return out, nil
}

// fits reports whether a member of a job could ever run, and why not. If a provider has not said
// yet what it offers, the answer is unknown, and the job is accepted.
func fits(spec *api.JobSpec, snap *state.Snapshot) (bool, string) {
	run, err := state.NewRun(muster.JobKey{Namespace: muster.Namespace(spec.Namespace), Name: spec.Name}, "", 0, spec)
	if err != nil {
		return false, err.Error()
	}
	ok, known, why := size.Fits(snap, run)
	if !known {
		return true, why
	}
	return ok, why
}
