package httpapi

import (
	"context"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// inits stands in for the links to nodes: it connects to sockets of inits on this host.
type inits struct {
	mu     sync.Mutex
	socket string // of every sandbox
	err    error
	stats  wire.Stats
	untold bool // tunnels do not say how many were killed before
	images wire.ImageList
	pulls  []wire.PullProgress
	pullAt int // breaks after so many; 0: never
	pruned []bool

	open atomic.Int64 // connections
}

func (i *inits) Tunnel(ctx context.Context, _ *state.Alloc, first []byte) (inside.Conn, error) {
	i.mu.Lock()
	socket, err, kills, told := i.socket, i.err, i.stats.OOMKills, !i.untold
	if !told {
		kills = 0
	}
	i.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, &muster.Fault{Kind: muster.FaultUnavailable, Err: err}
	}
	i.open.Add(1)
	t := &testTunnel{UnixConn: c.(*net.UnixConn), i: i, kills: kills, told: told}
	t.unhook = context.AfterFunc(ctx, func() { t.drop() })
	_, _ = c.Write(first) // whoever does not take it may say why
	return t, nil
}

type testTunnel struct {
	*net.UnixConn
	i      *inits
	kills  int64
	told   bool
	unhook func() bool
	once   sync.Once
}

func (t *testTunnel) OOMKills() (int64, bool) { return t.kills, t.told }

func (t *testTunnel) drop() {
	t.once.Do(func() {
		_ = t.UnixConn.Close()
		t.i.open.Add(-1)
	})
}

func (t *testTunnel) Close() error {
	t.unhook()
	t.drop()
	return nil
}

func (i *inits) AllocStats(context.Context, *state.Alloc) (wire.Stats, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.stats, i.err
}

func (i *inits) Images(context.Context, muster.NodeID) (wire.ImageList, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.images, i.err
}

func (i *inits) PruneImages(_ context.Context, _ muster.NodeID, all bool) (wire.Pruned, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.pruned = append(i.pruned, all)
	return wire.Pruned{Freed: 7}, i.err
}

func (i *inits) PullImage(context.Context, muster.NodeID, string, muster.Namespace) iter.Seq2[wire.PullProgress, error] {
	return func(yield func(wire.PullProgress, error) bool) {
		i.mu.Lock()
		pulls, at, err := i.pulls, i.pullAt, i.err
		i.mu.Unlock()
		if err != nil {
			yield(wire.PullProgress{}, err)
			return
		}
		for n, p := range pulls {
			if at > 0 && n == at {
				yield(wire.PullProgress{}, errBroke)
				return
			}
			if !yield(p, nil) {
				return
			}
		}
	}
}

// inside is a bench with one running allocation whose sandbox has an init.
type insideBench struct {
	*bench
	inits *inits
	srv   *httptest.Server
	id    muster.AllocID
	work  string
	path  string // of the allocation
}

// newInside starts a muster-init of its own for a command that runs until the end of the test.
func newInside(t testing.TB, change ...func(*parts)) *insideBench {
	t.Helper()
	if initPath == "" {
		t.Skip("muster-init could not be built")
	}
	in := prepareInside(t, change...)
	in.work = t.TempDir()
	in.startInit(t)
	return in
}

// prepareInside is without an init: nothing listens on its socket yet.
func prepareInside(t testing.TB, change ...func(*parts)) *insideBench {
	t.Helper()
	i := &inits{}
	b := newBench(t, 1000, append([]func(*parts){func(c *parts) { c.Sandboxes, c.Images = i, i }}, change...)...)
	b.node("n1")
	id := b.place(b.submit("default", "j", 1), "n1", 0, 1)[0]
	b.report("n1", state.AllocUpdate{ID: id, Status: muster.AllocRunning, Started: 1})
	in := &insideBench{bench: b, inits: i, id: id, path: "/v1/allocations/" + string(id)}
	in.srv = b.serve()
	// Registered last, so that it runs first: nothing may be left when clients have gone.
	t.Cleanup(func() {
		b.eventually("every connection to init is closed", func() bool { return i.open.Load() == 0 })
	})
	return in
}

func (in *insideBench) startInit(t testing.TB) {
	t.Helper()
	dir, err := os.MkdirTemp("", "init-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	in.inits.socket = filepath.Join(dir, "s")
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control")
	ln, err := net.Listen("unix", in.inits.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	listener, err := ln.(*net.UnixListener).File()
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
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = initwire.Client{Dir: dir}.Stop(ctx, 0)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = ours.Close()
	})
	// The client looks for the socket by its usual name.
	if err := os.Symlink(in.inits.socket, filepath.Join(dir, initwire.Socket)); err != nil {
		t.Fatal(err)
	}
	start := initwire.Start{Work: in.work, Command: []string{"sleep", "1000000"}, Env: []string{"PATH=" + os.Getenv("PATH"), "HERE=sandbox"}, KillGrace: time.Second, OutputLimit: 1 << 20}
	if err := initwire.WriteFrame(ours, initwire.KindStart, start.Fields()); err != nil {
		t.Fatal(err)
	}
	kind, fields, err := initwire.ReadFrame(ours, initwire.MaxFrame)
	if err != nil || kind != initwire.KindStarted {
		b, _ := os.ReadFile(record.Name())
		t.Fatalf("init: %d %q %v\n%s", kind, fields, err, b)
	}
}

// playInit lets a function answer each connection in init's place.
func (in *insideBench) playInit(t testing.TB, play func(conn *net.UnixConn, kind initwire.Kind, fields []byte)) {
	t.Helper()
	dir, err := os.MkdirTemp("", "init-")
	if err != nil {
		t.Fatal(err)
	}
	in.inits.socket = filepath.Join(dir, "s")
	ln, err := net.Listen("unix", in.inits.socket)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				kind, fields, err := initwire.ReadFrame(c, initwire.MaxStart)
				if err == nil {
					play(c.(*net.UnixConn), kind, fields)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		wg.Wait()
		_ = os.RemoveAll(dir)
	})
}

func TestSandboxesThatCannotBeEntered(t *testing.T) {
	in := prepareInside(t)
	ask := func(method, path, body string) answer {
		return in.do(method, in.path+path, body)
	}
	paths := []struct{ method, path, body string }{
		{"POST", "/exec", `{"command":["true"]}`},
		{"GET", "/executions", ""}, {"GET", "/executions/e", ""}, {"POST", "/executions/e/signal", `{"signal":"TERM"}`},
		{"GET", "/files?path=/", ""}, {"GET", "/files/stat?path=/", ""}, {"GET", "/files/content?path=/a", ""}, {"HEAD", "/files/content?path=/a", ""},
		{"DELETE", "/files?path=/a", ""}, {"POST", "/files/directory?path=/a", ""}, {"GET", "/files/archive?path=/a", ""},
		{"GET", "/ports", ""}, {"GET", "/stats", ""},
	}
	for _, x := range []struct {
		err    error
		status int
		code   string
		says   string
	}{
		{muster.Faultf(muster.FaultConflict, "allocation a is starting on node n1: pulling"), 409, api.CodeNotRunning, "pulling"},
		{muster.Faultf(muster.FaultTooOld, "allocation a has ended: succeeded"), 410, api.CodeEnded, "succeeded"},
		{muster.Faultf(muster.FaultUnavailable, "node n1 cannot be reached"), 503, "unavailable", "n1"},
	} {
		in.inits.err = x.err
		for _, p := range paths {
			a := ask(p.method, p.path, p.body)
			if p.method == "HEAD" {
				if a.StatusCode != x.status {
					t.Errorf("%s %s: %d", p.method, p.path, a.StatusCode)
				}
				continue
			}
			if p := in.problem(a, x.status, x.code); !strings.Contains(p.Detail, x.says) {
				t.Errorf("%+v", p)
			}
		}
		for _, p := range []string{"/exec", "/ports/80"} {
			_, a, err := in.dial(t, p)
			if err == nil || a == nil || a.StatusCode != x.status {
				t.Errorf("%s: %v %v", p, a, err)
			}
		}
	}
	in.inits.err = nil
	for _, p := range paths {
		if p.method != "HEAD" && p.path != "/stats" {
			in.problem(ask(p.method, p.path, p.body), 503, "unavailable") // nothing listens
		}
		a := in.do(p.method, "/v1/allocations/none"+p.path, p.body)
		if a.StatusCode != 404 {
			t.Errorf("%s %s of none: %d", p.method, p.path, a.StatusCode)
		}
	}
	// Without an upgrade there is no socket, and without a server that reaches nodes there is nothing.
	for _, p := range []string{"/exec", "/ports/80"} {
		a := ask("GET", p, "")
		in.problem(a, http.StatusUpgradeRequired, "invalid")
		if a.Header.Get("Upgrade") != "websocket" {
			t.Errorf("%s: %v", p, a.Header)
		}
	}
	b := newBench(t, 10)
	b.node("n1")
	id := b.place(b.submit("default", "j", 1), "n1", 0, 1)[0]
	b.problem(b.do("GET", "/v1/allocations/"+string(id)+"/ports", ""), 503, "unavailable")
	b.problem(b.do("GET", "/v1/nodes/n1/images", ""), 503, "unavailable")
}

// TestInitThatLies: what comes from untrusted ground is bounded, and ends in a sentence.
func TestInitThatLies(t *testing.T) {
	in := prepareInside(t)
	var play func(conn *net.UnixConn, kind initwire.Kind, fields []byte)
	in.playInit(t, func(c *net.UnixConn, kind initwire.Kind, fields []byte) { play(c, kind, fields) })
	raw := func(b string) func(*net.UnixConn, initwire.Kind, []byte) {
		return func(c *net.UnixConn, _ initwire.Kind, _ []byte) { _, _ = io.WriteString(c, b) }
	}
	for name, p := range map[string]func(*net.UnixConn, initwire.Kind, []byte){
		"closes":       raw(""),
		"cut short":    raw("\x00\x00"),
		"absurd frame": raw("\xff\xff\xff\xff\xa0"),
		"other kind":   raw("\x00\x00\x00\x01\x01"),
		"bad fields":   raw("\x00\x00\x00\x04\xa0\x01\xff\xff"),
	} {
		play = p
		for _, ask := range []struct{ method, path, body string }{
			{"POST", "/exec", `{"command":["true"]}`}, {"GET", "/executions", ""}, {"POST", "/executions/e/signal", `{"signal":"9"}`},
			{"GET", "/files?path=/", ""}, {"GET", "/files/stat?path=/", ""}, {"GET", "/files/content?path=/a", ""},
			{"DELETE", "/files?path=/a", ""}, {"POST", "/files/directory?path=/a", ""}, {"GET", "/files/archive?path=/a", ""}, {"GET", "/ports", ""},
		} {
			a := in.do(ask.method, in.path+ask.path, ask.body)
			if a.StatusCode != 502 {
				t.Errorf("%s: %s %s: %d %s", name, ask.method, ask.path, a.StatusCode, a.body)
			}
		}
		if _, a, err := in.dial(t, "/ports/80"); err == nil || a == nil || a.StatusCode != 502 {
			t.Errorf("%s: port: %v %v", name, a, err)
		}
	}
	// Words of init reach nobody's terminal as they are.
	play = func(c *net.UnixConn, _ initwire.Kind, _ []byte) {
		_ = initwire.WriteFrame(c, initwire.KindFailed, (&initwire.Failed{Class: "user", Reason: "spec", Message: "\x1b[2Jred" + strings.Repeat("x", 5000)}).Fields())
	}
	p := in.problem(in.do("POST", in.path+"/exec", `{"command":["true"]}`), 422, "invalid")
	if strings.ContainsRune(p.Detail, 0x1b) || len(p.Detail) > 2000 || !strings.Contains(p.Detail, "red") {
		t.Errorf("%q", p.Detail)
	}
	// An end that cannot be true is made one that can.
	play = func(c *net.UnixConn, _ initwire.Kind, _ []byte) {
		_ = initwire.WriteFrame(c, initwire.KindExecStarted, (&initwire.ExecStarted{ID: "x"}).Fields())
		_ = initwire.WriteFrame(c, initwire.KindExecEnded, (&initwire.ExecEnded{Exit: 1 << 40, Signal: -5, Started: -1, Ended: 1 << 62}).Fields())
	}
	r := as[api.ExecResult](in.bench, in.do("POST", in.path+"/exec", `{"command":["true"]}`))
	if r.ExitCode != 0 || r.Signal != "" {
		t.Errorf("%+v", r)
	}
	// Endless names are cut off, endless output is not kept.
	play = func(c *net.UnixConn, kind initwire.Kind, _ []byte) {
		if kind == initwire.KindFileList {
			e := (&initwire.FileEntry{Path: "/" + strings.Repeat("p", 4000), Name: "n"}).Fields()
			for initwire.WriteFrame(c, initwire.KindFileEntry, e) == nil {
			}
			return
		}
		_ = initwire.WriteFrame(c, initwire.KindExecStarted, (&initwire.ExecStarted{ID: "x"}).Fields())
		for range 100 {
			_ = initwire.WriteFrame(c, initwire.KindStdout, make([]byte, 60<<10))
		}
		_ = initwire.WriteFrame(c, initwire.KindExecEnded, nil)
	}
	list := as[api.FileList](in.bench, in.do("GET", in.path+"/files?path=/&limit=10000", ""))
	if !list.More || len(list.Entries) > 5000 {
		t.Errorf("%d entries, more %v", len(list.Entries), list.More)
	}
	r = as[api.ExecResult](in.bench, in.do("POST", in.path+"/exec", `{"command":["true"]}`))
	if !r.Truncated || len(r.Stdout) != api.ExecMaxOutput {
		t.Errorf("%d %v", len(r.Stdout), r.Truncated)
	}
}

// TestEndedMeanwhile: a connection that breaks because the allocation has ended says so.
func TestEndedMeanwhile(t *testing.T) {
	in := prepareInside(t)
	in.playInit(t, func(*net.UnixConn, initwire.Kind, []byte) {
		in.report("n1", state.AllocUpdate{ID: in.id, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded, Started: 1, Ended: 2})
	})
	in.problem(in.do("POST", in.path+"/exec", `{"command":["true"]}`), 410, api.CodeEnded)
}

func TestStats(t *testing.T) {
	in := prepareInside(t)
	in.inits.stats = wire.Stats{At: muster.At(time.Unix(1000, 0)), CPUMicros: 1_500_000, Memory: 5 * muster.MiB, Pids: 3, Disk: 9}
	s := get[api.AllocStats](in.bench, in.path+"/stats")
	if s.CPUSeconds != 1.5 || s.Memory != 5<<20 || s.MemoryMax != 1<<20 || s.CPU != 0.001 || s.Pids != 3 || s.Disk != 9 || !s.At.Equal(time.Unix(1000, 0)) {
		t.Errorf("%+v", s)
	}
}

func TestImages(t *testing.T) {
	in := prepareInside(t)
	in.inits.images = wire.ImageList{Images: []wire.Image{{Ref: "a:b", Digest: "sha256:0", Size: 5, Layers: 2, InUse: 1, LastUsed: 1e6}}, UsedBytes: 5, Limit: 10}
	l := get[api.ImageList](in.bench, "/v1/nodes/n1/images")
	if len(l.Images) != 1 || l.Images[0].Ref != "a:b" || l.Images[0].Size != 5 || l.Images[0].InUse != 1 || l.Used != 5 || l.Limit != 10 {
		t.Errorf("%+v", l)
	}
	in.problem(in.do("GET", "/v1/nodes/none/images", ""), 404, "not-found")
	p := as[api.ImagesPruned](in.bench, in.do("POST", "/v1/nodes/n1/images/prune?all=true", ""))
	if p.Freed != 7 || len(in.inits.pruned) != 1 || !in.inits.pruned[0] {
		t.Errorf("%+v %v", p, in.inits.pruned)
	}

	pull := func(body string) (string, int) {
		a := in.do("POST", "/v1/nodes/n1/images", body)
		return a.body, a.StatusCode
	}
	for _, bad := range []string{`{"ref":""}`, `{}`, `{"reff":"a"}`} {
		if body, status := pull(bad); status != 422 {
			t.Errorf("%s: %d %s", bad, status, body)
		}
	}
	in.inits.pulls = []wire.PullProgress{{Done: 1, Total: 2, Layers: 1}, {Digest: "sha256:1"}}
	if body, status := pull(`{"ref":"a"}`); status != 200 || body != "{\"done\":1,\"total\":2,\"layers\":1}\n{\"digest\":\"sha256:1\"}\n" {
		t.Errorf("%d %s", status, body)
	}
	in.inits.pulls[1] = wire.PullProgress{Failure: &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonImageNotFound, Message: "image a: not found"}}
	if body, _ := pull(`{"ref":"a"}`); !strings.Contains(body, `"code":"image-not-found"`) {
		t.Error(body)
	}
	in.inits.pullAt = 1
	if body, _ := pull(`{"ref":"a"}`); !strings.Contains(body, `"code":"unavailable"`) || strings.Count(body, "\n") != 2 {
		t.Error(body)
	}
	in.inits.err = errBroke
	if body, status := pull(`{"ref":"a"}`); status != 503 {
		t.Errorf("%d %s", status, body)
	}
}
