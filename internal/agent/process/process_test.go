package process

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/runtimetest"
	"github.com/musterhq/muster/internal/testwait"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// testParent is a cgroup parent for one test, gone after it.
func testParent(t *testing.T) string {
	parent := "muster-test/" + strings.ReplaceAll(t.Name(), "/", "-") + "-" + strconv.Itoa(os.Getpid())
	t.Cleanup(func() {
		if err := cgroup.RemoveParent(parent); err != nil {
			t.Error(err)
		}
	})
	return parent
}

func newRuntime(t *testing.T, parent string, change ...func(*Config)) *Runtime {
	t.Helper()
	c := Config{InitPath: initPath, CgroupParent: parent, Log: slog.New(initMinder{slog.DiscardHandler, t})}
	for _, fn := range change {
		fn(&c)
	}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// initMinder fails a test whose init crashed, or, built with the race detector, raced.
type initMinder struct {
	slog.Handler
	t *testing.T
}

func (initMinder) Enabled(context.Context, slog.Level) bool { return true }

func (m initMinder) Handle(_ context.Context, r slog.Record) error {
	if r.Message == initbox.InitWords {
		r.Attrs(func(a slog.Attr) bool {
			m.t.Errorf("%s: %s", r.Message, a)
			return true
		})
	}
	return nil
}

func suite(t *testing.T, parent string) runtimetest.Suite {
	s := runtimetest.Suite{
		New: func(t *testing.T) contract.Runtime { return newRuntime(t, parent) },
		Hasty: func(t *testing.T) contract.Runtime {
			return newRuntime(t, parent, func(c *Config) { c.EndLimit = 500 * time.Millisecond })
		},
		InitPid: func(t *testing.T, dir string) int {
			all, err := initbox.Members(dir)
			if err != nil || len(all) == 0 || all[0].Role != initbox.RoleInit {
				t.Fatalf("members: %v, %v", all, err)
			}
			return all[0].Pid
		},
	}
	first := newRuntime(t, parent)
	if first.ready(); !first.groups.Freezes() {
		s.NoFreezer = "nothing can freeze here"
	}
	for _, p := range first.Problems() {
		t.Log(p)
		if strings.Contains(p, "memory limits") {
			s.NoMemoryLimit = p
		}
	}
	return s
}

func TestConformance(t *testing.T) {
	runtimetest.Run(t, suite(t, ""))
}

func TestConformanceWithCgroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("cgroups need root")
	}
	s := suite(t, testParent(t))
	s.ShortLines = 100_000 // TestConformance has the same init print a million
	runtimetest.Run(t, s)
}

// TestConformanceWithoutRoot runs this test program again as nobody.
func TestConformanceWithoutRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("is tried from root; TestConformance was without it")
	}
	dir, err := os.MkdirTemp("", "muster-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "process.test")
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, b, 0o755); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run=^TestConformance$", "-test.v", "-test.short")
	cmd.Dir = dir
	cmd.Env = []string{"MUSTER_TEST_INIT=" + initPath, "TMPDIR=" + dir, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as nobody: %v\n%s", err, out)
	}
	t.Logf("as nobody: %d cases passed, %d skipped", strings.Count(string(out), "    --- PASS"), strings.Count(string(out), "    --- SKIP"))
}

// TestInterruptedStart: an agent that died before it sent the start leaves a directory that can be used again.
func TestInterruptedStart(t *testing.T) {
	for name, parent := range parents(t) {
		t.Run(name, func(t *testing.T) {
			r := newRuntime(t, parent)
			r.ready()
			dir := t.TempDir()
			record := initwire.Sandbox{Alloc: "again-0-1", Boot: r.keeper.Boot(), Cgroups: r.groups.Dirs(cgroup.Name("again-0-1", dir))}
			for _, c := range record.Cgroups {
				if err := os.Mkdir(c, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, initwire.SandboxRecord)
			if err := os.WriteFile(path, []byte(record.Line()), 0o600); err != nil {
				t.Fatal(err)
			}
			checkLook(t, dir, runtimetest.None)
			if _, err := r.Attach(t.Context(), dir); err != contract.ErrNoSandbox {
				t.Errorf("attach: %v", err)
			}
			for _, c := range record.Cgroups {
				if exists(c) {
					t.Errorf("cgroup %s is left", c)
				}
			}
			if err := os.WriteFile(path, []byte(record.Line()), 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := r.Start(t.Context(), contract.SandboxConfig{ID: "again-0-1", Dir: dir, Work: dir, Command: []string{"true"}})
			if err != nil {
				t.Fatal(err)
			}
			<-s.Done()
			if f := s.Result().Failure; f != nil {
				t.Error(f)
			}
			if err := r.Remove(t.Context(), dir); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOtherBoot: pids of another boot are nobody's.
func TestOtherBoot(t *testing.T) {
	dir := t.TempDir()
	self, _ := initbox.ReadStat(os.Getpid())
	text := (&initwire.Sandbox{Alloc: "x-0-1", Boot: "another"}).Line() +
		initwire.ProcessLine("init", initwire.Process{Pid: os.Getpid(), Start: self.Start}, 1)
	if err := os.WriteFile(filepath.Join(dir, initwire.SandboxRecord), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := initbox.Members(dir); err != nil || len(all) > 0 {
		t.Errorf("members %v, %v", all, err)
	}
	s, err := newRuntime(t, "").Attach(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if f := s.Result().Failure; f.Reason != muster.ReasonSandboxDied || !strings.Contains(f.Message, "restarted") {
		t.Errorf("failure %+v", f)
	}
}

// TestReusedPid: a process that has init's number but not its start time is a stranger.
func TestReusedPid(t *testing.T) {
	r := newRuntime(t, "")
	dir := t.TempDir()
	stranger := exec.Command("sleep", "100")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	})
	pid := stranger.Process.Pid
	st, _ := initbox.ReadStat(pid)
	text := (&initwire.Sandbox{Alloc: "x-0-1", Boot: r.keeper.Boot()}).Line() +
		initwire.ProcessLine("init", initwire.Process{Pid: pid, Start: st.Start - 1}, 1) +
		initwire.ProcessLine("command", initwire.Process{Pid: pid, Start: st.Start - 1}, 1)
	if err := os.WriteFile(filepath.Join(dir, initwire.SandboxRecord), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Remove(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if now, ok := initbox.ReadStat(pid); !ok || now.Dead() || now.Start != st.Start {
		t.Error("the stranger was killed")
	}
}

// TestSocket asks a running init by its protocol.
func TestSocket(t *testing.T) {
	// Longer than the address of a unix socket may be.
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r := newRuntime(t, "")
	s, err := r.Start(t.Context(), contract.SandboxConfig{
		ID: "socket-0-1", Dir: dir, Work: dir, Env: []string{"PATH=/usr/bin:/bin"},
		Command: []string{"sh", "-c", `trap 'echo usr1' USR1; echo ready; while [ ! -e go ]; do sleep 0.02; done; exit 2`},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Remove(context.Background(), dir) })
	client := initwire.Client{Dir: dir}
	printed := func() string {
		buf := make([]byte, 100)
		n, _ := s.Output("stdout").ReadAt(buf, 0)
		return string(buf[:n])
	}
	testwait.Until(t, "ready", func() bool { return printed() == "ready\n" })
	state, err := client.Status(t.Context())
	if err != nil || !state.Running || state.Protocol != initwire.Protocol || state.Command.Pid == 0 || state.Result.Started != s.Started().UnixNano() {
		t.Errorf("status %+v, %v", state, err)
	}
	if err := client.Signal(t.Context(), syscall.SIGUSR1); err != nil {
		t.Error(err)
	}
	testwait.Until(t, "the signal arrived", func() bool { return printed() == "ready\nusr1\n" })
	if err := client.Signal(t.Context(), 99); err == nil {
		t.Error("signal 99 was taken")
	}
	waited := make(chan *initwire.State, 1)
	go func() {
		state, _ := client.Wait(context.Background())
		waited <- state
	}()
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case state := <-waited:
		// It may have ended before the request came.
		if state != nil && (state.Running || state.Result.Exit != 2) {
			t.Errorf("wait: %+v", state)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("wait does not answer")
	}
	<-s.Done()
	if _, err := client.Status(t.Context()); err == nil {
		t.Error("a dead init answers")
	}
}

// TestInitStopped: a command that stops its init before that has answered cannot hold up a start for ever.
func TestInitStopped(t *testing.T) {
	r, err := New(Config{InitPath: initPath, StartLimit: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		dir := t.TempDir()
		s, err := r.Start(t.Context(), contract.SandboxConfig{
			ID: "stopped-0-1", Dir: dir, Work: dir, Env: []string{"PATH=/usr/bin:/bin", "MUSTER_ALLOC=stopped-0-1"},
			Command: []string{"sh", "-c", `kill -STOP $PPID; sleep 1000`},
		})
		if err == nil { // init was quicker
			_ = s.Close()
		}
		if err := r.Remove(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		if left := marked(t, "MUSTER_ALLOC=stopped-0-1"); len(left) > 0 {
			t.Fatalf("left: %v", left)
		}
		if err != nil {
			return
		}
	}
	t.Skip("init was quicker every time")
}

// TestInitIsDeaf: requests to end do not reach init, only the command if it is meant.
func TestInitIsDeaf(t *testing.T) {
	dir := t.TempDir()
	r := newRuntime(t, "")
	s, err := r.Start(t.Context(), contract.SandboxConfig{
		ID: "deaf-0-1", Dir: dir, Work: dir, Env: []string{"PATH=/usr/bin:/bin"},
		Command: []string{"sh", "-c", `while [ ! -e go ]; do sleep 0.02; done; exit 2`},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Remove(context.Background(), dir) })
	all, err := initbox.Members(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1} {
		if err := syscall.Kill(all[0].Pid, sig); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if got := s.Result(); got.ExitCode != 2 {
		t.Errorf("result %+v", got)
	}
}

// TestNothingHeld: an agent keeps nothing of the sandboxes that it has seen: no
// descriptor, no zombie, whether it watched their end or gave them up.
func TestNothingHeld(t *testing.T) {
	r := newRuntime(t, "")
	one := func(watch bool) {
		dir := t.TempDir()
		s, err := r.Start(t.Context(), contract.SandboxConfig{ID: "held-0-1", Dir: dir, Work: dir, Command: []string{"true"}})
		if err != nil {
			t.Fatal(err)
		}
		if watch {
			<-s.Done()
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		testwait.Until(t, "it is over", func() bool {
			condition, err := runtimetest.Look(dir)
			return condition == runtimetest.Ended && err == nil
		})
		if err := r.Remove(t.Context(), dir); err != nil {
			t.Error(err)
		}
	}
	one(true) // what is held for ever is held from here on
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := descriptors()
	for i := range 50 {
		one(i%2 == 0)
	}
	testwait.Until(t, "no descriptor more than before", func() bool { return descriptors() <= before })
	for _, pid := range pids(t) {
		if st, ok := initbox.ReadStat(pid); ok && st.Dead() && st.Parent == os.Getpid() {
			t.Errorf("zombie %d", pid)
		}
	}
}

func pids(t *testing.T) (all []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// marked are the living processes with a variable in their environment.
func marked(t *testing.T, variable string) (all []int) {
	for _, pid := range pids(t) {
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil || !slices.Contains(strings.Split(string(environ), "\x00"), variable) {
			continue
		}
		if st, ok := initbox.ReadStat(pid); ok && !st.Dead() {
			all = append(all, pid)
		}
	}
	return all
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
