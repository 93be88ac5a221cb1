package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// played is a runtime whose commands are played by goroutines of the test. It
// outlives agents, as processes do. The first word of a command says how it behaves:
//
//	exit CODE    ends at once
//	wait         until it is stopped
//	hold         until the test ends it
//	refuse       cannot start
//	make PATH…   makes files in the work directory, then exits 0
type played struct {
	name string

	mu      sync.Mutex
	boxes   map[string]*playedBox
	starts  map[muster.AllocID]int
	configs map[muster.AllocID]contract.SandboxConfig
	removed []string
	// attachErr, if set, is what Attach says.
	attachErr error
	// onStart, if set, runs inside Start.
	onStart func(contract.SandboxConfig)
	// warm: nothing can be frozen.
	warm bool
	// isolation is what it says of itself.
	isolation muster.Isolation
	// init, if set, is what answers in sandboxes; else everything comes back.
	init func(net.Conn)
	// ahead is how far the node's clock was set ahead after sandboxes were started.
	ahead time.Duration
	// local: what leads to inits are sockets of this machine.
	local bool
}

func (p *played) Isolation() muster.Isolation { return p.isolation }

func newPlayed() *played {
	return &played{name: "played", boxes: map[string]*playedBox{}, starts: map[muster.AllocID]int{}, configs: map[muster.AllocID]contract.SandboxConfig{}}
}

type playedBox struct {
	rt     *played
	id     muster.AllocID
	start  time.Time
	done   chan struct{}
	result contract.Result
	graces []time.Duration
	usage  contract.Usage
	out    map[string]*playedLog
	closed int
	frozen bool
	// frosts is what was done to it.
	frosts []string
}

func (p *played) Name() string                { return p.name }
func (p *played) Check(context.Context) error { return nil }

func (p *played) Start(_ context.Context, c contract.SandboxConfig) (contract.Sandbox, error) {
	if p.onStart != nil {
		p.onStart(c)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.starts[c.ID]++
	p.configs[c.ID] = c
	if c.Command[0] == "refuse" {
		return nil, &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonCommandNotFound, Message: "refuse: not found"}
	}
	b := &playedBox{rt: p, id: c.ID, start: time.Now(), done: make(chan struct{}),
		out: map[string]*playedLog{wire.Stdout: {}, wire.Stderr: {}}}
	p.boxes[c.Dir] = b
	switch c.Command[0] {
	case "exit":
		code := int(c.Command[1][0] - '0')
		r := contract.Result{ExitCode: code}
		if code != 0 {
			r.Failure = &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonExit, Message: "exit code " + c.Command[1]}
		}
		b.endLocked(r)
	case "make":
		for _, path := range c.Command[1:] {
			path = filepath.Join(c.Work, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return nil, err
			}
			if err := os.WriteFile(path, []byte("made "+filepath.Base(path)), 0o640); err != nil {
				return nil, err
			}
		}
		b.endLocked(contract.Result{})
	}
	return b, nil
}

func (p *played) Attach(_ context.Context, dir string) (contract.Sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.attachErr != nil {
		return nil, p.attachErr
	}
	if b := p.boxes[dir]; b != nil {
		return b, nil
	}
	return nil, contract.ErrNoSandbox
}

func (p *played) Remove(_ context.Context, dir string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.boxes[dir]; b != nil {
		b.endLocked(contract.Result{Signal: "SIGKILL"})
		delete(p.boxes, dir)
	}
	p.removed = append(p.removed, dir)
	return nil
}

// box is the sandbox of an allocation once it was started.
func (p *played) box(id muster.AllocID) *playedBox {
	p.mu.Lock()
	defer p.mu.Unlock()
	for dir, b := range p.boxes {
		if filepath.Base(dir) == string(id) {
			return b
		}
	}
	return nil
}

func (p *played) started(id muster.AllocID) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts[id]
}

func (p *played) config(id muster.AllocID) contract.SandboxConfig {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.configs[id]
}

func (b *playedBox) endLocked(r contract.Result) {
	select {
	case <-b.done:
		return
	default:
	}
	r.Started, r.Ended = b.start, time.Now()
	b.result = r
	close(b.done)
}

func (b *playedBox) end(r contract.Result) {
	b.rt.mu.Lock()
	defer b.rt.mu.Unlock()
	b.endLocked(r)
}

func (b *playedBox) stopGraces() []time.Duration {
	b.rt.mu.Lock()
	defer b.rt.mu.Unlock()
	return b.graces
}

func (b *playedBox) Done() <-chan struct{}   { return b.done }
func (b *playedBox) Result() contract.Result { return b.result }
func (b *playedBox) Started() time.Time      { return b.start.Add(-b.rt.ahead).Round(0) }
func (b *playedBox) Stop(grace time.Duration) {
	b.rt.mu.Lock()
	defer b.rt.mu.Unlock()
	b.graces = append(b.graces, grace)
	if b.rt.configs[b.id].Command[0] == "wait" {
		b.endLocked(contract.Result{Signal: "SIGTERM", Stopped: true})
	}
}
func (b *playedBox) Freeze(context.Context) error {
	b.rt.mu.Lock()
	defer b.rt.mu.Unlock()
	if b.rt.warm {
		return contract.ErrNoFreezer
	}
	b.frozen = true
	b.frosts = append(b.frosts, "freeze")
	return nil
}

func (b *playedBox) Thaw() error {
	b.rt.mu.Lock()
	defer b.rt.mu.Unlock()
	if b.frozen {
		b.frosts = append(b.frosts, "thaw")
	}
	b.frozen = false
	return nil
}

func (b *playedBox) Frozen() bool {
	b.rt.mu.Lock()
	defer b.rt.mu.Unlock()
	return b.frozen
}

func (b *playedBox) Usage() contract.Usage {
	b.rt.mu.Lock()
	defer b.rt.mu.Unlock()
	return b.usage
}

func (b *playedBox) OOMKills() int64 { return b.Usage().OOMKills }

// Init is the far end of a pipe on which everything comes back.
func socketPair() (here, there net.Conn, err error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var ends [2]net.Conn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "")
		var ferr error
		ends[i], ferr = net.FileConn(f)
		_ = f.Close()
		err = errors.Join(err, ferr)
	}
	return ends[0], ends[1], err
}

func (b *playedBox) Init(context.Context) (net.Conn, error) {
	select {
	case <-b.done:
		return nil, contract.ErrNoSandbox
	default:
	}
	here, there := net.Pipe()
	if b.rt.local {
		var err error
		if here, there, err = socketPair(); err != nil {
			return nil, err
		}
	}
	if b.rt.init != nil {
		go b.rt.init(there)
		return here, nil
	}
	go func() {
		_, _ = io.Copy(there, there)
		_ = there.Close()
	}()
	return here, nil
}

func (b *playedBox) Output(stream string) contract.OutputLog { return b.out[stream] }
func (b *playedBox) Close() error {
	b.rt.mu.Lock()
	defer b.rt.mu.Unlock()
	b.closed++
	return nil
}

// playedLog keeps at most limit bytes.
type playedLog struct {
	mu    sync.Mutex
	start int64
	buf   []byte
	limit int
}

func (l *playedLog) write(p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if l.limit > 0 && len(l.buf) > l.limit {
		drop := len(l.buf) - l.limit
		l.buf = l.buf[drop:]
		l.start += int64(drop)
	}
}

func (l *playedLog) Bounds() (int64, int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start, l.start + int64(len(l.buf)), nil
}

func (l *playedLog) ReadAt(p []byte, offset int64) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset < l.start {
		return 0, contract.ErrOutputDropped
	}
	if offset >= l.start+int64(len(l.buf)) {
		return 0, io.EOF
	}
	return copy(p, l.buf[offset-l.start:]), nil
}

// rig is a running agent with a client.
type rig struct {
	t      *testing.T
	dir    string
	rt     *played
	client *wire.Client
	agent  *Agent
	log    *syncBuffer
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // of Run, after ended
	index  uint64
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// newRig starts an agent in a directory (a new one if empty) with a runtime.
func newRig(t *testing.T, rt *played, dir string, change ...func(*Config)) *rig {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	r := &rig{t: t, dir: dir, rt: rt, log: &syncBuffer{}, ended: make(chan struct{}), index: 100}
	cfg := Config{Dir: dir, Node: "n1", Capacity: muster.Resources{CPU: 2000}, Runtimes: []contract.Runtime{rt},
		Logger: slog.New(slog.NewTextHandler(r.log, nil)), Version: "v-test"}
	for _, f := range change {
		f(&cfg)
	}
	dial := journal.Dialer(dir)
	if p, ok := cfg.Listener.(*pipes); ok {
		dial = p.dial
	}
	var err error
	if r.agent, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	r.client = wire.NewClient(dial)
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() {
		r.err = r.agent.Run(ctx)
		close(r.ended)
	}()
	t.Cleanup(r.stop)
	r.eventually("the agent answers", func() bool {
		select {
		case <-r.ended:
			t.Fatalf("agent ended: %v", r.err)
		default:
		}
		h, err := r.client.Hello(t.Context())
		return err == nil && h.Run == r.agent.run
	})
	return r
}

// stop ends the agent as SIGTERM does.
func (r *rig) stop() {
	r.cancel()
	<-r.ended
	r.client.Close()
}

func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			r.t.Fatalf("not in time: %s\nlog:\n%s", what, r.log)
		}
		time.Sleep(time.Millisecond)
	}
}

func (r *rig) fence() wire.Fence {
	r.index++
	return wire.Fence{Cluster: "c1", Epoch: 1, Term: 3, Index: r.index}
}

func (r *rig) send(d wire.Desired) (wire.DesiredAnswer, error) {
	if d.Fence == (wire.Fence{}) {
		d.Fence = r.fence()
	}
	return r.client.SendDesired(r.t.Context(), d)
}

func (r *rig) must(d wire.Desired) wire.DesiredAnswer {
	r.t.Helper()
	a, err := r.send(d)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

func (r *rig) refused(code string, d wire.Desired) *wire.Refusal {
	r.t.Helper()
	_, err := r.send(d)
	var refusal *wire.Refusal
	if !errors.As(err, &refusal) || refusal.Code != code {
		r.t.Fatalf("got %v, want a refusal with code %s", err, code)
	}
	if strings.TrimSpace(refusal.Message) == "" {
		r.t.Fatal("a refusal without words")
	}
	return refusal
}

// run is an allocation that is wanted to run; stop the same to be stopped.
func run(id muster.AllocID, command ...string) wire.DesiredAlloc {
	return wire.DesiredAlloc{ID: id, Desired: muster.AllocRun, Spec: &wire.AllocSpec{
		Namespace: "default", Job: "j", JobUID: "u", Version: 4, Index: 2, Count: 5, Attempt: 1, Template: api.Template{Command: command}, KillGraceMillis: 1500}}
}

func stop(ids ...muster.AllocID) (list []wire.DesiredAlloc) {
	for _, id := range ids {
		list = append(list, wire.DesiredAlloc{ID: id, Desired: muster.AllocStop})
	}
	return list
}

func set(allocs ...wire.DesiredAlloc) wire.Desired { return wire.Desired{Allocs: allocs} }

// whole is the first report of a new stream.
func (r *rig) whole() wire.Report {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	for report, err := range r.client.Reports(ctx) {
		if err != nil {
			r.t.Fatal(err)
		}
		return report
	}
	r.t.Fatal("no report")
	return wire.Report{}
}

// report is what is said of an allocation; nil if nothing.
func (r *rig) report(id muster.AllocID) *wire.AllocReport {
	r.t.Helper()
	for _, al := range r.whole().Allocs {
		if al.ID == id {
			return &al
		}
	}
	return nil
}

// until waits for a status by watching one stream of reports.
func (r *rig) until(id muster.AllocID, status muster.AllocStatus) wire.AllocReport {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	var last wire.AllocReport
	for report, err := range r.client.Reports(ctx) {
		if err != nil {
			r.t.Fatalf("waiting for %s to be %s, last %+v: %v\nlog:\n%s", id, status, last, err, r.log)
		}
		for _, al := range report.Allocs {
			if al.ID != id {
				continue
			}
			last = al
			if al.Status == status {
				return al
			}
		}
	}
	return last
}

// pipes is a listener in memory, for bubbles.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
