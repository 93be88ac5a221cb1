package poseidon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/claim"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/explain"
	"github.com/musterhq/muster/internal/httpapi"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/metrics"
	"github.com/musterhq/muster/internal/operate"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/programtest"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/submit"
	"github.com/musterhq/muster/internal/testwait"
	wire "github.com/musterhq/muster/internal/wire/agent"
	initwire "github.com/musterhq/muster/internal/wire/init"
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

// bench is Poseidon's API over a real state, with everything below it played.
type bench struct {
	testing.TB
	p     *Poseidon
	api   *httpapi.API
	state *state.State
	log   *bytes.Buffer
	logMu sync.Mutex

	mu     sync.Mutex
	index  uint64
	made   int
	used   []muster.ClaimID
	inUse  int
	err    error // of the log
	reach  error // of the way to sandboxes
	full   error // of claims
	late   error // of the start
	socket string
	kills  int64
	own    *parts
	wait   time.Duration // of the last claim
	// beforeSet is called before an environment is set, once.
	beforeSet func()
	// whenClaimed is called before a claim is answered.
	whenClaimed func()

	conns sync.WaitGroup
	// host is where it is served, shutdown stops that.
	host     string
	shutdown func()
}

const token = "t0ken-of-the-test"

func (b *bench) Latest() *state.Snapshot { return b.state.Latest() }
func (b *bench) Feed() *state.Feed       { return b.state.Feed() }

func (b *bench) Propose(_ context.Context, f state.Fact) (uint64, any, error) {
	b.mu.Lock()
	if before := b.beforeSet; before != nil {
		if _, is := f.(*state.EnvironmentSet); is {
			b.beforeSet = nil
			b.mu.Unlock()
			before()
			b.mu.Lock()
		}
	}
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, nil, b.err
	}
	raw, err := b.state.Encode(f)
	if err != nil {
		return 0, nil, err
	}
	b.index++
	v := b.state.Apply(b.index, 1, time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC).UnixMicro()+int64(b.index)*1e6, [][]byte{raw})[0]
	if err, ok := v.(error); ok {
		return b.index, nil, err
	}
	return b.index, v, nil
}

func (b *bench) propose(f state.Fact) any {
	b.Helper()
	_, v, err := b.Propose(context.Background(), f)
	if err != nil {
		b.Fatalf("%T: %v", f, err)
	}
	return v
}

// Claim hands out the first warm runner.
func (b *bench) Claim(ctx context.Context, w claim.Request) (*state.Claim, error) {
	b.mu.Lock()
	err := b.full
	b.wait = w.Wait
	b.made++
	id := muster.ClaimID(fmt.Sprintf("c%d", b.made))
	b.mu.Unlock()
	var runner muster.AllocID
	b.state.Latest().Runners(w.UID, muster.RunnerWarm, func(a *state.Alloc) bool { runner = a.ID; return false })
	switch {
	case err != nil:
		return nil, err
	case runner == "":
		return nil, muster.Faultf(muster.FaultCapacity, "no runner is warm")
	}
	_, v, err := b.Propose(ctx, &state.RunnerClaimed{Claim: id, UID: w.UID, Runner: runner, Note: w.Note,
		TTL: muster.Time(w.TTL.Microseconds()), Idle: muster.Time(w.Idle.Microseconds())})
	if err != nil {
		return nil, err
	}
	if b.whenClaimed != nil {
		b.whenClaimed()
	}
	return v.(*state.Claimed).Claim, nil
}

func (b *bench) Use(id muster.ClaimID) func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = append(b.used, id)
	b.inUse++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.inUse--
	}
}

// usedNow is how many uses have not ended.
func (b *bench) usedNow() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inUse
}

func (b *bench) uses() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.used)
}

func (b *bench) Waiting(muster.JobUID) int { return 0 }

func (b *bench) OpenOutput(context.Context, *state.Alloc, string, int64, bool) (io.ReadCloser, int64, error) {
	return nil, 0, muster.Faultf(muster.FaultNotFound, "none")
}

// tunnel ends with its context, as those of the server do.
type tunnel struct {
	*net.UnixConn
	kills  int64
	unhook func() bool
	once   sync.Once
	gone   func()
}

func (t *tunnel) drop() {
	t.once.Do(func() { _ = t.UnixConn.Close(); t.gone() })
}
func (t *tunnel) Close() error            { t.unhook(); t.drop(); return nil }
func (t *tunnel) OOMKills() (int64, bool) { return t.kills, true }

func (b *bench) Tunnel(ctx context.Context, _ *state.Alloc, first []byte) (inside.Conn, error) {
	b.mu.Lock()
	socket, err, kills := b.socket, b.reach, b.kills
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, &muster.Fault{Kind: muster.FaultUnavailable, Err: err}
	}
	b.conns.Add(1)
	t := &tunnel{UnixConn: c.(*net.UnixConn), kills: kills, gone: b.conns.Done}
	t.unhook = context.AfterFunc(ctx, t.drop)
	_, _ = c.Write(first) // whoever does not take it may say why
	return t, nil
}

func (b *bench) AllocStats(context.Context, *state.Alloc) (wire.Stats, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return wire.Stats{OOMKills: b.kills}, b.reach
}

func (b *bench) Images(context.Context, muster.NodeID) (wire.ImageList, error) {
	return wire.ImageList{}, nil
}
func (b *bench) PruneImages(context.Context, muster.NodeID, bool) (wire.Pruned, error) {
	return wire.Pruned{}, nil
}
func (b *bench) PullImage(context.Context, muster.NodeID, string, muster.Namespace) iter.Seq2[wire.PullProgress, error] {
	return func(func(wire.PullProgress, error) bool) {}
}

// Write takes the server's log.
func (b *bench) Write(line []byte) (int, error) {
	b.logMu.Lock()
	defer b.logMu.Unlock()
	return b.log.Write(line)
}

func (b *bench) logged() string {
	b.logMu.Lock()
	defer b.logMu.Unlock()
	return b.log.String()
}

func (b *bench) set(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// parts is what a bench is made of: the configurations of the server's own API and of the services behind both, in one.
type parts struct {
	httpapi.Config
	Proposer state.Proposer
	Blobs    submit.Uploads
	bench    *bench
	stop     func()
	Token    muster.Secret
	NoAuth   bool
	Started  chan struct{}
	Store    inside.Store
	Runners  claim.Runners
	ClaimKey muster.Secret
}

// build makes the services, and the server's own API of them.
func (p *parts) build() (*httpapi.API, error) {
	var err error
	p.Claims, err = claim.New(claim.Config{State: p.State, Proposer: p.Proposer, Clock: p.Clock, Runners: func() claim.Runners { return p.Runners }, Key: p.ClaimKey})
	if err != nil {
		return nil, err
	}
	p.Inside, err = inside.New(inside.Config{
		State: p.State, Clock: p.Clock, Store: p.Store, Claims: p.Claims, Counters: p.Metrics, Stopping: p.Stopping,
		Link: func() (inside.Link, error) { return p.bench, nil },
	})
	if err != nil {
		return nil, err
	}
	p.Submit, err = submit.New(submit.Config{
		State: p.State, Proposer: p.Proposer, Clock: p.Clock, Uploads: p.Blobs, Running: p.Running,
		Fits: func(*api.JobSpec, *state.Snapshot) (bool, string) { return true, "" },
	})
	if err != nil {
		return nil, err
	}
	p.Loops = func() explain.Loops { return operate.Idle{} }
	p.Operate, err = operate.New(operate.Config{State: p.State, Proposer: p.Proposer, Clock: p.Clock, Link: func() (operate.Link, error) { return p.bench, nil }})
	if err != nil {
		return nil, err
	}
	p.Door, err = door.New(door.Config{
		State: p.State, Claims: p.Claims, Token: p.Token, NoAuth: p.NoAuth, Started: p.Started, Requests: p.Metrics, Logger: p.Logger,
		CaughtUp: func() error { p.bench.mu.Lock(); defer p.bench.mu.Unlock(); return p.bench.late },
	})
	if err != nil {
		return nil, err
	}
	return httpapi.New(p.Config)
}

func newBench(t testing.TB, change ...func(*parts, *Config)) *bench {
	t.Helper()
	s, err := state.New(256)
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := blob.New(blob.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{TB: t, state: s, log: &bytes.Buffer{}}
	t.Cleanup(func() { b.conns.Wait(); _ = blobs.Close() })
	stopping, stop := context.WithCancelCause(context.Background())
	own := &parts{Proposer: b, Blobs: blobs, bench: b, stop: func() { stop(problem.ErrStopping) }, Token: muster.NewSecret("t0ken-of-the-server"), Runners: b, Store: blobs, ClaimKey: muster.NewSecret("a key"), Config: httpapi.Config{
		State: b, Stopping: stopping,
		Backup: func(context.Context, io.Writer) error { return nil }, Ready: func() error { return nil },
		Metrics: metrics.New(metrics.Config{State: b, BlobBytes: blobs.Usage, Version: "v-test"}),
		Version: "v-test", Logger: slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}}
	c := Config{Version: "v-test", Token: muster.NewSecret(token), Namespace: "default", Logger: own.Logger}
	for _, f := range change {
		f(own, &c)
	}
	b.own = own
	if b.api, err = own.build(); err != nil {
		t.Fatal(err)
	}
	c.State, c.Door, c.Claims, c.Inside, c.Submit, c.Stopping = b, own.Door, own.Claims, own.Inside, own.Submit, own.Stopping
	if b.p, err = New(c); err != nil {
		t.Fatal(err)
	}
	own.Door.Mount(b.p.Mount())
	b.propose(&state.TermBegan{Term: 1, Cluster: "c1"})
	capacity := muster.Resources{CPU: 64000, Memory: 64 * muster.GiB, Disk: muster.TiB}
	b.propose(&state.NodeLaunching{ID: "n1", Token: "t-n1", Pool: "p", Offering: muster.Offering{Provider: "local", Name: "big", Price: 500_000, Capacity: capacity, Market: muster.OnDemand}})
	b.propose(&state.NodeLaunched{ID: "n1", Instance: "i-n1"})
	b.propose(&state.NodeJoined{ID: "n1", Capacity: capacity, Agent: "v1"})
	return b
}

// reply is what came back.
type reply struct {
	*http.Response
	body string
}

// do asks as a client with the token does; edit may change that.
func (b *bench) do(method, path, body string, edit ...func(*http.Request)) reply {
	b.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req := httptest.NewRequest(method, "http://127.0.0.1:4750/api/v1/"+path, r)
	req.Header.Set("Poseidon-Token", token)
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
	return reply{resp, string(all)}
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// want checks a status, and that an error is one in this API's form.
func (b *bench) want(a reply, status int, code string) message {
	b.Helper()
	if a.StatusCode != status {
		b.Fatalf("got %d %s, want %d", a.StatusCode, a.body, status)
	}
	if status < 400 {
		return message{}
	}
	var m message
	dec := json.NewDecoder(strings.NewReader(a.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil || m.Message == "" || m.ErrorCode != code || (status >= 500) != (m.ErrorCode != "") || a.Header.Get("Content-Type") != "application/json" {
		b.Fatalf("%v in %q (%s), want a message and the code %q", err, a.body, a.Header.Get("Content-Type"), code)
	}
	return m
}

func decoded[T any](b *bench, a reply) (v T) {
	b.Helper()
	dec := json.NewDecoder(strings.NewReader(a.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil || a.StatusCode != 200 {
		b.Fatalf("%d %v in %s", a.StatusCode, err, a.body)
	}
	return v
}

func (b *bench) metrics() string {
	b.Helper()
	req := httptest.NewRequest("GET", "http://127.0.0.1:4750/metrics", nil)
	req.Header.Set("Authorization", "Bearer t0ken-of-the-server")
	rec := httptest.NewRecorder()
	b.api.Handler().ServeHTTP(rec, req)
	if rec.Code != 200 {
		b.Fatalf("%d %s", rec.Code, rec.Body)
	}
	return rec.Body.String()
}

// environ is the body of an environment.
func environ(edit ...func(map[string]any)) string {
	m := map[string]any{"image": "busybox", "prewarmingPoolSize": 2, "cpuLimit": 20, "memoryLimit": 64, "networkAccess": false, "exposedPorts": []int{}}
	for _, e := range edit {
		e(m)
	}
	raw, _ := json.Marshal(m)
	return string(raw)
}

// stocked has environment 7 with so many warm runners; without an image, unless it is contained.
func stocked(t testing.TB, n int, contained bool, change ...func(*parts, *Config)) *bench {
	t.Helper()
	b := newBench(t, change...)
	spec := api.EnvironmentSpec{Name: "7", Template: api.Template{Resources: api.ResourcesSpec{CPU: 0.01, Memory: 1 << 20}}}
	if contained {
		spec.Image = "busybox"
	}
	if _, err := b.own.Submit.SetEnvironment(context.Background(), &api.EnvironmentSetting{Spec: spec}); err != nil {
		t.Fatal(err)
	}
	b.stock("7", n)
	return b
}

func (b *bench) stock(name string, n int) {
	b.Helper()
	j := b.state.Latest().Environment("default", name)
	b.propose(&state.RunnersWanted{UID: j.UID, Count: n, Stock: n, Why: "a test"})
	for i := range n {
		if r := b.propose(&state.PlanCommitted{Placements: []state.Placement{{UID: j.UID, Version: j.Version, Index: i, Attempt: 1, Node: "n1"}}}).(*state.PlanResult); r.Placed != 1 {
			b.Fatalf("not placed: %+v", r.Refused)
		}
		b.propose(&state.AllocsReported{Node: "n1", Allocs: []state.AllocUpdate{{ID: muster.NewAllocID(j.UID, i, 1), Status: muster.AllocRunning}}})
	}
}

// provided is a claimed runner's path.
func (b *bench) provided() string {
	b.Helper()
	r := decoded[runner](b, b.do("POST", "runners", `{"executionEnvironmentId": 7, "inactivityTimeout": 60}`))
	if r.RunnerID == "" || r.MappedPorts == nil {
		b.Fatalf("%+v", r)
	}
	return "runners/" + r.RunnerID
}

// serve runs the API on a real connection.
func (b *bench) serve() *httptest.Server {
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = b.own.Door.Server(b.own.stop)
	srv.Start()
	b.shutdown = func() { _ = srv.Config.Shutdown(context.Background()) }
	b.Cleanup(func() { b.shutdown(); srv.Close() })
	return srv
}

// eventually waits for a condition.
func (b *bench) eventually(what string, cond func() bool) {
	b.Helper()
	testwait.Until(b, what, cond)
}

// startInit has every sandbox be one that a real muster-init keeps; work is where its command started. stop ends it.
func (b *bench) startInit(t testing.TB) (work string, stop func()) {
	t.Helper()
	if initPath == "" {
		t.Skip("muster-init could not be built")
	}
	work = t.TempDir()
	dir, err := os.MkdirTemp("", "init-")
	if err != nil {
		t.Fatal(err)
	}
	b.socket = filepath.Join(dir, initwire.Socket)
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.socket})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	ln.SetUnlinkOnClose(false)
	listener, err := ln.File()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.SetNonblock(int(listener.Fd()), true); err != nil {
		t.Fatal(err)
	}
	record, err := os.Create(filepath.Join(dir, "sandbox"))
	if err != nil {
		t.Fatal(err)
	}
	output, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(initPath)
	cmd.Env = []string{"GOMAXPROCS=1"}
	cmd.Stderr = record
	cmd.ExtraFiles = []*os.File{theirs, listener, record, output}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range cmd.ExtraFiles {
		_ = f.Close()
	}
	stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = initwire.Client{Dir: dir}.Stop(ctx, 0)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = ours.Close()
		_ = os.RemoveAll(dir)
	})
	t.Cleanup(stop)
	start := initwire.Start{Work: work, Command: []string{"sleep", "1000000"}, Env: []string{"PATH=" + os.Getenv("PATH"), "HERE=sandbox", "MUSTER_ALLOC=hidden"}, KillGrace: time.Second, OutputLimit: 1 << 20}
	if err := initwire.WriteFrame(ours, initwire.KindStart, start.Fields()); err != nil {
		t.Fatal(err)
	}
	if kind, fields, err := initwire.ReadFrame(ours, initwire.MaxFrame); err != nil || kind != initwire.KindStarted {
		t.Fatalf("init: %d %q %v", kind, fields, err)
	}
	return work, stop
}
