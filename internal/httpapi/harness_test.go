package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/claim"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/explain"
	"github.com/musterhq/muster/internal/history"
	"github.com/musterhq/muster/internal/images"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/metrics"
	"github.com/musterhq/muster/internal/operate"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/programtest"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/submit"
	"github.com/musterhq/muster/internal/testwait"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// initPath is muster-init, built once; empty if it cannot be built here.
var initPath string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "muster-init-")
	if err == nil {
		initPath, err = programtest.Init(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tests without muster-init:", err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "leaked goroutines:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// log applies facts directly, as a log of one server would.
type log struct {
	state *state.State

	mu    sync.Mutex
	index uint64
	// began is when entry 0 was, if not in a past of its own.
	began time.Time
	err   error // refuses everything, if set
	seen  []state.Fact
}

func (l *log) Propose(_ context.Context, f state.Fact) (uint64, any, error) {
	return l.entry(f)
}

// entry applies several facts in one entry; value and error are the last one's.
func (l *log) entry(facts ...state.Fact) (uint64, any, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return 0, nil, l.err
	}
	var proposals [][]byte
	for _, f := range facts {
		b, err := l.state.Encode(f)
		if err != nil {
			return 0, nil, err
		}
		proposals = append(proposals, b)
	}
	l.seen = append(l.seen, facts...)
	l.index++
	began := l.began
	if began.IsZero() {
		began = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	}
	results := l.state.Apply(l.index, 1, began.UnixMicro()+int64(l.index)*1e6, proposals)
	last := results[len(results)-1]
	if err, ok := last.(error); ok {
		return l.index, nil, err
	}
	return l.index, last, nil
}

func (l *log) refuse(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// bench is an API over a real state, with a door to everything behind it.
type bench struct {
	testing.TB
	api    *API
	parts  *parts
	stop   func()
	log    *log
	state  *state.State
	blobs  *blob.Store
	nodes  *liveNodes
	logged *buffer

	mu    sync.Mutex
	ready error
}

const token = "t0ken-of-the-test"

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// parts is what a bench is made of: the configurations of the API and of the services behind it, in one.
type parts struct {
	Config
	// Of the door.
	Token        muster.Secret
	NoAuth       bool
	AllowedHosts []string
	CaughtUp     func() error
	Started      chan struct{}
	// Of the services.
	Proposer    state.Proposer
	Blobs       submit.Uploads
	UploadLimit int64
	Images      operate.Link
	Insight     operate.Loops
	Check       func(ctx context.Context, name muster.ProviderName, want api.ProviderCheck, say func(step, text string)) error
	Fits        func(*api.JobSpec, *state.Snapshot) (bool, string)
	Runners     claim.Runners
	ClaimKey    muster.Secret
	// Sandboxes reaches into sandboxes, and Output reads what is still on its node.
	Sandboxes      sandboxes
	Output         liveOutput
	Store          inside.Store
	Silence, Fresh time.Duration
}

type sandboxes interface {
	Tunnel(ctx context.Context, a *state.Alloc, first []byte) (inside.Conn, error)
	AllocStats(ctx context.Context, a *state.Alloc) (wire.Stats, error)
}

type liveOutput interface {
	OpenOutput(ctx context.Context, a *state.Alloc, stream string, offset int64, follow bool) (io.ReadCloser, int64, error)
}

// link is what a bench has of one.
type link struct {
	sandboxes
	liveOutput
}

var errNoSandboxes = muster.Faultf(muster.FaultUnavailable, "this server reaches no sandboxes")

type noSandboxes struct{}

func (noSandboxes) Tunnel(context.Context, *state.Alloc, []byte) (inside.Conn, error) {
	return nil, errNoSandboxes
}

func (noSandboxes) AllocStats(context.Context, *state.Alloc) (wire.Stats, error) {
	return wire.Stats{}, errNoSandboxes
}

// build makes the services, and an API of them.
func (p *parts) build() (*API, error) {
	c := claim.Config{State: p.State, Proposer: p.Proposer, Clock: p.Clock, Key: p.ClaimKey}
	if p.Runners != nil {
		c.Runners = func() claim.Runners { return p.Runners }
	}
	var err error
	if p.Claims, err = claim.New(c); err != nil {
		return nil, err
	}
	p.Inside, err = inside.New(inside.Config{
		State: p.State, Clock: p.Clock, Store: p.Store, Claims: p.Claims, Counters: p.Metrics, Stopping: p.Stopping, Silence: p.Silence, Fresh: p.Fresh,
		Link: func() (inside.Link, error) { return link{p.Sandboxes, p.Output}, nil },
	})
	if err != nil {
		return nil, err
	}
	p.Planning = wait.NewTurn()
	if blobs, ok := p.Blobs.(images.Blobs); ok {
		p.Config.Images, err = images.New(images.Config{State: p.State, Proposer: p.Proposer, Clock: p.Clock, Blobs: blobs, Quota: func() int64 { return 1 << 30 }, Dir: os.TempDir()})
		if err != nil {
			return nil, err
		}
	}
	p.Submit, err = submit.New(submit.Config{
		State: p.State, Proposer: p.Proposer, Clock: p.Clock, Uploads: p.Blobs, UploadLimit: p.UploadLimit, Fits: p.Fits, Running: p.Running, Planning: p.Planning,
		Paused: func() string { return p.Insight.Paused() },
	})
	if err != nil {
		return nil, err
	}
	p.Loops = func() explain.Loops { return p.Insight }
	p.History, err = history.New(history.Config{State: p.State, Dir: os.TempDir(), Retention: func() time.Duration { return time.Hour }})
	if err != nil {
		return nil, err
	}
	p.Operate, err = operate.New(operate.Config{
		State: p.State, Proposer: p.Proposer, Clock: p.Clock, Running: p.Running, Check: p.Check, Loops: func() operate.Loops { return p.Insight },
		Link: func() (operate.Link, error) {
			if p.Images == nil {
				return nil, errNoSandboxes
			}
			return p.Images, nil
		},
	})
	if err != nil {
		return nil, err
	}
	if p.Door, err = p.door(); err != nil {
		return nil, err
	}
	return New(p.Config)
}

func (p *parts) door() (*door.Door, error) {
	return door.New(door.Config{
		State: p.State, Claims: p.Claims, Token: p.Token, NoAuth: p.NoAuth, AllowedHosts: p.AllowedHosts, CaughtUp: p.CaughtUp, Started: p.Started,
		Requests: p.Metrics, Logger: p.Logger,
	})
}

// newBench makes one whose feed keeps so many changes; change may adapt the configuration.
func newBench(t testing.TB, feed int, change ...func(*parts)) *bench {
	t.Helper()
	s, err := state.New(feed)
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := blob.New(blob.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = blobs.Close() })
	b := &bench{TB: t, state: s, log: &log{state: s}, blobs: blobs, nodes: &liveNodes{}, logged: &buffer{}}
	stopping, stop := context.WithCancelCause(context.Background())
	b.stop = func() { stop(problem.ErrStopping) }
	c := parts{Proposer: b.log, Blobs: blobs, Insight: operate.Idle{}, Token: muster.NewSecret(token), AllowedHosts: []string{"muster.example.com", "odd.example.com:8080"}, Sandboxes: noSandboxes{}, Output: b.nodes, Store: blobs, Config: Config{
		State: s, Stopping: stopping,
		Backup: func(_ context.Context, w io.Writer) error { _, err := w.Write([]byte("backup\x00")); return err },
		Ready: func() error {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.ready
		},
		Metrics: metrics.New(metrics.Config{State: s, BlobBytes: blobs.Usage, Version: "v-test"}),
		Version: "v-test",
		Logger:  slog.New(slog.NewTextHandler(b.logged, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}}
	c.Fits = func(spec *api.JobSpec, _ *state.Snapshot) (bool, string) {
		return spec.Resources.CPU <= 4, "the largest offering, big, has 4 cores"
	}
	for _, f := range change {
		f(&c)
	}
	b.parts = &c
	if b.api, err = c.build(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.log.entry(&state.TermBegan{Term: 1, Cluster: "c1"}); err != nil {
		t.Fatal(err)
	}
	return b
}

// answer is what came back.
type answer struct {
	*http.Response
	body string
}

// do sends a request as a local client with the token would; edit may change it.
func (b *bench) do(method, path, body string, edit ...func(*http.Request)) answer {
	b.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req := httptest.NewRequest(method, "http://127.0.0.1:4750"+path, r)
	req.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, e := range edit {
		e(req)
	}
	rec := httptest.NewRecorder()
	b.api.Handler().ServeHTTP(rec, req)
	resp := rec.Result()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		b.Fatal(err)
	}
	return answer{resp, string(all)}
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// get asks and decodes what must be a 200.
func get[T any](b *bench, path string) T {
	b.Helper()
	a := b.do("GET", path, "")
	if a.StatusCode != http.StatusOK {
		b.Fatalf("GET %s: %d %s", path, a.StatusCode, a.body)
	}
	return as[T](b, a)
}

func as[T any](b *bench, a answer) T {
	b.Helper()
	var v T
	dec := json.NewDecoder(strings.NewReader(a.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		b.Fatalf("%v in %s", err, a.body)
	}
	return v
}

// problem checks that an answer is a problem in every respect.
func (b *bench) problem(a answer, status int, code string) api.Problem {
	b.Helper()
	if a.StatusCode != status || a.Header.Get("Content-Type") != "application/problem+json" {
		b.Fatalf("got %d %s, want %d\n%s", a.StatusCode, a.Header.Get("Content-Type"), status, a.body)
	}
	p := as[api.Problem](b, a)
	if p.Status != status || p.Title == "" || p.Detail == "" || p.Code != code {
		b.Fatalf("problem %s, want code %q and status %d", a.body, code, status)
	}
	return p
}

// propose commits a fact that must be taken.
func (b *bench) propose(facts ...state.Fact) any {
	b.Helper()
	_, v, err := b.log.entry(facts...)
	if err != nil {
		b.Fatalf("%T: %v", facts[len(facts)-1], err)
	}
	return v
}

// submit makes a job and returns its uid.
func (b *bench) submit(ns, name string, count int) muster.JobUID {
	b.Helper()
	spec := &api.JobSpec{Name: name, Namespace: ns, Count: count, Template: api.Template{Command: []string{"true"}, Resources: api.ResourcesSpec{CPU: 0.001, Memory: 1 << 20}}}
	spec.Defaults()
	sum := sha256.Sum256([]byte(ns + "/" + name))
	v := b.propose(&state.JobSubmitted{
		Key: muster.JobKey{Namespace: muster.Namespace(ns), Name: name}, UID: muster.JobUID("u" + hex.EncodeToString(sum[:4])), Spec: spec,
	})
	return v.(*state.Submitted).UID
}

// node makes a serving one.
func (b *bench) node(id muster.NodeID) {
	b.Helper()
	capacity := muster.Resources{CPU: 64000, Memory: 64 * muster.GiB, Disk: muster.TiB}
	b.propose(
		&state.NodeLaunching{ID: id, Token: muster.Token("t-" + id), Pool: "p", Offering: muster.Offering{Provider: "local", Name: "big", Price: 500_000, Capacity: capacity, Market: muster.OnDemand}},
		&state.NodeLaunched{ID: id, Instance: muster.InstanceID("i-" + id)},
		&state.NodeJoined{ID: id, Capacity: capacity, Agent: "v1"},
	)
}

// place runs members from index first on, so many, on a node.
func (b *bench) place(uid muster.JobUID, node muster.NodeID, first, n int) []muster.AllocID {
	b.Helper()
	f := &state.PlanCommitted{}
	var ids []muster.AllocID
	for i := first; i < first+n; i++ {
		f.Placements = append(f.Placements, state.Placement{UID: uid, Version: 1, Index: i, Attempt: 1, Node: node})
		ids = append(ids, muster.NewAllocID(uid, i, 1))
	}
	if r := b.propose(f).(*state.PlanResult); r.Placed != n {
		b.Fatalf("placed %d of %d: %+v", r.Placed, n, r.Refused)
	}
	return ids
}

func (b *bench) report(node muster.NodeID, u ...state.AllocUpdate) {
	b.Helper()
	if n := b.propose(&state.AllocsReported{Node: node, Allocs: u}); n != len(u) {
		b.Fatalf("%v of %d updates taken", n, len(u))
	}
}

// liveNodes are the agents: streams of output by allocation and stream.
type liveNodes struct {
	mu      sync.Mutex
	streams map[string]*liveStream
	err     error // for everything
	opened  []string
}

// liveStream is a stream that is still being written.
type liveStream struct {
	mu    sync.Mutex
	start int64 // of the oldest byte kept
	bytes []byte
	ended bool
	// breakAfter ends each reader with an error after so many bytes; 0: never.
	breakAfter int
	changed    chan struct{}
}

func (l *liveNodes) stream(id muster.AllocID, name string) *liveStream {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams == nil {
		l.streams = map[string]*liveStream{}
	}
	key := string(id) + "/" + name
	if l.streams[key] == nil {
		l.streams[key] = &liveStream{changed: make(chan struct{})}
	}
	return l.streams[key]
}

func (l *liveNodes) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func (s *liveStream) update(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *liveStream) write(p string) { s.update(func() { s.bytes = append(s.bytes, p...) }) }
func (s *liveStream) end()           { s.update(func() { s.ended = true }) }

func (l *liveNodes) OpenOutput(ctx context.Context, a *state.Alloc, stream string, offset int64, follow bool) (io.ReadCloser, int64, error) {
	l.mu.Lock()
	err := l.err
	s := l.streams[string(a.ID)+"/"+stream]
	l.opened = append(l.opened, fmt.Sprintf("%s/%s@%d", a.ID, stream, offset))
	l.mu.Unlock()
	if err != nil {
		return nil, 0, err
	}
	if s == nil {
		return nil, 0, muster.Faultf(muster.FaultNotFound, "agent: allocation %s: not found", a.ID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	offset = max(offset, s.start)
	return &liveReader{ctx: ctx, s: s, pos: offset, follow: follow, left: s.breakAfter}, offset, nil
}

type liveReader struct {
	ctx    context.Context
	s      *liveStream
	pos    int64
	follow bool
	left   int
}

var errBroke = muster.Faultf(muster.FaultUnavailable, "agent: the connection broke")

func (r *liveReader) Read(p []byte) (int, error) {
	for {
		r.s.mu.Lock()
		end, ended, changed := r.s.start+int64(len(r.s.bytes)), r.s.ended, r.s.changed
		n := 0
		if r.pos < r.s.start {
			r.s.mu.Unlock()
			return 0, errBroke
		}
		if r.pos < end {
			n = copy(p, r.s.bytes[r.pos-r.s.start:])
		}
		limited := r.s.breakAfter > 0
		r.s.mu.Unlock()
		if limited {
			if n = min(n, r.left); n == 0 && r.pos < end {
				return 0, errBroke
			}
			r.left -= n
		}
		if n > 0 {
			r.pos += int64(n)
			return n, nil
		}
		if !r.follow || ended {
			return 0, io.EOF
		}
		select {
		case <-r.ctx.Done():
			return 0, r.ctx.Err()
		case <-changed:
		}
	}
}

func (r *liveReader) Close() error { return nil }

// serve runs the API on a real connection.
func (b *bench) serve() *httptest.Server {
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = b.parts.Door.Server(b.stop)
	srv.Start()
	b.Cleanup(srv.Close)
	return srv
}

// eventually waits for a condition.
func (b *bench) eventually(what string, cond func() bool) {
	b.Helper()
	testwait.Until(b, what, cond)
}

// discard is a ResponseWriter that keeps the headers only.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

var errSecret = errors.New("dial tcp 10.1.2.3: password hunter2 refused")

func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256:" + hex.EncodeToString(sum[:])
}
