package images

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/images/layertest"
)

// The layers as the kernel's overlay shows them, mounted by their short names:
// what each upper one hides is hidden.
func TestOverlay(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	ref := r.push(t, "a", "1", build(t, nil,
		gzLayer(t, layertest.Item{Name: "gone", Body: "1"}, layertest.Item{Name: "kept", Body: "1"}, layertest.Item{Name: "dir/old", Body: "1"}, layertest.Item{Name: "anew/old", Body: "1"},
			layertest.Item{Name: "emptied/old", Body: "1"}, layertest.Item{Name: "changed", Body: "1"}, layertest.Item{Name: "dirgone/x", Body: "1"}),
		gzLayer(t, layertest.Item{Name: ".wh.gone"}, layertest.Item{Name: "dir/new", Body: "2"}, layertest.Item{Name: ".wh.anew"}, layertest.Item{Name: "anew/new", Body: "2"},
			layertest.Item{Name: "emptied/.wh..wh..opq"}, layertest.Item{Name: "changed", Body: "2"}, layertest.Item{Name: ".wh.dirgone"}),
		gzLayer(t, layertest.Item{Name: "gone", Body: "3"}, layertest.Item{Name: "dirgone/y", Body: "3"}),
	))
	s := newStore(t, nil)
	im := open(t, s, ref)
	defer im.Release()
	dir := t.TempDir()
	for _, sub := range []string{"upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	type answer struct {
		skip error
		got  map[string]string
	}
	answers := make(chan answer)
	go func() {
		// The thread is not given back, and its mounts end with it.
		runtime.LockOSThread()
		mount := func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return err
			}
			if err := unix.Chdir(s.LayersDir()); err != nil {
				return err
			}
			return unix.Mount("overlay", dir+"/merged", "overlay", 0,
				"lowerdir="+strings.Join(im.Short, ":")+",upperdir="+dir+"/upper,workdir="+dir+"/work")
		}
		if err := mount(); err != nil {
			answers <- answer{skip: err}
			return
		}
		got := map[string]string{}
		for _, path := range []string{"gone", "kept", "dir/old", "dir/new", "anew/old", "anew/new", "emptied", "emptied/old", "changed", "dirgone/x", "dirgone/y"} {
			got[path] = layertest.Look(t, dir+"/merged/"+path)
		}
		answers <- answer{got: got}
	}()
	a := <-answers
	if a.skip != nil {
		t.Skip("the overlay of this kernel cannot be mounted here:", a.skip)
	}
	for path, want := range map[string]string{"gone": "3", "kept": "1", "dir/old": "1", "dir/new": "2", "anew/old": "none", "anew/new": "2",
		"emptied": "dir", "emptied/old": "none", "changed": "2", "dirgone/x": "none", "dirgone/y": "3"} {
		if got := a.got[path]; !strings.HasPrefix(got, want) && !strings.HasSuffix(got, " "+want) {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
