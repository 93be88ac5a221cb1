package inside

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// problemOf makes a problem of the error of an operation in a sandbox; nil stays nil. What init says is
// not trusted: its text is bounded and made printable, and a wrong status harms only its own
// sandbox.
func (e *entrance) problemOf(ctx context.Context, al *state.Alloc, err error) error {
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
	// The connection broke, or what came makes no sense. Most often the sandbox has ended, and the
	// state knows it by now.
	if why := e.gone(al); why != "" {
		return problem.New(http.StatusGone, api.CodeNotClaimed, why)
	}
	if now := e.cfg.State.Latest().Alloc(al.ID); now != nil && !now.Live() {
		return problem.New(http.StatusGone, api.CodeEnded, fmt.Sprintf("allocation %s has ended meanwhile", al.ID))
	}
	return problem.New(http.StatusBadGateway, api.CodeSandbox, fmt.Sprintf("connection into the sandbox of allocation %s: %s", al.ID, problem.Printable(err.Error())))
}

// execProblem is what a client is told of an execution that init refused. The status says whether
// another try may help: 4xx is the request's fault, 503 the node's.
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

// fileProblem is what a client is told of a file operation that failed. Errors of the file system
// keep init's own code, by which clients act.
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
