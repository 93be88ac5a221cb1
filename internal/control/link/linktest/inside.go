package linktest

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// insideRoutes are those into sandboxes and to images.
func (a *agent) insideRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/allocs/{id}/init", a.unless(a.tunnel))
	mux.HandleFunc("GET /v1/allocs/{id}/stats", a.unless(a.stats))
	mux.HandleFunc("GET /v1/images", a.unless(a.listImages))
	mux.HandleFunc("POST /v1/images", a.unless(a.pull))
	mux.HandleFunc("POST /v1/images/prune", a.unless(a.prune))
	mux.HandleFunc("PUT /v1/grants", a.grant)
}

// unless is the honest answer, unless the node is to lie.
func (a *agent) unless(honest http.HandlerFunc) http.HandlerFunc {
	if lie := a.n.cfg.LieInside; lie != nil {
		return lie
	}
	return honest
}

// running is the sandbox that a request is about, if its command runs; else that was answered.
func (a *agent) running(w http.ResponseWriter, r *http.Request) *sandbox {
	id := muster.AllocID(r.PathValue("id"))
	a.n.mu.Lock()
	b := a.n.sandboxes[id]
	var status muster.AllocStatus
	if b != nil {
		status = b.report.Status
	}
	a.n.mu.Unlock()
	switch {
	case b == nil:
		answer(w, http.StatusNotFound, wire.Problem{Message: "allocation " + string(id) + " is not on this node"})
	case status == muster.AllocEnded:
		answer(w, http.StatusGone, wire.Problem{Message: "allocation " + string(id) + " has ended"})
	case status != muster.AllocRunning:
		answer(w, http.StatusConflict, wire.Problem{Message: "allocation " + string(id) + " does not run yet"})
	default:
		return b
	}
	return nil
}

// tunnel leads to an init that says back what it is told.
func (a *agent) tunnel(w http.ResponseWriter, r *http.Request) {
	if a.running(w, r) == nil {
		return
	}
	conn, in, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+wire.UpgradeInit+"\r\n\r\n"); err == nil {
		_, _ = io.Copy(conn, in)
	}
}

func (a *agent) stats(w http.ResponseWriter, r *http.Request) {
	if a.running(w, r) != nil {
		answer(w, http.StatusOK, wire.Stats{At: now(), CPUMicros: 1000, Memory: muster.MiB, Pids: 1})
	}
}

func (a *agent) listImages(w http.ResponseWriter, _ *http.Request) {
	a.n.mu.Lock()
	defer a.n.mu.Unlock()
	list := wire.ImageList{Images: []wire.Image{}, Limit: muster.GiB}
	for _, ref := range a.n.images {
		list.Images = append(list.Images, wire.Image{Ref: ref, Digest: "sha256:" + ref})
	}
	answer(w, http.StatusOK, list)
}

func (a *agent) pull(w http.ResponseWriter, r *http.Request) {
	var p wire.PullImage
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		answer(w, http.StatusBadRequest, wire.Problem{Message: err.Error()})
		return
	}
	a.n.mu.Lock()
	a.n.images = append(a.n.images, p.Ref)
	a.n.mu.Unlock()
	enc := json.NewEncoder(w)
	_ = enc.Encode(wire.PullProgress{Done: 1, Total: 1})
	_ = enc.Encode(wire.PullProgress{Digest: "sha256:" + p.Ref})
}

func (a *agent) prune(w http.ResponseWriter, _ *http.Request) {
	a.n.mu.Lock()
	freed := muster.Bytes(len(a.n.images))
	a.n.images = nil
	a.n.mu.Unlock()
	answer(w, http.StatusOK, wire.Pruned{Freed: freed})
}

func (a *agent) grant(w http.ResponseWriter, r *http.Request) {
	var g wire.PullGrant
	if err := json.NewDecoder(r.Body).Decode(&g); err != nil {
		answer(w, http.StatusBadRequest, wire.Problem{Message: err.Error()})
		return
	}
	a.n.mu.Lock()
	a.n.grants = append(a.n.grants, g)
	a.n.mu.Unlock()
	answer(w, http.StatusOK, struct{}{})
}

// needGrantsLocked are the references that were asked for and not granted yet.
func (n *Node) needGrantsLocked() []string {
	var left []string
	for _, ref := range n.needGrants {
		if !slices.ContainsFunc(n.grants, func(g wire.PullGrant) bool { return wire.GrantNeed(g.Ref, g.Namespace) == ref }) {
			left = append(left, ref)
		}
	}
	return left
}

// NeedGrants makes the agent ask for the right to pull these images until it gets it.
func (n *Node) NeedGrants(refs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.needGrants = append(n.needGrants, refs...)
	if n.agent != nil {
		for r := range n.agent.readers {
			r.poke()
		}
	}
}

// Grants are the rights to pull that the agent was given, in their order.
func (n *Node) Grants() []wire.PullGrant {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.grants)
}
