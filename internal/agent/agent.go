package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/boot"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/destinations"
	"github.com/musterhq/muster/internal/agent/fencing"
	"github.com/musterhq/muster/internal/agent/inputs"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Bounds of one agent.
const (
	checkTimeout = 15 * time.Second
	// startTimeout bounds Runtime.Start; attachTimeout one try of Attach or Remove.
	startTimeout  = time.Minute
	attachTimeout = 10 * time.Second
	// reattachFor is how long a runtime that cannot tell is asked about a sandbox of an earlier agent.
	reattachFor = time.Minute
	// defaultGrace is from TERM to KILL where the spec cannot be read.
	defaultGrace = 10 * time.Second
	// maxForgotten is how many forgotten ids are remembered.
	maxForgotten = 16384
	// defaultInputCache bounds the cached inputs that no allocation uses.
	defaultInputCache = 4 * muster.GiB
)

// ErrReplaced is why Run ended: another agent asked to take over.
var ErrReplaced = errors.New("another agent takes over")

// Config is what an agent needs.
type Config struct {
	// Dir is the agent's own directory (0700). Made by whoever starts it: an agent that made it
	// could bring back one that is just being taken apart.
	Dir        string
	Node       muster.NodeID
	Capacity   muster.Resources
	Attributes map[string]string
	// Runtimes in order of preference. An allocation with an image gets the
	// first that is an ImageRuntime, any other the first that is not.
	Runtimes []contract.Runtime
	Logger   *slog.Logger
	Version  string
	// Replace asks an agent that already runs in Dir to step down.
	Replace bool
	// BootDelay is waited before anything answers: a simulated boot.
	BootDelay time.Duration
	// Listener replaces the socket in Dir, for tests without one.
	Listener net.Listener
	// InputCache bounds cached inputs; 0 is 4 GiB.
	InputCache muster.Bytes
	// Destinations are where URLs of inputs may lead, InputLimit is how large one input from a URL may be; 0: api.DefaultInputLimit.
	Destinations destinations.Allowed
	InputLimit   muster.Bytes
	// HTTP fetches inputs from URLs; nil is a client of its own.
	HTTP *http.Client
	// Images makes the store of images; nil: allocations with an image fail here. Called once, with how the
	// server is asked for the right to pull a reference.
	Images func(grant func(ctx context.Context, ref string) (wire.Grant, error)) (contract.Images, error)
	// LeaseEnd ends the machine, or what stands for it, when the lease is over; nil: leases are not heeded here.
	LeaseEnd func(ctx context.Context) error
	// Networks gives containers networks of their own; nil: only none and host are to be had.
	Networks contract.Networks
	// Broken is an operator's file that says that the host is broken, beside journal.BrokenName in Dir; empty: none.
	Broken string
}

// Agent turns the desired allocations of one node into sandboxes.
type Agent struct {
	cfg      Config
	log      *slog.Logger
	boot     string
	runtimes []contract.Runtime // that work here; set before anything is served
	problems []string
	inputs   *inputs.Cache
	images   contract.Images // nil if there are none
	grants   *grants
	// noNetworks is why no network is made here; set before anything is served.
	noNetworks error
	// starts holds a token for each sandbox being made, files for each result being written:
	// thousands at once would only make thousands of threads.
	starts, files chan struct{}
	// sets holds one token: sets are obeyed one after the other.
	sets     chan struct{}
	fences   *fencing.Fences // guarded by sets
	lease    *fencing.Lease
	guard    *fencing.Guard
	seq      atomic.Uint64
	stepDown chan struct{}
	stepOnce sync.Once
	wg       sync.WaitGroup
	mute     mute
	trash    *trash
	// probing holds one token: the node is probed by one at a time.
	probing chan struct{}

	mu        sync.Mutex
	ending    bool       // nothing may be spawned any more
	fence     wire.Fence // of fences, to be read without waiting for a set
	allocs    map[muster.AllocID]*alloc
	forgotten *forgotten
	readers   map[*reader]struct{}
	used      wire.Usage
	freeDisk  int64
	// checked is when the runtimes were last found to work; zero after a failure of the node's.
	checked time.Time
	// condition is what a look at the node said last; atHand are its images, atHandGen how often they changed.
	condition wire.Condition
	atHand    []string
	atHandGen int
	// versions are the newest of jobs whose image was opened here.
	versions map[muster.JobUID]uint64
}

// New makes an agent; it does nothing before Run.
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
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.InputCache == 0 {
		cfg.InputCache = defaultInputCache
	}
	a := &Agent{
		cfg:       cfg,
		log:       cfg.Logger,
		boot:      rand.Text(),
		starts:    make(chan struct{}, max(4, 2*runtime.GOMAXPROCS(0))),
		files:     make(chan struct{}, 8),
		sets:      make(chan struct{}, 1),
		probing:   make(chan struct{}, 1),
		stepDown:  make(chan struct{}),
		allocs:    map[muster.AllocID]*alloc{},
		forgotten: newForgotten(maxForgotten),
		readers:   map[*reader]struct{}{},
	}
	a.trash = newTrash(a.emptyDir, a.log)
	a.grants = newGrants(a.needsAdded)
	return a, nil
}

// Run is the agent until ctx ends or another takes over (ErrReplaced).
// Sandboxes live on after it. Run is called once.
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
	ln, err := a.listen()
	if err != nil {
		return a.giveUp(cancel, err)
	}
	a.log.Info("agent serves", "node", a.cfg.Node, "dir", a.cfg.Dir, "version", a.cfg.Version, "allocs", len(a.allocs), "fence", a.fence.String())

	served := make(chan error, 1)
	srv := a.server(ctx)
	a.spawn(func() { served <- srv.Serve(ln) })
	a.spawn(func() { a.sample(ctx) })
	if a.cfg.LeaseEnd != nil {
		a.spawn(func() { a.lease.Watch(ctx) })
	}
	a.spawn(func() { a.guard.Watch(ctx, a.endExclusive) })
	a.trash.run(ctx, a.spawn)
	if a.cfg.Networks != nil {
		a.spawn(func() {
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
	// A shutdown waits for connections that have just been made to say something: a server makes some ahead of their use.
	a.mute.close()
	_ = srv.Shutdown(quiet)
	_ = srv.Close()
	if a.cfg.Listener == nil {
		_ = os.Remove(filepath.Join(a.cfg.Dir, wire.SocketName))
	}
	a.mu.Lock()
	a.ending = true
	a.mu.Unlock()
	a.wg.Wait()
	a.fences.Close()
	a.log.Info("agent ends, sandboxes live on", "cause", result)
	return result
}

// mute are connections on which nothing was asked yet.
type mute struct {
	mu sync.Mutex
	is map[net.Conn]bool
}

// changed is an http.Server's ConnState.
func (m *mute) changed(conn net.Conn, to http.ConnState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if to != http.StateNew {
		delete(m.is, conn)
		return
	}
	if m.is == nil {
		m.is = map[net.Conn]bool{}
	}
	m.is[conn] = true
}

func (m *mute) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for conn := range m.is {
		_ = conn.Close()
	}
}

// spawn starts a goroutine that Run waits for; false when Run already waits.
func (a *Agent) spawn(f func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ending {
		return false
	}
	a.wg.Go(f)
	return true
}

// giveUp ends what was spawned before the agent found that it cannot serve.
func (a *Agent) giveUp(cancel func(), err error) error {
	cancel()
	a.wg.Wait()
	return err
}

// takeOver becomes the one agent of the directory and says so in its record.
// It returns the record of the agent before.
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
	if err := journal.NewRecord(a.cfg.Node, a.cfg.Version, a.boot).Write(a.cfg.Dir); err != nil {
		lock.Release()
		return nil, before, err
	}
	return lock, before, nil
}

// prepare probes the runtimes and finds what earlier agents left.
func (a *Agent) prepare(ctx context.Context, before journal.Record) error {
	if err := a.emptyTemp(ctx); err != nil {
		return err
	}
	if err := a.checkRuntimes(ctx); err != nil {
		return err
	}
	if a.cfg.Images != nil {
		images, err := a.cfg.Images(a.grants.get)
		if err != nil {
			return fmt.Errorf("images: %w", err)
		}
		a.images = images
	}
	fences, err := fencing.LoadFences(a.cfg.Dir)
	if err != nil {
		return err
	}
	a.fences, a.fence = fences, fences.Last()
	if a.lease, err = fencing.LoadLease(a.cfg.Dir, a.cfg.LeaseEnd, a.log); err != nil {
		return err
	}
	a.guard = fencing.LoadGuard(a.cfg.Dir, a.log)
	// Inputs are not synced to the disk one by one: after a power cut any of them may be torn.
	fresh := before.Kernel != "" && before.Kernel != boot.ID()
	a.inputs, err = inputs.Open(ctx, inputs.Config{
		Dir: filepath.Join(a.cfg.Dir, journal.InputsName), Limit: int64(a.cfg.InputCache), Client: a.cfg.HTTP,
		Most: int64(a.cfg.InputLimit), Destinations: a.cfg.Destinations,
		Logger: a.log, Spawn: a.spawn, Added: a.needsAdded, Wipe: fresh,
	})
	if err != nil {
		return err
	}
	a.freeDisk = journal.FreeDisk(a.cfg.Dir)
	a.notice()
	return a.load(ctx)
}

// restoreNetworks deletes those of sandboxes that earlier agents have not brought to run.
func (a *Agent) restoreNetworks(ctx context.Context) error {
	if a.cfg.Networks == nil {
		return nil
	}
	var keep []muster.AllocID
	for id, al := range a.allocs {
		// Of one whose spec is lost it is not known whether it has one.
		if al.begun && !al.ended && (al.spec == nil || isolated(al.spec)) {
			keep = append(keep, id)
		}
	}
	if err := a.cfg.Networks.Restore(ctx, keep); err != nil {
		return fmt.Errorf("networks of sandboxes: %w", err)
	}
	return nil
}

func (a *Agent) checkRuntimes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	errs := make([]error, len(a.cfg.Runtimes))
	var wg sync.WaitGroup
	for i, rt := range a.cfg.Runtimes {
		wg.Go(func() { errs[i] = rt.Check(ctx) })
	}
	var noNetworks error
	var networkProblems []string
	if a.cfg.Networks != nil {
		wg.Go(func() { networkProblems, noNetworks = a.cfg.Networks.Check(ctx) })
	}
	wg.Wait()
	if a.problems = append(a.problems, networkProblems...); noNetworks != nil {
		// Those of sandboxes that an earlier agent started are looked after all the same.
		a.noNetworks = noNetworks
		a.problems = append(a.problems, fmt.Sprintf("network bridge does not work here: %v", noNetworks))
	}
	a.checked = time.Now()
	for i, rt := range a.cfg.Runtimes {
		if errs[i] == nil {
			a.runtimes = append(a.runtimes, rt)
			if p, ok := rt.(contract.Limited); ok {
				a.problems = append(a.problems, p.Problems()...)
			}
			continue
		}
		if err := ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		a.problems = append(a.problems, fmt.Sprintf("runtime %s does not work here: %v", rt.Name(), errs[i]))
		a.log.Warn("runtime does not work here", "runtime", rt.Name(), "error", errs[i])
	}
	return nil
}

func (a *Agent) listen() (net.Listener, error) {
	if a.cfg.Listener != nil {
		return a.cfg.Listener, nil
	}
	return wire.ListenSocket(filepath.Join(a.cfg.Dir, wire.SocketName))
}

// hello is what the agent says of itself.
func (a *Agent) hello() wire.Hello {
	names := make([]string, len(a.runtimes))
	for i, rt := range a.runtimes {
		names[i] = rt.Name()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return wire.Hello{
		Node: a.cfg.Node, Protocol: wire.Protocol, Version: a.cfg.Version, Boot: a.boot, Pid: os.Getpid(),
		Fence: a.fence, Capacity: a.cfg.Capacity, Attributes: a.attributes(),
		Runtimes: names, Problems: a.problems, Allocs: len(a.allocs),
	}
}

// attributes are those that the node was given, and what it found out about itself.
func (a *Agent) attributes() map[string]string {
	out := maps.Clone(a.cfg.Attributes)
	for _, rt := range a.runtimes {
		if _, images := rt.(contract.ImageRuntime); images && a.images != nil {
			if out == nil {
				out = map[string]string{}
			}
			out[muster.AttributeContainers] = rt.Name()
			if v, ok := rt.(contract.Versioned); ok {
				out[muster.AttributeContainers] = v.Version()
			}
			out[muster.AttributeIsolation] = string(isolationOf(rt))
			break // the one that is used
		}
	}
	return out
}

// runtimeFor is the runtime that an allocation wants, or why there is none. Less isolation than is demanded is never given.
func (a *Agent) runtimeFor(spec *wire.AllocSpec) (contract.Runtime, *muster.Failure) {
	var less muster.Isolation
	var other string
	for _, rt := range a.runtimes {
		if _, images := rt.(contract.ImageRuntime); images != (spec.Image != "") {
			continue
		}
		if v, ok := rt.(contract.Versioned); spec.Runtime != "" && (!ok || !muster.IsRuntime(v.Version(), spec.Runtime)) {
			other = rt.Name()
			if ok {
				other = v.Version()
			}
			continue
		}
		has := isolationOf(rt)
		if has.Gives(spec.Isolation) {
			return rt, nil
		}
		less = has
	}
	switch {
	case less != "" && spec.Image == "":
		return nil, contract.Failure(muster.FailureUser, muster.ReasonSpec, "isolation %q is demanded, which only an allocation with an image can have", string(spec.Isolation))
	case less != "":
		return nil, contract.Failure(muster.FailureNode, muster.ReasonNoRuntime, "isolation %q is demanded, and node %s gives %q", string(spec.Isolation), a.cfg.Node, string(less))
	case other != "":
		return nil, contract.Failure(muster.FailureNode, muster.ReasonNoRuntime, "runtime %q is demanded, and node %s makes containers with %s", spec.Runtime, a.cfg.Node, other)
	case spec.Image != "":
		return nil, contract.Failure(muster.FailureNode, muster.ReasonNoRuntime, "image %s: no container runtime on node %s", spec.Image, a.cfg.Node)
	}
	return nil, contract.Failure(muster.FailureNode, muster.ReasonNoRuntime, "no runtime for processes works on node %s", a.cfg.Node)
}

func isolationOf(rt contract.Runtime) muster.Isolation {
	if i, ok := rt.(contract.Isolating); ok {
		if has := i.Isolation(); has != "" {
			return has
		}
	}
	return muster.IsolationProcess
}
