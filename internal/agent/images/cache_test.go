package images

import (
	"context"
	"fmt"
	wire "github.com/musterhq/muster/internal/wire/agent"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/agent/images/layertest"
	"github.com/musterhq/muster/internal/agent/images/unpack"
)

// sized is an image with one layer of about n bytes on disk, and one file that names it.
func sized(t testing.TB, name string, n int) built {
	return build(t, nil, gzLayer(t, layertest.Item{Name: name, Body: name}, layertest.Item{Name: "big", Body: strings.Repeat(name, n/len(name))}))
}

func TestEviction(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	const one = 1 << 20
	refs := map[string]string{}
	for _, n := range []string{"a", "b", "c", "d", "e"} {
		refs[n] = r.push(t, n, "1", sized(t, n, one))
	}
	s := newStore(t, func(c *Config) { c.Limit = 3*one + one/2 })
	here := func() string {
		var list []string
		for _, info := range s.List() {
			list = append(list, strings.Split(info.Refs[0], "/")[1][:1])
		}
		slices.Sort(list)
		return strings.Join(list, "")
	}
	for _, n := range []string{"a", "b", "c"} {
		open(t, s, refs[n]).Release()
	}
	open(t, s, refs["a"]).Release() // b is the oldest now
	held := open(t, s, refs["d"])
	if got := here(); got != "acd" {
		t.Errorf("after d: %s, want acd", got)
	}
	a := open(t, s, refs["a"])
	c := open(t, s, refs["c"])
	// All are in use: there is no room, and nothing of what is used goes.
	refused(t, s, refs["e"], muster.FailureNode, muster.ReasonNodeFull, "in use")
	for _, im := range []*Image{held, a, c} {
		if _, err := os.Stat(im.Layers[0] + "/big"); err != nil {
			t.Error(err)
		}
	}
	c.Release()
	open(t, s, refs["e"]).Release()
	if got := here(); got != "ade" {
		t.Errorf("after e: %s, want ade", got)
	}
	if used, limit := s.Usage(); used > limit || used < 3*one {
		t.Errorf("%d of %d bytes are used", used, limit)
	}
	// An image that is larger than all that may be.
	big := r.push(t, "big", "1", sized(t, "big", 5*one))
	refused(t, s, big, muster.FailureUser, muster.ReasonImage, "image store of this node")
	held.Release()
	a.Release()
	unused(t, s)
	// The order outlives the process.
	open(t, s, refs["d"]).Release()
	for _, info := range s.List() {
		old := time.Now().Add(-time.Hour)
		if !strings.Contains(info.Refs[0], "/d:") {
			for _, name := range layertest.Names(t, s.path(recordsDir)) {
				if s.layers[name].record.Diff == s.images[imageKey{info.Digest, 0}].record.Layers[0] {
					_ = os.Chtimes(s.path(recordsDir, name), old, old)
				}
			}
		}
	}
	s = again(t, s)
	open(t, s, refs["b"]).Release()
	if got := here(); !strings.Contains(got, "d") || !strings.Contains(got, "b") {
		t.Errorf("after a restart: %s", got)
	}
	// A smaller limit makes room at the next use.
	s = newStore(t, func(c *Config) { *c = s.Config; c.Limit = one + one/2 })
	open(t, s, refs["b"]).Release()
	if got := here(); got != "b" {
		t.Errorf("with room for one: %s", got)
	}
}

// Compression of a thousand to one: the room is asked for before it is taken.
func TestBombs(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	s := newStore(t, func(c *Config) { c.Limit = 8 << 20 })
	zeros := strings.Repeat("\x00", 64<<20)
	refused(t, s, r.push(t, "bomb", "1", build(t, nil, gzLayer(t, layertest.Item{Name: "a", Body: zeros}))),
		muster.FailureUser, muster.ReasonImage, "image store of this node")
	var many []layertest.Item
	for i := range 30_000 {
		many = append(many, layertest.Item{Name: fmt.Sprint("f", i)})
	}
	refused(t, s, r.push(t, "many", "1", build(t, nil, gzLayer(t, many...))),
		muster.FailureUser, muster.ReasonImage, "image store of this node")
	// A size that is only said.
	said := layertest.TarOf(t, layertest.Item{Name: "a"})
	copy(said[124:136], "77777777777\x00")
	sum := 0
	copy(said[148:156], "        ")
	for _, c := range said[:512] {
		sum += int(c)
	}
	copy(said[148:156], fmt.Sprintf("%06o\x00 ", sum))
	refused(t, s, r.push(t, "said", "1", build(t, nil, blob{layertest.Gz(t, said), "application/vnd.docker.image.rootfs.diff.tar.gzip", hashOf(said)})),
		muster.FailureUser, muster.ReasonImage, "image store of this node")
	// Noughts after the end of the tar, without end.
	tail := append(layertest.TarOf(t, layertest.Item{Name: "a"}), make([]byte, unpack.MaxTrailing+1<<20)...)
	refused(t, s, r.push(t, "tail", "1", build(t, nil, blob{layertest.Gz(t, tail), "application/vnd.docker.image.rootfs.diff.tar.gzip", hashOf(tail)})),
		muster.FailureNode, muster.ReasonNodeFault)
	if used, _ := s.Usage(); used != 0 {
		t.Errorf("%d bytes are used", used)
	}
}

// What a killed process leaves is cleaned, and what was whole stays.
func TestLeftovers(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	ref, other := r.push(t, "a", "1", simple(t, "one")), r.push(t, "b", "1", sized(t, "b", 5000))
	s := newStore(t, nil)
	open(t, s, ref).Release()
	open(t, s, other).Release()
	used, _ := s.Usage()
	layers := layertest.Names(t, s.LayersDir())
	for path, body := range map[string]string{"tmp/layer-1/a/b": "x", "tmp/file-1": "x", "l/NORECORD/x": "x", "r/NOLAYER": "{}",
		"b/" + strings.Repeat("0", 64): "x", "i/x": "x", "t/x": "x", "l/file": "x"} {
		if err := os.MkdirAll(filepath.Dir(s.path(path)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.path(path), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s = again(t, s)
	if got := layertest.Names(t, s.LayersDir()); !slices.Equal(got, layers) {
		t.Errorf("layers %v, want %v", got, layers)
	}
	for dir, n := range map[string]int{tmpDir: 0, recordsDir: 3, blobsDir: 4, imagesDir: 2, refsDir: 2} {
		if got := layertest.Names(t, s.path(dir)); len(got) != n {
			t.Errorf("%s has %v, want %d", dir, got, n)
		}
	}
	if now, _ := s.Usage(); now != used {
		t.Errorf("%d bytes are used, %d were", now, used)
	}
	r.forget()
	open(t, s, ref).Release()
	if n := r.asked("GET", "/blobs/") + r.asked("GET", "/manifests/"); n != 0 {
		t.Errorf("%d were fetched again", n)
	}
	// Any one of the records gone or torn: the rest goes on, and what misses it is fetched again.
	for _, dir := range []string{recordsDir, imagesDir, refsDir, blobsDir, layersDir} {
		for _, name := range layertest.Names(t, s.path(dir)) {
			for _, how := range []string{"gone", "torn"} {
				path := s.path(dir, name)
				if _, err := os.Lstat(path); err != nil {
					continue // it had to go with another
				}
				if how == "gone" || dir == layersDir {
					_ = os.RemoveAll(path)
				} else if err := os.WriteFile(path, []byte("torn"), 0o600); err != nil {
					t.Fatal(err)
				}
				s = again(t, s)
				for _, ref := range []string{ref, other} {
					im := open(t, s, ref)
					for _, dir := range im.Layers {
						if len(layertest.Names(t, dir)) == 0 {
							t.Errorf("%s %s: an empty layer", path, how)
						}
					}
					im.Release()
				}
				unused(t, s)
			}
		}
	}
}

func TestCorruption(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	ref := r.push(t, "a", "1", simple(t, "one"))
	s := newStore(t, nil)
	first := open(t, s, ref)
	top := first.Layers[0]
	first.Release()
	for name, change := range map[string]func(dir string) error{
		"truncated": func(dir string) error { return os.Truncate(dir+"/app/text", 1) },
		"changed":   func(dir string) error { return os.WriteFile(dir+"/app/text", []byte("TWO"), 0o644) },
		"deleted":   func(dir string) error { return os.Remove(dir + "/app/text") },
		"added":     func(dir string) error { return os.WriteFile(dir+"/app/more", nil, 0o644) },
		"mode":      func(dir string) error { return os.Chmod(dir+"/app/text", 0o777) },
		"owner":     func(dir string) error { return os.Chown(dir+"/app/text", 1, 1) },
		"whiteout":  func(dir string) error { return os.Remove(dir + "/etc/os") },
		"opaque":    func(dir string) error { return unix.Setxattr(dir+"/app", "trusted.overlay.opaque", []byte("y"), 0) },
		"emptied":   os.RemoveAll,
	} {
		t.Run(name, func(t *testing.T) {
			if err := change(top); err != nil {
				t.Fatal(err)
			}
			s = again(t, s) // looked at once in a process's life
			r.forget()
			im := open(t, s, ref)
			defer im.Release()
			top = im.Layers[0]
			if got := layertest.Look(t, top+"/app/text") + layertest.Look(t, top+"/app/more") + layertest.Look(t, top+"/etc/os") + layertest.Look(t, top+"/app"); got != "file 644 7:8 onenonewhiteoutdir 755 0:0" {
				t.Errorf("after repair: %s", got)
			}
			if n := r.asked("GET", "/blobs/"); n != 1 && name != "emptied" {
				t.Errorf("%d blobs were fetched, want the one layer", n)
			}
		})
	}
	unused(t, s)
	// In use: who has it keeps it, who comes gets a good one.
	user := open(t, s, ref)
	if err := os.WriteFile(user.Layers[0]+"/app/text", []byte("bad"), 0o644); err != nil {
		t.Fatal(err)
	}
	bad, err := s.Verify(context.Background(), user.Digest)
	if err != nil || len(bad) != 1 {
		t.Errorf("verify: %v %v", bad, err)
	}
	next := open(t, s, ref)
	if next.Layers[0] == user.Layers[0] || layertest.Look(t, next.Layers[0]+"/app/text") != "file 644 7:8 one" {
		t.Errorf("the next one got %s", layertest.Look(t, next.Layers[0]+"/app/text"))
	}
	next.Release()
	// A new process: the sandbox lives on, and its layers stay.
	s = again(t, s)
	held, err := s.Hold(user.Digest)
	if err != nil {
		t.Fatal(err)
	}
	open(t, s, ref).Release()
	if got := layertest.Look(t, user.Layers[0]+"/app/text"); got != "file 644 7:8 bad" {
		t.Errorf("what a sandbox uses is %s", got)
	}
	held.Release()
	if got := layertest.Look(t, user.Layers[0]); got != "none" {
		t.Errorf("the bad layer is still there: %s", got)
	}
	if bad, err := s.Verify(context.Background(), ""); err != nil || len(bad) != 0 {
		t.Errorf("verify: %v %v", bad, err)
	}
	unused(t, s)
}

func TestHold(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	ref := r.push(t, "a", "1", sized(t, "a", 1<<20))
	other := r.push(t, "b", "1", sized(t, "b", 1<<20))
	s := newStore(t, func(c *Config) { c.Limit = 1<<20 + 1<<19 })
	im := open(t, s, ref)
	s = again(t, s)
	held, err := s.Hold(im.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if held.Digest != im.Digest || !slices.Equal(held.Layers, im.Layers) || !slices.Equal(held.Config.Cmd, im.Config.Cmd) {
		t.Errorf("held %+v, was %+v", held, im)
	}
	refused(t, s, other, muster.FailureNode, muster.ReasonNodeFull, "in use")
	if _, err := s.Prune(context.Background(), true); err != nil || layertest.Look(t, im.Layers[0]+"/a") == "none" {
		t.Errorf("pruned while in use: %v", err)
	}
	if _, err := s.Hold("sha256:" + strings.Repeat("0", 64)); err == nil {
		t.Error("an image that is not here was held")
	}
	held.Release()
	open(t, s, other).Release()
	unused(t, s)
}

// Another shift: nothing of the old owners is used again, but sandboxes of before keep theirs.
func TestAnotherShift(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	ref := r.push(t, "a", "1", simple(t, "one"))
	s := newStore(t, nil)
	old := open(t, s, ref)
	s = newStore(t, func(c *Config) { *c = s.Config; c.Shift = 200_000 })
	if _, err := s.Hold(old.Digest); err != nil {
		t.Fatal(err)
	}
	im := open(t, s, ref)
	if got := layertest.Look(t, im.Layers[0]+"/app/text"); got != "file 644 200007:200008 one" {
		t.Errorf("shifted: %s", got)
	}
	if got := layertest.Look(t, old.Layers[0]+"/app/text"); got != "file 644 7:8 one" {
		t.Errorf("in use since before: %s", got)
	}
	s = again(t, s)
	held, err := s.Hold(old.Digest)
	if err != nil {
		t.Fatal(err)
	}
	open(t, s, ref).Release()
	if got := layertest.Look(t, old.Layers[0]+"/app/text"); got != "file 644 7:8 one" {
		t.Errorf("in use since before: %s", got)
	}
	held.Release()
	if got := layertest.Look(t, old.Layers[0]); got != "none" {
		t.Errorf("of the old shift is left: %s", got)
	}
	unused(t, s)
}

// A full disk: what is not in use goes first, then it is told as the node's.
func TestFullDisk(t *testing.T) {
	layertest.NeedRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=24m,mode=700"); err != nil {
		t.Skip("a small disk needs the right to mount:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r := newReg(t)
	refs := map[string]string{}
	for _, n := range []string{"a", "b", "c"} {
		refs[n] = r.push(t, n, "1", sized(t, n, 9<<20))
	}
	s := newStore(t, func(c *Config) { c.Dir = dir + "/images" })
	open(t, s, refs["a"]).Release()
	b := open(t, s, refs["b"])
	c := open(t, s, refs["c"])
	if n := len(s.List()); n != 2 {
		t.Errorf("%d images are on a disk that holds two", n)
	}
	refused(t, s, refs["a"], muster.FailureNode, muster.ReasonNodeFull, "disk", "in use")
	b.Release()
	c.Release()
	// Filled by somebody else, down to nothing: also small writes meet it.
	if err := os.WriteFile(dir+"/other", make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, s, refs["a"]).Release()
	unused(t, s)
}

// Eviction, pulls and uses at the same time: never is a layer taken from who has it.
func TestEvictionRaces(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	var refs []string
	for i := range 6 {
		refs = append(refs, r.push(t, fmt.Sprint("i", i), "1", sized(t, fmt.Sprint(i), 1<<18)))
	}
	s := newStore(t, func(c *Config) { c.Limit = 5 << 18 })
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 12 {
				n := (g*5 + i*i) % len(refs)
				im, err := s.Open(context.Background(), refs[n], wire.Puller{}, nil)
				if failure.Is(err, muster.FailureNode) {
					continue // all room in use
				}
				if err != nil {
					t.Error(err)
					return
				}
				if b, err := os.ReadFile(im.Layers[0] + "/" + fmt.Sprint(n)); err != nil || string(b) != fmt.Sprint(n) {
					t.Errorf("%q %v", b, err)
				}
				if i == 5 {
					if _, err := s.Prune(context.Background(), g%2 == 0); err != nil {
						t.Error(err)
					}
				}
				im.Release()
			}
		})
	}
	wg.Wait()
	s.sweep()
	unused(t, s)
	if used, limit := s.Usage(); used > limit {
		t.Errorf("%d of %d bytes", used, limit)
	}
	s2 := again(t, s)
	if a, _ := s.Usage(); a != func() int64 { b, _ := s2.Usage(); return b }() {
		t.Error("a new process counts another usage")
	}
}

// A connection that breaks goes on where it broke, whatever the registry understands of parts.
func TestResume(t *testing.T) {
	layertest.NeedRoot(t)
	for _, c := range []struct {
		name string
		// part gives where an answer begins, or the status that refuses what is asked for.
		part func(asked string) (from, refused int)
		// parts: nothing is sent twice.
		parts bool
	}{
		{"ranges", func(asked string) (from, refused int) {
			_, _ = fmt.Sscanf(asked, "bytes=%d-", &from)
			return from, 0
		}, true},
		{"ranges with an end only", func(asked string) (from, refused int) {
			var last int
			if n, _ := fmt.Sscanf(asked, "bytes=%d-%d", &from, &last); n != 2 {
				return 0, http.StatusRequestedRangeNotSatisfiable
			}
			return from, 0
		}, true},
		{"ranges refused", func(string) (from, refused int) { return 0, http.StatusRequestedRangeNotSatisfiable }, false},
		{"no ranges", func(string) (from, refused int) { return 0, 0 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newReg(t)
			noise := make([]byte, 300_000)
			for i := range noise {
				noise[i] = byte(i * i * 31 >> 7)
			}
			b := build(t, nil, plainLayer(t, layertest.Item{Name: "noise", Body: string(noise)}))
			ref := r.push(t, "a", "1", b)
			digest := b.blobs[0].diff.String()
			var mu sync.Mutex
			tries, sent, refusals := 0, 0, 0
			r.meddle(func(w http.ResponseWriter, req *http.Request) bool {
				if req.Method != http.MethodGet || !strings.HasSuffix(req.URL.Path, digest) {
					return false
				}
				mu.Lock()
				defer mu.Unlock()
				data := b.blobs[0].data
				from := 0
				if asked := req.Header.Get("Range"); asked != "" {
					var status int
					if from, status = c.part(asked); status != 0 {
						refusals++
						w.WriteHeader(status)
						return true
					}
				}
				tries++
				if tries == 2 {
					w.WriteHeader(http.StatusBadGateway)
					return true
				}
				w.Header().Set("Content-Length", fmt.Sprint(len(data)-from))
				if from > 0 {
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
					w.WriteHeader(http.StatusPartialContent)
				}
				until := len(data)
				if tries < 4 {
					until = min(tries*100_000, len(data))
				}
				sent += until - from
				_, _ = w.Write(data[from:until])
				return true
			})
			s := newStore(t, nil)
			im := open(t, s, ref)
			defer im.Release()
			if got, _ := os.ReadFile(im.Layers[0] + "/noise"); string(got) != string(noise) {
				t.Errorf("%d bytes came, or others", len(got))
			}
			if tries != 4 || c.parts && (refusals > 0 || sent > len(b.blobs[0].data)+1000) {
				t.Errorf("%d tries and %d refusals sent %d bytes for %d", tries, refusals, sent, len(b.blobs[0].data))
			}
			if c.name == "ranges refused" && refusals == 0 {
				t.Error("no part was asked for")
			}
		})
	}
}
