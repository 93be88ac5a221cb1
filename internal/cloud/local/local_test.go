package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/agent/runtimetest"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
	"github.com/musterhq/muster/internal/programtest"
	"github.com/musterhq/muster/internal/testwait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Programs under test, built once: the second muster-node calls itself v-next.
var nodeProgram, nextProgram string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "muster-local-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	next := filepath.Join(dir, "next")
	if err = os.Mkdir(next, 0o755); err == nil {
		nodeProgram, err = programtest.Node(dir)
	}
	if err == nil {
		nextProgram, err = programtest.Node(next, programtest.Release("v-next"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// host is a directory with instances, seen through drivers that come and go.
type host struct {
	t       *testing.T
	dir     string
	program string
	change  func(*Config)

	mu     sync.Mutex
	opened []*Provider
}

func (h *host) Open(t *testing.T, owner string) cloud.Provider { return h.open(owner) }

func (h *host) open(owner string) *Provider {
	h.t.Helper()
	cfg := Config{Dir: h.dir, Owner: owner, NodeBinary: h.program, Logger: slog.New(slog.NewTextHandler(h.t.Output(), nil)),
		Offerings: []Offering{
			{Offering: muster.Offering{Name: "small", Price: 10_000, Capacity: muster.Resources{CPU: 1000, Memory: muster.GiB, Disk: muster.GiB}, Attributes: map[string]string{"disk": "ssd"}}},
			{Offering: muster.Offering{Name: "slow", Zone: "b", Market: muster.Spot, Capacity: muster.Resources{CPU: 2000, Memory: 2 * muster.GiB}}, BootDelay: time.Minute},
			{Offering: muster.Offering{Name: "rare", Capacity: muster.Resources{CPU: 500, Memory: muster.GiB}}, MaxInstances: 1},
		}}
	if h.change != nil {
		h.change(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.opened = append(h.opened, p)
	return p
}

// newHost is an empty host and a driver for one owner, all of whose instances are destroyed after the test.
func newHost(t *testing.T) (*host, *Provider) {
	t.Helper()
	h := &host{t: t, dir: t.TempDir(), program: nodeProgram}
	t.Cleanup(func() { h.clean() })
	return h, h.open("me")
}

// clean destroys what is left, off or on.
func (h *host) clean() {
	p := h.open("me")
	all, _, err := p.all()
	if err != nil {
		h.t.Error(err)
	}
	for _, i := range all {
		p := h.open(i.Tags.Owner)
		if errs := p.Destroy(context.Background(), []muster.InstanceID{i.id}); errs[0] != nil {
			h.t.Error(errs[0])
		}
	}
	// Their ends are logged, and a test that is over has no log.
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.opened {
		p.mu.Lock()
		children := slices.Concat(slices.Collect(maps.Values(p.children))...)
		p.mu.Unlock()
		for _, c := range children {
			<-c.done
		}
	}
	left, err := os.ReadDir(h.dir)
	if err != nil {
		h.t.Error(err)
	}
	for _, e := range left {
		if e.Name() != imagesName { // caches are there for the next instance
			h.t.Errorf("left on the host: %v", e)
		}
	}
}

func TestConformance(t *testing.T) {
	cloudtest.Run(t, 20*time.Second, func(t *testing.T) cloudtest.Cloud {
		return &host{t: t, dir: t.TempDir(), program: nodeProgram}
	})
}

func intent(n int, offering muster.OfferingName) cloud.Intent {
	return cloud.Intent{Token: muster.Token(fmt.Sprint("t", n)), Node: muster.NodeID(fmt.Sprint("n", n)), Pool: "p", Offering: offering}
}

func create(t *testing.T, p *Provider, in cloud.Intent) cloud.Instance {
	t.Helper()
	got := p.Create(t.Context(), []cloud.Intent{in})[0]
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	return got.Instance
}

func listed(t *testing.T, p *Provider, id muster.InstanceID) bool {
	t.Helper()
	l, err := p.List(t.Context(), "")
	if err != nil || !l.Complete {
		t.Fatalf("%+v %v", l, err)
	}
	for _, i := range l.Instances {
		if i.ID == id {
			return true
		}
	}
	return false
}

// ready is a client of an instance's agent once it answers.
func ready(t *testing.T, p *Provider, id muster.InstanceID) *wire.Client {
	t.Helper()
	c := wire.NewClient(func(ctx context.Context) (net.Conn, error) { return p.DialAgent(ctx, id) })
	t.Cleanup(c.Close)
	testwait.Until(t, "the agent answers", func() bool {
		_, err := c.Hello(t.Context())
		return err == nil
	})
	return c
}

var index uint64

// runs starts a shell script in a sandbox of an instance and waits until it runs.
func runs(t *testing.T, c *wire.Client, id muster.AllocID, script string) {
	t.Helper()
	index++
	_, err := c.SendDesired(t.Context(), wire.Desired{Fence: wire.Fence{Cluster: "me", Epoch: 1, Term: 1, Index: index}, Allocs: []wire.DesiredAlloc{{
		ID: id, Desired: muster.AllocRun, Spec: &wire.AllocSpec{Job: "j", Count: 1, Attempt: 1, Template: api.Template{Command: []string{"/bin/sh", "-c", script}}, OutputLimit: 1 << 20}}}})
	if err != nil {
		t.Fatal(err)
	}
	until(t, c, id, muster.AllocRunning)
}

func until(t *testing.T, c *wire.Client, id muster.AllocID, status muster.AllocStatus) wire.AllocReport {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for report, err := range c.Reports(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		for _, al := range report.Allocs {
			if al.ID == id && al.Status == status {
				return al
			}
		}
	}
	return wire.AllocReport{}
}

func record(t *testing.T, p *Provider, id muster.InstanceID) journal.Record {
	t.Helper()
	r, err := journal.ReadRecord(p.dir(id))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func members(t *testing.T, p *Provider, id muster.InstanceID) (all []initbox.Member) {
	t.Helper()
	dirs, err := journal.SandboxDirs(p.dir(id))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		m, err := initbox.Members(dir)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m...)
	}
	return all
}

func killAgent(t *testing.T, p *Provider, id muster.InstanceID) {
	t.Helper()
	r := record(t, p, id)
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the agent is dead", func() bool { return !r.Alive() })
}

// running reports whether a process with this text in its command line lives.
func running(t *testing.T, mark string) bool {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), mark) {
			return true
		}
	}
	return false
}

// Of case L4: a server restarted, with an offering no longer configured and a busy node.
func TestFoundAgainByTheNextServer(t *testing.T) {
	h, p := newHost(t)
	i := create(t, p, intent(1, "small"))
	c := ready(t, p, i.ID)
	hello, err := c.Hello(t.Context())
	if err != nil || hello.Node != "n1" || hello.Capacity != (muster.Resources{CPU: 1000, Memory: muster.GiB, Disk: muster.GiB}) || hello.Attributes["disk"] != "ssd" {
		t.Errorf("%+v %v", hello, err)
	}
	h.change = func(c *Config) { c.Offerings = nil } // even if it is no longer configured
	next := h.open("me")
	l, err := next.List(t.Context(), "")
	if err != nil || len(l.Instances) != 1 || l.Instances[0] != i {
		t.Errorf("%+v, want %+v: %v", l, i, err)
	}
	if again, err := ready(t, next, i.ID).Hello(t.Context()); err != nil || again.Pid != hello.Pid {
		t.Errorf("another agent: %+v %v", again, err)
	}
	r := record(t, p, i.ID)
	if errs := next.Destroy(t.Context(), []muster.InstanceID{i.ID}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if r.Alive() {
		t.Error("its agent lives")
	}
}

func TestKilledAgentIsStartedAgain(t *testing.T) {
	_, p := newHost(t)
	p.offAfter = 0
	i := create(t, p, intent(1, "small"))
	c := ready(t, p, i.ID)
	gate := filepath.Join(t.TempDir(), "gate")
	runs(t, c, "u-0-1", "echo one; until [ -e "+gate+" ]; do sleep 0.02; done; echo two; exit 5")
	before := members(t, p, i.ID)
	killAgent(t, p, i.ID)
	if !listed(t, p, i.ID) {
		t.Fatal("an instance whose sandboxes live is off")
	}
	if err := p.StartAgent(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	c = ready(t, p, i.ID)
	runtimetest.Outlived(t, before, members(t, p, i.ID))
	pid := record(t, p, i.ID).Pid
	if err := p.StartAgent(t.Context(), i.ID); err != nil || record(t, p, i.ID).Pid != pid {
		t.Errorf("an agent that answers was replaced: %v", err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := until(t, c, "u-0-1", muster.AllocEnded); got.ExitCode != 5 || string(got.Stdout.Inline) != "one\ntwo\n" {
		t.Errorf("%+v", got)
	}
}

func TestAgentOfAnotherBuildIsReplaced(t *testing.T) {
	h, p := newHost(t)
	i := create(t, p, intent(1, "small"))
	c := ready(t, p, i.ID)
	runs(t, c, "u-0-1", "sleep 60")
	before := members(t, p, i.ID)
	h.program = nextProgram
	next := h.open("me")
	next.startGrace = 0 // or it counts as booting
	if err := next.StartAgent(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the new build answers", func() bool {
		hello, err := c.Hello(t.Context())
		return err == nil && hello.Version == "v-next"
	})
	runtimetest.Outlived(t, before, members(t, p, i.ID))
}

// A data directory that was moved while agents run in it: they are replaced at the new place, and what runs goes on.
func TestAgentOfAMovedDirectoryIsReplaced(t *testing.T) {
	h, p := newHost(t)
	i := create(t, p, intent(1, "small"))
	c := ready(t, p, i.ID)
	gate := filepath.Join(t.TempDir(), "gate")
	runs(t, c, "u-0-1", "until [ -e "+gate+" ]; do sleep 0.02; done; echo moved")
	old := record(t, p, i.ID)
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(h.dir, moved); err != nil {
		t.Fatal(err)
	}
	h.dir = moved
	p = h.open("me")
	if err := p.StartAgent(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "another agent has taken over", func() bool { return record(t, p, i.ID).Boot != old.Boot && !old.Alive() })
	c = ready(t, p, i.ID)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := until(t, c, "u-0-1", muster.AllocEnded); got.ExitCode != 0 || string(got.Stdout.Inline) != "moved\n" {
		t.Errorf("%+v", got)
	}
	// It is the right agent now.
	pid := record(t, p, i.ID).Pid
	if err := p.StartAgent(t.Context(), i.ID); err != nil || record(t, p, i.ID).Pid != pid {
		t.Errorf("an agent that answers was replaced: %v", err)
	}
}

// An instance that is adopted again becomes that of another node, and so does its agent.
func TestAgentOfAFormerNodeIsReplaced(t *testing.T) {
	_, p := newHost(t)
	p.startGrace = 0 // or it counts as booting
	i := create(t, p, intent(1, "small"))
	c := ready(t, p, i.ID)
	runs(t, c, "u-0-1", "sleep 60")
	before := members(t, p, i.ID)
	tags := i.Tags
	tags.Node = "n2"
	if err := p.SetTags(t.Context(), i.ID, tags); err != nil {
		t.Fatal(err)
	}
	if err := p.StartAgent(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "its agent is that of n2", func() bool {
		hello, err := c.Hello(t.Context())
		return err == nil && hello.Node == "n2"
	})
	runtimetest.Outlived(t, before, members(t, p, i.ID))
}

func TestEverythingKilledIsOff(t *testing.T) {
	_, p := newHost(t)
	i := create(t, p, intent(1, "small"))
	other := create(t, p, intent(2, "small"))
	runs(t, ready(t, p, i.ID), "u-0-1", "sleep 60")
	ready(t, p, other.ID)
	killAgent(t, p, i.ID)
	for _, m := range members(t, p, i.ID) {
		if err := syscall.Kill(m.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
	testwait.Until(t, "its processes are dead", func() bool { return len(members(t, p, i.ID)) == 0 })
	if err := p.StartAgent(t.Context(), i.ID); muster.KindOf(err) != muster.FaultNotFound {
		t.Errorf("an instance that is off was started: %v", err)
	}
	if listed(t, p, i.ID) || !listed(t, p, other.ID) {
		t.Error("wrong instances are listed")
	}
	if _, err := os.Stat(p.dir(i.ID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its leftovers are there: %v", err)
	}
	if errs := p.Destroy(t.Context(), []muster.InstanceID{i.ID}); errs[0] != nil {
		t.Error(errs[0])
	}
}

func TestIdleInstanceWhoseAgentDied(t *testing.T) {
	_, p := newHost(t)
	i := create(t, p, intent(1, "small"))
	c := ready(t, p, i.ID)
	runs(t, c, "u-0-1", "sleep 0.05; echo kept")
	until(t, c, "u-0-1", muster.AllocEnded)
	killAgent(t, p, i.ID)
	// Its last result has not been fetched: for a while it can be started again.
	if !listed(t, p, i.ID) {
		t.Fatal("off at once")
	}
	if err := p.StartAgent(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	c = ready(t, p, i.ID)
	if got := until(t, c, "u-0-1", muster.AllocEnded); string(got.Stdout.Inline) != "kept\n" {
		t.Errorf("%+v", got)
	}
	p.offAfter = 50 * time.Millisecond
	killAgent(t, p, i.ID)
	testwait.Until(t, "it is off", func() bool { return !listed(t, p, i.ID) })
	if err := p.StartAgent(t.Context(), i.ID); muster.KindOf(err) != muster.FaultNotFound {
		t.Errorf("%v", err)
	}
}

func TestResultOfASandboxThatEndedWithoutAgent(t *testing.T) {
	_, p := newHost(t)
	i := create(t, p, intent(1, "small"))
	runs(t, ready(t, p, i.ID), "u-0-1", "sleep 0.1; echo kept")
	killAgent(t, p, i.ID)
	testwait.Until(t, "the sandbox has ended", func() bool { return len(members(t, p, i.ID)) == 0 })
	// All of its processes are dead, but none was killed in the middle of its work.
	if !listed(t, p, i.ID) {
		t.Fatal("off at once")
	}
	if err := p.StartAgent(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	if got := until(t, ready(t, p, i.ID), "u-0-1", muster.AllocEnded); string(got.Stdout.Inline) != "kept\n" || got.Outcome != muster.OutcomeSucceeded {
		t.Errorf("%+v", got)
	}
}

func TestHostThatWasRebooted(t *testing.T) {
	_, p := newHost(t)
	i := create(t, p, intent(1, "small"))
	ready(t, p, i.ID)
	killAgent(t, p, i.ID)
	r := record(t, p, i.ID)
	r.Kernel = "another"
	b, _ := json.Marshal(r)
	if err := os.WriteFile(filepath.Join(p.dir(i.ID), journal.RecordName), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if listed(t, p, i.ID) {
		t.Error("it is on")
	}
}

func TestCreateThatDiedBeforeTheAgentStarted(t *testing.T) {
	h, p := newHost(t)
	in := intent(1, "small")
	o, err := p.offering(in)
	if err != nil {
		t.Fatal(err)
	}
	i, err := p.make(t.Context(), idOf("me", in.Token), in, o)
	if err != nil {
		t.Fatal(err)
	}
	next := h.open("me")
	if !listed(t, next, i.id) {
		t.Error("its token cannot be found")
	}
	if got := create(t, next, in); got.ID != i.id {
		t.Errorf("%+v", got)
	}
	ready(t, next, i.id)

	// One that nobody asks for again is off after a while.
	i, err = p.make(t.Context(), idOf("me", "t2"), intent(2, "small"), o)
	if err != nil {
		t.Fatal(err)
	}
	next.startGrace = 50 * time.Millisecond
	testwait.Until(t, "it is off", func() bool { return !listed(t, next, i.id) })
	if _, err := os.Stat(i.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestDestroyEndsEverything(t *testing.T) {
	_, p := newHost(t)
	i := create(t, p, intent(1, "small"))
	c := ready(t, p, i.ID)
	mark := fmt.Sprint("31", os.Getpid(), time.Now().UnixNano()%1e6)
	runs(t, c, "u-0-1", "trap '' TERM INT HUP; setsid sh -c 'trap \"\" TERM; sleep "+mark+"; :' & sleep "+mark)
	runs(t, c, "u-1-1", "chmod 500 .; sleep "+mark)
	testwait.Until(t, "all of them run", func() bool { return len(members(t, p, i.ID)) >= 6 })
	r := record(t, p, i.ID)
	if err := syscall.Kill(r.Pid, syscall.SIGSTOP); err != nil { // a hung agent does not help
		t.Fatal(err)
	}
	if errs := p.Destroy(t.Context(), []muster.InstanceID{i.ID}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if r.Alive() || running(t, mark) {
		t.Error("something of it lives")
	}
	if _, err := os.Stat(p.dir(i.ID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
	if dirs, _ := filepath.Glob("/sys/fs/cgroup/*/muster/" + string(i.ID)); len(dirs) > 0 {
		t.Errorf("left: %v", dirs)
	}
}

func TestDestroyWhileItBoots(t *testing.T) {
	_, p := newHost(t)
	in := intent(1, "slow")
	in.Zone, in.Market = "b", muster.Spot
	i := create(t, p, in)
	if conn, err := p.DialAgent(t.Context(), i.ID); muster.KindOf(err) != muster.FaultUnavailable {
		t.Errorf("%v", err)
		if err == nil {
			_ = conn.Close()
		}
	}
	if err := p.StartAgent(t.Context(), i.ID); err != nil { // it boots: leave it alone
		t.Error(err)
	}
	if errs := p.Destroy(t.Context(), []muster.InstanceID{i.ID}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	testwait.Until(t, "its agent is dead", func() bool { return !running(t, string(i.ID)) })
	if _, err := os.Stat(p.dir(i.ID)); !errors.Is(err, os.ErrNotExist) {
		t.Error("the agent brought its directory back")
	}
}

func TestDestroyInterrupted(t *testing.T) {
	h, p := newHost(t)
	i := create(t, p, intent(1, "small"))
	ready(t, p, i.ID)
	// A server that died after writing down that it destroys.
	in, err := p.read(i.ID)
	if err != nil {
		t.Fatal(err)
	}
	in.Destroying = true
	if err := in.write(); err != nil {
		t.Fatal(err)
	}
	next := h.open("me")
	if !listed(t, next, i.ID) {
		t.Error("it lives and is not listed")
	}
	if got := next.Create(t.Context(), []cloud.Intent{intent(1, "small")}); muster.KindOf(got[0].Err) != muster.FaultConflict {
		t.Errorf("%+v", got)
	}
	if err := next.StartAgent(t.Context(), i.ID); muster.KindOf(err) != muster.FaultNotFound {
		t.Errorf("%v", err)
	}
	if errs := next.Destroy(t.Context(), []muster.InstanceID{i.ID}); errs[0] != nil {
		t.Error(errs[0])
	}
	// One that died in the middle of deleting.
	gone := filepath.Join(h.dir, gonePrefix+"i-00", "sandboxes")
	if err := os.MkdirAll(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	if listed(t, next, "i-00") {
		t.Error("listed")
	}
	if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
		t.Error("not swept")
	}
}

func TestSoldOut(t *testing.T) {
	_, p := newHost(t)
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if offers[0].Limit != 0 || offers[2].Limit != 1 {
		t.Errorf("limits %d and %d", offers[0].Limit, offers[2].Limit)
	}
	got := p.Create(t.Context(), []cloud.Intent{intent(1, "rare"), intent(2, "rare"), intent(3, "rare")})
	made, refused := 0, 0
	for _, g := range got {
		var f *muster.Fault
		switch {
		case g.Err == nil:
			made++
		case errors.As(g.Err, &f) && f.Kind == muster.FaultCapacity && f.Scope.Offering == "rare" && f.Scope.Provider == "local":
			refused++
		default:
			t.Error(g.Err)
		}
	}
	if made != 1 || refused != 2 {
		t.Errorf("%d made, %d refused", made, refused)
	}
	for _, g := range got {
		if g.Err == nil {
			if errs := p.Destroy(t.Context(), []muster.InstanceID{g.Instance.ID}); errs[0] != nil {
				t.Error(errs[0])
			}
		}
	}
	again := p.Create(t.Context(), []cloud.Intent{intent(4, "rare")})
	if again[0].Err != nil {
		t.Fatalf("still sold out: %v", again[0].Err)
	}
	if errs := p.Destroy(t.Context(), []muster.InstanceID{again[0].Instance.ID}); errs[0] != nil {
		t.Error(errs[0])
	}
}

func TestProgramThatIsNotThere(t *testing.T) {
	h, _ := newHost(t)
	h.program = "/no/such/muster-node"
	p := h.open("me")
	got := p.Create(t.Context(), []cloud.Intent{intent(1, "small")})
	if muster.KindOf(got[0].Err) != muster.FaultInvalid || !strings.Contains(got[0].Err.Error(), h.program) {
		t.Errorf("%v", got[0].Err)
	}
}

func TestDirectoryWithALongPath(t *testing.T) {
	h, _ := newHost(t)
	h.dir = filepath.Join(h.dir, strings.Repeat("long/", 30))
	p := h.open("me")
	i := create(t, p, intent(1, "small"))
	c := ready(t, p, i.ID)
	runs(t, c, "u-0-1", "sleep 0.05; echo far")
	if got := until(t, c, "u-0-1", muster.AllocEnded); string(got.Stdout.Inline) != "far\n" {
		t.Errorf("%+v", got)
	}
	if errs := p.Destroy(t.Context(), []muster.InstanceID{i.ID}); errs[0] != nil {
		t.Error(errs[0])
	}
	if err := os.RemoveAll(filepath.Join(filepath.Dir(h.dir), "..")); err != nil {
		t.Log(err)
	}
	h.dir = t.TempDir()
}
