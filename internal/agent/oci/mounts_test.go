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

// A container sees the volumes that it asked for, writes only where it may, and finds in them no
// device and no program that changes its user.
func TestNodeVolumes(t *testing.T) {
	dir := t.TempDir()
	read, write := filepath.Join(dir, "read"), filepath.Join(dir, "write")
	for _, d := range []string{read, write} {
		if err := errors.Join(os.Mkdir(d, 0o755), os.WriteFile(filepath.Join(d, "file"), []byte(filepath.Base(d)+"\n"), 0o644), os.Chown(d, 1000, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mknod(filepath.Join(read, "zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
		t.Skip("making device files needs root:", err)
	}
	ways(t, func(t *testing.T, r *Runtime) {
		made := filepath.Join(write, "made")
		if err := os.RemoveAll(made); err != nil {
			t.Fatal(err)
		}
		out := runInside(t, r, func(c *contract.SandboxConfig) {
			c.Container.User = "1000:1000"
			c.Container.Mounts = []contract.Mount{
				{Name: "read", Path: "/data/read", Source: read}, {Name: "write", Path: "/data/write", Source: write, Writable: true},
				{Path: "/fast", Tmpfs: 64 << 10},
			}
		}, `cat /data/read/file /data/write/file
(echo x > /data/read/made) 2>/dev/null || echo read-only
head -c 1 /data/read/zero >/dev/null 2>&1 || echo no device
echo x > /data/write/made && stat -c %u:%g /data/write/made
grep -c " /data/write .*nosuid,nodev" /proc/self/mounts
head -c 1000000 /dev/zero 2>/dev/null > /fast/full || echo full
stat -c %s /fast/full`)
		if want := "read\nwrite\nread-only\nno device\n1000:1000\n1\nfull\n65536\n"; out != want {
			t.Errorf("%q, want %q", out, want)
		}
		var st unix.Stat_t
		if err := unix.Stat(made, &st); err != nil || st.Uid != 1000 {
			t.Errorf("on the node %s has the owner %d, want 1000: %v", made, st.Uid, err)
		}
	})
}

// A volume is the directory that the configuration names, and not where a link leads that somebody
// put in its way. One that is missing is the node's fault.
func TestVolumeThroughLink(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "real/data"), 0o755), os.Symlink("real", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	r := newRuntime(t, programs(t)[0], testParent(t), 0)
	for source, want := range map[string]string{"link/data": "symbolic link", "gone": "no such file"} {
		box := t.TempDir()
		if err := makeDirs(box); err != nil {
			t.Fatal(err)
		}
		c := attempt(box, "volume-0-1", busybox(t, 0), "true")
		c.Container.Mounts = []contract.Mount{{Name: "data", Path: "/data", Source: filepath.Join(dir, source)}}
		_, err := r.Start(t.Context(), c)
		var f *muster.Failure
		if !errors.As(err, &f) || f.Class != muster.FailureNode || !strings.Contains(f.Message, want) {
			t.Errorf("%s: %v, want %q", source, err, want)
		}
		if err := r.Remove(t.Context(), box); err != nil {
			t.Error(err)
		}
	}
}
