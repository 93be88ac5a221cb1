package main

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

func mountAttempts() []attempt {
	return []attempt{
		{"mount", func() verdict {
			at := "/tmp/probe-mount"
			_ = os.MkdirAll(at, 0o755)
			return each(map[string]func() error{
				"tmpfs":   func() error { return unix.Mount("tmpfs", at, "tmpfs", 0, "") },
				"proc":    func() error { return unix.Mount("proc", at, "proc", 0, "") },
				"sysfs":   func() error { return unix.Mount("sysfs", at, "sysfs", 0, "") },
				"cgroup":  func() error { return unix.Mount("cgroup", at, "cgroup", 0, "memory") },
				"cgroup2": func() error { return unix.Mount("cgroup2", at, "cgroup2", 0, "") },
				"bind":    func() error { return unix.Mount("/etc", at, "", unix.MS_BIND, "") },
				"shared":  func() error { return unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "") },
			})
		}},
		{"mount-remount", func() verdict {
			return each(map[string]func() error{
				"/sys":                func() error { return unix.Mount("", "/sys", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
				"/proc/sys":           func() error { return unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
				"/dev/.muster/init":   func() error { return unix.Mount("", "/dev/.muster/init", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
				"/":                   func() error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
				"/ by mount_setattr":  func() error { return setattr("/") },
				"/sys, mount_setattr": func() error { return setattr("/sys") },
			})
		}},
		{"mount-uncover", func() verdict {
			return each(map[string]func() error{
				"/proc/kcore":       func() error { return unix.Unmount("/proc/kcore", unix.MNT_DETACH) },
				"/proc/sys":         func() error { return unix.Unmount("/proc/sys", unix.MNT_DETACH) },
				"/sys/firmware":     func() error { return unix.Unmount("/sys/firmware", unix.MNT_DETACH) },
				"/dev/.muster/init": func() error { return unix.Unmount("/dev/.muster/init", unix.MNT_DETACH) },
			})
		}},
		{"mount-new-calls", func() verdict {
			fs := []byte("tmpfs\x00")
			root := []byte("/\x00")
			return each(map[string]func() error{
				"fsopen":    func() error { return call(unix.SYS_FSOPEN, uintptr(unsafe.Pointer(&fs[0])), 0) },
				"open_tree": func() error { return call(unix.SYS_OPEN_TREE, ^uintptr(99), uintptr(unsafe.Pointer(&root[0])), 1) },
				"move_mount": func() error {
					return call(unix.SYS_MOVE_MOUNT, 0, uintptr(unsafe.Pointer(&root[0])), 0, uintptr(unsafe.Pointer(&root[0])), 0)
				},
				"fsmount": func() error { return call(unix.SYS_FSMOUNT, 0, 0, 0) },
			})
		}},
		{"pivot-root", func() verdict { return judge(unix.PivotRoot("/tmp", "/tmp")) }},
	}
}

func setattr(path string) error {
	return unix.MountSetattr(unix.AT_FDCWD, path, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV})
}
