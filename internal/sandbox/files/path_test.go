package files

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/musterhq/muster/internal/sandbox/sandboxtest"
	"github.com/musterhq/muster/internal/sandbox/system"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestOpenBySteps: without openat2 the same paths lead to the same places, or to the same errors.
func TestOpenBySteps(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"a/b/c", "d"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"file", "a/file"} {
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"to-a": "a", "to-file": "a/file", "a/up": "..", "a/b/abs": dir + "/d", "loop": "loop", "dangling": "none", "a/self": "../to-a/b/", "slash": "/", "a/twice": "../to-file",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	top := sandboxtest.OpenDir(t, dir)
	if fd, err := unix.Openat2(top, ".", &unix.OpenHow{Flags: unix.O_PATH}); err != nil {
		t.Skipf("openat2: %v", err)
	} else {
		_ = unix.Close(fd)
	}
	where := func(fd int, err error) string {
		if err != nil {
			return err.Error()
		}
		defer func() { _ = unix.Close(fd) }()
		path, err := os.Readlink(system.SelfFD(fd))
		if err != nil {
			return err.Error()
		}
		return path
	}
	parts := rapid.SampledFrom([]string{"a", "b", "c", "d", "file", "to-a", "to-file", "up", "abs", "loop", "dangling", "self", "slash", "twice", ".", "..", "", "none"})
	rapid.Check(t, func(rt *rapid.T) {
		path := strings.Join(rapid.SliceOfN(parts, 1, 7).Draw(rt, "path"), "/")
		if rapid.Bool().Draw(rt, "absolute") {
			path = dir + "/" + path
		}
		if path == "" {
			path = "."
		}
		flags := unix.O_PATH | rapid.SampledFrom([]int{0, unix.O_NOFOLLOW, unix.O_DIRECTORY, unix.O_DIRECTORY | unix.O_NOFOLLOW}).Draw(rt, "flags")
		resolve := rapid.SampledFrom([]uint64{byLinks, beneath}).Draw(rt, "resolve")
		want := where(unix.Openat2(top, path, &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve}))
		got := where(openBySteps(top, path, flags|unix.O_CLOEXEC, resolve))
		if got != want {
			// Going up is allowed beneath only as long as it stays there, and by steps never:
			// nobody here needs it.
			if resolve == beneath && strings.Contains(path, "..") && got == unix.EXDEV.Error() {
				return
			}
			// Which of two things that are wrong with a path is told is a matter of taste.
			if !strings.HasPrefix(want, "/") && !strings.HasPrefix(got, "/") {
				return
			}
			rt.Fatalf("%q with %x and %x: %s, want %s", path, flags, resolve, got, want)
		}
	})
}

// TestStepsPastMagic: links of proc that lead past names are not followed without openat2 either.
func TestStepsPastMagic(t *testing.T) {
	for _, path := range []string{"/proc/self/root/etc", "/proc/self/fd/0", "/proc/self/cwd", "/proc/thread-self/root"} {
		if fd, err := openBySteps(unix.AT_FDCWD, path, unix.O_PATH, byLinks); err != unix.ELOOP {
			t.Errorf("%s: %d, %v", path, fd, err)
		}
	}
	fd, err := openBySteps(unix.AT_FDCWD, "/proc/sys/kernel/ostype", unix.O_RDONLY, byLinks)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
}

func TestOwn(t *testing.T) {
	thread := func(id string) bool { return id == "1" || id == "7" }
	for path, want := range map[string]bool{
		"/proc/1/environ": true, "/proc/7/mem": true, "/proc/1": true, "/proc/1/task/7/fd/3": true, "/proc/1/net/tcp": false, "/proc/1/net": false, "/proc/7/mounts": false,
		"/proc/1/mountinfo": true, "/proc/1/netx": true, "/proc/12/environ": false, "/proc/12/task/1/x": false, "/proc/irq/1/smp_affinity": false, "/proc": false, "/proc/meminfo": false,
		"/elsewhere/1/environ": true, "/elsewhere/12/environ": false, "/7/environ": true, "": false, "/": false,
	} {
		if got := own(path, thread); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
	if !isThread(strconv.Itoa(os.Getpid())) || isThread("999999999") || isThread(strconv.Itoa(syscall.Getppid())) {
		t.Error("threads are not told from others")
	}
}
