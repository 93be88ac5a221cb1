package imagetest

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func small(t *testing.T) v1.Image {
	return New(t, v1.Config{Cmd: []string{"x"}},
		Layer(t, Dir("d", 0o755), File("d/low", "low", 0o640).Owned(5, 6), File("gone", "", 0o644)),
		Layer(t, Whiteout("gone"), Opaque("d"), File("d/high", strings.Repeat("high", 5000), 0o4755), Link("d/same", "d/high"), Symlink("s", "/d/high")))
}

// pull fetches all of an image.
func pull(ref string, options ...remote.Option) error {
	r, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		return err
	}
	image, err := remote.Image(r, append(options, remote.WithRetryPredicate(func(error) bool { return false }))...)
	if err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers {
		body, err := l.Compressed()
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, body); err != nil {
			return err
		}
		_ = body.Close()
	}
	return nil
}

func TestLogins(t *testing.T) {
	for _, login := range []Login{Anonymous, Basic, Token} {
		t.Run("login "+string(login), func(t *testing.T) {
			r := NewRegistry(t, login)
			ref := r.Push(t, "team/app:1", small(t))
			if err := pull(ref, remote.WithAuth(&authn.Basic{Username: User, Password: Password})); err != nil {
				t.Errorf("with the password: %v", err)
			}
			if err := pull(ref, remote.WithAuth(&authn.Basic{Username: User, Password: "wrong"})); (err == nil) != (login == Anonymous) {
				t.Errorf("with a wrong password: %v", err)
			}
			if err := pull(ref); (err == nil) != (login == Anonymous) {
				t.Errorf("without a password: %v", err)
			}
		})
	}
}

// A token is for one repository.
func TestTokenIsForOneRepository(t *testing.T) {
	r := NewRegistry(t, Token)
	r.Push(t, "one:1", small(t))
	r.Push(t, "two:1", small(t))
	q, _ := http.NewRequest(http.MethodGet, "http://"+r.Host+"/token?service=test&scope=repository:one:pull", nil)
	q.SetBasicAuth(User, Password)
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	_, rest, _ := strings.Cut(string(body), `"token":"`)
	token, _, _ := strings.Cut(rest, `"`)
	for path, want := range map[string]int{"/v2/one/manifests/1": 200, "/v2/two/manifests/1": 401} {
		q, _ := http.NewRequest(http.MethodGet, "http://"+r.Host+path, nil)
		q.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, answer.StatusCode, want)
		}
	}
}

func TestFaults(t *testing.T) {
	for what, fault := range map[string]Fault{
		"a status":    {Times: 1, Status: 503, RetryAfter: 1, Cut: -1},
		"cut":         {Path: "/blobs/", Times: 1, Cut: 10},
		"one byte":    {Path: "/blobs/", Times: 1, Cut: -1, Corrupt: true},
		"no manifest": {Path: "/manifests/", Times: 1, Status: 429, Cut: -1},
	} {
		t.Run(what, func(t *testing.T) {
			r := NewRegistry(t, Anonymous)
			ref := r.Push(t, "app:1", small(t))
			r.Strike(fault)
			if err := pull(ref); err == nil {
				t.Error("nothing went wrong")
			}
			if err := pull(ref); err != nil {
				t.Errorf("after the fault: %v", err)
			}
			if r.Blobs() == 0 {
				t.Errorf("no blob was served: %q", r.Served())
			}
		})
	}
}

func TestUnpack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make what overlay wants")
	}
	root := Unpack(t, t.TempDir(), small(t), 1000)
	if strings.Join(root.Layers, " ") != "l1 l0" {
		t.Fatalf("layers %q", root.Layers)
	}
	stat := func(p string) (s unix.Stat_t) {
		t.Helper()
		if err := unix.Lstat(filepath.Join(root.Dir, p), &s); err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		return s
	}
	if s := stat("l1/gone"); s.Mode&unix.S_IFMT != unix.S_IFCHR || s.Rdev != 0 {
		t.Errorf("whiteout: %o %d", s.Mode, s.Rdev)
	}
	if s := stat("l0/d/low"); s.Uid != 1005 || s.Gid != 1006 || s.Mode&0o7777 != 0o640 {
		t.Errorf("low: %+v", s)
	}
	if s := stat("l1/d/same"); s.Nlink != 2 || s.Mode&0o7777 != 0o4755 {
		t.Errorf("same: %+v", s)
	}
	value := make([]byte, 8)
	if n, err := unix.Getxattr(filepath.Join(root.Dir, "l1/d"), "trusted.overlay.opaque", value); err != nil || string(value[:n]) != "y" {
		t.Errorf("opaque: %q %v", value, err)
	}
}

func TestFilesAreReadAgain(t *testing.T) {
	image, dir := small(t), t.TempDir()
	want, _ := image.Digest()
	WriteLayout(t, filepath.Join(dir, "layout"), "a", image)
	WriteLayout(t, filepath.Join(dir, "layout"), "b", Configured(t, image, func(c *v1.Config) { c.User = "5" }))
	index, err := layout.ImageIndexFromPath(filepath.Join(dir, "layout"))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 2 || manifest.Manifests[0].Digest != want {
		t.Errorf("layout: %+v, %v", manifest, err)
	}
	WriteArchive(t, filepath.Join(dir, "a.tar"), "app:1", image)
	tag, _ := name.NewTag("app:1")
	back, err := tarball.ImageFromPath(filepath.Join(dir, "a.tar"), &tag)
	if err != nil {
		t.Fatal(err)
	}
	if layers, err := back.Layers(); err != nil || len(layers) != 2 {
		t.Errorf("archive: %d layers, %v", len(layers), err)
	}
	WriteArchive(t, filepath.Join(dir, "a.tar.gz"), "app:1", image)
	if b, err := os.ReadFile(filepath.Join(dir, "a.tar.gz")); err != nil || !bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
		t.Errorf("gzipped archive: %v", err)
	}
}

// The system must run: a shell in it is asked.
func TestBusyboxRuns(t *testing.T) {
	image := Busybox(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can change its root directory")
	}
	root := Unpack(t, t.TempDir(), image, 0)
	cmd := exec.Command("chroot", filepath.Join(root.Dir, root.Layers[0]), "/bin/sh", "-c", "id -un; ls /usr/bin/env && wc -l </etc/passwd")
	cmd.Env = root.Config.Env
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "root\n/usr/bin/env\n6\n" {
		t.Errorf("%v: %s", err, out)
	}
	variants := map[string]bool{}
	for _, v := range Variants(t) {
		if variants[v.Name] || v.Stdout == "" {
			t.Errorf("variant %q", v.Name)
		}
		variants[v.Name] = true
	}
}

func TestDebianRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	image := Debian(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can change its root directory")
	}
	root := Unpack(t, t.TempDir(), image, 0)
	out, err := exec.Command("chroot", filepath.Join(root.Dir, root.Layers[0]), "python3", "-c", "print(6*7)").CombinedOutput()
	if err != nil || string(out) != "42\n" {
		t.Errorf("%v: %s", err, out)
	}
}
