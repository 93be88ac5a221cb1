package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/locate"
	"github.com/musterhq/muster/internal/specfile"
)

// The exit codes of muster itself. Scripts depend on them: none changes its meaning.
const (
	// ExitOK is that of a command that did what it was asked for.
	ExitOK = 0
	// ExitFailed is that of a job that failed, of an object that does not exist, and of everything
	// that has no code of its own.
	ExitFailed = 1
	// ExitUsage is that of wrong flags and files, and of what the server refuses as wrong.
	ExitUsage = 2
	// ExitUnreachable is that of a server that cannot be reached.
	ExitUnreachable = 3
	// ExitAuth is that of a server that does not let the user in.
	ExitAuth = 4
	// ExitStorage is that of a server whose storage failed, or was written by a newer version.
	ExitStorage = 74
	// ExitHangup is 128 + SIGHUP: the terminal was closed, and what was followed goes on.
	ExitHangup = 129
	// ExitInterrupted is 128 + SIGINT.
	ExitInterrupted = 130
)

// Exit codes that stand for how a command ended, where ours is its own.
const (
	// ExitTimeout is that of timeout(1).
	ExitTimeout = 124
	// ExitNotExecutable is that of shells.
	ExitNotExecutable = 126
	// ExitNotFound is that of shells.
	ExitNotFound = 127
	// ExitBrokenPipe is 128 + SIGPIPE: whoever read our stdout has left.
	ExitBrokenPipe = 141
)

// exitHelp is the end of muster's own help text.
const exitHelp = `

Exit codes: 0 all went well; 1 a job failed, an object does not exist, or anything
else went wrong; 2 wrong usage: flags, a job file, or what the server refuses as wrong; 3 the server
cannot be reached; 4 the token was refused; 74 the server's storage failed,
or a newer version of muster wrote it; 130 interrupted. ` + "`muster run`" + ` with one member and ` + "`muster exec`" + ` exit with the command's own code.`

// exit is an error with its exit code. Without err there is nothing to print.
type exit struct {
	code int
	err  error
}

// Error is the text of the error within.
func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

// Unwrap is the error within, which may be nil.
func (e *exit) Unwrap() error { return e.err }

// Usage makes an error a mistake of whoever typed the command: exit code 2.
func Usage(err error) error { return ExitWith(ExitUsage, err) }

// Failure ends the command with exit code 1, whatever kind of error it is.
func Failure(err error) error { return ExitWith(ExitFailed, err) }

// ExitCode is the code with which an error ends the command; that of success if it is nil.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	code, _ := explain(err)
	return code
}

// ExitWith ends the command with a code and an error to print.
func ExitWith(code int, err error) error { return &exit{code, err} }

// ExitSilently ends the command with a code. Nothing is printed: it was said already, or there is
// nothing to say.
func ExitSilently(code int) error { return &exit{code: code} }

// ErrInterrupted says that a signal ended the command. It is also the cause of a context that a
// signal has ended.
var ErrInterrupted = ExitSilently(ExitInterrupted)

// hinted is an error with what to do about it. It does not change the exit code.
type hinted struct {
	err  error
	hint string
}

// Error is the error, then what to do about it.
func (h *hinted) Error() string { return h.err.Error() + "; " + h.hint }

func (h *hinted) Unwrap() error { return h.err }

// WithHint adds to an error what to do about it: a part of a sentence that stands behind "; ".
func WithHint(err error, hint string) error { return &hinted{err, hint} }

// JobHint adds to an error about a job that does not exist where to look for jobs.
func JobHint(err error) error {
	if client.IsNotFound(err) {
		return WithHint(err, "`muster job list` shows the jobs")
	}
	return err
}

// explain returns the exit code of an error, and what to print; "" for nothing. An error that
// carries its own code keeps it. Others are told apart by what the server answered, because a
// script treats a server that is away otherwise than a job that failed.
func explain(err error) (int, string) {
	var e *exit
	if errors.As(err, &e) {
		if e.err == nil {
			return e.code, ""
		}
		return e.code, err.Error()
	}
	var spec *specfile.Error
	var p *api.Problem
	text := err.Error()
	switch {
	case errors.Is(err, context.Canceled):
		return ExitInterrupted, ""
	case errors.Is(err, locate.ErrContext):
		return ExitUsage, text
	case errors.Is(err, locate.ErrUnknown):
		return ExitUnreachable, text
	case client.IsUnreachable(err):
		if h := (*hinted)(nil); !errors.As(err, &h) {
			text += "; is it running? `muster dev` starts one"
		}
		return ExitUnreachable, text
	// The server is there, and the sandbox went away under the command: an attempt later may do.
	case errors.As(err, &p) && p.Code == api.CodeSandbox:
		return ExitUnreachable, text + "; what was attached has ended with it"
	case client.IsAuth(err):
		return ExitAuth, strings.TrimRight(text, ". ") + "; the token of a server is in its data directory: give --data-dir, or MUSTER_TOKEN"
	case errors.As(err, &spec):
		return ExitUsage, text
	case errors.As(err, &p) && (p.Status == http.StatusBadRequest || p.Status == http.StatusForbidden && p.Code == string(muster.FaultInvalid) || p.Status == http.StatusUnprocessableEntity || p.Status == http.StatusRequestEntityTooLarge):
		return ExitUsage, text
	}
	return ExitFailed, text
}
