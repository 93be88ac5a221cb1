package inside

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// ParseExecRequest checks a request and turns it into what init takes. Its error is a problem that names
// every wrong field, as body.command. Who may run as which user is asked elsewhere: see MayActAs.
func ParseExecRequest(r *api.ExecRequest) (*initwire.Exec, error) {
	var bad []api.ProblemField
	refuse := func(field, format string, args ...any) {
		bad = append(bad, api.ProblemField{Location: "body." + field, Message: fmt.Sprintf(format, args...)})
	}
	if len(r.Command) == 0 || r.Command[0] == "" {
		refuse("command", "is missing; give a program and its arguments")
	}
	size := 0
	for i, c := range r.Command {
		size += len(c)
		if strings.ContainsRune(c, 0) {
			refuse(fmt.Sprintf("command[%d]", i), "has a zero byte")
		}
	}
	e := &initwire.Exec{
		ID: r.ID, Command: r.Command, Work: r.Workdir, User: r.User, TTY: r.TTY, Rows: r.Rows, Cols: r.Cols, Stdin: r.Stdin,
		Timeout: r.Timeout.Std(), KillGrace: r.KillGrace.Std(), Detached: r.Detach,
	}
	for _, k := range slices.Sorted(maps.Keys(r.Env)) {
		v := r.Env[k]
		size += len(k) + len(v)
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			refuse("env", "has the name %q; a name is not empty and has no =, and nothing has a zero byte", problem.Clip(k))
		}
		e.Env = append(e.Env, k+"="+v)
	}
	if size > api.ExecMaxText {
		refuse("command", "has more than %s together with env", muster.Bytes(api.ExecMaxText))
	}
	for field, v := range map[string]string{"workdir": r.Workdir, "user": r.User} {
		if len(v) > 4095 || strings.ContainsRune(v, 0) {
			refuse(field, "is no name: it is too long, or has a zero byte")
		}
	}
	if r.ID != "" && !initwire.ExecID(r.ID) {
		refuse("id", "is %q; it has 1 to %d letters, digits and . _ -", problem.Clip(r.ID), initwire.MaxExecID)
	}
	if !TerminalSize(r.Rows, r.Cols) {
		refuse("rows", "and cols are %d and %d; a terminal has at most 65535 of each", r.Rows, r.Cols)
	}
	if r.Timeout < 0 || r.Timeout > api.MaxTimeout {
		refuse("timeout", "is %s; it is 0s (no limit) to %s", r.Timeout, api.MaxTimeout)
	}
	if r.KillGrace < 0 || r.KillGrace > api.MaxKillGrace {
		refuse("kill_grace", "is %s; it is 0s (the default, 5s) to %s", r.KillGrace, api.MaxKillGrace)
	}
	if len(bad) > 0 {
		return nil, problem.Wrong(bad)
	}
	if e.TTY && e.Rows == 0 && e.Cols == 0 {
		e.Rows, e.Cols = 24, 80
	}
	return e, nil
}

// TerminalSize reports whether a terminal may have so many rows and columns.
func TerminalSize(rows, cols int) bool {
	return rows >= 0 && cols >= 0 && rows <= 65535 && cols <= 65535
}

// endOf turns the end that init tells into the API's, within what can be true: an exit code has
// eight bits, a signal has a name, and a reason is printable.
func endOf(e *initwire.ExecEnded) api.ExecEnd {
	end := api.ExecEnd{ExitCode: e.Exit & 0xff, Signal: signalName(e.Signal), TimedOut: e.TimedOut, Reason: problem.Printable(e.Why)}
	if end.Signal != "" {
		end.ExitCode = 128 + e.Signal
	}
	if e.Lost > 0 {
		end.Reason = strings.TrimPrefix(end.Reason+fmt.Sprintf("; %d bytes of its output could not be kept", e.Lost), "; ")
	}
	return end
}
