package endtoend

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/imagetest"
)

// bare is crun without anything of ours, on an overlay of the same image, with the configuration that crun itself
// proposes. It is used on one thread with a mount namespace of its own.
type bare struct {
	b    *testing.B
	dir  string
	root imagetest.Root
	spec map[string]any
	do   chan func()
	n    int
}

// stage is where in the thread's own mount namespace everything is mounted.
const stage = "/mnt"

func newBare(b *testing.B) *bare {
	b.Helper()
	needContainers(b)
	x := &bare{b: b, dir: b.TempDir(), do: make(chan func())}
	if err := os.Mkdir(filepath.Join(x.dir, "image"), 0o755); err != nil {
		b.Fatal(err)
	}
	x.root = imagetest.Unpack(b, filepath.Join(x.dir, "image"), imagetest.Busybox(b), 0)
	if out, err := exec.Command("crun", "spec", "--bundle", x.dir).CombinedOutput(); err != nil {
		b.Fatalf("crun spec: %v: %s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(x.dir, "config.json"))
	if err == nil {
		err = json.Unmarshal(text, &x.spec)
	}
	if err != nil {
		b.Fatal(err)
	}
	// The one mount that depends on what kind of cgroups there are.
	mounts, _ := x.spec["mounts"].([]any)
	x.spec["mounts"] = slices.DeleteFunc(mounts, func(m any) bool { return strings.Contains(fmt.Sprint(m), "cgroup") })
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		// crun does not start where there are cgroups of both kinds.
		_ = unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH)
		if err == nil {
			err = unix.Mount("tmpfs", stage, "tmpfs", 0, "")
		}
		ready <- err
		for f := range x.do {
			f()
		}
	}()
	if err := <-ready; err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { close(x.do) })
	return x
}

// on runs f on the thread.
func (x *bare) on(f func() error) {
	x.b.Helper()
	done := make(chan error)
	x.do <- func() { done <- f() }
	if err := <-done; err != nil {
		x.b.Fatal(err)
	}
}

// bundle mounts a root and writes the configuration of a container with this command.
func (x *bare) bundle(command ...string) (dir, name string, err error) {
	x.n++
	name = fmt.Sprintf("bare%d", x.n)
	dir = filepath.Join(stage, name)
	for _, d := range []string{"", "upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			return "", "", err
		}
	}
	lower := make([]string, len(x.root.Layers))
	for i, l := range x.root.Layers {
		lower[i] = filepath.Join(x.root.Dir, l)
	}
	options := "lowerdir=" + strings.Join(lower, ":") + ",upperdir=" + dir + "/upper,workdir=" + dir + "/work"
	if err := unix.Mount("overlay", dir+"/root", "overlay", 0, options); err != nil {
		return "", "", err
	}
	process := x.spec["process"].(map[string]any)
	process["args"], process["terminal"] = command, false
	x.spec["root"] = map[string]any{"path": "root"}
	text, err := json.Marshal(x.spec)
	if err != nil {
		return "", "", err
	}
	return dir, name, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600)
}

func (x *bare) crun(args ...string) *exec.Cmd {
	return exec.Command("crun", append([]string{"--root", filepath.Join(x.dir, "state"), "--cgroup-manager=disabled"}, args...)...)
}

// first starts a program and waits for its first byte, and then for its end.
func first(cmd *exec.Cmd) (time.Duration, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	_, err = io.ReadFull(out, make([]byte, 1))
	took := time.Since(began)
	_, _ = io.Copy(io.Discard, out)
	if werr := cmd.Wait(); err == nil {
		err = werr
	}
	if err != nil {
		return 0, fmt.Errorf("%v: %w: %s", cmd.Args, err, stderr.String())
	}
	return took, nil
}

// starts are n cold starts, one after the other: the overlay, and `crun run`.
func (x *bare) starts(n int) (all []time.Duration) {
	x.b.Helper()
	for range n {
		x.on(func() error {
			began := time.Now()
			dir, name, err := x.bundle("/bin/echo", "x")
			if err != nil {
				return err
			}
			made := time.Since(began)
			took, err := first(x.crun("run", "--bundle", dir, name))
			if err != nil {
				return err
			}
			all = append(all, made+took)
			if err := unix.Unmount(dir+"/root", unix.MNT_DETACH); err != nil {
				return err
			}
			return os.RemoveAll(dir)
		})
	}
	return all
}

// execs are n commands in a container that runs: `crun exec`.
func (x *bare) execs(n int) (all []time.Duration) {
	x.b.Helper()
	name := ""
	x.on(func() error {
		dir, id, err := x.bundle("/bin/sleep", "100000")
		if err != nil {
			return err
		}
		name = id
		// Its output goes nowhere: a pipe would be held open by the container.
		return x.crun("run", "--detach", "--bundle", dir, id).Run()
	})
	defer x.on(func() error { return x.crun("delete", "--force", name).Run() })
	for range n {
		x.on(func() error {
			took, err := first(x.crun("exec", name, "/bin/echo", "x"))
			all = append(all, took)
			return err
		})
	}
	return all
}
