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
	"github.com/musterhq/muster/internal/agent"
	"github.com/musterhq/muster/internal/agent/runtimetest"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// testParent is a cgroup parent for one test, gone after it.
func testParent(t *testing.T) string {
	parent := "muster-test/" + strings.ReplaceAll(t.Name(), "/", "-") + "-" + strconv.Itoa(os.Getpid())
	t.Cleanup(func() {
		if err := RemoveCgroupParent(parent); err != nil {
			t.Error(err)
		}
	})
	return parent
}

func newRuntime(t *testing.T, parent string) *Runtime {
	t.Helper()
	r, err := New(Config{InitPath: initPath, CgroupParent: parent, Log: slog.New(initMinder{slog.DiscardHandler, t})})
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
	if r.Message == initWords {
		r.Attrs(func(a slog.Attr) bool {
			m.t.Errorf("%s: %s", r.Message, a)
			return true
		})
	}
	return nil
}

func suite(t *testing.T, parent string) runtimetest.Suite {
	s := runtimetest.Suite{
		New: func(t *testing.T) agent.Runtime { return newRuntime(t, parent) },
		InitPid: func(t *testing.T, dir string) int {
			all, err := Members(dir)
			if err != nil || len(all) == 0 || all[0].Role != RoleInit {
				t.Fatalf("members: %v, %v", all, err)
			}
			return all[0].Pid
		},
	}
	for _, p := range newRuntime(t, parent).Problems() {
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
	runtimetest.Run(t, suite(t, testParent(t)))
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

const agentArgument = "run-an-agent"

// runAgent is an agent in a process of its own: it starts one sandbox in a directory, says so, and waits for its end.
func runAgent(args []string) int {
	r, err := New(Config{InitPath: initPath, CgroupParent: args[1]})
	if err != nil {
		panic(err)
	}
	_, err = r.Start(context.Background(), agent.SandboxConfig{
		ID: muster.AllocID(args[2]), Dir: args[0], Work: args[0], Command: []string{"sh", "-c", args[3]},
		Env:       []string{"PATH=/usr/bin:/bin", "MUSTER_ALLOC=" + args[2]},
		KillGrace: time.Second, Resources: muster.Resources{Memory: 64 * muster.MiB},
	})
	if err != nil {
		panic(err)
	}
	if _, err := os.Stdout.WriteString("started\n"); err != nil {
		panic(err)
	}
	select {}
}

// startByAnother starts a sandbox by an agent that is then killed with -9.
func startByAnother(t *testing.T, dir, parent, id, script string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, agentArgument, dir, parent, id, script)
	cmd.Env = []string{"MUSTER_TEST_INIT=" + initPath}
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 8)
	if _, err := out.Read(line); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}

func parents(t *testing.T) map[string]string {
	all := map[string]string{"no cgroups": ""}
	if os.Geteuid() == 0 {
		all["cgroups"] = testParent(t)
	}
	return all
}

// TestAgentKilled: the sandbox of an agent that died goes on, and the next one gets its result.
func TestAgentKilled(t *testing.T) {
	for name, parent := range parents(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			startByAnother(t, dir, parent, "killed-0-1", "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; exit 9")
			r := newRuntime(t, parent)
			s, err := r.Attach(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			select {
			case <-s.Done():
			case <-time.After(20 * time.Second):
				t.Fatal("does not end")
			}
			if got := s.Result(); got.ExitCode != 9 || got.Failure.Reason != muster.ReasonExit {
				t.Errorf("result %+v", got)
			}
			buf := make([]byte, 100)
			if n, _ := s.Output("stdout").ReadAt(buf, 0); string(buf[:n]) != "one\ntwo\n" {
				t.Errorf("output %q", buf[:n])
			}
			if err := r.Remove(t.Context(), dir); err != nil {
				t.Error(err)
			}
			checkLook(t, dir, Ended)
		})
	}
}

// TestKillAll: an instance whose agent is dead is ended by its directories alone.
func TestKillAll(t *testing.T) {
	for name, parent := range parents(t) {
		for _, initToo := range []bool{false, true} {
			t.Run(name+"/init dead "+strconv.FormatBool(initToo), func(t *testing.T) {
				dir := t.TempDir()
				t.Cleanup(func() { _ = Destroy(context.Background(), dir) })
				startByAnother(t, dir, parent, "destroyed-0-1", `trap '' TERM; sleep 800 & (setsid sh -c 'sleep 801 & sleep 802' &); sleep 803`)
				var all []Member
				waitFor(t, "the command has its descendants", func() (there bool) {
					var err error
					if all, err = Members(dir); err != nil {
						t.Fatal(err)
					}
					return len(all) >= 5 // init, the shell, and at least three sleeps: the fourth may be the shell's own
				})
				checkLook(t, dir, Running)
				roles := map[Role]int{}
				for _, m := range all {
					roles[m.Role]++
				}
				if roles[RoleInit] != 1 || roles[RoleCommand] != 1 || roles[RoleDescendant] < 3 {
					t.Errorf("members %v", all)
				}
				if initToo {
					if err := kill(all[0].Process); err != nil {
						t.Fatal(err)
					}
				}
				if err := KillAll(t.Context(), dir); err != nil {
					t.Fatal(err)
				}
				for _, m := range all {
					if living(m.Process) {
						t.Errorf("%s %d lives", m.Role, m.Pid)
					}
				}
				if left, err := Members(dir); err != nil || len(left) > 0 {
					t.Errorf("left: %v, %v", left, err)
				}
				if err := Destroy(t.Context(), dir); err != nil {
					t.Error(err)
				}
				checkLook(t, dir, Died)
			})
		}
	}
}

func checkLook(t *testing.T, dir string, want Condition) {
	t.Helper()
	if got, err := Look(dir); got != want || err != nil {
		t.Errorf("condition %q, %v, want %q", got, err, want)
	}
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// TestInterruptedStart: an agent that died before it sent the start leaves a directory that can be used again.
func TestInterruptedStart(t *testing.T) {
	for name, parent := range parents(t) {
		t.Run(name, func(t *testing.T) {
			r := newRuntime(t, parent)
			r.ready()
			dir := t.TempDir()
			record := initwire.Sandbox{Alloc: "again-0-1", Boot: r.boot, Cgroups: r.groups.dirs(cgroupName("again-0-1", dir))}
			for _, c := range record.Cgroups {
				if err := os.Mkdir(c, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, initwire.SandboxRecord)
			if err := os.WriteFile(path, []byte(record.Line()), 0o600); err != nil {
				t.Fatal(err)
			}
			checkLook(t, dir, None)
			if _, err := r.Attach(t.Context(), dir); err != agent.ErrNoSandbox {
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
			s, err := r.Start(t.Context(), agent.SandboxConfig{ID: "again-0-1", Dir: dir, Work: dir, Command: []string{"true"}})
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

// TestTakenCgroup: a start that finds its cgroup in use fails and leaves those in it alone.
func TestTakenCgroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("cgroups need root")
	}
	r := newRuntime(t, testParent(t))
	config := func() agent.SandboxConfig {
		dir := t.TempDir()
		return agent.SandboxConfig{ID: "taken-0-1", Dir: dir, Work: dir, Command: []string{"sleep", "1000"}}
	}
	first, second := config(), config()
	s, err := r.Start(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(t.Context(), second); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("second start: %v", err)
	}
	select {
	case <-s.Done():
		t.Errorf("the first was ended: %+v", s.Result())
	default:
	}
	if err := r.Remove(t.Context(), first.Dir); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(t.Context(), second); err != nil {
		t.Errorf("start when it is free again: %v", err)
	}
	if err := r.Remove(t.Context(), second.Dir); err != nil {
		t.Error(err)
	}
}

// TestMovedAfterStart: where the agent cannot tell its own cgroups, init is moved once it exists.
func TestMovedAfterStart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("cgroups need root")
	}
	r := newRuntime(t, testParent(t))
	r.ready()
	if r.groups == nil || r.groups.v2 {
		t.Skip("no cgroups v1 here")
	}
	r.groups.home = nil
	dir := t.TempDir()
	s, err := r.Start(t.Context(), agent.SandboxConfig{ID: "moved-0-1", Dir: dir, Work: dir, Command: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, parent := range r.groups.parents {
		pids, _ := cgroupPids([]string{filepath.Join(parent, "a-moved-0-1")})
		if len(pids) != 2 {
			t.Errorf("in the cgroup below %s: %v, want init and the command", parent, pids)
		}
	}
	if err := r.Remove(t.Context(), dir); err != nil {
		t.Error(err)
	}
	<-s.Done()
}

// TestForkBomb: the number of processes is limited, and all of them end.
func TestForkBomb(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("cgroups need root")
	}
	r, err := New(Config{InitPath: initPath, CgroupParent: testParent(t), PidsLimit: 60})
	if err != nil {
		t.Fatal(err)
	}
	r.ready()
	if r.groups == nil || r.groups.pids == "" {
		t.Skip("no pids controller here")
	}
	dir := t.TempDir()
	t.Cleanup(func() { _ = Destroy(context.Background(), dir) })
	if _, err := r.Start(t.Context(), agent.SandboxConfig{
		ID: "bomb-0-1", Dir: dir, Work: dir, Env: []string{"PATH=/usr/bin:/bin"}, OutputLimit: 1 << 20,
		Command: []string{"sh", "-c", `trap '' TERM; f() { f & f & sleep 0.01; }; f; sleep 1000`},
	}); err != nil {
		t.Fatal(err)
	}
	most := 0
	waitFor(t, "the limit is reached", func() bool {
		text, _ := readSmall(filepath.Join(r.groups.pids, "a-bomb-0-1", "pids.events"))
		pids, _ := cgroupPids([]string{filepath.Join(r.groups.pids, "a-bomb-0-1")})
		most = max(most, len(pids))
		return keyed(text)["max"] > 0
	})
	if most > 60+initThreads {
		t.Errorf("%d processes", most)
	}
	if err := r.Remove(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if left, err := Members(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestOtherBoot: pids of another boot are nobody's.
func TestOtherBoot(t *testing.T) {
	dir := t.TempDir()
	self, _ := readStat(os.Getpid())
	text := (&initwire.Sandbox{Alloc: "x-0-1", Boot: "another"}).Line() +
		initwire.ProcessLine("init", initwire.Process{Pid: os.Getpid(), Start: self.Start}, 1)
	if err := os.WriteFile(filepath.Join(dir, initwire.SandboxRecord), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := Members(dir); err != nil || len(all) > 0 {
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
	st, _ := readStat(pid)
	text := (&initwire.Sandbox{Alloc: "x-0-1", Boot: r.boot}).Line() +
		initwire.ProcessLine("init", initwire.Process{Pid: pid, Start: st.Start - 1}, 1) +
		initwire.ProcessLine("command", initwire.Process{Pid: pid, Start: st.Start - 1}, 1)
	if err := os.WriteFile(filepath.Join(dir, initwire.SandboxRecord), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Remove(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if now, ok := readStat(pid); !ok || now.Dead() || now.Start != st.Start {
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
	s, err := r.Start(t.Context(), agent.SandboxConfig{
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
	waitFor(t, "ready", func() bool { return printed() == "ready\n" })
	state, err := client.Status(t.Context())
	if err != nil || !state.Running || state.Protocol != initwire.Protocol || state.Command.Pid == 0 || state.Result.Started != s.Started().UnixNano() {
		t.Errorf("status %+v, %v", state, err)
	}
	if err := client.Signal(t.Context(), syscall.SIGUSR1); err != nil {
		t.Error(err)
	}
	waitFor(t, "the signal arrived", func() bool { return printed() == "ready\nusr1\n" })
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
		s, err := r.Start(t.Context(), agent.SandboxConfig{
			ID: "stopped-0-1", Dir: dir, Work: dir, Env: []string{"PATH=/usr/bin:/bin", "MUSTER_ALLOC=stopped-0-1"},
			Command: []string{"sh", "-c", `kill -STOP $PPID; sleep 1000`},
		})
		if err == nil { // init was quicker
			_ = s.Close()
		}
		if err := r.Remove(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		if left := strays("stopped-0-1", nil); len(left) > 0 {
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
	s, err := r.Start(t.Context(), agent.SandboxConfig{
		ID: "deaf-0-1", Dir: dir, Work: dir, Env: []string{"PATH=/usr/bin:/bin"},
		Command: []string{"sh", "-c", `while [ ! -e go ]; do sleep 0.02; done; exit 2`},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Remove(context.Background(), dir) })
	all, err := Members(dir)
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

func TestParseTrees(t *testing.T) {
	const mounts = `22 27 0:21 / /proc rw,relatime - proc proc rw
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /with\040space rw - cgroup cgroup rw,pids
`
	trees := parseTrees(mounts)
	if len(trees) != 3 || trees[2].mount != "/with space" {
		t.Fatalf("trees %+v", trees)
	}
	g := choose(trees, "muster/n1")
	want := []string{"/sys/fs/cgroup/memory/muster/n1", "/sys/fs/cgroup/cpu,cpuacct/muster/n1", "/with space/muster/n1"}
	if g.v2 || !slices.Equal(g.parents, want) {
		t.Errorf("chosen %+v", g)
	}
	const own = "4:memory:/docker/abc/inner\n3:cpu,cpuacct:/x\n2:pids:/\n"
	if dir, ok := ownCgroup(own, trees[1]); !ok || dir != "/sys/fs/cgroup/memory/inner" {
		t.Errorf("own memory cgroup %q, %v", dir, ok)
	}
	if dir, ok := ownCgroup(own, trees[0]); !ok || dir != "/sys/fs/cgroup/cpu,cpuacct/x" {
		t.Errorf("own cpu cgroup %q, %v", dir, ok)
	}
	// Outside of what the mount shows: not to be told.
	if dir, ok := ownCgroup("4:memory:/elsewhere\n", trees[1]); ok {
		t.Errorf("own memory cgroup %q", dir)
	}
}

func TestCgroupName(t *testing.T) {
	for id, want := range map[string]string{"abc-0-1": "a-abc-0-1", "cgroup.procs": "a-cgroup.procs"} {
		if got := cgroupName(muster.AllocID(id), "/d"); got != want {
			t.Errorf("%q: %q", id, got)
		}
	}
	for _, id := range []string{"../../x", "a/b", ".hidden", strings.Repeat("x", 300), "a b"} {
		if got := cgroupName(muster.AllocID(id), "/d"); !strings.HasPrefix(got, "h-") || len(got) != 34 {
			t.Errorf("%q: %q", id, got)
		}
	}
}
