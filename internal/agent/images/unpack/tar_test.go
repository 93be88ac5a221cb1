package unpack

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/images/layertest"
)

// What the system's tar packs, in each of its formats, comes out of unpack as it
// comes out of the system's tar.
func TestLikeTar(t *testing.T) {
	layertest.NeedRoot(t)
	tar, err := exec.LookPath("tar")
	if err != nil {
		t.Skip("there is no tar to compare with")
	}
	dir := t.TempDir()
	from := filepath.Join(dir, "from")
	long := "a-name-that-is-long/" + string(bytes.Repeat([]byte("x"), 120)) + "/" + string(bytes.Repeat([]byte("y"), 120))
	for path, body := range map[string]string{"a": "a", "d/b": "b", "é ü\n": "strange", long: "long"} {
		layertest.Write(t, filepath.Join(from, path), []byte(body))
	}
	holes, err := os.Create(filepath.Join(from, "holes"))
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{0, 1 << 20, 5<<20 + 17} {
		if _, err := holes.WriteAt([]byte("data"), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := holes.Truncate(8 << 20); err != nil {
		t.Fatal(err)
	}
	_ = holes.Close()
	for _, err := range []error{
		os.Link(from+"/a", from+"/hard"), os.Symlink("/etc/passwd", from+"/soft"), os.Symlink("d", from+"/dirlink"),
		unix.Mkfifo(from+"/pipe", 0o600), os.Chown(from+"/a", 1234, 2345), os.Lchown(from+"/soft", 77, 88),
		os.Chmod(from+"/d/b", 0o755|os.ModeSetuid|os.ModeSetgid), os.Chmod(from+"/d", 0o777|os.ModeSticky), os.Chown(from+"/d", 5, 6),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(tar, args...).CombinedOutput(); err != nil {
			t.Fatalf("tar %v: %v: %s", args, err, out)
		}
	}
	for _, format := range []string{"gnu", "pax", "posix"} {
		file, theirs, ours := filepath.Join(dir, format+".tar"), filepath.Join(dir, format+"-theirs"), filepath.Join(dir, format+"-ours")
		run("-C", from, "--format="+format, "--sparse", "--numeric-owner", "-cf", file, ".")
		for _, d := range []string{theirs, ours} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		run("-C", theirs, "--numeric-owner", "-xpf", file)
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Unpack(context.Background(), ours, f, 0, endless{}, func() bool { return false }); err != nil {
			t.Errorf("%s: %v", format, err)
		}
		_ = f.Close()
		a, err := Measure(context.Background(), theirs)
		if err != nil {
			t.Fatal(err)
		}
		b, err := Measure(context.Background(), ours)
		if err != nil {
			t.Fatal(err)
		}
		if a != b {
			out, _ := exec.Command("diff", "-r", "--no-dereference", theirs, ours).CombinedOutput()
			t.Errorf("%s: tar made %+v, unpack %+v\n%s", format, a, b, out)
		}
		for _, path := range []string{"holes", long, "d/b"} {
			x, _ := os.ReadFile(filepath.Join(theirs, path))
			y, _ := os.ReadFile(filepath.Join(ours, path))
			if !bytes.Equal(x, y) || len(x) == 0 {
				t.Errorf("%s: %s is another", format, path)
			}
		}
	}
}
