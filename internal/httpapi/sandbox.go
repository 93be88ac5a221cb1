package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Conn is a connection to the init of a sandbox. One goroutine may read and any
// may write: what is given to one Write stays together.
type Conn interface {
	io.ReadWriteCloser
	CloseWrite() error
	// OOMKills is how many processes of the sandbox the kernel had killed for want of memory before anything that is sent
	// here came there; false: not known, as of an agent of an earlier version.
	OOMKills() (n int64, known bool)
}

// Sandboxes reaches into sandboxes, and to the images of nodes. All methods may be called at once.
type Sandboxes interface {
	// Tunnel connects to the init of an allocation's sandbox until ctx ends, and sends first there, which may be empty.
	// Faults: conflict (it does not run yet), too-old (it has ended), unavailable.
	Tunnel(ctx context.Context, a *state.Alloc, first []byte) (Conn, error)
	// AllocStats measures now. Faults as of Tunnel.
	AllocStats(ctx context.Context, a *state.Alloc) (wire.Stats, error)
	// Images, PullImage and PruneImages are of a node's cache.
	Images(ctx context.Context, id muster.NodeID) (wire.ImageList, error)
	PullImage(ctx context.Context, id muster.NodeID, ref string) iter.Seq2[wire.PullProgress, error]
	PruneImages(ctx context.Context, id muster.NodeID, all bool) (wire.Pruned, error)
}

type noSandboxes struct{}

var errNoSandboxes = muster.Faultf(muster.FaultUnavailable, "this server reaches no sandboxes")

func (noSandboxes) Tunnel(context.Context, *state.Alloc, []byte) (Conn, error) {
	return nil, errNoSandboxes
}
func (noSandboxes) AllocStats(context.Context, *state.Alloc) (wire.Stats, error) {
	return wire.Stats{}, errNoSandboxes
}
func (noSandboxes) Images(context.Context, muster.NodeID) (wire.ImageList, error) {
	return wire.ImageList{}, errNoSandboxes
}
func (noSandboxes) PullImage(context.Context, muster.NodeID, string) iter.Seq2[wire.PullProgress, error] {
	return func(yield func(wire.PullProgress, error) bool) { yield(wire.PullProgress{}, errNoSandboxes) }
}
func (noSandboxes) PruneImages(context.Context, muster.NodeID, bool) (wire.Pruned, error) {
	return wire.Pruned{}, errNoSandboxes
}

// inside begins the description of an operation in a sandbox.
func inside(method, path, id, summary, description string, errors ...int) huma.Operation {
	op := operation(method, "/v1/allocations/{id}"+path, id, tagSandbox, summary, description)
	op.Errors = append(op.Errors, http.StatusNotFound, http.StatusConflict, http.StatusGone,
		http.StatusUnprocessableEntity, http.StatusBadGateway, http.StatusServiceUnavailable)
	op.Errors = append(op.Errors, errors...)
	return op
}

// enter finds an allocation and connects to its init until ctx ends.
func (a *API) enter(ctx context.Context, in *AllocPath) (*state.Alloc, Conn, error) {
	al, err := in.find(a.cfg.State.Latest())
	if err != nil {
		return nil, nil, err
	}
	conn, err := a.tunnel(ctx, al, nil)
	return al, conn, err
}

// tunnel connects to the init of an allocation, and sends first there.
func (a *API) tunnel(ctx context.Context, al *state.Alloc, first []byte) (Conn, error) {
	conn, err := a.cfg.Sandboxes.Tunnel(ctx, al, first)
	if err != nil {
		if why := a.gone(al); why != "" {
			// Its node may know before the log, or the other way round: its holder is told the reason all the same.
			return nil, problem.New(http.StatusGone, api.CodeNotClaimed, why)
		}
		return nil, notEntered(err)
	}
	return conn, nil
}

// notEntered is the problem of an allocation in which nothing can be done now.
func notEntered(err error) error {
	switch muster.KindOf(err) {
	case muster.FaultConflict:
		return problem.New(http.StatusConflict, api.CodeNotRunning, err.Error())
	case muster.FaultTooOld:
		return problem.New(http.StatusGone, api.CodeEnded, err.Error())
	}
	return err
}

// soonTime bounds what init answers at once, on a node that has much to do.
const soonTime = time.Minute

var errLate = muster.Faultf(muster.FaultUnavailable, "nothing was answered in the sandbox within %s", soonTime)

func soon(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, soonTime, errLate)
}

// broke makes a problem of what an operation in a sandbox met. What init says is not
// to be trusted: it is bounded, and harms nobody but its own sandbox.
func (a *API) broke(ctx context.Context, al *state.Alloc, err error) error {
	var p *problem.Problem
	var file *initwire.FileError
	var failed *initwire.Failed
	switch {
	case err == nil:
		return nil
	case errors.As(err, &p):
		return p
	case errors.As(err, &file):
		return fileProblem(file)
	case errors.As(err, &failed):
		return execProblem(failed)
	case errors.Is(err, initwire.ErrRefused):
		return problem.New(http.StatusServiceUnavailable, string(muster.FaultUnavailable), fmt.Sprintf("allocation %s: %s", al.ID, problem.Printable(err.Error())))
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, errLate):
		return errLate
	}
	// The connection broke, or makes no sense. Most often because the sandbox has ended.
	if why := a.gone(al); why != "" {
		return problem.New(http.StatusGone, api.CodeNotClaimed, why)
	}
	if now := a.cfg.State.Latest().Alloc(al.ID); now != nil && !now.Live() {
		return problem.New(http.StatusGone, api.CodeEnded, fmt.Sprintf("allocation %s has ended meanwhile", al.ID))
	}
	return problem.New(http.StatusBadGateway, api.CodeSandbox, fmt.Sprintf("connection into the sandbox of allocation %s: %s", al.ID, problem.Printable(err.Error())))
}

func execProblem(f *initwire.Failed) *problem.Problem {
	status, code := http.StatusUnprocessableEntity, string(muster.FaultInvalid)
	switch f.Reason {
	case initwire.ReasonCommandNotFound:
		code = api.CodeCommandNotFound
	case initwire.ReasonNotExecutable:
		code = api.CodeNotExecutable
	case initwire.ReasonExecExists:
		status, code = http.StatusConflict, string(muster.FaultAlreadyExists)
	case initwire.ReasonNoExec:
		status, code = http.StatusNotFound, string(muster.FaultNotFound)
	case initwire.ReasonExecEnded, initwire.ReasonProcessLimit:
		status, code = http.StatusConflict, string(muster.FaultConflict)
	case initwire.ReasonOutputGone:
		status, code = http.StatusGone, string(muster.FaultTooOld)
	case initwire.ReasonEnding:
		status, code = http.StatusGone, api.CodeEnded
	default:
		if f.Class == initwire.ClassNode {
			status, code = http.StatusServiceUnavailable, string(muster.FaultUnavailable)
		}
	}
	return problem.New(status, code, problem.Printable(f.Message))
}

func fileProblem(f *initwire.FileError) *problem.Problem {
	status, code := http.StatusUnprocessableEntity, string(muster.FaultInvalid)
	switch f.Code {
	case initwire.FileNotFound:
		status, code = http.StatusNotFound, string(muster.FaultNotFound)
	case initwire.FileExists, initwire.FileIsDirectory, initwire.FileNotDirectory, initwire.FileNotEmpty, initwire.FileLoop, initwire.FileBusy:
		status, code = http.StatusConflict, f.Code
	case initwire.FilePermission:
		status, code = http.StatusForbidden, f.Code
	case initwire.FileTooLarge:
		status, code = http.StatusRequestEntityTooLarge, f.Code
	case initwire.FileNoSpace:
		status, code = http.StatusInsufficientStorage, f.Code
	case initwire.FileFault:
		status, code = http.StatusServiceUnavailable, string(muster.FaultUnavailable)
	}
	if f.Path == "" {
		return problem.New(status, code, problem.Printable(f.Message))
	}
	return problem.New(status, code, problem.Printable(f.Error()), api.ProblemField{Location: "query.path", Message: problem.Printable(f.Message), Value: problem.Printable(f.Path)})
}
