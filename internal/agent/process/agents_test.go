package process

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/runtimetest"
	"github.com/musterhq/muster/internal/testwait"
)

// Arguments that make this test program an agent.
const (
	agentArgument = "run-an-agent"
	manyArgument  = "run-an-agent-of-many"
)

func testSandbox(dir, id, script string) contract.SandboxConfig {
	return contract.SandboxConfig{
		ID: muster.AllocID(id), Dir: dir, Work: dir, Command: []string{"sh", "-c", script},
		Env:       []string{"PATH=/usr/bin:/bin", "MUSTER_ALLOC=" + id},
		KillGrace: time.Second, Resources: muster.Resources{Memory: 64 * muster.MiB},
	}
}

// runAgent is an agent in a process of its own: it starts one sandbox in a
// directory, or one after the other below it, says so, and waits for its end.
func runAgent(word string, args []string) int {
	r, err := New(Config{InitPath: initPath, CgroupParent: args[1]})
	if err != nil {
		panic(err)
	}
	for i := 0; word == manyArgument; i++ {
		dir := filepath.Join(args[0], strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			panic(err)
		}
		if _, err := r.Start(context.Background(), testSandbox(dir, args[2]+"-"+strconv.Itoa(i)+"-1", args[3])); err != nil {
			panic(err)
		}
	}
	if _, err := r.Start(context.Background(), testSandbox(args[0], args[2], args[3])); err != nil {
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
			checkLook(t, dir, runtimetest.Ended)
		})
	}
}

// TestKilledWhileStarting: an agent that is killed with -9 in the middle of
// whatever a start does leaves nothing that the next one does not find, and no command that it would run twice.
func TestKilledWhileStarting(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 5
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, parent := range parents(t) {
		t.Run(name, func(t *testing.T) {
			met := map[runtimetest.Condition]int{}
			for round := range rounds {
				root := t.TempDir()
				cmd := exec.Command(self, manyArgument, root, parent, "many"+strconv.Itoa(round), ": >ran; sleep 0.02; exit 3")
				cmd.Env = []string{"MUSTER_TEST_INIT=" + initPath}
				cmd.WaitDelay = 10 * time.Second
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				// The randomness is the test.
				time.Sleep(time.Duration(5000+rand.IntN(20000)) * time.Microsecond)
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				_ = cmd.Wait()
				takeOver(t, root, parent, met)
			}
			t.Logf("met: %v", met)
		})
	}
}

// takeOver is the next agent: it finds every sandbox below root, waits for its end, and removes it.
func takeOver(t *testing.T, root, parent string, met map[runtimetest.Condition]int) {
	t.Helper()
	r := newRuntime(t, parent)
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		condition, err := runtimetest.Look(dir)
		if err != nil {
			t.Fatal(err)
		}
		met[condition]++
		s, err := r.Attach(t.Context(), dir)
		if err == contract.ErrNoSandbox {
			if exists(filepath.Join(dir, "ran")) {
				t.Errorf("%s: there is no sandbox, but its command ran", e.Name())
			}
		} else if err != nil {
			t.Fatal(err)
		} else {
			select {
			case <-s.Done():
			case <-time.After(20 * time.Second):
				t.Fatalf("%s does not end", e.Name())
			}
			f := s.Result().Failure
			if ran := exists(filepath.Join(dir, "ran")); f == nil || (f.Reason == muster.ReasonExit) != ran {
				t.Errorf("%s: ran is %v, failure %v", e.Name(), ran, f)
			}
			_ = s.Close()
		}
		if err := r.Remove(t.Context(), dir); err != nil {
			t.Error(err)
		}
		if left, err := initbox.Members(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", e.Name(), left, err)
		}
	}
}

// TestKillAll: an instance whose agent is dead is ended by its directories alone.
func TestKillAll(t *testing.T) {
	for name, parent := range parents(t) {
		for _, initToo := range []bool{false, true} {
			t.Run(name+"/init dead "+strconv.FormatBool(initToo), func(t *testing.T) {
				dir := t.TempDir()
				t.Cleanup(func() { _ = initbox.Destroy(context.Background(), dir) })
				startByAnother(t, dir, parent, "destroyed-0-1", `trap '' TERM; sleep 800 & (setsid sh -c 'sleep 801 & sleep 802' &); sleep 803`)
				var all []initbox.Member
				testwait.Until(t, "the command has its descendants", func() (there bool) {
					var err error
					if all, err = initbox.Members(dir); err != nil {
						t.Fatal(err)
					}
					return len(all) >= 5 // init, the shell, and at least three sleeps: the fourth may be the shell's own
				})
				checkLook(t, dir, runtimetest.Running)
				roles := map[initbox.Role]int{}
				for _, m := range all {
					roles[m.Role]++
				}
				if roles[initbox.RoleInit] != 1 || roles[initbox.RoleCommand] != 1 || roles[initbox.RoleDescendant] < 3 {
					t.Errorf("members %v", all)
				}
				if initToo {
					if err := unix.Kill(all[0].Pid, unix.SIGKILL); err != nil {
						t.Fatal(err)
					}
				}
				if err := initbox.KillAll(t.Context(), dir); err != nil {
					t.Fatal(err)
				}
				for _, m := range all {
					if initbox.Living(m.Process) {
						t.Errorf("%s %d lives", m.Role, m.Pid)
					}
				}
				if left, err := initbox.Members(dir); err != nil || len(left) > 0 {
					t.Errorf("left: %v, %v", left, err)
				}
				if err := initbox.Destroy(t.Context(), dir); err != nil {
					t.Error(err)
				}
				checkLook(t, dir, runtimetest.Died)
			})
		}
	}
}

func checkLook(t *testing.T, dir string, want runtimetest.Condition) {
	t.Helper()
	if got, err := runtimetest.Look(dir); got != want || err != nil {
		t.Errorf("condition %q, %v, want %q", got, err, want)
	}
}

// TestForgotten: F-L2. An agent that finds no directory of a sandbox which still runs ends it.
func TestForgotten(t *testing.T) {
	for name, parent := range parents(t) {
		t.Run(name, func(t *testing.T) { runtimetest.Forgotten(t, suite(t, parent)) })
	}
}
