package initbox

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/contract"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// hostile is the directory of a walled sandbox whose init has taken over everything that it can reach.
func hostile(t *testing.T, words string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, Out), 0o700); err != nil {
		t.Fatal(err)
	}
	boot, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	agents := (&initwire.Sandbox{Alloc: "x-0-1", Runtime: "oci", Boot: boot, At: time.Now().UnixNano()}).Line() +
		initwire.ProcessLine("init", initwire.Process{Pid: 1 << 22, Start: 1}, 1) // no such process
	write(t, filepath.Join(dir, initwire.SandboxRecord), agents)
	write(t, filepath.Join(dir, Out, outRecord), words)
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func keeper(t *testing.T) *Keeper {
	t.Helper()
	k, err := New(Config{Runtime: "oci"})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func result(t *testing.T, dir string) contract.Result {
	t.Helper()
	s, err := keeper(t).Attach(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("does not conclude")
	}
	return s.Result()
}

// TestLies: init cannot pretend to be the agent, another process, or from another time.
func TestLies(t *testing.T) {
	self, _ := ReadStat(os.Getpid())
	lies := (&initwire.Sandbox{Alloc: "other", Runtime: Unwalled, Cgroups: []string{"/sys/fs/cgroup/memory"}}).Line() +
		initwire.ProcessLine("init", initwire.Process{Pid: os.Getpid(), Start: self.Start}, 1) +
		initwire.ProcessLine("command", initwire.Process{Pid: os.Getpid(), Start: self.Start}, 1) +
		(&initwire.Result{Exit: 7, Started: -5, Ended: time.Now().Add(time.Hour).UnixNano(), Lost: -3}).Line()
	dir := hostile(t, lies)
	record, err := Read(dir)
	if err != nil || record.Sandbox.Alloc != "x-0-1" || len(record.Sandbox.Cgroups) > 0 || record.Init.Pid == os.Getpid() {
		t.Errorf("record %+v, %v", record, err)
	}
	if all, err := Members(dir); err != nil || len(all) > 0 {
		t.Errorf("members %v, %v", all, err)
	}
	got := result(t, dir)
	if got.ExitCode != 7 || got.OutputLost != 0 {
		t.Errorf("result %+v", got)
	}
	if time.Since(got.Started) > time.Minute || got.Ended.After(time.Now()) {
		t.Errorf("from %v to %v", got.Started, got.Ended)
	}
	if err := Destroy(t.Context(), dir); err != nil {
		t.Error(err)
	}
}

// TestRecordReplaced: whatever init puts in the place of its record, nobody waits for it or follows it.
func TestRecordReplaced(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	write(t, elsewhere, (&initwire.Result{Exit: 0, Started: 1, Ended: 2}).Line())
	for name, replace := range map[string]func(path string) error{
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"symlink":   func(path string) error { return os.Symlink(elsewhere, path) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"nothing":   func(string) error { return nil },
		"zeros":     func(path string) error { return os.Truncate(path, 1<<40) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := hostile(t, "")
			path := filepath.Join(dir, Out, outRecord)
			if name != "zeros" {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			if err := replace(path); err != nil {
				t.Fatal(err)
			}
			if f := result(t, dir).Failure; f == nil || !strings.Contains(f.Message, "without a result") {
				t.Errorf("failure %v", f)
			}
			if err := Destroy(t.Context(), dir); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOutputReplaced: segments that are none are not read.
func TestOutputReplaced(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "secret")
	for name, replace := range map[string]func(path string) error{
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"symlink":   func(path string) error { return os.Symlink(secret, path) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := hostile(t, "")
			if err := replace(filepath.Join(dir, Out, initwire.SegmentName("stdout", 0))); err != nil {
				t.Fatal(err)
			}
			log := &outputLog{dir: filepath.Join(dir, Out), stream: "stdout"}
			buf := make([]byte, 10)
			if n, err := log.ReadAt(buf, 0); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("read %q, %v", buf[:n], err)
			}
			// As if it had been a file at the look and was replaced before it was opened.
			if n, err := log.read(buf, 0, []segment{{name: initwire.SegmentName("stdout", 0), end: 10}}); n != 0 || err == nil {
				t.Errorf("read %q, %v", buf[:n], err)
			}
		})
	}
}

// TestFlood: what an honest init never has in the directory of its output is seen, also if it has no name there.
func TestFlood(t *testing.T) {
	const bound = 1 << 20
	fill := func(path string, size int) func(t *testing.T, out string) {
		return func(t *testing.T, out string) { write(t, filepath.Join(out, path), strings.Repeat("x", size)) }
	}
	for name, c := range map[string]struct {
		do   func(t *testing.T, out string)
		says string
	}{
		"nothing":  {func(*testing.T, string) {}, ""},
		"a little": {fill("stdout.0", bound/2), ""},
		"a hole": {func(t *testing.T, out string) {
			write(t, filepath.Join(out, "h"), "")
			_ = os.Truncate(filepath.Join(out, "h"), 1<<40)
		}, ""},
		"much":      {fill("stdout.0", 2*bound), "2MiB"},
		"elsewhere": {fill("whatever", 2*bound), "2MiB"},
		"directory": {func(t *testing.T, out string) { _ = os.Mkdir(filepath.Join(out, "d"), 0o700) }, `"d"`},
		"no name": {func(t *testing.T, out string) {
			f, err := os.Create(filepath.Join(out, "gone"))
			if err == nil {
				t.Cleanup(func() { _ = f.Close() })
				_, err = f.WriteString(strings.Repeat("x", 2*bound))
			}
			if err = errors.Join(err, os.Remove(filepath.Join(out, "gone"))); err != nil {
				t.Fatal(err)
			}
		}, "2MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := hostile(t, "")
			self, _ := ReadStat(os.Getpid())
			s := newSandbox(keeper(t), dir, &initwire.Sandbox{Runtime: "oci"}, initwire.Process{Pid: os.Getpid(), Start: self.Start})
			c.do(t, filepath.Join(dir, Out))
			switch got := s.flood(bound); {
			case c.says == "" && got != "":
				t.Errorf("%q, want nothing", got)
			case !strings.Contains(got, c.says):
				t.Errorf("%q, want something of %q", got, c.says)
			default:
				t.Log(got)
			}
		})
	}
}

// TestWall: what init gets of its directory has nothing above it, and takes no devices.
func TestWall(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a mount of its own needs root")
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "secret"), "secret")
	st := &starting{c: &contract.SandboxConfig{Dir: dir}, plan: &Plan{}}
	var files fds
	defer files.close()
	files.wall(st)
	if files.err != nil {
		t.Fatal(files.err)
	}
	for _, path := range []string{"../secret", "../../etc/passwd", "..//../" + filepath.Base(dir) + "/secret"} {
		if fd, err := unix.Openat(st.output, path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			_ = unix.Close(fd)
			t.Errorf("%s was opened", path)
		}
	}
	var here, above unix.Stat_t
	if err := unix.Fstat(st.output, &here); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fstatat(st.output, "..", &above, 0); err != nil || above.Ino != here.Ino {
		t.Errorf("above is inode %d, here %d, %v", above.Ino, here.Ino, err)
	}
	if err := unix.Mknodat(st.output, "null", unix.S_IFCHR|0o600, 1<<8|3); err == nil {
		if fd, err := unix.Openat(st.output, "null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			_ = unix.Close(fd)
			t.Error("a device was opened")
		}
	}
	// The agent sees what is written there.
	if _, err := unix.Write(st.inits, []byte("line\n")); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, Out, outRecord)); err != nil || string(b) != "line\n" {
		t.Errorf("record %q, %v", b, err)
	}
}
