package oci

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
)

// A container has the devices that it was granted, with their files, and no others of the node.
func TestGrantedDevices(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	// They behave as /dev/zero and /dev/full do, which shows that they are the ones that were meant.
	given, other := filepath.Join(dir, "given"), filepath.Join(dir, "other")
	for path, minor := range map[string]uint32{given: 5, other: 7} {
		if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, minor))); err != nil {
			t.Skip("making device files needs root:", err)
		}
	}
	library, hooked := filepath.Join(dir, "lib.so"), filepath.Join(dir, "hooked")
	if err := os.WriteFile(library, []byte("library"), 0o644); err != nil {
		t.Fatal(err)
	}
	ways(t, func(t *testing.T, r *Runtime) {
		// Where a container has ids of its own, so have its hooks.
		if err := errors.Join(os.WriteFile(hooked, nil, 0o666), os.Chmod(hooked, 0o666)); err != nil {
			t.Fatal(err)
		}
		out := runInside(t, r, func(c *contract.SandboxConfig) {
			c.Container.User = "1000:1000"
			c.Container.Devices = &contract.Devices{
				Nodes:  []contract.DeviceNode{{Path: "/dev/gpus/card0", HostPath: given, Access: "rw"}},
				Mounts: []contract.DeviceMount{{Path: "/usr/local/vendor/lib.so", HostPath: library}},
				// A hook reads the state that the runtime writes to it, or crun meets a broken pipe.
				Hooks: []contract.DeviceHook{{Kind: "createContainer", Path: "/bin/sh", Args: []string{"sh", "-c", "cat >/dev/null; echo yes > " + hooked}}},
			}
		}, `head -c 3 /dev/gpus/card0 | od -An -tx1 | tr -d ' '
cat /usr/local/vendor/lib.so; echo
(echo x > /usr/local/vendor/lib.so) 2>/dev/null || echo read-only
ls /dev/gpus`)
		if want := "000000\nlibrary\nread-only\ncard0\n"; out != want {
			t.Errorf("%q, want %q", out, want)
		}
		if b, err := os.ReadFile(hooked); err != nil || strings.TrimSpace(string(b)) != "yes" {
			t.Errorf("the hook did not run: %q, %v", b, err)
		}
	})
	if info, err := os.Stat(given); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the node's own device was changed: %v, %v", info.Mode(), err)
	}
}

// Root inside can make no device file that works, and so reach no device that was not granted.
func TestOnlyGrantedDevices(t *testing.T) {
	given := filepath.Join(t.TempDir(), "given")
	if err := unix.Mknod(given, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))); err != nil {
		t.Skip("making device files needs root:", err)
	}
	ways(t, func(t *testing.T, r *Runtime) {
		out := runInside(t, r, func(c *contract.SandboxConfig) {
			c.Container.Devices = &contract.Devices{Nodes: []contract.DeviceNode{{Path: "/dev/card0", HostPath: given, Access: "rw"}}}
		}, `for d in /dev /tmp /; do mknod $d/mem c 1 1 2>/dev/null && head -c 1 $d/mem >/dev/null 2>&1 && echo "$d: made and read"; done
head -c 1 /dev/card0 >/dev/null && echo granted`)
		if out != "granted\n" {
			t.Errorf("%q", out)
		}
	})
}

// A device that is gone is the node's fault, and is named.
func TestMissingDevice(t *testing.T) {
	r := newRuntime(t, "crun", testParent(t), 0)
	c := attempt(t.TempDir(), "j-0-1", busybox(t, 0), "true")
	c.Container.Devices = &contract.Devices{Nodes: []contract.DeviceNode{{Path: "/dev/card0", HostPath: "/nowhere/card0"}}}
	if err := makeDirs(c.Dir); err != nil {
		t.Fatal(err)
	}
	_, err := r.Start(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "/nowhere/card0") {
		t.Errorf("%v", err)
	}
}

// Devices that no container can be made with are the node's fault, not the image's.
func TestBrokenDeviceHook(t *testing.T) {
	r := newRuntime(t, "crun", testParent(t), 0)
	c := attempt(t.TempDir(), "j-0-1", busybox(t, 0), "true")
	c.Container.Devices = &contract.Devices{Hooks: []contract.DeviceHook{{Kind: "createContainer", Path: "/bin/false", Args: []string{"false"}}}}
	if err := makeDirs(c.Dir); err != nil {
		t.Fatal(err)
	}
	_, err := r.Start(t.Context(), c)
	var f *muster.Failure
	if !errors.As(err, &f) || f.Class != muster.FailureNode || !strings.HasPrefix(f.Message, "devices: ") {
		t.Errorf("%v", err)
	}
}
