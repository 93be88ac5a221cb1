package inside

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Conn is a connection to the init of a sandbox. One goroutine may read and any may write: what is
// given to one Write stays together.
type Conn interface {
	io.ReadWriteCloser
	CloseWrite() error
	// OOMKills is how many processes of the sandbox the kernel had killed for want of memory before
	// anything that is sent through this connection reached the sandbox. known is false if the
	// agent is of a version that does not tell.
	OOMKills() (n int64, known bool)
}

// Link reaches allocations on their nodes. All methods may be called at once.
type Link interface {
	// Tunnel connects to the init of an allocation's sandbox until ctx ends, and sends first there,
	// which may be empty. Faults: conflict (it does not run yet), too-old (it has ended),
	// unavailable.
	Tunnel(ctx context.Context, a *state.Alloc, first []byte) (Conn, error)
	// AllocStats measures what the allocation uses now. Faults as of Tunnel.
	AllocStats(ctx context.Context, a *state.Alloc) (wire.Stats, error)
	// OpenOutput reads a stream from offset on; start is the offset of the first byte, later than
	// asked for if bytes were dropped. Without follow the reader ends where the stream ends now;
	// with it, a clean io.EOF says that the stream has ended for ever. Faults: not-found (the node
	// does not know the allocation, or not yet), unavailable (the node cannot be reached).
	OpenOutput(ctx context.Context, a *state.Alloc, stream string, offset int64, follow bool) (r io.ReadCloser, start int64, err error)
}

// State is what is read: the newest snapshot, and the feed by which a followed output wakes.
type State interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Store has the output that has left its node. Errors are faults.
type Store interface {
	Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error)
	List(ctx context.Context, prefix string) ([]blob.Info, error)
}

// Claims knows which runners are claimed.
type Claims interface {
	// Claimed is the claim that has a runner now; a problem says why there is none.
	Claimed(runner string) (*state.Claim, error)
}

// Counters count executions.
type Counters interface {
	// Execution counts one that somebody saw the end of, by one of the results in this package.
	Execution(result string)
	// FirstOutput is told how long it took from a claim to the first output of an execution in its
	// runner.
	FirstOutput(took time.Duration)
}

// Config of a Service. All but those marked optional are needed.
type Config struct {
	State State
	// Clock is the log's; nil: the system's.
	Clock clock.Clock
	Store Store
	// Link returns the link of the present leadership. It is asked for each request, as a
	// leadership may end at any time. While there is none, its error is what clients are told.
	Link   func() (Link, error)
	Claims Claims
	// Counters may be nil: then nothing is counted.
	Counters Counters
	// Stopping ends when the server is shut down, with the cause that clients are told. Optional.
	Stopping context.Context
	// Silence is how long init may neither say nor take anything while it works on files, before
	// the request ends. 0: 2 minutes.
	Silence time.Duration
	// Fresh is how old a connection to init may be that has asked nothing yet. It must be shorter
	// than init waits for a request. 0: 2 seconds.
	Fresh time.Duration
}

const (
	usualSilence = 2 * time.Minute
	usualFresh   = 2 * time.Second
	// soonTime bounds what init answers at once. It is long because a node may have much to do.
	soonTime = time.Minute
)

// Service is what can be done in sandboxes, sorted by what it is done to. Its methods may be called
// from any goroutine. Their errors are problems and faults.
type Service struct {
	Executions *Executions
	Files      *Files
	Ports      *Ports
	Output     *Output
	*entrance
}

// New makes a Service. It starts nothing.
func New(c Config) (*Service, error) {
	if c.State == nil || c.Store == nil || c.Link == nil || c.Claims == nil {
		return nil, errors.New("inside: state, store, link and claims are needed")
	}
	if c.Counters == nil {
		c.Counters = uncounted{}
	}
	if c.Stopping == nil {
		c.Stopping = context.Background()
	}
	c.Silence, c.Fresh = cmp.Or(c.Silence, usualSilence), cmp.Or(c.Fresh, usualFresh)
	e := &entrance{c}
	return &Service{Executions: &Executions{entrance: e}, Files: &Files{e}, Ports: &Ports{e}, Output: &Output{e}, entrance: e}, nil
}

type uncounted struct{}

func (uncounted) Execution(string)          {}
func (uncounted) FirstOutput(time.Duration) {}

// entrance is the way into sandboxes, which all parts of a Service share.
type entrance struct{ cfg Config }

// find is the row of an allocation.
func (e *entrance) find(id string) (*state.Alloc, error) {
	if al := e.cfg.State.Latest().Alloc(muster.AllocID(id)); al != nil {
		return al, nil
	}
	return nil, problem.NotFound("allocation %s: not found", problem.Clip(id))
}

// enter finds an allocation and connects to its init until ctx ends.
func (e *entrance) enter(ctx context.Context, id string) (*state.Alloc, Conn, error) {
	al, err := e.find(id)
	if err != nil {
		return nil, nil, err
	}
	conn, err := e.tunnel(ctx, al, nil)
	return al, conn, err
}

// tunnel connects to the init of an allocation, and sends first there.
func (e *entrance) tunnel(ctx context.Context, al *state.Alloc, first []byte) (Conn, error) {
	l, err := e.cfg.Link()
	if err == nil {
		var conn Conn
		if conn, err = l.Tunnel(ctx, al, first); err == nil {
			return conn, nil
		}
	}
	if why := e.gone(al); why != "" {
		// The node may know of the end before the log does, or the other way round. The holder of a
		// runner is told the reason in both cases.
		return nil, problem.New(http.StatusGone, api.CodeNotClaimed, why)
	}
	return nil, notEntered(err)
}

// notEntered turns the link's faults into problems with codes of their own: clients wait for an
// allocation that does not run yet, and give up on one that has ended.
func notEntered(err error) error {
	switch muster.KindOf(err) {
	case muster.FaultConflict:
		return problem.New(http.StatusConflict, api.CodeNotRunning, err.Error())
	case muster.FaultTooOld:
		return problem.New(http.StatusGone, api.CodeEnded, err.Error())
	}
	return err
}

// gone returns why a runner is gone, in a sentence for its holder. It is empty for a runner that is
// there, and for an allocation that is no runner.
func (e *entrance) gone(al *state.Alloc) string {
	if al.Runner == "" {
		return ""
	}
	now := e.cfg.State.Latest().Alloc(al.ID)
	if now == nil || now.Runner != muster.RunnerGone {
		return ""
	}
	var p *problem.Problem
	if _, err := e.cfg.Claims.Claimed(string(al.ID)); errors.As(err, &p) {
		return p.Detail
	}
	return ""
}

// measure asks the node of an allocation what it uses now.
func (e *entrance) measure(ctx context.Context, al *state.Alloc) (wire.Stats, error) {
	l, err := e.cfg.Link()
	if err != nil {
		return wire.Stats{}, err
	}
	return l.AllocStats(ctx, al)
}

// Stats measures what an allocation uses now, and puts what it asked for beside it. Values that the
// agent cannot measure are 0, never negative.
func (e *entrance) Stats(ctx context.Context, id string) (*api.AllocStats, error) {
	al, err := e.find(id)
	if err != nil {
		return nil, err
	}
	s, err := e.measure(ctx, al)
	if err != nil {
		return nil, notEntered(err)
	}
	asked := &al.Run.Spec.Resources
	return &api.AllocStats{
		At: s.At.Std().UTC(), CPUSeconds: float64(max(s.CPUMicros, 0)) / 1e6, CPU: asked.CPU, CPUMax: asked.CPUMax,
		Memory: max(int64(s.Memory), 0), MemoryMax: int64(asked.Memory), Pids: max(s.Pids, 0), PidsMax: cmp.Or(asked.Pids, max(s.PidsMax, 0)),
		Disk: max(int64(s.Disk), 0), DiskMax: cmp.Or(int64(asked.Disk), max(int64(s.DiskMax), 0)),
	}, nil
}

// MayActAs returns an error if the environment of a runner does not allow to act as a user there
// (lock_user). Other allocations allow everything. at is the field of the request that names the
// user; an empty user names nobody and is always allowed. Transports with users of their own, as
// Poseidon's, do not ask.
func (e *entrance) MayActAs(id, at, user string) error {
	snap := e.cfg.State.Latest()
	al := snap.Alloc(muster.AllocID(id))
	if user == "" || al == nil || al.Runner == "" {
		return nil
	}
	j := snap.JobByUID(al.UID)
	if j == nil || j.Env == nil || !j.Env.Spec.LockUser || user == j.Env.Spec.User {
		return nil
	}
	name, _ := j.Key.Environment()
	p := problem.New(http.StatusForbidden, string(muster.FaultInvalid), fmt.Sprintf("environment %s allows only its own user (lock_user); leave out %s", name, at))
	p.Errors = []api.ProblemField{{Location: at, Message: fmt.Sprintf("is %q, which lock_user of environment %s does not allow", problem.Clip(user), name)}}
	return p
}

// soon bounds an operation that init answers at once. Its end is told apart from that of ctx.
func soon(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, soonTime, errLate)
}

var errLate = muster.Faultf(muster.FaultUnavailable, "there was no answer from the sandbox within %s", soonTime)

// visit is an operation in a sandbox that may take any time as long as it makes progress. It ends
// with the request, when the server stops, and when init neither says nor takes anything for too
// long. The last is needed because what runs in the sandbox may stop its init: that must not hold a
// handler and a tunnel of the server.
type visit struct {
	Conn
	ctx context.Context
	al  *state.Alloc

	silence *time.Timer
	allowed time.Duration
	cancel  func()
}

// visit begins a visit. The caller must call its end.
func (e *entrance) visit(ctx context.Context, id string) (*visit, error) {
	ctx, done := wait.Either(ctx, e.cfg.Stopping)
	ctx, cancel := context.WithCancelCause(ctx)
	al, conn, err := e.enter(ctx, id)
	if err != nil {
		cancel(nil)
		done()
		return nil, err
	}
	v := &visit{Conn: conn, ctx: ctx, al: al, allowed: e.cfg.Silence, cancel: func() { cancel(nil); done() }}
	v.silence = time.AfterFunc(v.allowed, func() {
		cancel(muster.Faultf(muster.FaultUnavailable, "there was no answer from the sandbox of allocation %s for %s", al.ID, v.allowed))
	})
	return v, nil
}

// heard says that init makes progress. Callers call it for each whole message and not for each
// byte, or a byte now and then would keep the visit alive for ever.
func (v *visit) heard() { v.silence.Reset(v.allowed) }

// Write counts as progress once init has taken all of it.
func (v *visit) Write(b []byte) (int, error) {
	n, err := v.Conn.Write(b)
	if err == nil {
		v.heard()
	}
	return n, err
}

// end ends the visit and closes its connection. It may be called more than once.
func (v *visit) end() {
	v.silence.Stop()
	v.cancel()
}
