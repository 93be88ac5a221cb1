package httpapi

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/httpapi/schema"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/problem"
)

// execHandlers handle executions in sandboxes. Executions are not in the state: the sandbox's init
// has them, and each request asks it through the link to the node.
type execHandlers struct{ *API }

func (a execHandlers) routes() {
	socket := sandboxOperation(http.MethodGet, "/exec", "open-execution", "Run a command and talk to it",
		"A WebSocket. The first message is the client's: an ExecRequest, or an ExecAttach for a detached execution, as text. "+
			"Then bytes of stdin as binary messages and ExecControl as text; from the server an ExecEvent `started`, binary messages "+
			"of one byte (1 stdout, 2 stderr) and bytes, and an ExecEvent `ended` or `error` as the last. docs/exec.md says more.", http.StatusUpgradeRequired)
	socket.DefaultStatus = http.StatusSwitchingProtocols
	socket.Responses = a.upgrades(reflect.TypeFor[api.ExecAttach](), reflect.TypeFor[api.ExecControl](), reflect.TypeFor[api.ExecEvent]())
	register(a.API, socket, a.openExec)

	post := sandboxOperation(http.MethodPost, "/exec", "run-execution", "Run a command and take its result",
		"Runs to the end and answers with its output, of each stream the first 1 MiB. A client that leaves ends it. With `detach` the answer is 202 and its id at once.")
	post.Responses = map[string]*huma.Response{
		"200": {Description: "It has ended.", Content: jsonContent(a.API, reflect.TypeFor[api.ExecResult]())},
		"202": {Description: "It was started detached.", Content: jsonContent(a.API, reflect.TypeFor[api.ExecStarted]())},
	}
	jsonBody[api.ExecRequest](a.API, &post, true)
	register(a.API, post, a.runExec)

	register(a.API, sandboxOperation(http.MethodGet, "/executions", "list-executions", "List executions", "Those that run, and the last ones that have ended."), a.listExecs)
	register(a.API, sandboxOperation(http.MethodGet, "/executions/{eid}", "get-execution", "Show an execution", ""), a.getExec)

	signal := sandboxOperation(http.MethodPost, "/executions/{eid}/signal", "signal-execution", "Send a signal to an execution", "To its command and that command's children.")
	signal.DefaultStatus = http.StatusNoContent
	jsonBody[api.ExecutionSignal](a.API, &signal, true)
	register(a.API, signal, a.signalExec)
}

func jsonContent(a *API, t reflect.Type) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{"application/json": {Schema: a.schema(t)}}
}

// upgrades describes an answer that is a WebSocket. OpenAPI has no form for its messages, so only
// their types are added to the components of the description.
func (a *API) upgrades(messages ...reflect.Type) map[string]*huma.Response {
	for _, t := range messages {
		a.schema(t)
	}
	return map[string]*huma.Response{"101": {Description: "The connection is a WebSocket from here on."}}
}

// ExecPath names an execution in the path. Its id is unique within its allocation only.
type ExecPath struct {
	AllocPath
	EID string `path:"eid" maxLength:"64" doc:"Id of the execution."`
}

type runExecIn struct {
	AllocPath
	RequestBody
}

// runExec runs a command to its end and answers with its result; with detach it answers with the id
// at once. It is not idempotent: a client that got no answer cannot know whether the command ran.
// If the client leaves, the context ends and the sandbox ends the command, unless it is detached.
func (a execHandlers) runExec(ctx context.Context, in *runExecIn) (*huma.StreamResponse, error) {
	var want api.ExecRequest
	if p := door.Decode(in.JSON, &want); p != nil {
		return nil, p
	}
	e, err := inside.ParseExecRequest(&want)
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
	if err := a.cfg.Inside.MayActAs(in.ID, "body.user", e.User); err != nil {
		return nil, err
	}
	e.Stdin = len(input) > 0
	ask, err := inside.AskStart(e)
	if err != nil {
		return nil, err
	}
	ctx, cancel := a.streaming(ctx)
	x, err := a.cfg.Inside.Executions.Start(ctx, in.ID, ask)
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
		result, err := x.Collect(ctx, input)
		if err != nil {
			a.fail(ctx, "run-execution", err).Write(w)
			return
		}
		answerJSON(w, http.StatusOK, result)
	}}, nil
}

func answerJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	door.ExtendWrite(w)
	_ = schema.Marshal(w, v)
	door.EndWrite(w)
}

type execListOut struct{ Body api.ExecutionList }

func (a execHandlers) listExecs(ctx context.Context, in *AllocPath) (*execListOut, error) {
	list, err := a.cfg.Inside.Executions.List(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &execListOut{api.ExecutionList{Executions: list}}, nil
}

type execOut struct{ Body api.Execution }

func (a execHandlers) getExec(ctx context.Context, in *ExecPath) (*execOut, error) {
	one, err := a.cfg.Inside.Executions.Get(ctx, in.ID, in.EID)
	if err != nil {
		return nil, err
	}
	return &execOut{*one}, nil
}

type signalExecIn struct {
	ExecPath
	RequestBody
}

func (a execHandlers) signalExec(ctx context.Context, in *signalExecIn) (*struct{}, error) {
	var want api.ExecutionSignal
	if p := door.Decode(in.JSON, &want); p != nil {
		return nil, p
	}
	sig, ok := inside.ParseSignal(want.Signal)
	if !ok {
		return nil, problem.Invalid("body.signal", "is %q; give a name or a number, as TERM or 15", problem.Clip(want.Signal))
	}
	if err := a.cfg.Inside.Executions.Signal(ctx, in.ID, in.EID, sig); err != nil {
		return nil, err
	}
	return &struct{}{}, nil
}
