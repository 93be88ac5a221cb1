package oci

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/contract"
)

// hostInodes are owner, mode and times of what the node has and a sandbox may come across, by path.
func hostInodes(t *testing.T, paths []string) map[string]unix.Stat_t {
	t.Helper()
	all := map[string]unix.Stat_t{}
	for _, pattern := range paths {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			st.Atim = unix.Timespec{} // reading is allowed
			st.Nlink, st.Blocks = 0, 0
			all[path] = st
		}
	}
	return all
}

// S-C1: root of a sandbox changes owner, mode and times of everything that it sees. Nothing of the node's is among it:
// crun changes the owner of what it is given for stdio at every start, and binds the node's devices where there is a
// user namespace, so that a `chmod 000 /dev/null` inside used to take /dev/null from every program of the node.
func TestRootInsideOwnsNothingOfTheNode(t *testing.T) {
	const script = `cd /
find / \( -path /proc -o -path /sys \) -prune -o -exec chown -h 12:12 {} + 2>/dev/null
find / \( -path /proc -o -path /sys \) -prune -o -exec touch -h -c -d 2000-01-01 {} + 2>/dev/null
find / \( -path /proc -o -path /sys -o -type l \) -prune -o -exec chmod 0711 {} + 2>/dev/null
for f in /proc/self/fd/* /proc/1/fd/*; do chown 12:12 $f; chmod 0711 $f; touch -c -d 2000-01-01 $f; done 2>/dev/null
stat -c %u:%a /dev/zero`
	ways(t, func(t *testing.T, r *Runtime) {
		image := ""
		paths := []string{
			"/dev", "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts", "/dev/shm", "/dev/mqueue",
			"/etc/resolv.conf", "/etc/hosts", "/etc/hostname", "/sys/fs/cgroup", "/mnt", "/media", "/srv", r.config.InitPath, r.program.path,
		}
		var before map[string]unix.Stat_t
		out := runInside(t, r, func(c *contract.SandboxConfig) {
			image = c.Container.Image.Root
			for range 4 {
				image += "/*"
				paths = append(paths, strings.TrimSuffix(image, "/*"))
			}
			before = hostInodes(t, paths)
		}, script)
		if got := strings.TrimSpace(out); got != "12:711" {
			t.Errorf("the attack did not work on the sandbox's own device: %q, so this test shows nothing", got)
		}
		after := hostInodes(t, paths)
		for path, was := range before {
			if is := after[path]; is != was {
				t.Errorf("%s was changed from a sandbox:\n before %+v\n after  %+v", path, was, is)
			}
		}
		if len(before) < 15 {
			t.Errorf("only %d inodes were compared", len(before))
		}
	})
}
