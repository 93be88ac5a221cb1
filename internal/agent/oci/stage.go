package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
)

const (
	// stageFile bounds one of the files of a container's own, stageSize all of them and what the container adds.
	stageFile = 64 << 10
	stageSize = "size=1m,mode=0755"
)

// stageCandidates are directories that every node has and that everybody may pass through; the stage covers one, for its own start only.
var stageCandidates = []string{"/mnt", "/media", "/srv", "/opt", "/home"}

// stagePlaces are those of stageCandidates that this node has.
func stagePlaces() (places []string) {
	for _, p := range stageCandidates {
		var st unix.Stat_t
		if unix.Lstat(p, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			places = append(places, p)
		}
	}
	return places
}

// stage is where one container is made, in a mount namespace that only its start sees.
type stage struct {
	r    *Runtime
	c    *contract.SandboxConfig
	name string
	// dirs are its cgroup's.
	dirs []string
	ids  ids
	// box is our place in the sandbox's directory, place that of the stage.
	box, place string
	// canary: it is itself what is known to be good.
	canary bool
	// shared is where the shared directory is to be taken from.
	shared string
	// devices are those that it was granted, with their numbers on the node.
	devices []specs.LinuxDevice
}

// at is a path on the stage.
func (s *stage) at(name string) string { return filepath.Join(s.place, name) }

func (s *stage) volume(i int) string { return s.at("scratch/volume" + strconv.Itoa(i)) }

// spawn makes the container and returns its init.
func (s *stage) spawn(ctx context.Context, descriptors []int) (pid, pidfd int, err error) {
	limits := cgroup.Limits{Memory: s.c.Resources.Memory, CPU: s.c.Resources.CPU, CPUMax: s.c.Limits.CPUMax, Pids: s.c.Limits.Pids}
	if limits.Pids <= 0 {
		limits.Pids = s.r.config.PidsLimit
	}
	if err := s.r.groups.Create(s.dirs, limits); err != nil {
		return 0, -1, err
	}
	if err := os.Mkdir(s.box, 0o700); err != nil {
		return 0, -1, err
	}
	if s.place = s.freePlace(); s.place == "" {
		return 0, -1, fmt.Errorf("every place for a stage (%s) is in use by the agent itself", strings.Join(s.r.places, ", "))
	}
	if err := s.makeScratch(ctx); err != nil {
		return 0, -1, err
	}
	onDyingThread(func() {
		initbox.OnCores(s.c.Cores) // to the end of this thread, and for all that it starts
		pid, pidfd, err = s.perform(ctx, descriptors)
	})
	if err != nil {
		if kills, own := cgroup.OutOfMemory(s.dirs); kills > 0 && own {
			err = initbox.UserFault(muster.ReasonOutOfMemory, "over its memory limit of %s before it began", s.c.Resources.Memory)
		}
		err = s.blame(ctx, err)
	}
	return pid, pidfd, err
}

// onDyingThread does something on a thread that ends after it, and returns when it is done. Never on the first thread
// of this process: Go cannot end that one, so it would keep its mount namespace, and with it the sandbox's mounts, for
// ever; and what /proc tells of this process is what that thread sees.
func onDyingThread(do func()) {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// As long as this goroutine holds the first thread, the next one cannot get it.
			onDyingThread(do)
			runtime.UnlockOSThread()
		} else {
			do() // and stay locked: the thread ends with its goroutine
		}
		close(done)
	}()
	<-done
}

// freePlace is a place that covers nothing which a start needs.
func (s *stage) freePlace() string {
	for _, p := range s.r.places {
		covers := false
		for _, needed := range append(s.deviceFiles(), s.c.Dir, s.c.Container.Image.Root, s.c.Container.Shared, s.r.config.InitPath, s.r.program.path) {
			real, err := filepath.EvalSymlinks(needed)
			if err != nil {
				real = needed
			}
			covers = covers || real == p || strings.HasPrefix(real, p+"/") || strings.HasPrefix(needed, p+"/")
		}
		if !covers {
			return p
		}
	}
	return ""
}

// makeScratch makes the file of the writable layer, if it is to be one.
func (s *stage) makeScratch(ctx context.Context) error {
	if !s.r.loops {
		return nil
	}
	size := s.c.Resources.Disk
	if size <= 0 {
		size = s.r.config.Scratch
	}
	size = max(size, minScratch) &^ (4096 - 1)
	if err := s.r.templates.image(ctx, filepath.Join(s.box, scratchName), int64(size)); err != nil {
		return fmt.Errorf("writable layer of %s: %w", size, err)
	}
	return nil
}

// perform is all that happens in the namespace of its own, on a thread that ends after it.
func (s *stage) perform(ctx context.Context, descriptors []int) (pid, pidfd int, err error) {
	if err := s.enter(); err != nil {
		return 0, -1, err
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"stage", s.makeStage}, {"writable layer", s.mountScratch}, {"image " + s.c.Container.Image.Ref, s.mountRoot}, {"files of users", s.checkUserFiles},
		{"volumes", s.makeVolumes}, {"sources", s.bindSources}, {"devices", s.makeDevices}, {"configuration", s.writeSpec},
	} {
		if err := step.do(); err != nil {
			return 0, -1, fmt.Errorf("%s: %w", step.what, err)
		}
		if ctx.Err() != nil {
			return 0, -1, context.Cause(ctx)
		}
	}
	null, err := s.ownNull(descriptors)
	if err != nil {
		return 0, -1, err
	}
	defer func() { _ = unix.Close(null) }()
	if err := s.r.program.run(ctx, s, descriptors); err != nil {
		return 0, -1, err
	}
	// What the program remembers of it is of no use to anybody; it goes with the box.
	return s.r.program.born(ctx, s)
}

// enter gives this thread its own mount namespace and, if the container shall have one that exists, network namespace.
func (s *stage) enter() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	// crun does not start where both kinds of cgroups are mounted. None of the controllers is in this one.
	if s.r.rootless() && !s.r.groups.Unified() {
		// What is mounted outside of a user namespace can be covered in it, and not unmounted.
		if err := unix.Mount("tmpfs", "/sys/fs/cgroup", "tmpfs", unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOEXEC, "size=4k,mode=0755"); err != nil && err != unix.ENOENT {
			return fmt.Errorf("cover the hierarchies of cgroups: %w", err)
		}
	} else if !s.r.groups.Unified() {
		if err := unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			return fmt.Errorf("unmount the second hierarchy of cgroups: %w", err)
		}
	}
	n := s.c.Container.Network
	if n == nil || n.Namespace == "" {
		return nil
	}
	// The program and what it starts inherit it.
	fd, err := unix.Open(n.Namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open network namespace", Path: n.Namespace, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return &os.PathError{Op: "enter network namespace", Path: n.Namespace, Err: err}
	}
	return nil
}

// makeStage makes the file system that all else is mounted on, with the files of the container's own.
func (s *stage) makeStage() error {
	if err := unix.Mount("tmpfs", s.place, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, stageSize); err != nil {
		return &os.PathError{Op: "mount tmpfs on", Path: s.place, Err: err}
	}
	for name, text := range s.texts() {
		if err := os.WriteFile(s.at(name), []byte(text), 0o644); err != nil {
			return err
		}
		if err := os.Chown(s.at(name), s.ids.base, s.ids.base); err != nil {
			return err
		}
	}
	return nil
}

// mountScratch mounts the writable layer.
func (s *stage) mountScratch() error {
	at := s.at("scratch")
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	switch size := s.c.Resources.Disk; {
	case s.r.loops:
		device, fd, err := attachLoop(filepath.Join(s.box, scratchName))
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		// Nothing of it is ever read after a crash of the node: no barriers. What is deleted is given back to the node's disk.
		if err := unix.Mount(device, at, "ext4", unix.MS_NODEV|unix.MS_NOATIME, "noinit_itable,nobarrier,discard"); err != nil {
			return &os.PathError{Op: "mount", Path: device, Err: err}
		}
	case size > 0:
		if err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NODEV|unix.MS_NOATIME, "mode=0755,size="+strconv.FormatInt(int64(size), 10)); err != nil {
			return &os.PathError{Op: "mount tmpfs on", Path: at, Err: err}
		}
	default:
		plain := filepath.Join(s.box, scratchName)
		if err := os.Mkdir(plain, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(plain, at, "", unix.MS_BIND, ""); err != nil {
			return &os.PathError{Op: "bind", Path: plain, Err: err}
		}
	}
	for _, name := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(at, name), 0o755); err != nil {
			return err
		}
	}
	return os.Chown(filepath.Join(at, "upper"), s.ids.base, s.ids.base)
}

// mountRoot lays the writable layer over those of the image.
func (s *stage) mountRoot() error {
	root := s.at("root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	lower := strings.Join(s.c.Container.Image.Layers, ":")
	from := s.c.Container.Image.Root
	if lower == "" {
		// An image of nothing: the kernel wants something below all the same.
		if err := os.Mkdir(s.at("nothing"), 0o755); err != nil {
			return err
		}
		from, lower = s.place, "nothing"
	} else if s.ids.layers != nil {
		// As this sandbox's own: the names below it stay.
		if err := os.Mkdir(s.at("layers"), 0o755); err != nil {
			return err
		}
		if err := bindOwned(from, s.at("layers"), s.ids.layers); err != nil {
			return err
		}
		from = s.at("layers")
	}
	// The thread's own working directory: names below it are short, and a page holds many.
	if err := unix.Chdir(from); err != nil {
		return &os.PathError{Op: "chdir", Path: from, Err: err}
	}
	options := "lowerdir=" + lower + ",upperdir=" + s.at("scratch/upper") + ",workdir=" + s.at("scratch/work") + ",index=off,metacopy=off,redirect_dir=nofollow,xino=off"
	if s.r.rootless() {
		// The attributes that the overlay has of its own are root's; these are anybody's.
		options += ",userxattr"
	}
	if len(options)+len(",volatile") >= os.Getpagesize() {
		return initbox.UserFault(muster.ReasonImage, "image %s: its %d layers have names of %d bytes together, more than the kernel takes; make it of fewer layers", s.c.Container.Image.Ref, len(s.c.Container.Image.Layers), len(lower))
	}
	err := unix.Mount("overlay", root, "overlay", unix.MS_NODEV|unix.MS_NOATIME, options+",volatile")
	if err == unix.EINVAL {
		err = unix.Mount("overlay", root, "overlay", unix.MS_NODEV|unix.MS_NOATIME, options)
	}
	if err != nil {
		return &os.PathError{Op: "mount overlay on", Path: root, Err: err}
	}
	return unix.Chdir("/")
}

// makeVolumes makes the directories that are not part of the image's file system. What the image has in their place says whose they are.
func (s *stage) makeVolumes() error {
	if len(s.c.Container.Volumes) == 0 {
		return nil
	}
	root, err := unix.Open(s.at("root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: s.at("root"), Err: err}
	}
	defer func() { _ = unix.Close(root) }()
	for i, path := range s.c.Container.Volumes {
		if err := os.Mkdir(s.volume(i), 0o755); err != nil {
			return err
		}
		uid, gid, mode := s.ids.base, s.ids.base, uint32(0o755)
		var st unix.Stat_t
		// In the image's own terms: its links lead nowhere else.
		fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
		if err == nil {
			if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
				uid, gid, mode = int(st.Uid), int(st.Gid), st.Mode&0o7777
			}
			_ = unix.Close(fd)
		}
		if err := os.Chown(s.volume(i), uid, gid); err != nil {
			return err
		}
		if err := unix.Chmod(s.volume(i), mode); err != nil {
			return &os.PathError{Op: "chmod", Path: s.volume(i), Err: err}
		}
	}
	return nil
}

// bindSources brings what the container gets from this node to where its root, who is nobody here, can take it from.
func (s *stage) bindSources() error {
	if err := os.WriteFile(s.at("init"), nil, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(s.r.config.InitPath, s.at("init"), "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind", Path: s.r.config.InitPath, Err: err}
	}
	if s.ownSys() {
		if err := os.Mkdir(s.at("sys"), 0o755); err != nil {
			return err
		}
		// The network namespace in which this thread is decides what is seen.
		flags := uintptr(unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
		if err := unix.Mount("sysfs", s.at("sys"), "sysfs", flags, ""); err != nil {
			return &os.PathError{Op: "mount sysfs on", Path: s.at("sys"), Err: err}
		}
	}
	if err := s.bindDeviceFiles(); err != nil {
		return err
	}
	if err := s.bindMounts(); err != nil {
		return err
	}
	s.shared = s.c.Container.Shared
	if s.shared == "" {
		return nil
	}
	// The agent's own directory: that it is gone is no matter of the image.
	if _, err := os.Stat(s.shared); err != nil || s.ids.base == 0 {
		return err
	}
	s.shared = s.at("shared")
	if err := os.Mkdir(s.shared, 0o755); err != nil {
		return err
	}
	return bindOwned(s.c.Container.Shared, s.shared, s.ids.shared)
}
