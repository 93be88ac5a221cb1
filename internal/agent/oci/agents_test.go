package oci

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/runtimetest"
	"github.com/musterhq/muster/internal/testwait"
)

// agentArgument makes this test program an agent that starts sandboxes one after the other.
const agentArgument = "run-an-agent"

// attempt is one sandbox of a test, by a shell script; in its work directory, which is shared, it finds and leaves files.
func attempt(dir, id string, image *contract.Image, script string) contract.SandboxConfig {
	work := filepath.Join(dir, "work")
	return contract.SandboxConfig{
		ID: muster.AllocID(id), Dir: dir, Work: "/work", Command: []string{"sh", "-c", script},
		Env:       []string{"PATH=/bin", "MUSTER_ALLOC=" + id},
		KillGrace: time.Second, Resources: muster.Resources{Memory: 64 * muster.MiB},
		Container: &contract.Container{Image: image, Shared: work, SharedAt: "/work", Network: &contract.Network{}},
	}
}

func makeDirs(dir string) error { return os.MkdirAll(filepath.Join(dir, "work"), 0o700) }

// runAgent starts sandboxes below a directory until it is killed: directory, cgroup parent, program, image, mark, script.
func runAgent(args []string) int {
	r, err := New(Config{InitPath: initPath, CgroupParent: args[1], Program: args[2]})
	if err != nil {
		panic(err)
	}
	layers := []string{"2", "1"}
	if err := r.Check(context.Background()); err != nil {
		panic(err)
	}
	if _, err := os.Stdout.WriteString("ready\n"); err != nil {
		panic(err)
	}
	for i := 0; ; i++ {
		dir := filepath.Join(args[0], strconv.Itoa(i))
		if err := makeDirs(dir); err != nil {
			panic(err)
		}
		c := attempt(dir, args[4]+"-"+strconv.Itoa(i)+"-1", &contract.Image{Ref: "busybox", Root: args[3], Layers: layers}, args[5])
		// Its runtime program or init may have been killed by the test.
		if _, err := r.Start(context.Background(), c); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// agentProcess is such an agent.
func agentProcess(t *testing.T, root, parent, program, image, mark, script string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, agentArgument, root, parent, program, image, mark, script)
	cmd.Env = []string{"MUSTER_TEST_INIT=" + initPath, "PATH=" + os.Getenv("PATH")}
	cmd.WaitDelay = 10 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatalf("the agent is not ready: %v", err)
	}
	return cmd
}

// killSome kills processes whose command line holds all the texts, as far as they are there now.
func killSome(all ...string) (killed int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		b, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		ours := len(b) > 0
		for _, text := range all {
			ours = ours && strings.Contains(string(b), text)
		}
		if ours && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}

func programs(t *testing.T) []string {
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	var there []string
	for _, p := range []string{"crun", "runc"} {
		if _, err := exec.LookPath(p); err == nil {
			there = append(there, p)
		}
	}
	if len(there) == 0 {
		t.Skip("neither crun nor runc is here")
	}
	return there
}

// TestKilledWhileStarting: an agent, its runtime programs and its inits are killed at any moment of whatever a
// start does; the next agent finds all that is to be found, and nothing is left, nor run twice.
func TestKilledWhileStarting(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	for _, program := range programs(t) {
		t.Run(program, func(t *testing.T) { killRounds(t, program, rounds, time.Second) })
	}
}

// killRounds is rounds of an agent that lives for at most so long.
func killRounds(t *testing.T, program string, rounds int, longest time.Duration) (sandboxes int) {
	image := busybox(t, 0)
	parent := testParent(t)
	r := newRuntime(t, program, parent, 0)
	mark := "k" + strconv.FormatUint(rand.Uint64(), 36)
	met := map[runtimetest.Condition]int{}
	killed := map[string]int{}
	for round := range rounds {
		root := filepath.Join(t.TempDir(), mark)
		if err := os.Mkdir(root, 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := agentProcess(t, root, parent, program, image.Root, mark+strconv.Itoa(round), ": >>/work/ran; sleep 0.05; exit 3")
		end := time.Now().Add(rand.N(longest))
		for time.Now().Before(end) {
			// The randomness is the test.
			time.Sleep(rand.N(60 * time.Millisecond))
			switch rand.IntN(3) {
			case 0:
				killed[program] += killSome("--bundle", root)
			case 1:
				killed["init"] += killSome(initAt, mark)
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		sandboxes += takeOver(t, r, root, met)
	}
	t.Logf("%d sandboxes, met %v, killed beside the agents: %v", sandboxes, met, killed)
	checkNothingLeft(t, r, mark)
	return sandboxes
}

// takeOver is the next agent: it finds every sandbox below root, waits for its end, and removes it.
func takeOver(t *testing.T, r *Runtime, root string, met map[runtimetest.Condition]int) (n int) {
	t.Helper()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		n++
		dir := filepath.Join(root, e.Name())
		condition, err := runtimetest.Look(dir)
		if err != nil {
			t.Fatal(err)
		}
		met[condition]++
		ran, _ := os.ReadFile(filepath.Join(dir, "work", "ran"))
		s, err := r.Attach(t.Context(), dir)
		switch {
		case err == contract.ErrNoSandbox:
			if len(ran) > 0 {
				t.Errorf("%s: there is no sandbox, but its command ran", e.Name())
			}
		case err != nil:
			t.Fatal(err)
		default:
			select {
			case <-s.Done():
			case <-time.After(60 * time.Second):
				t.Fatalf("%s does not end", e.Name())
			}
			if s.Result().Failure == nil {
				t.Errorf("%s: succeeded, it exits with 3 or is killed", e.Name())
			}
			_ = s.Close()
		}
		if err := r.Remove(t.Context(), dir); err != nil {
			t.Error(err)
		}
		if left, err := initbox.Members(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", e.Name(), left, err)
		}
		if _, err := os.Lstat(filepath.Join(dir, boxName)); err == nil {
			t.Errorf("%s: its box is left", e.Name())
		}
	}
	return n
}

// checkNothingLeft: of sandboxes with the mark in their names nothing is on this node.
func checkNothingLeft(t *testing.T, r *Runtime, mark string) {
	t.Helper()
	if left := leftovers(t, mark); len(left) > 0 {
		t.Errorf("loop devices are left: %q", left)
	}
	if left := runtimetest.Cgroups(mark); len(left) > 0 {
		t.Errorf("cgroups are left: %q", left)
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(b), mark) {
		t.Errorf("mounts are left, %v:\n%s", err, b)
	}
	testwait.Until(t, "no process is left", func() bool { return len(runtimetest.Processes(mark)) == 0 })
	for _, d := range []string{"/run/crun", "/run/runc"} {
		if entries, _ := os.ReadDir(d); len(entries) > 0 {
			t.Errorf("%s is not empty: %v", d, entries)
		}
	}
	_ = r
}

// TestForgotten: F-L2. An agent that finds no directory of a container which still runs ends it.
func TestForgotten(t *testing.T) {
	for _, program := range []string{"crun", "runc"} {
		t.Run(program, func(t *testing.T) { runtimetest.Forgotten(t, suite(t, program, testParent(t), 0)) })
	}
}
