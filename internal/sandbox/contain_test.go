package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/sandbox/sandboxtest"
	"github.com/musterhq/muster/internal/testwait"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

const busybox = "/bin/busybox"

// caps are what a container's command usually has: CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID NET_BIND_SERVICE SYS_CHROOT SETFCAP.
const caps = 1<<0 | 1<<1 | 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<10 | 1<<18 | 1<<31

// The users and groups of a test's container.
const (
	passwdOfTest = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1001:A User,,,:/home/user:/bin/sh\nbare:x:77:78:::\n"
	groupOfTest  = "root:x:0:\nwheel:x:10:root,user\nuser:x:1001:\nsecond:x:1002:other,user\n"
)

// container makes the root of a container from busybox, and a starter of init as its process 1; with a shift, in
// a user namespace whose ids begin there. What is missing against a real one is the runtime's part: its
// seccomp profile and its narrower set of mounts.
func container(t testing.TB, shift int, prepare func(root string)) starter {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making a container needs root")
	}
	if _, err := os.Stat(busybox); err != nil {
		t.Skipf("a container is made from busybox: %v", err)
	}
	if out, err := inNamespaces(shift, "true").CombinedOutput(); err != nil {
		t.Skipf("no namespaces here: %v: %s", err, out)
	}
	root, err := os.MkdirTemp("", "root-")
	must(t, err)
	must(t, os.Chmod(root, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	for _, dir := range []string{"bin", "proc", "dev/pts", "etc", "tmp", "root", "home/user"} {
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	must(t, os.Chmod(filepath.Join(root, "tmp"), 0o777))
	must(t, exec.Command("cp", busybox, filepath.Join(root, "bin/busybox")).Run())
	must(t, exec.Command("chroot", root, "/bin/busybox", "--install", "-s", "/bin").Run())
	must(t, os.WriteFile(filepath.Join(root, "etc/passwd"), []byte(passwdOfTest), 0o644))
	must(t, os.WriteFile(filepath.Join(root, "etc/group"), []byte(groupOfTest), 0o644))
	must(t, os.Symlink("pts/ptmx", filepath.Join(root, "dev/ptmx")))
	must(t, os.Symlink("/proc/self/fd", filepath.Join(root, "dev/fd")))
	must(t, os.Symlink("/proc/self/fd/1", filepath.Join(root, "dev/stdout")))
	must(t, syscall.Mknod(filepath.Join(root, "dev/null"), syscall.S_IFCHR|0o666, 1<<8|3))
	must(t, os.Chmod(filepath.Join(root, "dev/null"), 0o666))
	program, err := initProgram()
	must(t, err)
	must(t, exec.Command("cp", program, filepath.Join(root, "init")).Run())
	if prepare != nil {
		prepare(root)
	}
	if shift > 0 {
		must(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, shift, shift)
		}))
	}
	return func(dir string) *exec.Cmd {
		must(t, os.Chown(dir, shift, shift)) // init makes the files of the output in there
		const script = `mount -t proc proc "$0/proc" && mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$0/dev/pts" && cd "$0" && exec chroot . /init`
		cmd := inNamespaces(shift, "sh", "-c", script, root)
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=25", "SECRET=of-init")
		return cmd
	}
}

func inNamespaces(shift int, command ...string) *exec.Cmd {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Unshareflags: syscall.CLONE_NEWNS}
	if shift > 0 {
		cmd.SysProcAttr.Unshareflags = 0
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: shift, Size: 65536}}
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = ids, ids
		cmd.SysProcAttr.GidMappingsEnableSetgroups = true
		cmd.SysProcAttr.Credential = &syscall.Credential{}
	}
	return cmd
}

// shifts are the containers that the tests make: the ids of the host, and their own.
var shifts = map[string]int{"host's ids": 0, "own ids": 200_000}

func contained() *initwire.Start {
	return &initwire.Start{
		Contained: true, Capabilities: caps, Work: "/", Command: []string{"sleep", "100000"}, Env: []string{"PATH=/bin"},
		OutputLimit: 1 << 20, OpenFiles: 65536,
	}
}

func (b *box) stdout(e *initwire.Exec) string {
	b.t.Helper()
	h := b.all(e)
	if h.ended.Exit != 0 || h.ended.Signal != 0 {
		b.t.Errorf("%q: %+v, %q", e.Command, h.ended, h.stderr)
	}
	return strings.TrimSpace(h.stdout)
}

// TestContained: the command and executions are who they shall be, with no more rights than they shall have, in a
// directory that is made for them.
func TestContained(t *testing.T) {
	for name, shift := range shifts {
		t.Run(name, func(t *testing.T) { testContained(t, container(t, shift, nil)) })
	}
}

func testContained(t *testing.T, how starter) {
	start := contained()
	start.User, start.Work = "user", "/srv/work here"
	start.Env = append(start.Env, "USER=of-the-image", "LOGNAME=of-the-image", "SHELL=of-the-image")
	b := startBox(t, start, how)
	if got := b.stdout(sh("id -u; id -g; id -G; pwd; echo $HOME; stat -c %u:%g /srv '/srv/work here'")); got !=
		"1000\n1001\n1001 10 1002\n/srv/work here\n/home/user\n1000:1001\n1000:1001" {
		t.Errorf("%q", got)
	}
	root := sh("id -u; id -G; echo $HOME")
	root.User = "root"
	if got := b.stdout(root); got != "0\n0 10\n/root" {
		t.Errorf("%q", got)
	}
	own := sh("echo $HOME")
	own.Env = []string{"HOME=/mine"}
	if got := b.stdout(own); got != "/mine" {
		t.Errorf("%q", got)
	}
	// An account is that of who runs it, whatever the sandbox's own environment says, and not where the execution says otherwise.
	for user, want := range map[string]string{"user": "user user /home/user /bin/sh\n", "root": "root root /root /bin/sh\n", "4321": "none none / none\n", "bare": "bare bare / /bin/sh\n"} {
		e := sh("echo ${USER-none} ${LOGNAME-none} $HOME ${SHELL-none}; echo $TERM")
		e.User, e.Account, e.Env = user, true, []string{"TERM=mine"}
		if got := b.stdout(e); got != want+"mine" {
			t.Errorf("%s: %q, want %q", user, got, want)
		}
	}
	given := sh("echo $USER $HOME $LOGNAME")
	given.Account, given.Env = true, []string{"USER=me", "HOME=/mine"}
	if got := b.stdout(given); got != "me /mine user" {
		t.Errorf("%q", got)
	}
	plain := sh("echo ${USER-none}")
	if got := b.stdout(plain); got != "of-the-image" {
		t.Errorf("%q", got)
	}
	unknown := sh("id -u; id -g; echo $HOME")
	unknown.User = "4321"
	if got := b.stdout(unknown); got != "4321\n0\n/" {
		t.Errorf("%q", got)
	}
	for user, want := range map[string]uint64{"root": caps, "user": 0} {
		e := &initwire.Exec{Command: []string{"cat", "/proc/self/status"}, User: user}
		status := b.stdout(e)
		for field, want := range map[string]uint64{"CapInh": 0, "CapPrm": want, "CapEff": want, "CapBnd": caps, "CapAmb": 0} {
			if got := hexField(t, status, field); got != want {
				t.Errorf("%s: %s is %x, want %x", user, field, got, want)
			}
		}
	}
	// By its name in /dev, too; and on a terminal.
	if got := b.stdout(sh("echo x >/dev/stdout")); got != "x" {
		t.Errorf("%q", got)
	}
	tty := sh("test -t 0 && stat -c %u $(tty) && echo y >$(tty)")
	tty.TTY = true
	if got := b.stdout(tty); got != "1000\r\ny" {
		t.Errorf("%q", got)
	}
	if _, err := b.tryExec(&initwire.Exec{Command: []string{"sh"}, User: "nobody"}); err == nil || !strings.Contains(err.Error(), "nobody") || !strings.Contains(err.Error(), "/etc/passwd") {
		t.Errorf("%v", err)
	}
	if _, err := b.tryExec(&initwire.Exec{Command: []string{"sh"}, Work: "/nowhere"}); err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("%v", err)
	}
}

// TestContainedReads: with a user's rights, what the user may not read is not read, and the rights are gone afterwards.
func TestContainedReads(t *testing.T) {
	for name, shift := range shifts {
		t.Run(name, func(t *testing.T) { testContainedReads(t, container(t, shift, nil)) })
	}
}

func testContainedReads(t *testing.T, how starter) {
	b := startBox(t, contained(), how)
	b.stdout(sh("mkdir -p /d/hidden /d/group && echo s >/d/secret && chmod 600 /d/secret && echo x >/d/hidden/x && chmod 700 /d/hidden && " +
		"echo g >/d/group/g && chgrp -R 10 /d/group && chmod 750 /d/group && echo o >/d/open"))
	read := func(path, user string) string {
		_, r, err := initwire.ReadFile(t.Context(), b.dial(), initwire.FileRead{Path: path, User: user})
		if err != nil {
			var file *initwire.FileError
			if !errors.As(err, &file) {
				t.Fatalf("%s as %s: %v", path, user, err)
			}
			return file.Code
		}
		defer func() { _ = r.Close() }()
		content, err := io.ReadAll(r)
		must(t, err)
		return string(content)
	}
	list := func(path, user string) (n int, code string) {
		err := initwire.ListFiles(t.Context(), b.dial(), initwire.FileList{Path: path, User: user, Recursive: true}, func(*initwire.FileEntry) error { n++; return nil })
		var file *initwire.FileError
		if errors.As(err, &file) {
			return n, file.Code
		}
		must(t, err)
		return n, ""
	}
	// Many at once: whose rights a thread has must not show in another operation.
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for _, c := range []struct{ path, user, want string }{
				{"/d/secret", "user", initwire.FilePermission}, {"/d/secret", "65534:65534", initwire.FilePermission}, {"/d/secret", "0:0", "s\n"}, {"/d/secret", "", "s\n"},
				{"/d/hidden/x", "user", initwire.FilePermission}, {"/d/hidden/x", "root", "x\n"}, {"/d/open", "user", "o\n"}, {"/d/open", "4321", "o\n"},
				{"/d/group/g", "user", "g\n"}, {"/d/group/g", "1000:1001", initwire.FilePermission}, {"/d/open", "nonesuch", initwire.FileInvalid}, {"/d/open", "user:nonesuch", initwire.FileInvalid},
			} {
				if got := read(c.path, c.user); got != c.want {
					t.Errorf("%s as %q: %q, want %q", c.path, c.user, got, c.want)
				}
			}
			if n, code := list("/d", ""); n != 6 || code != "" {
				t.Errorf("%d entries, %s", n, code)
			}
			// A directory that may not be read is in the list, with its problem, and nothing of what is in it.
			if n, code := list("/d", "65534"); n != 4 || code != "" {
				t.Errorf("%d entries, %s", n, code)
			}
			if n, code := list("/d/hidden", "user"); n != 0 || code != initwire.FilePermission {
				t.Errorf("%d entries, %s", n, code)
			}
		})
	}
	all.Wait()
	if got := b.stdout(sh("id -u; id -G; cat /d/secret")); got != "0\n0 10\ns" {
		t.Errorf("afterwards: %q", got)
	}
}

func hexField(t *testing.T, status, field string) uint64 {
	t.Helper()
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			must(t, err)
			return n
		}
	}
	t.Fatalf("no %s in %q", field, status)
	return 0
}

// TestContainedFails: what the image has not is the user's failure, and says so.
func TestContainedFails(t *testing.T) {
	how := container(t, 0, func(root string) {
		must(t, os.WriteFile(filepath.Join(root, "bin/locked"), []byte("#!/bin/sh\n"), 0o700))
		must(t, os.Symlink("/proc/self/fd/6", filepath.Join(root, "out")))
		must(t, os.Symlink("/proc/self/fd/6/box", filepath.Join(root, "out-below")))
	})
	for _, c := range []struct {
		change       func(*initwire.Start)
		reason, says string
	}{
		{func(s *initwire.Start) { s.User = "nobody" }, initwire.ReasonSpec, `"nobody" is not in /etc/passwd`},
		{func(s *initwire.Start) { s.User = "user:nogroup" }, initwire.ReasonSpec, `"nogroup" is not in /etc/group`},
		{func(s *initwire.Start) { s.Command = []string{"none"} }, initwire.ReasonCommandNotFound, "none"},
		{func(s *initwire.Start) { s.User, s.Command = "user", []string{"locked"} }, initwire.ReasonNotExecutable, "/bin/locked"},
		{func(s *initwire.Start) { s.Work = "/etc/passwd" }, initwire.ReasonNoWorkdir, "not a directory"},
		{func(s *initwire.Start) { s.Work = "/etc/passwd/x" }, initwire.ReasonNoWorkdir, "/etc/passwd"},
		// Ways to what init holds, through the links of its descriptors.
		{func(s *initwire.Start) { s.Work = "/proc/self/fd/6" }, initwire.ReasonNoWorkdir, "/proc/self/fd/6"},
		{func(s *initwire.Start) { s.Work = "/out" }, initwire.ReasonNoWorkdir, "/out"},
		{func(s *initwire.Start) { s.Work = "/out/made" }, initwire.ReasonNoWorkdir, "/out"},
		{func(s *initwire.Start) { s.Work = "/out-below/made" }, initwire.ReasonNoWorkdir, "/out-below"},
		{func(s *initwire.Start) { s.Command = []string{"/proc/self/fd/6/../../../../bin/true"} }, initwire.ReasonCommandNotFound, "/proc/self/fd/6"},
		{func(s *initwire.Start) { s.Command = []string{"/proc/self/exe"} }, initwire.ReasonCommandNotFound, "/proc/self/exe"},
	} {
		start := contained()
		c.change(start)
		b, failed := tryBox(t, start, how)
		if failed == nil || failed.Class != initwire.ClassUser || failed.Reason != c.reason || !strings.Contains(failed.Message, c.says) {
			t.Errorf("%+v: %+v", start, failed)
		}
		if made, _ := filepath.Glob(filepath.Join(b.dir, "made*")); len(made) > 0 {
			t.Errorf("made %v", made)
		}
	}
}

// TestContainedTerminal: a thing that only stands where terminals are made is none, and is not waited for.
func TestContainedTerminal(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"fifo":       func(path string) error { return syscall.Mkfifo(path, 0o666) },
		"file":       func(path string) error { return os.WriteFile(path, nil, 0o666) },
		"null":       func(path string) error { return syscall.Mknod(path, syscall.S_IFCHR|0o666, 1<<8|3) },
		"descriptor": func(path string) error { return os.Symlink("/proc/self/fd/5", path) },
		"nothing":    func(string) error { return nil },
	} {
		b := startBox(t, contained(), container(t, 0, func(root string) {
			path := filepath.Join(root, "dev/ptmx")
			must(t, os.Remove(path))
			must(t, put(path))
		}))
		if _, err := b.tryExec(&initwire.Exec{Command: []string{"sh"}, TTY: true}); err == nil || !strings.Contains(err.Error(), "/dev/ptmx") {
			t.Errorf("%s: %v", name, err)
		}
		if h := b.all(sh("echo well")); h.stdout != "well\n" {
			t.Errorf("%s: %+v", name, h)
		}
	}
}

// TestContainedInitIsAlone: nothing inside can trace init, look into it, or end it.
func TestContainedInitIsAlone(t *testing.T) {
	for name, shift := range shifts {
		t.Run(name, func(t *testing.T) { testInitIsAlone(t, startBox(t, contained(), container(t, shift, nil))) })
	}
}

func testInitIsAlone(t *testing.T, b *box) {
	for _, user := range []string{"root", "user"} {
		for _, file := range []string{"environ", "mem", "maps", "fd/6", "fd/3", "cwd/etc/passwd", "root/etc/passwd", "exe", "task/1/environ", "auxv"} {
			e := &initwire.Exec{Command: []string{"dd", "if=/proc/1/" + file, "bs=1", "count=1"}, User: user}
			if h := b.all(e); h.ended.Exit == 0 {
				t.Errorf("%s reads /proc/1/%s: %q", user, file, h.stdout)
			}
		}
		// Root sees which numbers are open, and not what is behind them.
		e := &initwire.Exec{Command: []string{"ls", "-l", "/proc/1/fd/", "/proc/1/task/1/fd/", "/proc/1/cwd", "/proc/1/root", "/proc/1/ns/"}, User: user}
		if h := b.all(e); strings.Contains(h.stdout, "->") {
			t.Errorf("%s sees what init has open: %s", user, h.stdout)
		}
	}
	// Every signal there is, from the most powerful that runs inside.
	for sig := 1; sig <= 64; sig++ {
		e := sh(fmt.Sprintf("kill -%d 1; true", sig))
		e.User = "root"
		b.all(e)
	}
	if h := b.all(sh("echo still here")); h.stdout != "still here\n" {
		t.Errorf("%+v", h)
	}
	st, err := initwire.Client{Dir: b.dir}.Status(t.Context())
	if err != nil || !st.Running {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestContainedEnds: the command's end ends everything inside, a fork bomb's leavings too; and it is asked to end by the signal that its image names.
func TestContainedEnds(t *testing.T) {
	for name, shift := range shifts {
		t.Run(name, func(t *testing.T) { testContainedEnds(t, container(t, shift, nil)) })
	}
}

func testContainedEnds(t *testing.T, how starter) {
	start := contained()
	start.StopSignal = int(syscall.SIGUSR1)
	start.Command = []string{"sh", "-c", "trap 'echo asked; exit 12' USR1; for i in 1 2 3 4 5 6 7 8; do setsid sleep 100000 & done; echo ready; while :; do sleep 0.01; done"}
	b := startBox(t, start, how)
	text := func() string {
		all := ""
		files, _ := filepath.Glob(filepath.Join(b.dir, "stdout.*"))
		for _, f := range files {
			part, _ := os.ReadFile(f)
			all += string(part)
		}
		return all
	}
	testwait.Within(t, sandboxtest.Patience, "it does not begin", func() bool { return strings.Contains(text(), "ready") })
	x := b.exec(&initwire.Exec{Command: []string{"sleep", "100000"}})
	must(t, initwire.Client{Dir: b.dir}.Stop(t.Context(), sandboxtest.Patience))
	if h, err := listen(x); err != nil || h.ended.Signal != 9 || h.ended.Why == "" {
		t.Errorf("%+v, %v", h, err)
	}
	<-b.ended
	r := b.record()
	if r.Result == nil || r.Result.Exit != 12 || !r.Result.Stopped || r.Result.Leftovers || !strings.Contains(text(), "asked") {
		t.Errorf("%+v, %q", r.Result, text())
	}
}

// TestContainedSignals: process 1 has no signal that its default would end without a core, see deafen; what it starts has
// the default of all of them.
func TestContainedSignals(t *testing.T) {
	b := startBox(t, contained(), container(t, 0, nil))
	init := b.stdout(sh("cat /proc/1/status"))
	dealt := hexField(t, init, "SigCgt") | hexField(t, init, "SigIgn")
	// Who are dropped even if they were kept before, or end nobody, or cannot be dealt with.
	spared := []syscall.Signal{
		syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGSYS,
		syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGKILL, syscall.SIGSTOP,
	}
	for sig := syscall.Signal(1); sig <= highestSignal; sig++ {
		if dealt>>(sig-1)&1 == 0 && !slices.Contains(spared, sig) {
			t.Errorf("signal %d has its default in init", sig)
		}
	}
	// Handled all at once, on all threads.
	e := sh("for round in 1 2 3 4 5 6 7 8; do for sig in 16 28 32 33 34; do (i=0; while [ $i -lt 500 ]; do kill -$sig 1; i=$((i+1)); done) & done; done; wait; echo still here")
	e.User = "root"
	if h := b.all(e); h.stdout != "still here\n" {
		t.Errorf("%+v", h)
	}
	child := b.stdout(&initwire.Exec{Command: []string{"cat", "/proc/self/status"}})
	if caught, ignored := hexField(t, child, "SigCgt"), hexField(t, child, "SigIgn"); caught != 0 || ignored != 0 {
		t.Errorf("a program inside catches %x and ignores %x", caught, ignored)
	}
	// They end it, as they should.
	for _, sig := range []int{16, 32, 33, 34} {
		// A shell of its own, so that nobody's trap is asked.
		if h := b.all(&initwire.Exec{Command: []string{"sh", "-c", fmt.Sprintf("kill -%d $$; echo lives", sig)}}); h.stdout != "" {
			t.Errorf("signal %d does not end a program inside: %+v", sig, h)
		}
	}
}

// TestStartedByTheDeaf: what whoever starts init ignores, as nohup does with HUP, is neither handed on to commands nor ends init.
func TestStartedByTheDeaf(t *testing.T) {
	b := startBox(t, &initwire.Start{
		Work: "/", Command: []string{"sleep", "1000"}, Env: []string{"PATH=/usr/bin:/bin"}, OutputLimit: 1 << 20, KillGrace: time.Second, OpenFiles: 65536,
	}, func(string) *exec.Cmd {
		cmd := exec.Command("sh", "-c", "trap '' HUP INT QUIT TERM USR1; exec /proc/"+strconv.Itoa(os.Getpid())+"/exe")
		cmd.Env = []string{asInit + "=1", "GOMAXPROCS=1", "PATH=" + os.Getenv("PATH"), "GORACE=" + os.Getenv("GORACE")}
		return cmd
	})
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1} {
		must(t, b.cmd.Process.Signal(sig))
	}
	child := b.stdout(&initwire.Exec{Command: []string{"cat", "/proc/self/status"}})
	if caught, ignored := hexField(t, child, "SigCgt"), hexField(t, child, "SigIgn"); caught != 0 || ignored != 0 {
		t.Errorf("a program inside catches %x and ignores %x", caught, ignored)
	}
}
