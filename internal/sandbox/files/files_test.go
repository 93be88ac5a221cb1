package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/sandbox/operation"
	"github.com/musterhq/muster/internal/sandbox/sandboxtest"
	"github.com/musterhq/muster/internal/testwait"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// inside is a sandbox that serves operations on files below a directory, and nothing else of one.
type inside struct {
	t    testing.TB
	s    Service
	work string
}

func newInside(t testing.TB) *inside {
	t.Helper()
	dir := t.TempDir()
	return &inside{t: t, s: Service{Work: dir}, work: dir}
}

// dial is a connection whose one operation is served.
func (i *inside) dial() *os.File {
	i.t.Helper()
	client, server := sandboxtest.Pair(i.t)
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer func() { _ = server.Close() }()
		kind, fields, err := initwire.ReadFrame(server, initwire.MaxFrame)
		if err != nil {
			return
		}
		i.s.Serve(operation.New(sandboxtest.Endpoint(i.t, server), nil), kind, fields)
	}()
	i.t.Cleanup(func() {
		_ = client.Close()
		<-served
	})
	return client
}

func (i *inside) path(name string) string { return filepath.Join(i.work, name) }

func (i *inside) make(name, content string) {
	i.t.Helper()
	path := i.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		i.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		i.t.Fatal(err)
	}
}

func (i *inside) link(target, name string) {
	i.t.Helper()
	if err := os.Symlink(target, i.path(name)); err != nil {
		i.t.Fatal(err)
	}
}

func (i *inside) has(name, content string) {
	i.t.Helper()
	b, err := os.ReadFile(i.path(name))
	if err != nil || string(b) != content {
		i.t.Errorf("%s has %.40q, %v; want %.40q", name, b, err, content)
	}
}

func (i *inside) names(dir string) []string {
	i.t.Helper()
	entries, err := os.ReadDir(i.path(dir))
	if err != nil {
		i.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (i *inside) write(q initwire.FileWrite, content string) error {
	return initwire.WriteFile(context.Background(), i.dial(), q, strings.NewReader(content))
}

func (i *inside) read(q initwire.FileRead) (string, *initwire.FileEntry, error) {
	e, r, err := initwire.ReadFile(context.Background(), i.dial(), q)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = r.Close() }()
	b, err := io.ReadAll(r)
	return string(b), e, err
}

func (i *inside) list(q initwire.FileList) (all []*initwire.FileEntry, err error) {
	err = initwire.ListFiles(context.Background(), i.dial(), q, func(e *initwire.FileEntry) error {
		all = append(all, e)
		return nil
	})
	return all, err
}

func (i *inside) stat(q initwire.FileStat) (*initwire.FileEntry, error) {
	return initwire.StatFile(context.Background(), i.dial(), q)
}

func (i *inside) delete(q initwire.FileDelete) error {
	return initwire.DeleteFile(context.Background(), i.dial(), q)
}

func (i *inside) mkdir(q initwire.FileMake) error {
	return initwire.MakeDirectory(context.Background(), i.dial(), q)
}

func TestWriteAndRead(t *testing.T) {
	i := newInside(t)
	big := string(sandboxtest.Written(0, 300_000))
	for _, path := range []string{"a", "new/deep/b", i.path("c"), "./d", "new/../e", "sp ace\n\xffü"} {
		if err := i.write(initwire.FileWrite{Path: path, Parents: true, Mode: 0o750, Sized: true, Size: int64(len(big))}, big); err != nil {
			t.Fatal(err)
		}
		got, e, err := i.read(initwire.FileRead{Path: path})
		if err != nil || got != big || e.Size != int64(len(big)) || e.Mode != 0o750 || e.Type != initwire.TypeFile || e.Path != path {
			t.Errorf("%s: %d bytes, %+v, %v", path, len(got), e, err)
		}
	}
	for _, c := range []struct {
		offset, length int64
		want           string
	}{{0, 5, big[:5]}, {7, 0, big[7:]}, {299_999, 10, big[299_999:]}, {300_000, 0, ""}, {400_000, 5, ""}, {100, 32768, big[100:32868]}} {
		got, _, err := i.read(initwire.FileRead{Path: "a", Offset: c.offset, Length: c.length})
		if err != nil || got != c.want {
			t.Errorf("%d+%d: %d bytes, %v", c.offset, c.length, len(got), err)
		}
	}
	// Replaced: the mode stays if none is given, the new one is as asked. Never half.
	if err := i.write(initwire.FileWrite{Path: "a"}, "short"); err != nil {
		t.Fatal(err)
	}
	i.has("a", "short")
	if st, _ := os.Stat(i.path("a")); st.Mode() != 0o750 {
		t.Errorf("mode %v", st.Mode())
	}
	if err := i.write(initwire.FileWrite{Path: "f"}, ""); err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(i.path("f")); st.Mode() != 0o644 || st.Size() != 0 {
		t.Errorf("mode %v, size %d", st.Mode(), st.Size())
	}
	if err := i.write(initwire.FileWrite{Path: "open/to/all/g", Parents: true, ParentMode: 0o1777}, "x"); err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(i.path("open/to")); st.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("mode of a parent %v", st.Mode())
	}
}

// TestWriteByLink: the link stays, and what it leads to is replaced, or made. P3: what replaces
// does so with links, at whatever they lead to: who may make a link where root writes is to gain
// nothing.
func TestWriteReplacesLinks(t *testing.T) {
	i := newInside(t)
	i.make("real/file", "theirs")
	i.link("real/file", "link")
	i.link("real/none", "dangling")
	i.link("loop", "loop")
	i.link("real", "dirlink")
	i.make("plain", "a file where a directory is to be")
	if err := syscall.Mkfifo(i.path("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"link", "dangling", "loop", "pipe"} {
		if err := i.write(initwire.FileWrite{Path: path, Mode: 0o744, Replace: true}, "mine"); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if st, err := os.Lstat(i.path(path)); err != nil || st.Mode() != 0o744 {
			t.Errorf("%s: %v, %v", path, st, err)
		}
		i.has(path, "mine")
	}
	if err := os.Mkdir(i.path("open"), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"dirlink/", "plain/", "open/", "new/deep/"} {
		if err := i.mkdir(initwire.FileMake{Path: path, Mode: 0o1755, Parents: true, Replace: true}); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if st, err := os.Lstat(i.path(strings.TrimSuffix(path, "/"))); err != nil || st.Mode() != os.ModeDir|os.ModeSticky|0o755 {
			t.Errorf("%s: %v, %v", path, st, err)
		}
	}
	i.has("real/file", "theirs")
	if got := i.names("real"); !slices.Equal(got, []string{"file"}) {
		t.Errorf("behind the links there are %q", got)
	}
	if err := i.mkdir(initwire.FileMake{Path: ".", Mode: 0o1777, Parents: true, Replace: true}); err != nil {
		t.Error(err)
	}
}

func TestWriteByLink(t *testing.T) {
	i := newInside(t)
	i.make("real/file", "old")
	i.link("real", "dir")
	i.link("dir/file", "one")
	i.link(i.path("one"), "two")
	i.link("real/none", "dangling")
	i.link("loop", "loop")
	for path, file := range map[string]string{"two": "real/file", "dir/file": "real/file", "dangling": "real/none"} {
		if err := i.write(initwire.FileWrite{Path: path}, path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		i.has(file, path)
	}
	for _, name := range []string{"one", "two", "dangling", "dir"} {
		if st, err := os.Lstat(i.path(name)); err != nil || st.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	if got := i.names("real"); !slices.Equal(got, []string{"file", "none"}) {
		t.Errorf("left %q", got)
	}
	sandboxtest.WantCode(t, "loop", i.write(initwire.FileWrite{Path: "loop"}, ""), initwire.FileLoop, "loop")
}

func TestFileErrors(t *testing.T) {
	i := newInside(t)
	i.make("file", "x")
	i.make("dir/file", "x")
	if err := syscall.Mkfifo(i.path("pipe"), 0o666); err != nil {
		t.Fatal(err)
	}
	i.link("pipe", "to-pipe")
	i.link("loop", "loop")
	i.link("/proc/self/environ", "environ")
	self := "/proc/" + strconv.Itoa(os.Getpid())
	long := strings.Repeat("x", 300)
	for _, c := range []struct{ do, path, code string }{
		{"read", "none", initwire.FileNotFound},
		{"read", "none/x", initwire.FileNotFound},
		{"read", "file/x", initwire.FileNotDirectory},
		{"read", "dir", initwire.FileIsDirectory},
		{"read", "pipe", initwire.FileInvalid},
		{"read", "to-pipe", initwire.FileInvalid},
		{"read", "/dev/null", initwire.FileInvalid},
		{"read", "loop", initwire.FileLoop},
		{"read", "", initwire.FileInvalid},
		{"read", "a\x00b", initwire.FileInvalid},
		{"read", strings.Repeat("x/", 2100), initwire.FileInvalid},
		{"read", long, initwire.FileInvalid},
		{"read", "environ", initwire.FilePermission},
		{"read", "/proc/self/environ", initwire.FilePermission},
		{"read", "/proc/thread-self/environ", initwire.FilePermission},
		{"read", self + "/environ", initwire.FilePermission},
		{"read", self + "/task/../maps", initwire.FilePermission},
		{"read", "/proc/self/root/etc/passwd", initwire.FileLoop},
		{"read", "/proc/self/fd/0", initwire.FileLoop},
		{"list", "/proc/self/fd", initwire.FilePermission},
		{"list", "/proc/self/", initwire.FilePermission},
		{"tar", "/proc/self/environ", initwire.FilePermission},
		{"tar", "/proc/self", initwire.FileLoop},
		{"tar", "/proc/self/", initwire.FileLoop},
		{"write", "/proc/self/oom_score_adj", initwire.FilePermission},
		{"write", "/proc/self/cwd/x", initwire.FileLoop},
		{"write", "none/x", initwire.FileNotFound},
		{"write", "file/x", initwire.FileNotDirectory},
		{"write", "dir", initwire.FileIsDirectory},
		{"write", "dir/", initwire.FileIsDirectory},
		{"write", "new/", initwire.FileIsDirectory},
		{"write", ".", initwire.FileIsDirectory},
		{"write", "/", initwire.FileIsDirectory},
		{"write", "pipe", initwire.FileInvalid},
		{"write", "/dev/null", initwire.FileInvalid},
		{"write", long, initwire.FileInvalid},
		{"list", "none", initwire.FileNotFound},
		{"list", "file/", initwire.FileNotDirectory},
		{"stat", "none", initwire.FileNotFound},
		{"stat", "file/", initwire.FileNotDirectory},
		{"delete", "none", initwire.FileNotFound},
		{"delete", "dir", initwire.FileNotEmpty},
		{"delete", "file/", initwire.FileNotDirectory},
		{"delete", ".", initwire.FileInvalid},
		{"delete", "/", initwire.FileInvalid},
		{"delete", "dir/..", initwire.FileInvalid},
		{"empty", "/", initwire.FileInvalid},
		{"empty", "/etc/..", initwire.FileInvalid},
		{"empty", "file", initwire.FileNotDirectory},
		{"make", "dir", initwire.FileExists},
		{"make", "file", initwire.FileExists},
		{"make", "none/x", initwire.FileNotFound},
		{"tar", "none", initwire.FileNotFound},
		{"tar", "file/", initwire.FileNotDirectory},
		{"untar", "none", initwire.FileNotFound},
		{"untar", "file", initwire.FileNotDirectory},
	} {
		var err error
		switch c.do {
		case "read":
			_, _, err = i.read(initwire.FileRead{Path: c.path})
		case "write":
			err = i.write(initwire.FileWrite{Path: c.path}, "y")
		case "list":
			_, err = i.list(initwire.FileList{Path: c.path})
		case "stat":
			_, err = i.stat(initwire.FileStat{Path: c.path})
		case "delete":
			err = i.delete(initwire.FileDelete{Path: c.path})
		case "empty":
			err = i.delete(initwire.FileDelete{Path: c.path, Contents: true})
		case "make":
			err = i.mkdir(initwire.FileMake{Path: c.path})
		case "tar":
			_, err = initwire.ReadTar(context.Background(), i.dial(), initwire.TarRead{Paths: []string{c.path}, Follow: true})
		case "untar":
			err = initwire.WriteTar(context.Background(), i.dial(), initwire.TarWrite{Path: c.path}, bytes.NewReader(nil))
		}
		sandboxtest.WantCode(t, c.do+" "+c.path[:min(len(c.path), 40)], err, c.code, c.path[:min(len(c.path), initwire.MaxPath)])
	}
	sandboxtest.WantCode(t, "unknown user", i.write(initwire.FileWrite{Path: "file", User: "nobody-of-that-name"}, ""), initwire.FileInvalid, "file")
	sandboxtest.WantCode(t, "negative offset", second(i.read(initwire.FileRead{Path: "file", Offset: -1})), initwire.FileInvalid, "file")
	i.has("file", "x")
}

func second[A, B any](_ A, _ B, err error) error { return err }

// TestMadeUp: what the kernel makes up as it is read has no size and comes whole.
func TestMadeUp(t *testing.T) {
	i := newInside(t)
	for _, path := range []string{"/proc/sys/kernel/ostype", "/proc/cpuinfo", "/proc/self/mounts", "/sys/kernel/mm/transparent_hugepage/enabled"} {
		want, err := os.ReadFile(path)
		if err != nil {
			t.Logf("%s: %v", path, err)
			continue
		}
		got, e, err := i.read(initwire.FileRead{Path: path})
		// cpuinfo has a clock in it, so only its length is sure.
		if err != nil || !e.Unsized || len(got) != len(want) {
			t.Errorf("%s: %d bytes of %d, %+v, %v", path, len(got), len(want), e, err)
		}
		if got, _, err := i.read(initwire.FileRead{Path: path, Length: 3}); err != nil || got != string(want[:3]) {
			t.Errorf("%s: 3 bytes are %q, %v", path, got, err)
		}
	}
}

// TestWriteBrokenOff: whatever goes wrong on the way, nothing is left and the old file stays.
func TestWriteBrokenOff(t *testing.T) {
	i := newInside(t)
	i.make("file", "old")
	left := func(what string) {
		t.Helper()
		i.has("file", "old")
		if got := i.names("."); !slices.Equal(got, []string{"file"}) {
			t.Errorf("%s: left %q", what, got)
		}
	}
	for _, size := range []int64{3, 5, 100_000} {
		err := i.write(initwire.FileWrite{Path: "file", Sized: true, Size: size}, "four")
		sandboxtest.WantCode(t, "size "+strconv.FormatInt(size, 10), err, initwire.FileInvalid, "file")
		left("wrong size")
	}
	// The source breaks: the end of bytes never comes.
	broken := errors.New("broken")
	source := io.MultiReader(bytes.NewReader(sandboxtest.Written(0, 100_000)), sandboxtest.ReaderFunc(func([]byte) (int, error) { return 0, broken }))
	if err := initwire.WriteFile(context.Background(), i.dial(), initwire.FileWrite{Path: "file"}, source); !errors.Is(err, broken) {
		t.Errorf("a broken source: %v", err)
	}
	// The client goes away, or talks nonsense, in the middle.
	for _, last := range []initwire.Kind{0, initwire.KindStdin} {
		conn := i.dial()
		for kind, body := range map[initwire.Kind][]byte{initwire.KindFileWrite: (&initwire.FileWrite{Path: "file"}).Fields()} {
			if err := initwire.WriteFrame(conn, kind, body); err != nil {
				t.Fatal(err)
			}
		}
		if err := initwire.WriteFrame(conn, initwire.KindBytes, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		if last != 0 {
			if err := initwire.WriteFrame(conn, last, nil); err != nil {
				t.Fatal(err)
			}
			if _, _, err := initwire.ReadFrame(conn, initwire.MaxFrame); err != io.EOF {
				t.Errorf("nonsense was answered: %v", err)
			}
		}
		_ = conn.Close()
		testwait.Within(t, sandboxtest.Patience, "the file beside is gone", func() bool { return len(i.names(".")) == 1 })
		left("client left")
	}
	// And when the context ends.
	ctx, cancel := context.WithCancelCause(context.Background())
	source = sandboxtest.ReaderFunc(func(p []byte) (int, error) {
		cancel(broken)
		return len(p), nil
	})
	if err := initwire.WriteFile(ctx, i.dial(), initwire.FileWrite{Path: "file"}, source); !errors.Is(err, broken) {
		t.Errorf("a context that ended: %v", err)
	}
	testwait.Within(t, sandboxtest.Patience, "the file beside is gone", func() bool { return len(i.names(".")) == 1 })
	left("context")
}

// TestNoSpace: a full disk is said to be one, and what did not fit is not left.
func TestNoSpace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small disk needs root")
	}
	i := newInside(t)
	if err := syscall.Mount("tmpfs", i.work, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mount: %v", err)
	}
	defer func() { _ = syscall.Unmount(i.work, syscall.MNT_DETACH) }()
	big := string(sandboxtest.Written(0, 3<<20))
	sandboxtest.WantCode(t, "write", i.write(initwire.FileWrite{Path: "big"}, big), initwire.FileNoSpace, "big")
	sandboxtest.WantCode(t, "tar", i.untar(initwire.TarWrite{Path: "."}, sandboxtest.TarOf(t, sandboxtest.File("small", "x"), sandboxtest.File("big", big))), initwire.FileNoSpace, "./big")
	if got := i.names("."); !slices.Equal(got, []string{"small"}) {
		t.Errorf("left %q", got)
	}
}

// TestReadShrinks: a file that becomes shorter under the read is no whole answer.
func TestReadShrinks(t *testing.T) {
	i := newInside(t)
	i.make("file", string(sandboxtest.Written(0, 4<<20)))
	e, r, err := initwire.ReadFile(context.Background(), i.dial(), initwire.FileRead{Path: "file"})
	if err != nil || e.Size != 4<<20 {
		t.Fatal(e, err)
	}
	defer func() { _ = r.Close() }()
	if err := os.Truncate(i.path("file"), 5<<19); err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, r)
	sandboxtest.WantCode(t, "read", err, initwire.FileBusy, "file")
}

func TestList(t *testing.T) {
	i := newInside(t)
	i.make("b/file", "12345")
	i.make("b/a/x", "")
	i.make("b/.hidden", "")
	i.make("outside/secret", "")
	i.link("file", "b/link")
	i.link("../outside", "b/out")
	i.link("b", "to-b")
	i.link("nowhere", "dangling")
	i.make(".config/x", "")
	i.make(".config/.y/z", "")
	if err := syscall.Mkfifo(i.path("b/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	when := time.Unix(1234567890, 123456789)
	if err := os.Chtimes(i.path("b/file"), when, when); err != nil {
		t.Fatal(err)
	}
	say := func(entries []*initwire.FileEntry) string {
		var b strings.Builder
		for _, e := range entries {
			b.WriteString(string(rune(e.Type)) + " " + e.Path)
			if e.Target != "" {
				b.WriteString(" -> " + e.Target)
			}
			if e.Name != filepath.Base(e.Path) {
				b.WriteString(" named " + e.Name)
			}
			b.WriteByte('\n')
		}
		return b.String()
	}
	for _, c := range []struct {
		q    initwire.FileList
		want string
	}{
		{initwire.FileList{Path: "b"}, "- b/.hidden\nd b/a\n- b/file\nl b/link -> file\nl b/out -> ../outside\np b/pipe\n"},
		{initwire.FileList{Path: "to-b/", Recursive: true}, "- to-b/.hidden\n- to-b/file\nl to-b/link -> file\nl to-b/out -> ../outside\np to-b/pipe\nd to-b/a\n- to-b/a/x\n"},
		{initwire.FileList{Path: "b", Recursive: true, Limit: 2}, "- b/.hidden\n- b/file\n"},
		{initwire.FileList{Path: "b/file"}, "- b/file\n"},
		{initwire.FileList{Path: "b/a/x", Recursive: true}, "- b/a/x\n"},
		{initwire.FileList{Path: "b/pipe"}, "p b/pipe\n"},
		{initwire.FileList{Path: "to-b", NoFollow: true}, "l to-b -> b\n"},
		{initwire.FileList{Path: "b/../to-b", NoFollow: true, Recursive: true}, "l b/../to-b -> b\n"},
		{initwire.FileList{Path: "to-b/", NoFollow: true, NoHidden: true, Recursive: true}, "- to-b/file\nl to-b/link -> file\nl to-b/out -> ../outside\np to-b/pipe\nd to-b/a\n- to-b/a/x\n"},
		{initwire.FileList{Path: "dangling", NoFollow: true}, "l dangling -> nowhere\n"},
		{initwire.FileList{Path: "b/.hidden", NoFollow: true, NoHidden: true}, "- b/.hidden\n"},
		{initwire.FileList{Path: ".config", NoHidden: true, Recursive: true}, "- .config/x\n"},
		{initwire.FileList{Path: ".", NoHidden: true}, "d ./b\nl ./dangling -> nowhere\nd ./outside\nl ./to-b -> b\n"},
	} {
		got, err := i.list(c.q)
		if err != nil || say(got) != c.want {
			t.Errorf("%+v: %v\n%swant\n%s", c.q, err, say(got), c.want)
		}
	}
	e, err := i.stat(initwire.FileStat{Path: "b/file"})
	if err != nil {
		t.Fatal(err)
	}
	want := &initwire.FileEntry{
		Path: "b/file", Name: "file", Type: '-', Size: 5, Mode: 0o644, ModTime: when.UnixNano(), UID: os.Getuid(), GID: os.Getgid(), User: e.User, Group: e.Group,
	}
	if *e != *want || os.Getuid() == 0 && (e.User != "root" || e.Group != "root") {
		t.Errorf("%+v, want %+v", e, want)
	}
	for _, c := range []struct {
		q    initwire.FileStat
		kind byte
	}{
		{initwire.FileStat{Path: "b/link"}, 'l'},
		{initwire.FileStat{Path: "b/link", Follow: true}, '-'},
		{initwire.FileStat{Path: "b/out"}, 'l'},
		{initwire.FileStat{Path: "b/out/"}, 'd'},
		{initwire.FileStat{Path: "."}, 'd'},
		{initwire.FileStat{Path: "/"}, 'd'},
		{initwire.FileStat{Path: "b/.."}, 'd'},
		{initwire.FileStat{Path: "/dev/null"}, 'c'},
		{initwire.FileStat{Path: "/proc/self"}, 'l'},
	} {
		e, err := i.stat(c.q)
		if err != nil || e.Type != c.kind {
			t.Errorf("%+v: %+v, %v", c.q, e, err)
		}
	}
}

func TestMake(t *testing.T) {
	i := newInside(t)
	for _, q := range []initwire.FileMake{{Path: "a"}, {Path: "a/b/c/d/", Parents: true, Mode: 0o1777}, {Path: "a/b", Parents: true, Mode: 0o700}, {Path: "a/e", Mode: 0o500}, {Path: ".", Parents: true}} {
		if err := i.mkdir(q); err != nil {
			t.Errorf("%+v: %v", q, err)
		}
	}
	for name, mode := range map[string]os.FileMode{"a": 0o755, "a/b": 0o777 | os.ModeSticky, "a/b/c/d": 0o777 | os.ModeSticky, "a/e": 0o500} {
		if st, err := os.Stat(i.path(name)); err != nil || st.Mode() != mode|os.ModeDir {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	i.make("a/file", "")
	sandboxtest.WantCode(t, "below a file", i.mkdir(initwire.FileMake{Path: "a/file/x", Parents: true}), initwire.FileNotDirectory, "a/file/x")
	sandboxtest.WantCode(t, "a file", i.mkdir(initwire.FileMake{Path: "a/file", Parents: true}), initwire.FileNotDirectory, "a/file")
	i.link("b/later", "a/dangling")
	if err := i.mkdir(initwire.FileMake{Path: "a/dangling/x", Parents: true}); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(i.path("a/b/later/x")); err != nil || !st.IsDir() {
		t.Errorf("by a link: %v, %v", st, err)
	}
}

func TestOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving files away needs root")
	}
	i := newInside(t)
	if err := i.write(initwire.FileWrite{Path: "new/file", Parents: true, User: "1234:5678", Mode: 0o4755}, "x"); err != nil {
		t.Fatal(err)
	}
	if err := i.mkdir(initwire.FileMake{Path: "dir", User: "daemon"}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]int{"new": {1234, 5678}, "new/file": {1234, 5678}, "dir": {1, 1}} {
		e, err := i.stat(initwire.FileStat{Path: name})
		if err != nil || [2]int{e.UID, e.GID} != want {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
	if e, _ := i.stat(initwire.FileStat{Path: "new/file"}); e.Mode != 0o4755 {
		t.Errorf("mode %o", e.Mode)
	}
	// In a container, an empty user is the sandbox's.
	i.s.Contained, i.s.User = true, "77:88"
	if err := i.write(initwire.FileWrite{Path: "own"}, "x"); err != nil {
		t.Fatal(err)
	}
	if e, err := i.stat(initwire.FileStat{Path: "own"}); err != nil || e.UID != 77 || e.GID != 88 {
		t.Errorf("%+v, %v", e, err)
	}
}

// BenchmarkFile is a big file both ways over the socket.
func BenchmarkFile(b *testing.B) {
	const size = 256 << 20
	i := newInside(b)
	content := sandboxtest.Written(0, 1<<20)
	b.Run("write", func(b *testing.B) {
		defer perGB(b, size)()
		for b.Loop() {
			src := io.LimitReader(sandboxtest.ReaderFunc(func(p []byte) (int, error) { return copy(p, content), nil }), size)
			if err := initwire.WriteFile(context.Background(), i.dial(), initwire.FileWrite{Path: "big"}, src); err != nil {
				b.Fatal(err)
			}
		}
	})
	if err := os.Truncate(i.path("big"), size); err != nil {
		i.make("big", "")
		_ = os.Truncate(i.path("big"), size)
	}
	b.Run("read", func(b *testing.B) {
		defer perGB(b, size)()
		for b.Loop() {
			_, r, err := initwire.ReadFile(context.Background(), i.dial(), initwire.FileRead{Path: "big"})
			if err != nil {
				b.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, r); err != nil || n != size {
				b.Fatal(n, err)
			}
			_ = r.Close()
		}
	})
}
