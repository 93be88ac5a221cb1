package reach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/programtest"
	"github.com/musterhq/muster/internal/remote"
	"github.com/musterhq/muster/internal/remote/remotetest"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/testwait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// built are muster-node as it is now, and another build of it; made when the first test asks for them.
var built struct {
	once       sync.Once
	dir        string
	node, next string
	err        error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func needPrograms(t *testing.T) (node, next string) {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "muster-reach-test-"); built.err != nil {
			return
		}
		one, other := filepath.Join(built.dir, "a"), filepath.Join(built.dir, "b")
		if built.err = errors.Join(os.Mkdir(one, 0o755), os.Mkdir(other, 0o755)); built.err != nil {
			return
		}
		if built.node, built.err = programtest.Node(one); built.err != nil {
			return
		}
		built.next, built.err = programtest.Node(other, programtest.Release("v-next"))
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.node, built.next
}

// one is a provider of one instance that is reached over SSH.
type one struct {
	cloud.Provider
	access cloud.Access
	err    error
}

func (o *one) Access(context.Context, muster.InstanceID) (cloud.Access, error) {
	return o.access, o.err
}

// rig is a host with sshd, and a Reach that knows it.
type rig struct {
	t     *testing.T
	host  *remotetest.Host
	cloud *one
	probe Probe
	// agentArgs that nodes are told.
	agentArgs []string
	reach     *Reach
	node      *state.Node
	// cluster that the reach is of.
	cluster string
	// private and line are the key that replaces the one of the log; nothing is replaced if they are
	// empty. rekeyed are the lines that went to the log; lost fails that.
	private, line string
	rekeyed       []string
	lost          error
}

func newRig(t *testing.T, lines ...string) *rig {
	t.Helper()
	h := remotetest.SSHD(t, lines...)
	r := &rig{t: t, host: h, cluster: "c1"}
	// Short: the path of a socket has at most 107 bytes.
	base, err := os.MkdirTemp("", "m")
	if err != nil {
		t.Fatal(err)
	}
	r.cloud = &one{access: cloud.Access{Address: h.Address, User: h.User, KeyFile: h.KeyFile, HostKeys: []string{h.HostKey}, Dir: base}}
	r.node = &state.Node{ID: "n1", Instance: "i1", Stage: muster.NodeBooting,
		Offering: muster.Offering{Provider: "p", Name: "o", Capacity: muster.Resources{CPU: 1000, Memory: muster.GiB}, Attributes: map[string]string{"zone": "a b"}}}
	node, _ := needPrograms(t)
	r.open(node)
	t.Cleanup(func() {
		if err := r.reach.Clear(context.Background(), r.cloud.access, r.node.ID); err != nil && !muster.IsKind(err, muster.FaultAuth) {
			t.Errorf("clear: %v", err)
		}
		_ = os.RemoveAll(base)
	})
	return r
}

// open makes a Reach, as a server that starts does.
func (r *rig) open(program string) {
	r.t.Helper()
	var err error
	r.reach, err = New(Config{
		Provider: func(muster.ProviderName) cloud.Provider { return r.cloud }, Programs: &Programs{Own: program},
		Probe: func(*state.Node) Probe { return r.probe }, AgentArgs: func(*state.Node) []string { return r.agentArgs }, Cluster: func() string { return r.cluster }, Logger: slog.New(slog.DiscardHandler),
		HostKeyFile: filepath.Join(r.host.Dir, "host_key"),
		Replacement: func(n *state.Node) (muster.Secret, string, bool, error) {
			return muster.NewSecret(r.private), r.line, r.line != "" && n.HostKey != "", nil
		},
		Rekeyed: func(_ context.Context, _ muster.NodeID, line string) error {
			r.rekeyed = append(r.rekeyed, line)
			return r.lost
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func(running *Reach) { done <- running.Run(ctx) }(r.reach)
	r.t.Cleanup(func() { cancel(); <-done })
	r.reach.Enter(r.node.ID)
}

// hello asks the node's agent who it is.
func (r *rig) hello() (wire.Hello, error) {
	c := wire.NewClient(func(ctx context.Context) (net.Conn, error) { return r.reach.Dial(ctx, r.node) })
	defer c.Close()
	return c.Hello(r.t.Context())
}

func (r *rig) start() {
	r.t.Helper()
	if err := r.reach.StartAgent(r.t.Context(), r.node); err != nil {
		r.t.Fatal(err)
	}
}

// startsInTime starts the agent, again while sshd restarts.
func (r *rig) startsInTime() {
	r.t.Helper()
	testwait.Until(r.t, "the agent is started", func() bool {
		err := r.reach.StartAgent(r.t.Context(), r.node)
		if err != nil && !muster.IsKind(err, muster.FaultUnavailable) {
			r.t.Fatal(err)
		}
		return err == nil
	})
}

func (r *rig) serving() wire.Hello {
	r.t.Helper()
	h, err := r.hello()
	if err != nil {
		r.t.Fatal(err)
	}
	return h
}

func (r *rig) dir() string { return filepath.Join(r.cloud.access.Dir, "nodes", string(r.node.ID)) }

func TestAgentOverSSH(t *testing.T) {
	r := newRig(t)
	if _, err := r.hello(); !muster.IsKind(err, muster.FaultUnavailable) {
		t.Errorf("before it is started: %v", err)
	}
	r.start()
	h := r.serving()
	if h.Node != "n1" || h.Capacity.CPU != 1000 || h.Attributes["zone"] != "a b" {
		t.Errorf("%+v", h)
	}
	if p := r.reach.Problems("n1"); len(p) != 0 {
		t.Errorf("%q", p)
	}
	// One that answers is left alone.
	r.start()
	if again := r.serving(); again.Run != h.Run {
		t.Error("an agent that answered was replaced")
	}
	// A dead one is started again.
	record, err := journal.ReadRecord(r.dir())
	if err != nil {
		t.Fatal(err)
	}
	if err := record.Kill(); err != nil {
		t.Fatal(err)
	}
	r.start()
	if again := r.serving(); again.Run == h.Run {
		t.Error("it is the same")
	}
	// Bulk goes by a connection of its own.
	bulk, err := r.reach.DialBulk(t.Context(), r.node)
	if err != nil {
		t.Fatal(err)
	}
	_ = bulk.Close()
}

// The agent is told what makes containers; the host has no say in it.
func TestAgentIsToldItsRuntime(t *testing.T) {
	r := newRig(t)
	r.agentArgs = []string{"--oci-runtime", "none"}
	r.start()
	if h := r.serving(); slices.Contains(h.Runtimes, "oci") || h.Attributes[muster.AttributeContainers] != "" {
		t.Errorf("%+v", h)
	}
	r.agentArgs = []string{"--oci-runtime", "/nonesuch/program"}
	record, err := journal.ReadRecord(r.dir())
	if err != nil {
		t.Fatal(err)
	}
	if err := record.Kill(); err != nil {
		t.Fatal(err)
	}
	r.start()
	if h := r.serving(); !strings.Contains(strings.Join(h.Problems, "; "), "/nonesuch/program") || h.Attributes[muster.AttributeContainers] != "" {
		t.Errorf("%+v", h)
	}
}

// A server of another build replaces the agent, and does not need a new probe.
func TestAgentOfAnotherBuild(t *testing.T) {
	r := newRig(t)
	r.start()
	was := r.serving()
	r.node.Joined = 1
	r.open(built.next)
	if now := r.serving(); now.Run != was.Run {
		t.Error("a server that starts finds it as it was")
	}
	r.start()
	if now := r.serving(); now.Run == was.Run || !strings.Contains(now.Version, "v-next") {
		t.Errorf("%s, then %s", was.Version, now.Version)
	}
	files, err := filepath.Glob(filepath.Join(r.cloud.access.Dir, "bin", "muster-node-*"))
	if err != nil || len(files) != 1 {
		t.Errorf("programs that are there: %q, %v", files, err)
	}
}

// Where sshd forbids forwarding, muster-node carries the bytes, and an operator is told.
func TestForwardingForbidden(t *testing.T) {
	r := newRig(t, "AllowTcpForwarding no", "AllowStreamLocalForwarding no")
	r.start()
	if h := r.serving(); h.Node != "n1" {
		t.Errorf("%+v", h)
	}
	if p := r.reach.Problems("n1"); len(p) != 1 || !strings.Contains(p[0], "forbids forwarding") {
		t.Errorf("%q", p)
	}
	// Also by a server that starts anew: it does not know where the program is, and finds out.
	r.node.Joined = 1
	r.open(built.node)
	if _, err := r.hello(); err == nil {
		t.Error("reached without a way")
	}
	r.start()
	r.serving()
}

// A host that shows another key than the expected one: not one command is run on it.
func TestWrongHostKey(t *testing.T) {
	_, other, err := remote.NewKey("other")
	if err != nil {
		t.Fatal(err)
	}
	ran := filepath.Join(t.TempDir(), "ran")
	r := newRig(t, "ForceCommand touch "+ran)
	knownHosts := filepath.Join(t.TempDir(), "known_hosts")
	host, port, _ := net.SplitHostPort(r.host.Address)
	if err := os.WriteFile(knownHosts, []byte(fmt.Sprintf("[%s]:%s %s\n", host, port, other)), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, words string
		keys        []string
		file        string
		kind        muster.FaultKind
	}{
		{"pinned, or the provider's word", "expected ssh-ed25519 SHA256:", []string{other}, "", muster.FaultAuth},
		{"known_hosts", "expected ssh-ed25519 SHA256:", nil, knownHosts, muster.FaultAuth},
		{"not in known_hosts", "has no key for this host", nil, empty, muster.FaultAuth},
		{"not known at all", "its host key must be known beforehand", nil, "", muster.FaultInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.reach.Leave("n1")
			r.reach.Enter("n1")
			r.cloud.access.HostKeys, r.cloud.access.KnownHosts = c.keys, c.file
			for what, err := range map[string]error{
				"start": r.reach.StartAgent(t.Context(), r.node),
				"clear": r.reach.Clear(t.Context(), r.cloud.access, "n1"),
			} {
				if !muster.IsKind(err, c.kind) || !strings.Contains(err.Error(), c.words) {
					t.Errorf("%s: %v", what, err)
				}
				var wrong *remote.HostKeyError
				if c.kind == muster.FaultAuth && !errors.As(err, &wrong) {
					t.Errorf("%s: what is wrong is lost: %v", what, err)
				}
			}
			r.node.Joined = 1
			if _, err := r.hello(); err == nil {
				t.Error("its agent is reached")
			}
			r.node.Joined = 0
			if _, err := os.Lstat(ran); err == nil {
				t.Fatal("a command was run")
			}
		})
	}
	// The right key, so that the test could have failed.
	r.cloud.access.HostKeys, r.cloud.access.KnownHosts = []string{r.host.HostKey}, ""
	_ = r.reach.StartAgent(t.Context(), r.node)
	if _, err := os.Lstat(ran); err != nil {
		t.Error("with the right key no command is run either: ", err)
	}
	r.cloud.access.HostKeys = []string{other} // nothing of it can be cleared
}

// The agent's program is there already with the same hash: no copy. With another content: copied again, also
// one that was cut short.
func TestProgramOnTheHost(t *testing.T) {
	r := newRig(t)
	r.start()
	files, err := filepath.Glob(filepath.Join(r.cloud.access.Dir, "bin", "muster-node-*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%q, %v", files, err)
	}
	was, err := os.Stat(files[0])
	if err != nil {
		t.Fatal(err)
	}
	r.start()
	if now, err := os.Stat(files[0]); err != nil || !os.SameFile(was, now) || !now.ModTime().Equal(was.ModTime()) {
		t.Errorf("copied although it was there: %v", err)
	}
	// Cut short, as by a host that lost power.
	record, err := journal.ReadRecord(r.dir())
	if err != nil {
		t.Fatal(err)
	}
	if err := record.Kill(); err != nil {
		t.Fatal(err)
	}
	short := files[0] + ".short"
	if err := errors.Join(os.WriteFile(short, []byte("half of it"), 0o755), os.Rename(short, files[0])); err != nil {
		t.Fatal(err)
	}
	r.start()
	if now, err := os.Stat(files[0]); err != nil || now.Size() != was.Size() {
		t.Errorf("%+v, %v", now, err)
	}
	r.serving()
}

// While the probe does not pass no agent is there, and what it printed is told; one that hangs has its deadline.
func TestBootProbe(t *testing.T) {
	r := newRig(t)
	ok := filepath.Join(t.TempDir(), "ok")
	r.probe = Probe{Command: "echo disk is not mounted >&2; test -e " + ok}
	err := r.reach.StartAgent(t.Context(), r.node)
	if !muster.IsKind(err, muster.FaultUnavailable) || !strings.Contains(err.Error(), "exit status 1: disk is not mounted") {
		t.Error(err)
	}
	if _, err := os.Lstat(r.dir()); err == nil {
		t.Error("an agent was started")
	}
	r.probe = Probe{Command: "sleep 1000", Timeout: time.Second}
	if err := r.reach.StartAgent(t.Context(), r.node); !muster.IsKind(err, muster.FaultUnavailable) || !strings.Contains(err.Error(), "did not end within 1s") {
		t.Error(err)
	}
	r.probe = Probe{Command: "test -e " + ok}
	if err := os.WriteFile(ok, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.serving()
}

// What else can be in the way of an agent is told in words.
func TestAgentDoesNotStart(t *testing.T) {
	r := newRig(t)
	// No muster-node for the host.
	r.reach.cfg.Programs = &Programs{Dirs: []string{t.TempDir()}}
	if err := r.reach.StartAgent(t.Context(), r.node); !muster.IsKind(err, muster.FaultInvalid) || !strings.Contains(err.Error(), "node_binaries") {
		t.Error(err)
	}
	// A host of another architecture than its offering says: its jobs would fail there.
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	r.node.Offering.Attributes = map[string]string{"arch": other}
	if err := r.reach.StartAgent(t.Context(), r.node); !muster.IsKind(err, muster.FaultInvalid) || !strings.Contains(err.Error(), "it is "+runtime.GOARCH+", and its offering says "+other) {
		t.Error(err)
	}
	// What an operator calls otherwise is no architecture.
	r.node.Offering.Attributes["arch"] = "raspberry"
	// One that does not run.
	broken := filepath.Join(t.TempDir(), "muster-node")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho no such thing >&2\nexit 5\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.reach.cfg.Programs = &Programs{Own: broken}
	if err := r.reach.StartAgent(t.Context(), r.node); !muster.IsKind(err, muster.FaultUnavailable) || !strings.Contains(err.Error(), "exit status 5: no such thing") {
		t.Error(err)
	}
	// An agent that ends at once, because its directory is a file.
	r.reach.cfg.Programs = &Programs{Own: built.node}
	if err := errors.Join(os.MkdirAll(filepath.Dir(r.dir()), 0o700), os.WriteFile(r.dir(), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := r.reach.StartAgent(t.Context(), r.node); !muster.IsKind(err, muster.FaultUnavailable) {
		t.Error(err)
	}
	if err := os.Remove(r.dir()); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.serving()
	if _, err := r.hello(); err != nil {
		t.Error(err)
	}
	// Nobody answers at the address.
	r.cloud.access.Address = "127.0.0.1:1"
	if err := r.reach.StartAgent(t.Context(), r.node); !muster.IsKind(err, muster.FaultUnavailable) {
		t.Error(err)
	}
	r.cloud.access.Address = r.host.Address
	// There is no such instance.
	r.cloud.err = muster.Faultf(muster.FaultNotFound, "instance i1 does not exist")
	if err := r.reach.StartAgent(t.Context(), r.node); !muster.IsKind(err, muster.FaultNotFound) {
		t.Error(err)
	}
	r.cloud.err = nil
}

// A host is given back with all that ran on it; a start that is late does not bring it back.
func TestClear(t *testing.T) {
	r := newRig(t)
	// Of a host on which nothing was started nothing is left to clear.
	if err := r.reach.Clear(t.Context(), r.cloud.access, "n1"); err != nil {
		t.Fatal(err)
	}
	r.node.ID = "n2"
	r.reach.Enter(r.node.ID)
	r.start()
	c := wire.NewClient(func(ctx context.Context) (net.Conn, error) { return r.reach.Dial(ctx, r.node) })
	defer c.Close()
	id := muster.NewAllocID("u1", 0, 1)
	if _, err := c.SendDesired(t.Context(), wire.Desired{Fence: wire.Fence{Cluster: "c1", Epoch: 1, Term: 1, Index: 1}, Allocs: []wire.DesiredAlloc{{
		ID: id, Desired: muster.AllocRun, Spec: &wire.AllocSpec{Namespace: "default", Job: "j", JobUID: "u1", Version: 1, Count: 1, Attempt: 1,
			Template: api.Template{Command: []string{"sleep", "100000"}}, Resources: muster.Resources{CPU: 100, Memory: 64 * muster.MiB}, OutputLimit: 1 << 20},
	}}}); err != nil {
		t.Fatal(err)
	}
	running := false
	for report, err := range c.Reports(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range report.Allocs {
			running = running || a.Status == muster.AllocRunning
			if a.Status == muster.AllocEnded {
				t.Fatalf("%+v", a)
			}
		}
		if running {
			break
		}
	}
	dirs, err := journal.SandboxDirs(r.dir())
	if err != nil || len(dirs) != 1 {
		t.Fatalf("%q, %v", dirs, err)
	}
	if err := r.reach.Clear(t.Context(), r.cloud.access, "n2"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(r.dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
	if err := r.reach.StartAgent(t.Context(), r.node); !muster.IsKind(err, muster.FaultNotFound) || !strings.Contains(err.Error(), "was cleared") {
		t.Errorf("a late start: %v", err)
	}
	// The next node takes the host.
	r.node.ID = "n3"
	r.reach.Enter(r.node.ID)
	r.start()
	r.serving()
	// One that was never cleared, because the host could not be reached, gives way.
	was := r.dir()
	r.node.ID = "n4"
	r.reach.Enter(r.node.ID)
	r.start()
	r.serving()
	if _, err := os.Lstat(was); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the node before is still there: %v", err)
	}
	// Another cluster does not get it.
	r.cluster, r.node.ID = "c2", "n5"
	r.reach.Enter(r.node.ID)
	if err := r.reach.StartAgent(t.Context(), r.node); !muster.IsKind(err, muster.FaultConflict) || !strings.Contains(err.Error(), "c1, with node n4") {
		t.Errorf("another cluster: %v", err)
	}
	r.cluster, r.node.ID = "c1", "n4"
	r.reach.Enter(r.node.ID)
	r.serving()
}

// A connection that is cut is made again, and the node's agent is found as it was.
func TestConnectionThatIsLost(t *testing.T) {
	r := newRig(t)
	r.start()
	was := r.serving()
	c, err := r.reach.conn(t.Context(), r.node, r.cloud)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	<-c.Done()
	for {
		h, err := r.hello()
		if err == nil {
			if h.Run != was.Run {
				t.Error("another agent")
			}
			return
		}
		if !muster.IsKind(err, muster.FaultUnavailable) {
			t.Fatal(err)
		}
	}
}

func TestMeasure(t *testing.T) {
	r := newRig(t)
	have, arch, err := r.reach.Measure(t.Context(), r.cloud.access)
	if err != nil || have.CPU < 1000 || have.Memory < 64*muster.MiB || have.Disk <= 0 || arch == "" {
		t.Errorf("%s on %s, %v", have, arch, err)
	}
}

// TestHostKeyIsReplaced: after the first connection the host shows the replacement and nothing else,
// also if the server dies before the log says so.
func TestHostKeyIsReplaced(t *testing.T) {
	r := newRig(t)
	private, line, err := remote.NewKey("")
	if err != nil {
		t.Fatal(err)
	}
	first := r.host.HostKey
	r.private, r.line = private.Reveal(), strings.TrimSpace(line)
	r.cloud.access.HostKeys = nil
	r.node.HostKey = first
	// The log does not get it.
	r.lost = muster.Faultf(muster.FaultUnavailable, "no leader")
	if err := r.reach.StartAgent(t.Context(), r.node); !muster.IsKind(err, muster.FaultUnavailable) {
		t.Fatalf("%v", err)
	}
	// The next server accepts both, and what the host shows is the new one.
	r.lost = nil
	r.reach.Leave("n1")
	r.reach.Enter("n1")
	r.startsInTime()
	if len(r.rekeyed) < 2 || r.rekeyed[1] != r.line {
		t.Fatalf("the log got %q", r.rekeyed)
	}
	times := len(r.rekeyed)
	n := *r.node
	n.HostKey = r.line
	r.node = &n
	r.startsInTime()
	if h := r.serving(); h.Node != "n1" {
		t.Errorf("%+v", h)
	}
	if len(r.rekeyed) != times {
		t.Errorf("replaced again: %q", r.rekeyed)
	}
	// The key of the user data opens nothing any more.
	r.line = ""
	old := n
	old.HostKey = first
	r.node = &old
	var wrong *remote.HostKeyError
	testwait.Until(t, "the first key is refused", func() bool {
		return errors.As(r.reach.StartAgent(t.Context(), r.node), &wrong)
	})
	r.cloud.access.HostKeys = []string{n.HostKey}
}
