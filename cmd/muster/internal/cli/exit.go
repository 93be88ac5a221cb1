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

// Exit codes.
const (
	exitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	exitUnreachable = 3
	ExitAuth        = 4
	ExitStorage     = 74
	ExitInterrupted = 130
)

// Exit codes that stand for how a command ended, where ours is its own.
const (
	ExitTimeout       = 124
	ExitNotExecutable = 126
	ExitNotFound      = 127
	ExitBrokenPipe    = 141 // 128 + SIGPIPE: whoever read our stdout has left
)

const exitHelp = `

Exit codes: 0 all went well; 1 a job failed, an object does not exist, or anything
else went wrong; 2 wrong usage: flags, a job file, or what the server refuses as wrong; 3 the server
cannot be reached; 4 the server does not let you in; 74 the server's storage failed,
or a newer version of muster wrote it; 130 interrupted. ` + "`muster run`" + ` with one member and ` + "`muster exec`" + ` exit with the command's own code.`

// exit is an error with its exit code. Without err there is nothing to print.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// Usage is a mistake of who typed the command.
func Usage(err error) error { return ExitWith(ExitUsage, err) }

// Failure ends the command with exit code 1, whatever kind of error it is.
func Failure(err error) error { return ExitWith(ExitFailed, err) }

// ExitWith ends the command with a code and an error to print.
func ExitWith(code int, err error) error { return &exit{code, err} }

// ExitSilently ends the command with a code. Nothing is printed: it was said already, or there is nothing to say.
func ExitSilently(code int) error { return &exit{code: code} }

// ErrInterrupted says that a signal ended the command.
var ErrInterrupted = ExitSilently(ExitInterrupted)

// hinted is an error with what to do about it.
type hinted struct {
	err  error
	hint string
}

func (h *hinted) Error() string { return h.err.Error() + "; " + h.hint }

func (h *hinted) Unwrap() error { return h.err }

// WithHint adds to an error what to do about it.
func WithHint(err error, hint string) error { return &hinted{err, hint} }

// JobHint says of a job that does not exist where to look.
func JobHint(err error) error {
	if client.IsNotFound(err) {
		return WithHint(err, "`muster job list` shows the jobs")
	}
	return err
}

// explain is the exit code of an error, and what to print.
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
	case errors.Is(err, locate.ErrUnknown):
		return exitUnreachable, text
	case client.IsUnreachable(err):
		if h := (*hinted)(nil); !errors.As(err, &h) {
			text += "; is it running? `muster dev` starts one"
		}
		return exitUnreachable, text
	case errors.As(err, &p) && p.Code == api.CodeSandbox:
		return exitUnreachable, text + "; what was attached has ended with it"
	case client.IsAuth(err):
		return ExitAuth, strings.TrimRight(text, ". ") + "; the token of a server is in its data directory: give --data-dir, or MUSTER_TOKEN"
	case errors.As(err, &spec):
		return ExitUsage, text
	case errors.As(err, &p) && (p.Status == http.StatusBadRequest || p.Status == http.StatusForbidden && p.Code == string(muster.FaultInvalid) || p.Status == http.StatusUnprocessableEntity || p.Status == http.StatusRequestEntityTooLarge):
		return ExitUsage, text
	}
	return ExitFailed, text
}
