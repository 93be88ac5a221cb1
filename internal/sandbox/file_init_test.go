package sandbox

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/musterhq/muster/internal/sandbox/sandboxtest"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// TestFilesOfInit: the same by a real init over its real socket, many at once.
func TestFilesOfInit(t *testing.T) {
	b := plain(t)
	dir := t.TempDir()
	ctx := context.Background()
	l, port := sandboxtest.ListenOn(t, "tcp4", "127.0.0.1:0")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	var all sync.WaitGroup
	for n := range 30 {
		all.Go(func() {
			path := filepath.Join(dir, strconv.Itoa(n), "file")
			content := sandboxtest.Written(int64(n), 500_000)
			if err := initwire.WriteFile(ctx, b.dial(), initwire.FileWrite{Path: path, Parents: true}, bytes.NewReader(content)); err != nil {
				t.Error(err)
				return
			}
			_, r, err := initwire.ReadFile(ctx, b.dial(), initwire.FileRead{Path: path})
			if err != nil {
				t.Error(err)
				return
			}
			got, err := io.ReadAll(r)
			_ = r.Close()
			if err != nil || !bytes.Equal(got, content) {
				t.Errorf("read %d bytes, %v", len(got), err)
			}
			r, err = initwire.ReadTar(ctx, b.dial(), initwire.TarRead{Paths: []string{filepath.Dir(path)}})
			if err != nil {
				t.Error(err)
				return
			}
			// From one operation into the other.
			to := filepath.Join(dir, "copy")
			if err := initwire.WriteTar(ctx, b.dial(), initwire.TarWrite{Path: to, Make: true}, r); err != nil {
				t.Error(err)
			}
			_ = r.Close()
			conn := b.dial()
			if err := initwire.ConnectPort(ctx, conn, port); err != nil {
				t.Error(err)
				return
			}
			go func() {
				_, _ = conn.Write(content)
				_ = conn.(*net.UnixConn).CloseWrite()
			}()
			if echo, err := io.ReadAll(conn); err != nil || !bytes.Equal(echo, content) {
				t.Errorf("echo of %d bytes, %v", len(echo), err)
			}
			_ = conn.Close()
		})
	}
	all.Wait()
	for n := range 30 {
		if got, err := os.ReadFile(filepath.Join(dir, "copy", strconv.Itoa(n), "file")); err != nil || !bytes.Equal(got, sandboxtest.Written(int64(n), 500_000)) {
			t.Errorf("copy %d: %d bytes, %v", n, len(got), err)
		}
	}
}

// TestFilesMemory: what goes through init does not stay in it.
func TestFilesMemory(t *testing.T) {
	b := plain(t)
	dir := t.TempDir()
	ctx := context.Background()
	const size = 300 << 20
	move := func(size int64) {
		t.Helper()
		path := filepath.Join(dir, "big")
		zeros := io.LimitReader(sandboxtest.ReaderFunc(func(p []byte) (int, error) { return len(p), nil }), size)
		if err := initwire.WriteFile(ctx, b.dial(), initwire.FileWrite{Path: path}, zeros); err != nil {
			t.Fatal(err)
		}
		r, err := initwire.ReadTar(ctx, b.dial(), initwire.TarRead{Paths: []string{path}})
		if err != nil {
			t.Fatal(err)
		}
		if err := initwire.WriteTar(ctx, b.dial(), initwire.TarWrite{Path: filepath.Join(dir, "to"), Make: true}, r); err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
	}
	move(1 << 20)
	before := highWater(t, b.cmd.Process.Pid)
	move(size)
	if grown := highWater(t, b.cmd.Process.Pid) - before; grown > size/20 {
		t.Errorf("init grew by %d KiB", grown>>10)
	} else {
		t.Logf("init grew by %d KiB, from %d KiB", grown>>10, before>>10)
	}
}

// highWater is the most memory that a process ever had.
func highWater(t testing.TB, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// TestInitKeepsItself: a link that changes under us between a file and what proc has of init, as process 1 of its
// own namespace, never brings anything of init out, by whatever operation.
func TestInitKeepsItself(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root here")
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const secret = "MUSTER_TEST_SECRET=known-to-init"
	b := startBox(t, &initwire.Start{
		Work: "/", Command: []string{"sleep", "100000"}, Env: []string{"PATH=/usr/bin:/bin"}, OutputLimit: 1 << 20, OpenFiles: 65536, Contained: true,
	}, func(string) *exec.Cmd {
		cmd := exec.Command("sh", "-c", `mount --make-rprivate / && mount -t proc proc /proc && exec "$0"`, program)
		cmd.Env = append(os.Environ(), asInit+"=1", "GOMAXPROCS=1", secret)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
		return cmd
	})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("harmless"), 0o644); err != nil {
		t.Fatal(err)
	}
	targets := []string{"file", "/proc/1/environ", "file", "/proc/self/environ", "/proc/1/root/proc/1/environ", "/proc/thread-self/environ"}
	stop, swapped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(swapped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			aside := filepath.Join(dir, "aside")
			_ = os.Symlink(targets[n%len(targets)], aside)
			_ = os.Rename(aside, filepath.Join(dir, "x"))
		}
	}()
	ctx := context.Background()
	fine, refused := 0, 0
	look := func(r io.ReadCloser, err error) {
		if err == nil {
			var got []byte
			got, err = io.ReadAll(r)
			_ = r.Close()
			if bytes.Contains(got, []byte(secret)) {
				t.Error("init's environment came out")
			}
		}
		var wrong *initwire.FileError
		switch {
		case err == nil:
			fine++
		case errors.As(err, &wrong) && (wrong.Code == initwire.FilePermission || wrong.Code == initwire.FileLoop):
			refused++
		case errors.As(err, &wrong) && wrong.Code == initwire.FileNotFound && fine+refused == 0:
		default:
			t.Error(err)
		}
	}
	for range 300 {
		_, r, err := initwire.ReadFile(ctx, b.dial(), initwire.FileRead{Path: filepath.Join(dir, "x")})
		look(r, err)
		look(initwire.ReadTar(ctx, b.dial(), initwire.TarRead{Paths: []string{filepath.Join(dir, "x")}, Follow: true}))
	}
	close(stop)
	<-swapped
	if fine == 0 || refused == 0 {
		t.Errorf("%d were fine and %d refused: it was not tried", fine, refused)
	}
	for _, path := range []string{"/proc/1/environ", "/proc/1/mem", "/proc/1/maps", "/proc/1/cmdline", "/proc/1/task/1/status"} {
		_, _, err := initwire.ReadFile(ctx, b.dial(), initwire.FileRead{Path: path})
		sandboxtest.WantCode(t, path, err, initwire.FilePermission, path)
	}
	// What is not init's is there, and so are the owners that an operation of process 1 gives.
	if _, err := initwire.StatFile(ctx, b.dial(), initwire.FileStat{Path: "/proc/meminfo"}); err != nil {
		t.Error(err)
	}
	if _, err := initwire.ListPorts(ctx, b.dial()); err != nil {
		t.Error(err)
	}
}

// TestFilesInUserNamespace: in a container whose root is nobody outside, owners are the container's own, and those that it does
// not have are said so.
func TestFilesInUserNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mapping a range of users needs root")
	}
	const base = 100_000
	program, err := os.Open("/proc/self/exe")
	must(t, err)
	defer func() { _ = program.Close() }()
	mapping := []syscall.SysProcIDMap{{ContainerID: 0, HostID: base, Size: 65536}}
	spaces := &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, UidMappings: mapping, GidMappings: mapping,
		Credential: &syscall.Credential{NoSetGroups: true},
	}
	const script = `mount --make-rprivate / && mount -t proc proc /proc && exec `
	probe := exec.Command("sh", "-c", script+"true")
	probe.SysProcAttr = spaces
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("no user namespaces: %v, %s", err, out)
	}
	dir, err := os.MkdirTemp("", "userns-")
	must(t, err)
	defer func() { _ = os.RemoveAll(dir) }()
	must(t, os.Chown(dir, base, base))
	must(t, os.Chmod(dir, 0o755))
	b := startBox(t, &initwire.Start{
		Work: dir, Command: []string{"sleep", "100000"}, Env: []string{"PATH=/usr/bin:/bin"}, OutputLimit: 1 << 20, OpenFiles: 65536, Contained: true, User: "7:8",
		Capabilities: 1<<64 - 1,
	}, func(string) *exec.Cmd {
		// By descriptor: the directory of this program may be closed to that root.
		cmd := exec.Command("sh", "-c", script+"/proc/self/fd/0")
		cmd.Stdin = program
		cmd.Env = append(os.Environ(), asInit+"=1", "GOMAXPROCS=1")
		cmd.SysProcAttr = spaces
		return cmd
	})
	ctx := context.Background()
	must(t, initwire.WriteFile(ctx, b.dial(), initwire.FileWrite{Path: "own/file", Parents: true}, strings.NewReader("x")))
	must(t, initwire.WriteFile(ctx, b.dial(), initwire.FileWrite{Path: "other", User: "1234:5678", Mode: 0o4711}, strings.NewReader("x")))
	must(t, initwire.MakeDirectory(ctx, b.dial(), initwire.FileMake{Path: "shared", User: "0:0", Mode: 0o1777}))
	pipe := sandboxtest.Member{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "pipe", Mode: 0o642, Uid: 5, Gid: 6}}
	symlink := sandboxtest.Link(tar.TypeSymlink, "link", "file")
	symlink.Uid = 9
	must(t, initwire.WriteTar(ctx, b.dial(), initwire.TarWrite{Path: "tar", Make: true, KeepOwners: true}, bytes.NewReader(sandboxtest.TarOf(t, pipe, symlink))))
	for name, want := range map[string]struct {
		uid, gid uint32
		mode     os.FileMode
	}{
		"own": {7, 8, os.ModeDir | 0o755}, "own/file": {7, 8, 0o644}, "other": {1234, 5678, os.ModeSetuid | 0o711}, "shared": {0, 0, os.ModeDir | os.ModeSticky | 0o777},
		"tar/pipe": {5, 6, os.ModeNamedPipe | 0o642}, "tar/link": {9, 0, os.ModeSymlink | 0o777},
	} {
		st, err := os.Lstat(filepath.Join(dir, name))
		must(t, err)
		sys := st.Sys().(*syscall.Stat_t)
		if sys.Uid != base+want.uid || sys.Gid != base+want.gid || st.Mode() != want.mode {
			t.Errorf("%s: %d:%d %v, want %+v", name, sys.Uid, sys.Gid, st.Mode(), want)
		}
		e, err := initwire.StatFile(ctx, b.dial(), initwire.FileStat{Path: name})
		if err != nil || e.UID != int(want.uid) || e.GID != int(want.gid) {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
	stranger := sandboxtest.File("stranger", "x")
	stranger.Uid = 70_000
	err = initwire.WriteTar(ctx, b.dial(), initwire.TarWrite{Path: "tar", KeepOwners: true}, bytes.NewReader(sandboxtest.TarOf(t, stranger)))
	sandboxtest.WantCode(t, "an owner that is none here", err, initwire.FilePermission, "tar/stranger")
	// What belongs to nobody inside cannot be changed from there, not by init either.
	must(t, os.WriteFile(filepath.Join(dir, "roots"), []byte("kept"), 0o600))
	_, _, err = initwire.ReadFile(ctx, b.dial(), initwire.FileRead{Path: "roots"})
	sandboxtest.WantCode(t, "a file of the node's root", err, initwire.FilePermission, "roots")
	_, _, err = initwire.ReadFile(ctx, b.dial(), initwire.FileRead{Path: "/proc/1/environ"})
	sandboxtest.WantCode(t, "init's own", err, initwire.FilePermission, "/proc/1/environ")
	must(t, initwire.DeleteFile(ctx, b.dial(), initwire.FileDelete{Path: "tar", Recursive: true}))
	if _, err := initwire.ListPorts(ctx, b.dial()); err != nil {
		t.Error(err)
	}
}
