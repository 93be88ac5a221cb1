package linktest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// agent is one life of a node's agent. It is its own listener.
type agent struct {
	n      *Node
	run    string
	http   *http.Server
	conns  chan net.Conn
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once
	ended  chan struct{}

	// guarded by Node.mu
	readers map[*reader]struct{}
	open    []net.Conn
	seq     uint64
}

// reader is one stream of reports.
type reader struct {
	wake chan struct{}
	// guarded by Node.mu
	dirty map[muster.AllocID]bool
	beat  bool
}

func (r *reader) poke() {
	wait.Poke(r.wake)
}

// Accept is net.Listener's.
func (a *agent) Accept() (net.Conn, error) {
	select {
	case c := <-a.conns:
		a.n.mu.Lock()
		a.open = append(a.open, c)
		a.n.mu.Unlock()
		return c, nil
	case <-a.ended:
		return nil, net.ErrClosed
	}
}

// Close is net.Listener's.
func (a *agent) Close() error {
	a.once.Do(func() { close(a.ended) })
	return nil
}

// Addr is net.Listener's.
func (a *agent) Addr() net.Addr { return &net.UnixAddr{Name: string(a.n.cfg.ID), Net: "unix"} }

func (a *agent) stop() {
	_ = a.Close()
	a.cancel()
	_ = a.http.Close()
	a.hangUp()
}

// hangUp breaks every connection.
func (a *agent) hangUp() {
	a.n.mu.Lock()
	open := a.open
	a.open = nil
	a.n.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

func (a *agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/agent", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.hello()) })
	mux.HandleFunc("PUT /v1/desired", a.desired)
	mux.HandleFunc("GET /v1/reports", a.reports)
	mux.HandleFunc("GET /v1/allocs/{id}/output/{stream}", a.unless(a.output))
	mux.HandleFunc("GET /v1/allocs/{id}/outputs/{n}", a.unless(a.outputs))
	mux.HandleFunc("PUT /v1/inputs/{digest}", a.input)
	mux.HandleFunc("POST /v1/probe", a.probe)
	a.insideRoutes(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hung := a.state()
		if hung != nil {
			select {
			case <-hung:
			case <-r.Context().Done():
				return // which looks like a good answer without a body: no server should fall for it
			}
			a.state()
		}
		mux.ServeHTTP(w, r)
	})
}

// state is whether the agent hangs. A request that came by a connection that is about to break ends here.
func (a *agent) state() (hung chan struct{}) {
	a.n.mu.Lock()
	hung, gone := a.n.hung, a.n.cut || a.n.destroyed || a.n.agent != a
	a.n.mu.Unlock()
	if gone {
		panic(http.ErrAbortHandler)
	}
	return hung
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (a *agent) hello() wire.Hello {
	n := a.n
	n.mu.Lock()
	defer n.mu.Unlock()
	h := wire.Hello{
		Node: n.cfg.ID, Protocol: wire.Protocol, Version: n.cfg.Version, Run: a.run, Pid: n.boots, Fence: n.fence,
		Capacity: n.cfg.Capacity, Attributes: n.cfg.Attributes, Runtimes: n.runtimes, Problems: n.problems, Allocs: len(n.sandboxes),
		TakesImages: true,
	}
	if n.cfg.LieHello != nil {
		n.cfg.LieHello(&h)
	}
	return h
}

func (a *agent) desired(w http.ResponseWriter, r *http.Request) {
	var d wire.Desired
	if err := json.NewDecoder(r.Body).Decode(&d); err != nil {
		answer(w, http.StatusBadRequest, wire.Problem{Message: err.Error()})
		return
	}
	out, refusal := a.obey(&d)
	if refusal != nil {
		answer(w, http.StatusConflict, refusal)
		return
	}
	answer(w, http.StatusOK, out)
}

func (a *agent) obey(d *wire.Desired) (out wire.DesiredAnswer, refusal *wire.Refusal) {
	n := a.n
	n.mu.Lock()
	defer n.mu.Unlock()
	refuse := func(code, why string) (wire.DesiredAnswer, *wire.Refusal) {
		return out, &wire.Refusal{Code: code, Message: why, Fence: n.fence}
	}
	switch {
	case n.agent != a:
		return refuse(wire.RefusedFence, "the agent has ended")
	case n.fence.Cluster != "" && d.Fence.Cluster != n.fence.Cluster:
		return refuse(wire.RefusedCluster, fmt.Sprintf("this node obeys cluster %s", n.fence.Cluster))
	case d.Fence.Compare(n.fence) < 0:
		return refuse(wire.RefusedFence, fmt.Sprintf("sent %s, obeyed %s", d.Fence, n.fence))
	case n.massStopLocked(d):
		return refuse(wire.RefusedMassStop, "the set would stop more than half")
	}
	n.fence = d.Fence
	n.sets = append(n.sets, *d)
	n.guardLocked(d)
	out.Tick = n.tickLocked()
	for _, want := range d.Allocs {
		b := n.sandboxes[want.ID]
		switch {
		case b != nil:
		case n.forgotten[want.ID]:
			out.Forgotten = append(out.Forgotten, want.ID)
			continue
		case want.Spec == nil:
			out.Unknown = append(out.Unknown, want.ID)
			continue
		default:
			b = newSandbox(n, want.ID, want.Spec)
			n.sandboxes[want.ID] = b
			n.wg.Go(b.run)
		}
		if want.Desired == muster.AllocStop {
			b.ask()
		}
	}
	for _, id := range d.Forget {
		b := n.sandboxes[id]
		if b != nil && b.report.Status != muster.AllocEnded {
			out.NotEnded = append(out.NotEnded, id)
			continue
		}
		n.forgotten[id] = true
		delete(n.sandboxes, id)
	}
	return out, nil
}

func (n *Node) massStopLocked(d *wire.Desired) bool {
	running, stops, unnamed := 0, 0, 0
	for _, b := range n.sandboxes {
		if b.report.Status == muster.AllocRunning {
			running++
		}
	}
	for _, want := range d.Allocs {
		if b := n.sandboxes[want.ID]; want.Desired == muster.AllocStop && b != nil && b.report.Status == muster.AllocRunning {
			stops++
			if !slices.Contains(d.Named, want.ID) {
				unnamed++
			}
		}
	}
	return running >= 5 && 2*stops > running && unnamed > 0
}

func (a *agent) reports(w http.ResponseWriter, req *http.Request) {
	rd := &reader{wake: make(chan struct{}, 1), dirty: map[muster.AllocID]bool{}}
	a.n.mu.Lock()
	a.readers[rd] = struct{}{}
	a.n.mu.Unlock()
	defer func() {
		a.n.mu.Lock()
		delete(a.readers, rd)
		a.n.mu.Unlock()
	}()
	enc := json.NewEncoder(w)
	send := func(whole bool) (err error) {
		if raw := a.n.cfg.RawReport; len(raw) > 0 {
			_, err = w.Write(raw)
			return err
		}
		return enc.Encode(a.next(rd, whole))
	}
	for whole := true; ; whole = false {
		if send(whole) != nil || http.NewResponseController(w).Flush() != nil {
			return
		}
		if a.n.cfg.Flood {
			continue
		}
		select {
		case <-req.Context().Done():
			return
		case <-rd.wake:
		}
	}
}

func (a *agent) next(rd *reader, whole bool) wire.Report {
	n := a.n
	n.mu.Lock()
	defer n.mu.Unlock()
	a.seq++
	r := wire.Report{Run: a.run, Seq: a.seq, Whole: whole, Needs: n.needsLocked(), NeedGrants: n.needGrantsLocked()}
	for id, b := range n.sandboxes {
		if b.report.Status != "" && (whole || rd.dirty[id]) {
			r.Allocs = append(r.Allocs, b.reportLocked())
		}
	}
	slices.SortFunc(r.Allocs, func(x, y wire.AllocReport) int {
		if x.ID < y.ID {
			return -1
		}
		return 1
	})
	if whole || rd.beat {
		r.Used = &wire.Usage{Memory: muster.Bytes(len(n.sandboxes)) * muster.MiB}
		r.FreeDisk = 1 << 40
		condition, images := n.condition, append([]string{}, n.images...)
		r.Condition, r.Images = &condition, &images
	}
	clear(rd.dirty)
	rd.beat = false
	if n.cfg.LieReport != nil {
		n.cfg.LieReport(&r)
	}
	return r
}

// probe answers as the test said.
func (a *agent) probe(w http.ResponseWriter, r *http.Request) {
	n := a.n
	var p wire.Probe
	_ = json.NewDecoder(r.Body).Decode(&p)
	n.mu.Lock()
	n.probed = append(n.probed, now())
	got := wire.ProbeAnswer{Ready: true}
	switch {
	case p.Now != 0 && now().Sub(p.Now).Abs() > time.Minute:
		got = wire.ProbeAnswer{Why: "its clock is off the server's"}
	case len(n.answers) > 0:
		got = n.answers[0]
		n.answers = n.answers[1:]
	case n.condition.Broken != "":
		got = wire.ProbeAnswer{Why: n.condition.Broken, Broken: true}
	case n.condition.Unready != "":
		got = wire.ProbeAnswer{Why: n.condition.Unready}
	}
	takes := n.probeTakes
	n.mu.Unlock()
	if slow, ok := strings.CutPrefix(got.Why, "slow "); ok {
		took, _ := time.ParseDuration(slow)
		if !wait.For(r.Context(), took) {
			return
		}
		got = wire.ProbeAnswer{Ready: true}
	}
	if got.Why == "hang" {
		<-r.Context().Done()
		return
	}
	if takes > 0 {
		if !wait.For(r.Context(), takes) {
			return
		}
	}
	answer(w, http.StatusOK, got)
}

// beat makes every reader send what runs, often enough to be believed alive.
func (a *agent) beat() {
	tick := time.NewTicker(wire.HeartbeatMillis * 4 / 5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-a.ended:
			return
		case <-tick.C:
		}
		n := a.n
		n.mu.Lock()
		for rd := range a.readers {
			for id, b := range n.sandboxes {
				if b.report.Status == muster.AllocRunning {
					rd.dirty[id] = true
				}
			}
			rd.beat = true
			rd.poke()
		}
		n.mu.Unlock()
	}
}

func (a *agent) output(w http.ResponseWriter, r *http.Request) {
	n := a.n
	offset, _ := strconv.ParseInt(r.URL.Query().Get("offset"), 10, 64)
	follow := r.URL.Query().Get("follow") == "true"
	n.mu.Lock()
	b := n.sandboxes[muster.AllocID(r.PathValue("id"))]
	n.mu.Unlock()
	if b == nil {
		answer(w, http.StatusNotFound, wire.Problem{Message: "allocation " + r.PathValue("id") + " is not on this node"})
		return
	}
	for first := true; ; first = false {
		n.mu.Lock()
		start, data := b.readLocked(r.PathValue("stream"), offset)
		final, grown := b.report.Status == muster.AllocEnded, b.grown
		n.mu.Unlock()
		if first {
			if start > offset {
				w.Header().Set(wire.HeaderOutputStart, strconv.FormatInt(start, 10))
			}
			if final {
				w.Header().Set(wire.HeaderOutputFinal, "true")
			}
		}
		if _, err := w.Write(data); err != nil || http.NewResponseController(w).Flush() != nil {
			return
		}
		offset = start + int64(len(data))
		if final || !follow {
			return
		}
		select {
		case <-grown:
		case <-r.Context().Done():
			return
		case <-a.ended:
			panic(http.ErrAbortHandler)
		}
	}
}

func (a *agent) outputs(w http.ResponseWriter, r *http.Request) {
	k, _ := strconv.Atoi(r.PathValue("n"))
	a.n.mu.Lock()
	b := a.n.sandboxes[muster.AllocID(r.PathValue("id"))]
	var data []byte
	if b != nil && k < len(b.files) {
		data = b.files[k]
	}
	a.n.mu.Unlock()
	if data == nil {
		answer(w, http.StatusNotFound, wire.Problem{Message: "no such output"})
		return
	}
	_, _ = w.Write(data)
}

func (a *agent) input(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(r.Body)
	sum := sha256.Sum256(data)
	if err != nil || "sha256:"+hex.EncodeToString(sum[:]) != r.PathValue("digest") {
		answer(w, http.StatusUnprocessableEntity, wire.Problem{Message: "the digest is another one"})
		return
	}
	n := a.n
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inputs[r.PathValue("digest")] = data
	for _, b := range n.sandboxes {
		b.growLocked()
	}
	answer(w, http.StatusOK, struct{}{})
}
