package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// maxSmall bounds the JSON of small requests.
	maxSmall = 256 << 10
	// pullPace is the least time between two lines of progress of a pull.
	pullPace = 200 * time.Millisecond
)

// serveGrant takes in the answer of the server to an asked-for grant.
func (a *Agent) serveGrant(w http.ResponseWriter, r *http.Request) {
	var g wire.PullGrant
	if !readSmall(w, r, &g) {
		return
	}
	if g.Ref == "" {
		fail(w, http.StatusBadRequest, "the grant names no image")
		return
	}
	a.grants.put(g)
	answer(w, http.StatusOK, struct{}{})
}

// serveImages lists the images that are here.
func (a *Agent) serveImages(w http.ResponseWriter, _ *http.Request) {
	if a.noImages(w) {
		return
	}
	answer(w, http.StatusOK, a.node.images.List())
}

// servePull answers with progress while it pulls; the last line says how it ended.
func (a *Agent) servePull(w http.ResponseWriter, r *http.Request) {
	var want wire.PullImage
	if a.noImages(w) || !readSmall(w, r, &want) {
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	control := http.NewResponseController(w)
	var told time.Time
	tell := func(p wire.PullProgress) {
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
		if json.NewEncoder(w).Encode(p) == nil {
			_ = control.Flush()
		}
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), pullTimeout, errGaveUp)
	defer cancel()
	image, err := a.node.images.Pull(ctx, want.Ref, want.Puller, func(p contract.ImageProgress) {
		if time.Since(told) >= pullPace {
			told = time.Now()
			tell(wire.PullProgress{Done: p.Done, Total: p.Total, Layers: p.Layers, LayersDone: p.LayersDone})
		}
	})
	if err != nil {
		tell(wire.PullProgress{Failure: contract.AsFailure(err, muster.FailureOutside, muster.ReasonImage, "image "+want.Ref)})
		return
	}
	image.Free()
	tell(wire.PullProgress{Digest: image.Digest})
}

// servePrune deletes images that nothing uses.
func (a *Agent) servePrune(w http.ResponseWriter, r *http.Request) {
	if a.noImages(w) {
		return
	}
	freed, err := a.node.images.Prune(r.Context(), r.URL.Query().Get("all") == "true")
	a.answerOr(w, wire.Pruned{Freed: freed}, err)
}

// noImages answers that there is no store of images, if there is none.
func (a *Agent) noImages(w http.ResponseWriter) bool {
	if a.node.images == nil {
		fail(w, http.StatusNotFound, "this agent has no store of images")
	}
	return a.node.images == nil
}

// readSmall reads a small JSON body, or answers that it cannot.
func readSmall(w http.ResponseWriter, r *http.Request, v any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSmall)).Decode(v); err != nil {
		fail(w, http.StatusBadRequest, "the request cannot be read: "+err.Error())
		return false
	}
	return true
}
