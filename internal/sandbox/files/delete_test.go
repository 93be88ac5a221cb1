package files

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/musterhq/muster/internal/sandbox/sandboxtest"
	initwire "github.com/musterhq/muster/internal/wire/init"
	"golang.org/x/sys/unix"
)

// deepTree makes a tree too deep for any path, and tells how deep it is.
func deepTree(t testing.TB, dir string, depth int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		if err := unix.Mkdirat(fd, "deep", 0o755); err != nil {
			t.Fatal(err)
		}
		file, err := unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(file)
		next, err := unix.Openat(fd, "deep", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		_ = unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	_ = unix.Close(fd)
}

func TestDeepTree(t *testing.T) {
	i := newInside(t)
	if err := os.Mkdir(i.path("top"), 0o755); err != nil {
		t.Fatal(err)
	}
	deepTree(t, i.path("top"), 1500)
	_, err := i.list(initwire.FileList{Path: "top", Recursive: true})
	var wrong *initwire.FileError
	if !errors.As(err, &wrong) || wrong.Code != initwire.FileInvalid {
		t.Errorf("list: %v", err)
	}
	if got, err := i.list(initwire.FileList{Path: "top", Recursive: true, Limit: 700}); err != nil || len(got) != 700 {
		t.Errorf("list of 700: %d, %v", len(got), err)
	}
	if err := i.delete(initwire.FileDelete{Path: "top", Recursive: true}); err != nil {
		t.Fatal(err)
	}
	if got := i.names("."); len(got) != 0 {
		t.Errorf("left %q", got)
	}
}

func TestDelete(t *testing.T) {
	i := newInside(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "keep"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	fill := func(many int) {
		i.make("tree/many/first", "")
		for n := range many {
			if err := os.Link(i.path("tree/many/first"), i.path("tree/many/"+strconv.Itoa(n))); err != nil {
				t.Fatal(err)
			}
		}
		i.make("tree/.hidden/x", "")
		i.link(outside, "tree/out")
		i.link(filepath.Join(outside, "keep"), "tree/file")
		i.link("tree", "to-tree")
		i.link("nowhere", "dangling")
		if err := syscall.Mkfifo(i.path("tree/pipe"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(i.path("tree/locked"), 0); err != nil {
			t.Fatal(err)
		}
	}
	fill(3)
	for _, q := range []initwire.FileDelete{
		{Path: "dangling"}, {Path: "tree/file"}, {Path: "tree/out", Recursive: true}, {Path: "to-tree/", Contents: true}, {Path: "to-tree", Recursive: true},
		{Path: "gone", MissingOK: true}, {Path: "gone/deeper", MissingOK: true, Recursive: true}, {Path: "gone", MissingOK: true, Contents: true}, {Path: "tree"},
	} {
		if err := i.delete(q); err != nil {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if got := i.names("."); len(got) != 0 {
		t.Errorf("left %q", got)
	}
	fill(namesAtOnce + 10)
	if err := i.delete(initwire.FileDelete{Path: i.path("tree"), Recursive: true}); err != nil {
		t.Error(err)
	}
	if got := i.names("."); !slices.Equal(got, []string{"dangling", "to-tree"}) {
		t.Errorf("left %q", got)
	}
	if b, err := os.ReadFile(filepath.Join(outside, "keep")); err != nil || string(b) != "kept" {
		t.Errorf("outside: %q, %v", b, err)
	}
}

// TestDeleteMounted: what is mounted in a tree is neither emptied nor an obstacle for the rest.
func TestDeleteMounted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	i := newInside(t)
	kept := t.TempDir()
	if err := os.WriteFile(filepath.Join(kept, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	i.make("tree/z", "")
	i.make("tree/a/b", "")
	if err := os.Mkdir(i.path("tree/m"), 0o755); err != nil {
		t.Fatal(err)
	}
	// The same file system, so that only the kernel can tell.
	if err := syscall.Mount(kept, i.path("tree/m"), "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("mount: %v", err)
	}
	defer func() { _ = syscall.Unmount(i.path("tree/m"), syscall.MNT_DETACH) }()
	sandboxtest.WantCode(t, "tree", i.delete(initwire.FileDelete{Path: "tree", Recursive: true}), initwire.FileBusy, "tree/m")
	sandboxtest.WantCode(t, "mount", i.delete(initwire.FileDelete{Path: "tree/m", Recursive: true}), initwire.FileBusy, "tree/m")
	if got := i.names("tree"); !slices.Equal(got, []string{"m"}) {
		t.Errorf("left %q", got)
	}
	if _, err := os.Stat(filepath.Join(kept, "file")); err != nil {
		t.Error(err)
	}
	// EmptyMount is for the path itself, not for what is mounted below it.
	sandboxtest.WantCode(t, "tree", i.delete(initwire.FileDelete{Path: "tree", Recursive: true, EmptyMount: true}), initwire.FileBusy, "tree/m")
	i.link(kept, "to-kept")
	if err := i.delete(initwire.FileDelete{Path: "to-kept", Recursive: true, EmptyMount: true}); err != nil {
		t.Error(err) // the link goes, and what it leads to stays
	}
	if _, err := os.Stat(filepath.Join(kept, "file")); err != nil {
		t.Error(err)
	}
	if err := i.delete(initwire.FileDelete{Path: "tree/m", Recursive: true, EmptyMount: true}); err != nil {
		t.Error(err)
	}
	if got := i.names("tree/m"); len(got) != 0 {
		t.Errorf("left %q", got)
	}
	i.make("tree/m/file", "")
	if err := i.delete(initwire.FileDelete{Path: "tree/m", Contents: true}); err != nil {
		t.Error(err) // this says it in so many words
	}
}

// TestOverlay: the same on what containers have for a root, where directories of an image cannot be
// moved.
func TestOverlay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	i := newInside(t)
	base := t.TempDir()
	for _, dir := range []string{"lower/tree", "upper", "work"} {
		must(t, os.MkdirAll(filepath.Join(base, dir), 0o755))
	}
	deepTree(t, filepath.Join(base, "lower/tree"), maxDepth+40)
	must(t, os.WriteFile(filepath.Join(base, "lower/file"), []byte("image's"), 0o640))
	must(t, os.Symlink("file", filepath.Join(base, "lower/link")))
	options := "lowerdir=" + base + "/lower,upperdir=" + base + "/upper,workdir=" + base + "/work"
	if err := syscall.Mount("overlay", i.work, "overlay", 0, options); err != nil {
		t.Skipf("mount: %v", err)
	}
	defer func() { _ = syscall.Unmount(i.work, syscall.MNT_DETACH) }()
	if err := i.write(initwire.FileWrite{Path: "link"}, "mine"); err != nil {
		t.Error(err)
	}
	i.has("file", "mine")
	if e, err := i.stat(initwire.FileStat{Path: "file"}); err != nil || e.Mode != 0o640 {
		t.Errorf("%+v, %v", e, err)
	}
	b, err := i.tar("tree", "file", "link")
	if err != nil {
		t.Fatal(err)
	}
	if err := i.delete(initwire.FileDelete{Path: "tree", Recursive: true}); err != nil {
		t.Error(err)
	}
	if got := i.names("."); !slices.Equal(got, []string{"file", "link"}) {
		t.Errorf("left %q", got)
	}
	if err := i.untar(initwire.TarWrite{Path: "."}, b); err != nil {
		t.Error(err)
	}
	if all, err := i.list(initwire.FileList{Path: ".", Recursive: true}); err != nil || len(all) != 2*(maxDepth+40)+3 {
		t.Errorf("%d entries, %v", len(all), err)
	}
}

// TestDeleteRace: a program that puts links where directories were gets nothing outside deleted.
func TestDeleteRace(t *testing.T) {
	i := newInside(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "keep"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	swapped := make(chan struct{})
	go func() {
		defer close(swapped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			dir := i.path("tree/" + strconv.Itoa(rand.IntN(4)))
			_ = os.MkdirAll(dir+"/x/y", 0o755)
			_ = os.Rename(dir, i.path("aside"+strconv.Itoa(n%4)))
			_ = os.Symlink(outside, dir)
		}
	}()
	for range 100 {
		_ = os.MkdirAll(i.path("tree"), 0o755)
		_ = i.delete(initwire.FileDelete{Path: "tree", Recursive: true})
	}
	close(stop)
	<-swapped
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Error(err)
	}
}
