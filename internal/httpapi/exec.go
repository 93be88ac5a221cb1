package httpapi

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

func (a *API) execRoutes() {
	socket := inside(http.MethodGet, "/exec", "open-execution", "Run a command and talk to it",
		"A WebSocket. The first message is the client's: an ExecRequest, or an ExecAttach for a detached execution, as text. "+
			"Then bytes of stdin as binary messages and ExecControl as text; from the server an ExecEvent `started`, binary messages "+
			"of one byte (1 stdout, 2 stderr) and bytes, and an ExecEvent `ended` or `error` as the last. docs/exec.md says more.", http.StatusUpgradeRequired)
	socket.DefaultStatus = http.StatusSwitchingProtocols
	socket.Responses = a.upgrades(reflect.TypeFor[api.ExecAttach](), reflect.TypeFor[api.ExecControl](), reflect.TypeFor[api.ExecEvent]())
	register(a, socket, a.openExec)

	post := inside(http.MethodPost, "/exec", "run-execution", "Run a command and take its result",
		"Runs to the end and answers with its output, of each stream the first 1 MiB. A client that leaves ends it. With `detach` the answer is 202 and its id at once.")
	post.Responses = map[string]*huma.Response{
		"200": {Description: "It has ended.", Content: jsonContent(a, reflect.TypeFor[api.ExecResult]())},
		"202": {Description: "It was started detached.", Content: jsonContent(a, reflect.TypeFor[api.ExecStarted]())},
	}
	jsonBody[api.ExecRequest](a, &post, true)
	register(a, post, a.runExec)

	register(a, inside(http.MethodGet, "/executions", "list-executions", "List executions", "Those that run, and the last ones that have ended."), a.listExecs)
	register(a, inside(http.MethodGet, "/executions/{eid}", "get-execution", "Show an execution", ""), a.getExec)

	signal := inside(http.MethodPost, "/executions/{eid}/signal", "signal-execution", "Send a signal to an execution", "To its command and that command's children.")
	signal.DefaultStatus = http.StatusNoContent
	jsonBody[api.ExecutionSignal](a, &signal, true)
	register(a, signal, a.signalExec)
}

func jsonContent(a *API, t reflect.Type) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{"application/json": {Schema: a.schema(t)}}
}

// upgrades describes the answer of a WebSocket. The types of its messages are in the description's components.
func (a *API) upgrades(messages ...reflect.Type) map[string]*huma.Response {
	for _, t := range messages {
		a.schema(t)
	}
	return map[string]*huma.Response{"101": {Description: "The connection is a WebSocket from here on."}}
}

// ExecPath names an execution in the path.
type ExecPath struct {
	AllocPath
	EID string `path:"eid" maxLength:"64" doc:"Id of the execution."`
}

// wanted is a request as init takes it.
func wantedExec(r *api.ExecRequest) (*initwire.Exec, error) {
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
	if !terminalSize(r.Rows, r.Cols) {
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

func terminalSize(rows, cols int) bool {
	return rows >= 0 && cols >= 0 && rows <= 65535 && cols <= 65535
}

// endOf is the end of an execution as init tells it, within what can be true.
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

type runExecIn struct {
	AllocPath
	RequestBody
}

// runExec is the plain form: a request and a result.
func (a *API) runExec(ctx context.Context, in *runExecIn) (*huma.StreamResponse, error) {
	var want api.ExecRequest
	if p := decode(in.JSON, &want); p != nil {
		return nil, p
	}
	e, err := wantedExec(&want)
	if err != nil {
		return nil, err
	}
	input := want.InputBase64
	if want.Input != "" {
		input = []byte(want.Input)
	}
	switch {
	case want.Input != "" && len(want.InputBase64) > 0:
		return nil, problem.Invalid("body.input", "is given together with input_base64; give one of them")
	case want.Detach && len(input) > 0:
		return nil, problem.Invalid("body.detach", "goes without input; use the WebSocket, or write a file first")
	case want.Stdin:
		return nil, problem.Invalid("body.stdin", "is for the WebSocket; here the input is in input or input_base64")
	case want.TTY:
		return nil, problem.Invalid("body.tty", "is for the WebSocket")
	}
	if err := a.mayBe(in.ID, "body.user", e.User); err != nil {
		return nil, err
	}
	e.Stdin = len(input) > 0
	ctx, cancel := a.streaming(ctx)
	x, err := a.enterExec(ctx, &in.AllocPath, e)
	if err != nil {
		defer cancel()
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer cancel()
		defer func() { _ = x.Close() }()
		_, w := humago.Unwrap(hc)
		if want.Detach {
			answerJSON(w, http.StatusAccepted, api.ExecStarted{ID: x.Started.ID})
			return
		}
		result, err := a.collect(ctx, x, input)
		if err != nil {
			a.cfg.Metrics.execution("broken")
			a.fail(ctx, "run-execution", a.broke(ctx, x.al, err)).Write(w)
			return
		}
		answerJSON(w, http.StatusOK, result)
	}}, nil
}

func answerJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	extendWrite(w)
	_ = marshal(w, v)
	endWrite(w)
}

// enterExec finds an allocation and starts an execution there: with one way to the node, as the request goes
// along with what opens the connection.
func (a *API) enterExec(ctx context.Context, in *AllocPath, e *initwire.Exec) (*Execution, error) {
	al, err := in.find(a.cfg.State.Latest())
	if err != nil {
		return nil, err
	}
	request, err := execFrame(e)
	if err != nil {
		return nil, err
	}
	conn, err := a.tunnel(ctx, al, request)
	if err != nil {
		return nil, err
	}
	bounded, cancel := soon(ctx)
	defer cancel()
	x, err := initwire.Asked(bounded, conn)
	if err != nil {
		return nil, a.broke(ctx, al, err)
	}
	how := execAttached
	if e.Detached {
		how = execDetached
	}
	return a.begun(al, x, conn, how), nil
}

// StartExec starts an execution in an allocation's sandbox; its connection lasts until ctx ends. Errors are problems and faults.
func (a *API) StartExec(ctx context.Context, id string, e *initwire.Exec) (*Execution, error) {
	return a.enterExec(ctx, &AllocPath{id}, e)
}

// WantedExec is a request as init takes it; an error is a problem that says what is wrong with it.
func WantedExec(r *api.ExecRequest) (*initwire.Exec, error) { return wantedExec(r) }

func execFrame(e *initwire.Exec) ([]byte, error) {
	request, err := initwire.Frame(initwire.KindExec, e.Fields())
	if err != nil {
		return nil, problem.Invalid("body.command", "%v", err)
	}
	return request, nil
}

// collect feeds the input and keeps what comes, up to a bound, until the end.
func (a *API) collect(ctx context.Context, x *Execution, input []byte) (*api.ExecResult, error) {
	var fed sync.WaitGroup
	defer fed.Wait()
	defer func() { _ = x.Close() }() // also wakes the feeder
	if len(input) > 0 {
		fed.Go(func() {
			// A command need not read its input: that is no failure.
			if x.WriteStdin(input) == nil {
				_ = x.CloseStdin()
			}
		})
	}
	var out, errs kept
	for said := false; ; {
		kind, data, ended, err := x.Next()
		if !said && err == nil && ended == nil {
			said = true
			a.putOut(x.al)
		}
		switch {
		case err != nil:
			return nil, err
		case kind == initwire.KindStdout:
			out.add(data)
		case kind == initwire.KindStderr:
			errs.add(data)
		case ended != nil:
			end := endOf(ended)
			a.ended(ctx, x, &end)
			r := &api.ExecResult{
				ID: x.Started.ID, ExitCode: end.ExitCode, Signal: end.Signal, TimedOut: end.TimedOut, Reason: end.Reason, Truncated: out.more || errs.more,
			}
			r.Stdout, r.StdoutBase64 = out.text()
			r.Stderr, r.StderrBase64 = errs.text()
			return r, nil
		}
	}
}

// kept is the beginning of a stream.
type kept struct {
	b    []byte
	more bool
}

func (k *kept) add(p []byte) {
	if room := api.ExecMaxOutput - len(k.b); len(p) > room {
		p, k.more = p[:room], true
	}
	k.b = append(k.b, p...)
}

// text is the stream as text, or as bytes if it is none. A letter that was cut off by the
// bound does not make it none.
func (k *kept) text() (string, []byte) {
	b := k.b
	for i := 1; k.more && i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				b = b[:len(b)-i]
			}
			break
		}
	}
	if utf8.Valid(b) {
		return string(b), nil
	}
	return "", k.b
}

type execListOut struct{ Body api.ExecutionList }

func (a *API) execs(ctx context.Context, in *AllocPath) (*state.Alloc, []api.Execution, error) {
	al, conn, err := a.enter(ctx, in)
	if err != nil {
		return nil, nil, err
	}
	bounded, cancel := soon(ctx)
	defer cancel()
	list, err := initwire.ListExecs(bounded, conn)
	if err != nil {
		return nil, nil, a.broke(ctx, al, err)
	}
	out := make([]api.Execution, 0, len(list))
	for i := range list {
		e := &list[i]
		one := api.Execution{ID: problem.Printable(e.ID), Running: e.Running, Detached: e.Detached, TTY: e.TTY, Started: nanos(e.Ended.Started)}
		if !e.Running {
			end := endOf(&e.Ended)
			one.Ended, one.ExitCode = nanos(e.Ended.Ended), &end.ExitCode
			one.Signal, one.TimedOut, one.Reason = end.Signal, end.TimedOut, end.Reason
		}
		out = append(out, one)
	}
	return al, out, nil
}

// nanos is a time that init told; nil for one that JSON cannot show.
func nanos(n int64) *time.Time {
	if n <= 0 {
		return nil
	}
	t := time.Unix(0, n).UTC()
	return &t
}

func (a *API) listExecs(ctx context.Context, in *AllocPath) (*execListOut, error) {
	_, list, err := a.execs(ctx, in)
	if err != nil {
		return nil, err
	}
	return &execListOut{api.ExecutionList{Executions: list}}, nil
}

type execOut struct{ Body api.Execution }

func (a *API) getExec(ctx context.Context, in *ExecPath) (*execOut, error) {
	al, list, err := a.execs(ctx, &in.AllocPath)
	if err != nil {
		return nil, err
	}
	for i := range list {
		if list[i].ID == in.EID {
			return &execOut{list[i]}, nil
		}
	}
	return nil, problem.NotFound("allocation %s has no execution %s, or does not remember it any more", al.ID, problem.Clip(in.EID))
}

type signalExecIn struct {
	ExecPath
	RequestBody
}

func (a *API) signalExec(ctx context.Context, in *signalExecIn) (*struct{}, error) {
	var want api.ExecutionSignal
	if p := decode(in.JSON, &want); p != nil {
		return nil, p
	}
	sig, ok := parseSignal(want.Signal)
	if !ok {
		return nil, problem.Invalid("body.signal", "is %q; give a name or a number, as TERM or 15", problem.Clip(want.Signal))
	}
	if err := a.SignalExec(ctx, in.ID, in.EID, sig); err != nil {
		return nil, err
	}
	return &struct{}{}, nil
}

// SignalExec sends a signal to an execution's command and that command's children. Errors are problems and faults.
func (a *API) SignalExec(ctx context.Context, id, execution string, sig syscall.Signal) error {
	al, conn, err := a.enter(ctx, &AllocPath{id})
	if err != nil {
		return err
	}
	bounded, cancel := soon(ctx)
	defer cancel()
	return a.broke(ctx, al, initwire.SignalExec(bounded, conn, execution, sig))
}
