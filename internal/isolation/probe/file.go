package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func fileAttempts() []attempt {
	return []attempt{
		{"node-files", func() verdict {
			secret := os.Getenv("PROBE_SECRET")
			if secret == "" {
				return absent("no secret")
			}
			up := strings.Repeat("../", 40)
			tries := map[string]func() error{}
			for _, from := range []string{"/", "/proc/self/root/", "/proc/self/cwd/", "/proc/thread-self/root/", "/proc/1/root/", "/proc/1/cwd/", "/shared/", "/vol/", "/etc/hosts/", "/dev/.muster/", "/dev/fd/0/", "/proc/self/fd/1/"} {
				tries[from] = func() error { return readsToken(from + up + secret) }
			}
			links := map[string]string{"/shared/probe-link": up + secret, "/vol/probe-link": secret, "/tmp/probe-link": "/proc/1/root" + secret}
			for link, target := range links {
				tries["link "+link] = func() error {
					if err := os.Symlink(target, link); err != nil && !errors.Is(err, os.ErrExist) {
						return err
					}
					return readsToken(link)
				}
			}
			return each(tries, unix.ENOENT, unix.ENOTDIR)
		}},
		{"chroot-and-up", func() verdict {
			secret := os.Getenv("PROBE_SECRET")
			if secret == "" {
				return absent("no secret")
			}
			at, err := os.Open("/")
			if err != nil {
				return broken("%v", err)
			}
			// A root below the working directory, then up past it: the old way out of a chroot.
			_ = os.MkdirAll("/tmp/probe-root", 0o755)
			if err := unix.Chroot("/tmp/probe-root"); err != nil {
				return judge(err)
			}
			if err := at.Chdir(); err != nil {
				return judge(err)
			}
			for range 100 {
				if err := os.Chdir(".."); err != nil {
					return judge(err)
				}
			}
			if err := unix.Chroot("."); err != nil {
				return judge(err)
			}
			return judge(readsToken(secret), unix.ENOENT)
		}},
		{"file-handles", func() verdict {
			kind, data, ok := strings.Cut(os.Getenv("PROBE_HANDLE"), ":")
			number, err := strconv.Atoi(kind)
			raw, err2 := hex.DecodeString(data)
			if !ok || err != nil || err2 != nil {
				return absent("no handle")
			}
			tries := map[string]func() error{}
			for _, from := range []string{"/", "/shared", "/vol", "/etc/hosts", initProgram, "/dev"} {
				tries[from] = func() error {
					mount, err := unix.Open(from, unix.O_RDONLY|unix.O_CLOEXEC, 0)
					if err != nil {
						return err
					}
					defer func() { _ = unix.Close(mount) }()
					fd, err := unix.OpenByHandleAt(mount, unix.NewFileHandle(int32(number), raw), unix.O_RDONLY)
					if err != nil {
						return err
					}
					defer func() { _ = unix.Close(fd) }()
					return readsToken(fmt.Sprint("/proc/self/fd/", fd))
				}
			}
			return each(tries, unix.ENOENT)
		}},
	}
}

// deviceAttempts try to get at hardware by files.
func deviceAttempts() []attempt {
	return []attempt{
		{"device-nodes", func() verdict {
			tries := map[string]func() error{}
			for _, dir := range []string{"/tmp", "/dev", "/dev/shm", "/shared", "/vol", "/root"} {
				for name, device := range map[string]struct {
					mode  uint32
					major uint32
					minor uint32
				}{"memory": {unix.S_IFCHR, 1, 1}, "disk": {unix.S_IFBLK, diskMajor(), diskMinor()}, "console": {unix.S_IFCHR, 5, 1}, "fuse": {unix.S_IFCHR, 10, 229}} {
					path := filepath.Join(dir, "probe-"+name)
					tries[path] = func() error {
						_ = os.Remove(path)
						if err := unix.Mknod(path, device.mode|0o666, int(unix.Mkdev(device.major, device.minor))); err != nil {
							return err
						}
						defer func() { _ = os.Remove(path) }()
						return openFor(path, unix.O_RDONLY)
					}
				}
			}
			return each(tries, unix.ENOENT)
		}},
		{"device-nodes-of-the-image", func() verdict {
			tries := map[string]func() error{}
			for _, name := range []string{"disk", "memory", "null"} {
				tries[name] = func() error { return openFor("/evil/"+name, unix.O_RDWR) }
			}
			return each(tries, unix.ENOENT, unix.ENXIO)
		}},
		{"devices-there", func() verdict { return devices() }},
		{"mounts-are-nodev", func() verdict { return mounts() }},
		{"links-between-mounts", func() verdict {
			// A second name in the shared directory for a file of the node would be read, or changed, by who trusts that directory.
			tries := map[string]func() error{}
			for _, from := range []string{"/etc/hosts", "/etc/resolv.conf", "/etc/hostname", initProgram} {
				tries["link "+from] = func() error { return unix.Link(from, "/shared/probe-hard") }
				tries["rename "+from] = func() error { return unix.Rename(from, "/shared/probe-moved") }
			}
			return each(tries, unix.EXDEV, unix.EBUSY)
		}},
	}
}

// readsToken is nil if the file can be read and holds what only the node's does.
func readsToken(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, 4096)
	n, _ := f.Read(b)
	if token := os.Getenv(tokenVariable); token != "" && strings.Contains(string(b[:n]), token) {
		return nil
	}
	return unix.ENOENT
}

func diskMajor() uint32 { major, _ := disk(); return major }
func diskMinor() uint32 { _, minor := disk(); return minor }

// disk is the node's, as the test says, or what it would be called on most.
func disk() (major, minor uint32) {
	if _, err := fmt.Sscanf(os.Getenv("PROBE_DISK"), "%d:%d", &major, &minor); err != nil || major == 0 {
		return 8, 0
	}
	return major, minor
}

// usual devices of a container, by number.
var usual = map[[2]uint32]string{
	{1, 3}: "null", {1, 5}: "zero", {1, 7}: "full", {1, 8}: "random", {1, 9}: "urandom", {5, 0}: "tty", {5, 2}: "ptmx",
}

func devices() verdict {
	seen := 0
	err := filepath.WalkDir("/dev", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Type()&os.ModeDevice == 0 {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return nil
		}
		seen++
		number := [2]uint32{unix.Major(st.Rdev), unix.Minor(st.Rdev)}
		if st.Mode&unix.S_IFMT == unix.S_IFCHR && (usual[number] != "" || number[0] >= 136 && number[0] <= 143) {
			return nil
		}
		return fmt.Errorf("%s is device %d:%d", path, number[0], number[1])
	})
	if err != nil {
		return broken("%v", err)
	}
	return held("%d, all usual", seen)
}

// mounts: whatever can be written, or comes from an image, must not take device nodes.
func mounts() verdict {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return broken("%v", err)
	}
	seen := 0
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 6 {
			continue
		}
		at, options := f[4], ","+f[5]+","
		seen++
		var st syscall.Stat_t
		if err := syscall.Stat(at, &st); err == nil && st.Mode&syscall.S_IFMT == syscall.S_IFCHR {
			continue // one device bound on a file
		}
		if at == "/dev" || strings.Contains(options, ",nodev,") || strings.HasPrefix(at, "/proc/") || strings.HasPrefix(at, "/sys/") && strings.Contains(options, ",ro,") {
			continue
		}
		if at == "/dev/pts" {
			continue // nothing else can be made there
		}
		return broken("%s has %s", at, f[5])
	}
	return held("%d", seen)
}
