package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/testwait"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// poorArgument makes this test program one that says what it cannot do on a node without something.
const poorArgument = "tell-problems"

// poorNode covers a file of the node in its own mount namespace, and prints the problems of a runtime there.
func poorNode(args []string) int {
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("/dev/null", args[1], "", unix.MS_BIND, ""))
	if err != nil {
		panic(err)
	}
	r, err := New(Config{InitPath: initPath, CgroupParent: args[0], Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	if err := r.Check(context.Background()); err != nil {
		fmt.Println("broken:", err)
	}
	for _, p := range r.Problems() {
		fmt.Println(p)
	}
	return 0
}

// TestPoorNode: a node on which file systems in files cannot be had runs sandboxes all the same, and says what is not limited there.
func TestPoorNode(t *testing.T) {
	parent := testParent(t)
	if r := newRuntime(t, "", parent, 0); !r.loops {
		t.Skip("this node has none of its own")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, missing := range []string{"/dev/loop-control", findMkfs()} {
		t.Run(filepath.Base(missing), func(t *testing.T) {
			cmd := exec.Command(self, poorArgument, parent, missing)
			cmd.Env = []string{"MUSTER_TEST_INIT=" + initPath, "PATH=" + os.Getenv("PATH")}
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if text := string(out); !strings.Contains(text, "disk is not limited") || strings.Contains(text, "broken") || strings.Contains(text, "filtered") {
				t.Errorf("it says %q", text)
			}
			t.Logf("%s", out)
		})
	}
}

// TestNoLoops: without them who asks for disk gets so much and no more, in memory, and who does not writes to the node's.
func TestNoLoops(t *testing.T) {
	ways(t, func(t *testing.T, r *Runtime) {
		r.loops = false
		const script = `i=0; while [ $i -lt 12 ]; do head -c 1048576 /dev/zero >/file$i 2>/dev/null || break; i=$((i+1)); done; echo $i`
		out := runInside(t, r, func(c *contract.SandboxConfig) { c.Resources.Disk = 8 * muster.MiB }, script)
		if n, err := strconv.Atoi(strings.TrimSpace(out)); err != nil || n < 6 || n > 8 {
			t.Errorf("of 8 MiB %q were written", out)
		}
		var box string
		out = runInside(t, r, func(c *contract.SandboxConfig) { box = filepath.Join(c.Dir, boxName) }, script)
		if out != "12\n" {
			t.Errorf("of no limit %q were written", out)
		}
		if _, err := os.Lstat(box); err == nil {
			t.Error("it is left")
		}
	})
}

// TestOtherBoot: after a restart of the node what ran is told as dead, what had ended as what it was; pids of then are nobody's, and nothing stays.
func TestOtherBoot(t *testing.T) {
	r := newRuntime(t, "", testParent(t), 0)
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprintf("ended=%v", ended), func(t *testing.T) {
			dir := t.TempDir()
			if err := makeDirs(dir); err != nil {
				t.Fatal(err)
			}
			s, err := r.Start(t.Context(), attempt(dir, "boot-0-1", busybox(t, 0), map[bool]string{true: "echo x; exit 4", false: "echo x; exec sleep 1000"}[ended]))
			if err != nil {
				t.Fatal(err)
			}
			testwait.Until(t, "it has printed", func() bool { _, end, _ := s.Output("stdout").Bounds(); return end == 2 })
			if ended {
				<-s.Done()
			}
			_ = s.Close()
			reboot(t, dir)
			// By now its numbers are others'.
			stranger := exec.Command("sleep", "1000")
			if err := stranger.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
			st, _ := initbox.ReadStat(stranger.Process.Pid)
			rewrite(t, filepath.Join(dir, initwire.SandboxRecord), "init", initwire.ProcessLine("init", initwire.Process{Pid: stranger.Process.Pid, Start: st.Start}, 1))
			if !ended {
				if all, err := initbox.Members(dir); err != nil || len(all) > 0 {
					t.Errorf("members %v, %v", all, err)
				}
			}
			again, err := r.Attach(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			<-again.Done()
			f := again.Result().Failure
			switch {
			case ended && (f == nil || f.Class != muster.FailureUser || again.Result().ExitCode != 4):
				t.Errorf("result %+v, %v", again.Result(), f)
			case !ended && (f == nil || f.Class != muster.FailureNode || f.Reason != muster.ReasonSandboxDied || !strings.Contains(f.Message, "restarted")):
				t.Errorf("failure %v", f)
			}
			buf := make([]byte, 10)
			if n, _ := again.Output("stdout").ReadAt(buf, 0); string(buf[:n]) != "x\n" {
				t.Errorf("output %q", buf[:n])
			}
			if err := r.Remove(t.Context(), dir); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(filepath.Join(dir, boxName)); err == nil {
				t.Error("its box is left")
			}
			if !initbox.Living(initwire.Process{Pid: stranger.Process.Pid, Start: st.Start}) {
				t.Error("a stranger was ended")
			}
		})
	}
}

// reboot does to the sandbox of dir what a restart of the node does: all processes and cgroups are gone, the files are there.
func reboot(t *testing.T, dir string) {
	t.Helper()
	if err := initbox.KillAll(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	record, err := initbox.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := cgroup.RemoveAll(record.Sandbox.Cgroups); err != nil {
		t.Fatal(err)
	}
	record.Sandbox.Boot = "another"
	rewrite(t, filepath.Join(dir, initwire.SandboxRecord), "sandbox", record.Sandbox.Line())
}

// rewrite replaces the line of a record that begins with a word.
func rewrite(t *testing.T, path, word, line string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for raw := range strings.Lines(string(b)) {
		if strings.HasPrefix(raw, word+" ") {
			raw = line
		}
		text.WriteString(raw)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestNoCgroupIsLeft: not of a sandbox, and once its agent's parent was removed not of that, in any hierarchy.
func TestNoCgroupIsLeft(t *testing.T) {
	for _, program := range programs(t) {
		t.Run(program, func(t *testing.T) {
			parent := "muster-test-left-" + strconv.Itoa(os.Getpid()) + "/of-" + program
			r := newRuntime(t, program, parent, 0)
			runInside(t, r, nil, "true")
			// And one that is killed with all that it is.
			dir := t.TempDir()
			if err := makeDirs(dir); err != nil {
				t.Fatal(err)
			}
			s, err := r.Start(t.Context(), attempt(dir, "left-0-1", busybox(t, 0), "exec sleep 1000"))
			if err != nil {
				t.Fatal(err)
			}
			_ = s.Close()
			t.Logf("%d cgroups of a sandbox", len(cgroupsNamed("left-0-1")))
			if err := r.Remove(t.Context(), dir); err != nil {
				t.Error(err)
			}
			if left := append(cgroupsNamed("left-0-1"), cgroupsNamed("inside-0-1")...); len(left) > 0 {
				t.Errorf("left by the sandbox: %q", left)
			}
			if err := cgroup.RemoveParent(parent); err != nil {
				t.Error(err)
			}
			if left := cgroupsNamed(filepath.Dir(parent)); len(left) > 0 {
				t.Errorf("left by the agent: %q", left)
			}
		})
	}
}

// cgroupsNamed are the cgroups whose path holds a text.
func cgroupsNamed(text string) (found []string) {
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, text) {
			found = append(found, path)
		}
		return nil
	})
	return found
}
