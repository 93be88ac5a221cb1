package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/inputs"
	"github.com/musterhq/muster/internal/agent/journal"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// server is the HTTP server of the agent's socket; life ends all its streams.
func (a *Agent) server(life context.Context) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/agent", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.hello()) })
	mux.HandleFunc("PUT /v1/desired", func(w http.ResponseWriter, r *http.Request) { a.serveDesired(life, w, r) })
	mux.HandleFunc("GET /v1/reports", a.report)
	mux.HandleFunc("GET /v1/allocs/{id}/output/{stream}", a.serveOutput)
	mux.HandleFunc("GET /v1/allocs/{id}/outputs/{n}", a.serveOutputs)
	mux.HandleFunc("POST /v1/allocs/{id}/init", a.serveTunnel)
	mux.HandleFunc("GET /v1/allocs/{id}/stats", a.serveStats)
	mux.HandleFunc("PUT /v1/inputs/{digest}", a.serveInput)
	mux.HandleFunc("PUT /v1/grants", a.serveGrant)
	mux.HandleFunc("GET /v1/images", a.serveImages)
	mux.HandleFunc("POST /v1/images", a.servePull)
	mux.HandleFunc("POST /v1/images/prune", a.servePrune)
	mux.HandleFunc("POST /v1/probe", a.serveProbe)
	mux.HandleFunc("POST /v1/release", a.serveRelease)
	mux.HandleFunc("POST /v1/step-down", a.serveStepDown)
	return &http.Server{
		Handler:           a.counted(mux),
		BaseContext:       func(net.Listener) context.Context { return life },
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       5 * time.Minute,
		ConnState:         a.unasked.Changed,
		ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelWarn),
	}
}

// counted makes Run wait for every request that is being answered, and refuses new ones when Run
// already waits.
func (a *Agent) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.node.crew.enter() {
			fail(w, http.StatusServiceUnavailable, "the agent is ending")
			return
		}
		defer a.node.crew.leave()
		next.ServeHTTP(w, r)
	})
}

// serveDesired checks the form of a set, and obeys it.
func (a *Agent) serveDesired(life context.Context, w http.ResponseWriter, r *http.Request) {
	if p := r.Header.Get(wire.HeaderProtocol); p != strconv.Itoa(wire.Protocol) && (p != strconv.Itoa(wire.Protocol-1) || wire.Protocol == 1) {
		a.refuse(w, &wire.Refusal{Code: wire.RefusedProtocol, Message: fmt.Sprintf(
			"the set speaks protocol %q, this agent %d (header %s)", p, wire.Protocol, wire.HeaderProtocol)})
		return
	}
	var d wire.Desired
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, wire.MaxDesired)).Decode(&d); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			fail(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the set is larger than %d bytes: send it in parts", wire.MaxDesired))
			return
		}
		fail(w, http.StatusBadRequest, fmt.Sprintf("the set cannot be read: %v", err))
		return
	}
	for _, al := range d.Allocs {
		if !journal.ValidID(al.ID) {
			fail(w, http.StatusBadRequest, fmt.Sprintf("%q is not an allocation id", string(al.ID)))
			return
		}
		if al.Desired != muster.AllocRun && al.Desired != muster.AllocStop {
			fail(w, http.StatusBadRequest, fmt.Sprintf("allocation %s: desired is %q, want run or stop", al.ID, string(al.Desired)))
			return
		}
	}
	got, err := a.obey(r.Context(), life, d)
	a.answerOr(w, got, err)
}

// answerOr answers with v, or with the status and the message of an error.
func (a *Agent) answerOr(w http.ResponseWriter, v any, err error) {
	var refusal *wire.Refusal
	switch {
	case err == nil:
		answer(w, http.StatusOK, v)
	case errors.As(err, &refusal):
		a.refuse(w, refusal)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		fail(w, http.StatusServiceUnavailable, err.Error())
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		fail(w, http.StatusInsufficientStorage, err.Error())
	default:
		a.log.Error("request", "error", err)
		fail(w, http.StatusInternalServerError, err.Error())
	}
}

// refuse answers that a set or a release is not obeyed, with the fence that the agent obeys.
func (a *Agent) refuse(w http.ResponseWriter, r *wire.Refusal) {
	if r.Fence == (wire.Fence{}) {
		a.mu.Lock()
		r.Fence = a.fence
		a.mu.Unlock()
	}
	a.log.Warn("refused", "code", r.Code, "why", r.Message)
	answer(w, http.StatusConflict, r)
}

// serveInput stores an input that the server pushes.
func (a *Agent) serveInput(w http.ResponseWriter, r *http.Request) {
	digest := r.PathValue("digest")
	if _, err := inputs.ParseDigest(digest); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	err := a.node.inputs.Put(digest, r.Body)
	if errors.Is(err, inputs.ErrDigest) {
		fail(w, http.StatusUnprocessableEntity, fmt.Sprintf("input %s: %v", digest, err))
		return
	}
	a.answerOr(w, struct{}{}, err)
}

// serveProbe answers whether the node is ready.
func (a *Agent) serveProbe(w http.ResponseWriter, r *http.Request) {
	var p wire.Probe
	if !readSmall(w, r, &p) {
		return
	}
	got := a.node.probe(r.Context(), p)
	if !got.Ready {
		a.log.Info("probed, and not ready", "why", got.Why, "again", wire.Millis(got.AgainMillis))
	}
	answer(w, http.StatusOK, got)
}

// serveRelease frees the node from its cluster, for an operator.
func (a *Agent) serveRelease(w http.ResponseWriter, r *http.Request) {
	a.answerOr(w, struct{}{}, a.release(r.Context(), r.URL.Query().Get("cluster")))
}

// serveStepDown ends this agent for another one, which waits for the lock.
func (a *Agent) serveStepDown(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, struct{}{})
	a.stepOnce.Do(func() { close(a.stepDown) })
}

// serveOutputs answers with the tar of one collected output.
func (a *Agent) serveOutputs(w http.ResponseWriter, r *http.Request) {
	al := a.lookup(w, r)
	if al == nil {
		return
	}
	n, err := strconv.Atoi(r.PathValue("n"))
	count := 0
	if told := al.told(); told != nil {
		count = len(told.Outputs)
	}
	if err != nil || n < 0 || n >= count {
		fail(w, http.StatusNotFound, fmt.Sprintf("allocation %s has %d collected outputs, none is number %s", al.id, count, r.PathValue("n")))
		return
	}
	f, err := os.Open(al.dir.Output(n))
	if err != nil {
		status := http.StatusInternalServerError
		if errors.Is(err, fs.ErrNotExist) {
			status = http.StatusNotFound
		}
		fail(w, status, err.Error())
		return
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil {
		w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	}
	w.Header().Set("Content-Type", "application/x-tar")
	send(w, f)
}

// send copies to a client, which has to keep reading. If it cannot send all it breaks the
// connection, so that the client does not take the part for the whole.
func send(w http.ResponseWriter, src io.Reader) {
	control := http.NewResponseController(w)
	for {
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
		_, err := io.CopyN(w, src, 1<<20)
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// lookup finds the allocation of a request, or answers that it is not there.
func (a *Agent) lookup(w http.ResponseWriter, r *http.Request) *allocation {
	id := muster.AllocID(r.PathValue("id"))
	a.mu.Lock()
	al := a.allocs[id]
	a.mu.Unlock()
	if al == nil {
		fail(w, http.StatusNotFound, fmt.Sprintf("allocation %s is not on this node", id))
	}
	return al
}

// answer writes v as JSON.
func answer(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"message":"the answer cannot be written"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}

// fail answers with a problem: a sentence for people.
func fail(w http.ResponseWriter, status int, message string) {
	answer(w, status, wire.Problem{Message: message})
}
