package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/boot"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/destinations"
	"github.com/musterhq/muster/internal/agent/devices"
	"github.com/musterhq/muster/internal/agent/fencing"
	"github.com/musterhq/muster/internal/agent/inputs"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/agent/metadata"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Bounds of one agent.
const (
	// maxForgotten is how many forgotten ids are remembered.
	maxForgotten = 16384
	// defaultInputCache bounds the cached inputs that no allocation uses.
	defaultInputCache = 4 * muster.GiB
)

// ErrReplaced is why Run ended: another agent asked to take over.
var ErrReplaced = errors.New("another agent takes over")

// ImageWays are how a store of images gets from the server what it needs.
type ImageWays struct {
	// Grant asks for the right to pull a reference.
	Grant func(ctx context.Context, need string) (wire.PullGrant, error)
	// Loaded waits for a blob of an image that was loaded on the server.
	Loaded func(ctx context.Context, digest string) (io.ReadSeekCloser, error)
}

// Config is what an agent needs.
type Config struct {
	// Dir is the agent's own directory (0700). Whoever starts the agent makes it: an agent that
	// made it could bring back a directory that is just being taken apart.
	Dir        string
	Node       muster.NodeID
	Capacity   muster.Resources
	Attributes map[string]string
	// Runtimes in order of preference. An allocation with an image gets the first that is an
	// ImageRuntime, any other the first that is not.
	Runtimes []contract.Runtime
	Logger   *slog.Logger
	Version  string
	// Replace asks an agent that already runs in Dir to step down.
	Replace bool
	// BootDelay simulates a boot: the agent waits so long before it answers.
	BootDelay time.Duration
	// Listener replaces the socket in Dir, for tests without one.
	Listener net.Listener
	// InputCache bounds cached inputs; 0 is 4 GiB.
	InputCache muster.Bytes
	// Destinations are where URLs of inputs may lead, InputLimit is how large one input from a URL
	// may be; 0: api.DefaultInputLimit.
	Destinations destinations.Allowed
	InputLimit   muster.Bytes
	// HTTP fetches inputs from URLs; nil is a client of its own.
	HTTP *http.Client
	// Images makes the store of images; nil: allocations with an image fail here. It is called
	// once, with the ways to what the server has for images.
	Images func(ImageWays) (contract.Images, error)
	// LeaseEnd ends the machine, or what stands for it in a test, when the lease is over; nil: the
	// agent ignores leases.
	LeaseEnd func(ctx context.Context) error
	// Networks gives containers networks of their own; nil: jobs can have the networks none and
	// host only.
	Networks contract.Networks
	// Devices are those that containers can be given; nil: none.
	Devices *devices.Inventory
	// Volumes are the directories that containers may have mounted, by name.
	Volumes map[string]Volume
	// Broken is an operator's file that says that the host is broken, beside journal.BrokenName in
	// Dir; empty: none.
	Broken string
	// Metadata is the kind of metadata service that this machine's cloud has; empty, or one without
	// notices: none is asked. MetadataAddress replaces its address, for tests.
	Metadata, MetadataAddress string
}

// Agent turns the desired allocations of one node into sandboxes. It keeps the set of allocations
// and the server's side. Each allocation takes itself from step to step.
type Agent struct {
	cfg Config
	log *slog.Logger
	// run names this run of the agent, so that the server can tell its reports from those of the
	// one before.
	run    string
	node   *node
	grants *grants
	// sets holds one token: sets are obeyed one after the other.
	sets   chan struct{}
	fences *fencing.Fences // guarded by sets
	lease  *fencing.Lease
	// seq numbers the reports of this run.
	seq atomic.Uint64
	// stepDown is closed when another agent asks this one to step down.
	stepDown chan struct{}
	stepOnce sync.Once
	unasked  wire.Unasked

	// mu guards the set. Whoever holds it may take the mutex of an allocation, and that of the
	// reporter.
	mu        sync.Mutex
	fence     wire.Fence // of fences, to be read without waiting for a set
	allocs    map[muster.AllocID]*allocation
	forgotten *forgotten
}

// New makes an agent. It does nothing before Run.
func New(cfg Config) (*Agent, error) {
	switch {
	case cfg.Dir == "":
		return nil, errors.New("agent: no directory given")
	case cfg.Node == "":
		return nil, errors.New("agent: no node id given")
	case len(cfg.Runtimes) == 0:
		return nil, errors.New("agent: no runtime given")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, err
	}
	cfg.Dir = dir
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.InputCache = cmp.Or(cfg.InputCache, defaultInputCache)
	a := &Agent{
		cfg: cfg, log: cfg.Logger, run: rand.Text(), node: newNode(cfg), sets: make(chan struct{}, 1), stepDown: make(chan struct{}),
		allocs: map[muster.AllocID]*allocation{}, forgotten: newForgotten(maxForgotten),
	}
	a.grants = newGrants(a.node.reporter.needsAdded)
	return a, nil
}

// Run serves until ctx ends, or another agent takes over: then the error is ErrReplaced. Sandboxes
// live on after it. It is called once.
func (a *Agent) Run(ctx context.Context) error {
	if err := os.Chmod(a.cfg.Dir, 0o700); err != nil {
		return err
	}
	lock, before, err := a.takeOver(ctx)
	if err != nil {
		return err
	}
	defer lock.Release()
	if a.cfg.BootDelay > 0 {
		if !wait.For(ctx, a.cfg.BootDelay) {
			return nil
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := a.prepare(ctx, before); err != nil {
		return a.giveUp(cancel, err)
	}
	watch, err := a.cloudWatch()
	if err != nil {
		return a.giveUp(cancel, err)
	}
	ln, err := a.listen()
	if err != nil {
		return a.giveUp(cancel, err)
	}
	a.log.Info("agent serves", "node", a.cfg.Node, "dir", a.cfg.Dir, "version", a.cfg.Version, "allocs", len(a.allocs), "fence", a.fence.String())

	served := make(chan error, 1)
	srv := a.server(ctx)
	a.node.crew.spawn(func() { served <- srv.Serve(ln) })
	a.node.crew.spawn(func() { a.sample(ctx) })
	if a.cfg.LeaseEnd != nil {
		a.node.crew.spawn(func() { a.lease.Watch(ctx) })
	}
	a.node.crew.spawn(func() { a.node.guard.Watch(ctx, a.endExclusive) })
	if watch != nil {
		a.node.crew.spawn(func() { _ = watch.Run(ctx) })
	}
	a.node.trash.run(ctx, a.node.crew.spawn)
	if a.cfg.Networks != nil {
		a.node.crew.spawn(func() {
			if err := a.cfg.Networks.Run(ctx); err != nil {
				a.log.Error("networks of sandboxes", "error", err)
			}
		})
	}

	var result error
	select {
	case <-ctx.Done():
	case <-a.stepDown:
		result = ErrReplaced
		// The answer to whoever asked is on its way; the server's shutdown waits for it.
	case err := <-served:
		result = fmt.Errorf("agent socket: %w", err)
	}
	quiet, done := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer done()
	cancel()
	// The shutdown would wait for connections that were made and never used: a server makes some
	// ahead of their use.
	a.unasked.Close()
	_ = srv.Shutdown(quiet)
	_ = srv.Close()
	if a.cfg.Listener == nil {
		_ = os.Remove(filepath.Join(a.cfg.Dir, wire.SocketName))
	}
	a.node.crew.end()
	a.fences.Close()
	a.log.Info("agent ends, sandboxes live on", "cause", result)
	return result
}

// giveUp ends what was spawned before the agent found that it cannot serve.
func (a *Agent) giveUp(cancel func(), err error) error {
	cancel()
	a.node.crew.wg.Wait()
	return err
}

// takeOver makes this process the one agent of the directory, with its lock and its record. It
// returns the record of the agent before.
func (a *Agent) takeOver(ctx context.Context) (*journal.Lock, journal.Record, error) {
	var lock *journal.Lock
	var err error
	if a.cfg.Replace {
		lock, err = journal.TakeLock(ctx, a.cfg.Dir, true)
	} else {
		lock, err = journal.TryLock(a.cfg.Dir)
	}
	before, _ := journal.ReadRecord(a.cfg.Dir)
	if errors.Is(err, journal.ErrLocked) {
		return nil, before, fmt.Errorf("agent of %s: another one runs already (pid %d); start with --replace to take over", a.cfg.Dir, before.Pid)
	}
	if err != nil {
		return nil, before, err
	}
	if err := journal.NewRecord(a.cfg.Node, a.cfg.Version, a.run, a.cfg.Dir).Write(a.cfg.Dir); err != nil {
		lock.Release()
		return nil, before, err
	}
	return lock, before, nil
}

// prepare checks the runtimes, reads what earlier agents have left, and goes on with their
// allocations. The order matters: allocations need all that is before them.
func (a *Agent) prepare(ctx context.Context, before journal.Record) error {
	if err := a.node.emptyTemp(ctx); err != nil {
		return err
	}
	if err := a.node.checkRuntimes(ctx); err != nil {
		return err
	}
	if a.cfg.Images != nil {
		images, err := a.cfg.Images(ImageWays{Grant: a.grants.get, Loaded: func(ctx context.Context, digest string) (io.ReadSeekCloser, error) {
			return a.node.inputs.Blob(ctx, digest)
		}})
		if err != nil {
			return fmt.Errorf("images: %w", err)
		}
		a.node.images = images
	}
	fences, err := fencing.LoadFences(a.cfg.Dir)
	if err != nil {
		return err
	}
	a.fences, a.fence = fences, fences.Last()
	if a.lease, err = fencing.LoadLease(a.cfg.Dir, a.cfg.LeaseEnd, a.log); err != nil {
		return err
	}
	a.node.guard = fencing.LoadGuard(a.cfg.Dir, a.log)
	// Inputs are not synced to the disk one by one: after a power cut any of them may be torn.
	fresh := before.Kernel != "" && before.Kernel != boot.ID()
	a.node.inputs, err = inputs.Open(ctx, inputs.Config{
		Dir: filepath.Join(a.cfg.Dir, journal.InputsName), Limit: int64(a.cfg.InputCache), Client: a.cfg.HTTP,
		Most: int64(a.cfg.InputLimit), Destinations: a.cfg.Destinations,
		Logger: a.log, Spawn: a.node.crew.spawn, Added: a.node.reporter.needsAdded, Wipe: fresh,
	})
	if err != nil {
		return err
	}
	a.node.reporter.measured(wire.Usage{}, journal.FreeDisk(a.cfg.Dir))
	a.node.notice()
	return a.load(ctx)
}

// cloudWatch asks the cloud's metadata service for notices; nil: it has none.
func (a *Agent) cloudWatch() (*metadata.Watch, error) {
	if !metadata.Serves(a.cfg.Metadata) {
		return nil, nil
	}
	return metadata.New(metadata.Config{Kind: a.cfg.Metadata, Address: a.cfg.MetadataAddress, Tell: a.node.reporter.cloudNoticed, Logger: a.log})
}

// listen opens the socket of the agent, or takes the listener of a test.
func (a *Agent) listen() (net.Listener, error) {
	if a.cfg.Listener != nil {
		return a.cfg.Listener, nil
	}
	return wire.ListenSocket(filepath.Join(a.cfg.Dir, wire.SocketName))
}

// hello is what the agent says of itself.
func (a *Agent) hello() wire.Hello {
	names := make([]string, len(a.node.runtimes))
	for i, rt := range a.node.runtimes {
		names[i] = rt.Name()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return wire.Hello{
		Node: a.cfg.Node, Protocol: wire.Protocol, Version: a.cfg.Version, Run: a.run, Pid: os.Getpid(),
		Fence: a.fence, Capacity: a.cfg.Capacity, Attributes: a.node.attributes(),
		Runtimes: names, Problems: a.node.problems, Allocs: len(a.allocs), TakesImages: a.node.images != nil,
	}
}
