package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/agent/images/layertest"
	"github.com/musterhq/muster/internal/safetar"
)

type endless struct{}

func (endless) Reserve(context.Context, int64) error { return nil }

func (endless) Piece() int64 { return RoomPiece }

// into unpacks beside a file that nothing may reach.
func into(t *testing.T, data []byte, shift int) (dir string, err error) {
	t.Helper()
	parent := t.TempDir()
	if err := os.WriteFile(filepath.Join(parent, "outside"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(parent, "layer")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = Unpack(context.Background(), dir, bytes.NewReader(data), shift, endless{}, func() bool { return false })
	if got := layertest.Names(t, parent); len(got) != 2 {
		t.Errorf("beside the layer: %v", got)
	}
	if b, e := os.ReadFile(filepath.Join(parent, "outside")); string(b) != "mine" || e != nil {
		t.Errorf("the file outside has %q, %v", b, e)
	}
	return dir, err
}

func TestEvilLayers(t *testing.T) {
	layertest.NeedRoot(t)
	link := func(name, to string) layertest.Item {
		return layertest.Item{Name: name, Type: tar.TypeSymlink, Link: to}
	}
	hard := func(name, to string) layertest.Item { return layertest.Item{Name: name, Type: tar.TypeLink, Link: to} }
	const bad = "!"
	for name, c := range map[string]struct {
		items []layertest.Item
		want  map[string]string // path → look; "!" → what the error says
	}{
		"upwards":                    {[]layertest.Item{{Name: "../outside", Body: "x"}}, map[string]string{bad: "upwards"}},
		"upwards inside":             {[]layertest.Item{{Name: "a/../../outside", Body: "x"}}, map[string]string{bad: "upwards"}},
		"absolute":                   {[]layertest.Item{{Name: "/etc/x", Body: "x"}}, map[string]string{"etc/x": "file 644 0:0 x"}},
		"link up, written through":   {[]layertest.Item{link("l", ".."), {Name: "l/outside", Body: "x"}}, map[string]string{"outside": "file 644 0:0 x"}},
		"link deep up":               {[]layertest.Item{link("l", "../../../../../.."), {Name: "l/etc/x", Body: "x"}}, map[string]string{"etc/x": "file 644 0:0 x"}},
		"absolute link":              {[]layertest.Item{link("l", "/etc"), {Name: "l/x", Body: "x"}}, map[string]string{"etc/x": "file 644 0:0 x", "l": "link /etc"}},
		"link to a link":             {[]layertest.Item{link("a", "b"), link("b", "/c"), {Name: "a/x", Body: "x"}}, map[string]string{"c/x": "file 644 0:0 x"}},
		"links in a circle":          {[]layertest.Item{link("a", "b"), link("b", "a"), {Name: "a/x", Body: "x"}}, map[string]string{bad: "too many links"}},
		"link that grows":            {[]layertest.Item{link("a", "a/a/a/a"), {Name: "a/x", Body: "x"}}, map[string]string{bad: "too many links"}},
		"proc":                       {[]layertest.Item{link("p", "/proc/self/root"), {Name: "p/outside", Body: "x"}}, map[string]string{"proc/self/root/outside": "file 644 0:0 x"}},
		"file over a link":           {[]layertest.Item{link("a", "/outside"), {Name: "a", Body: "x"}}, map[string]string{"a": "file 644 0:0 x"}},
		"directory over a link":      {[]layertest.Item{link("a", ".."), {Name: "a/"}, {Name: "a/x", Body: "x"}}, map[string]string{"a": "dir 755 0:0", "a/x": "file 644 0:0 x"}},
		"hard link out":              {[]layertest.Item{hard("h", "../outside")}, map[string]string{bad: "leads out"}},
		"hard link out by a link":    {[]layertest.Item{link("l", ".."), hard("h", "l/outside")}, map[string]string{bad: "not in this layer"}},
		"hard link absolute":         {[]layertest.Item{{Name: "a", Body: "x"}, hard("h", "/a")}, map[string]string{"h": "file 644 0:0 x"}},
		"hard link to a link":        {[]layertest.Item{link("l", "/outside"), hard("h", "l"), {Name: "h", Body: "x"}}, map[string]string{"h": "file 644 0:0 x", "l": "link /outside"}},
		"hard link written through":  {[]layertest.Item{{Name: "a", Body: "a"}, hard("h", "a"), {Name: "h", Body: "x"}}, map[string]string{"a": "file 644 0:0 a", "h": "file 644 0:0 x"}},
		"hard link to itself":        {[]layertest.Item{{Name: "a", Body: "a"}, hard("a", "a")}, map[string]string{"a": "file 644 0:0 a"}},
		"hard link over its parent":  {[]layertest.Item{{Name: "a/b", Body: "a"}, hard("a", "a/b")}, map[string]string{bad: "in place"}},
		"hard link to a directory":   {[]layertest.Item{{Name: "a/"}, hard("h", "a")}, map[string]string{bad: "not a file"}},
		"hard link to a whiteout":    {[]layertest.Item{{Name: ".wh.a"}, hard("h", "a")}, map[string]string{bad: "not a file"}},
		"whiteout of ..":             {[]layertest.Item{{Name: ".wh..."}}, map[string]string{bad: "no name"}},
		"whiteout of .":              {[]layertest.Item{{Name: "a/.wh.."}}, map[string]string{bad: "no name"}},
		"whiteout of nothing":        {[]layertest.Item{{Name: "a/.wh."}}, map[string]string{bad: "no name"}},
		"whiteout through a link":    {[]layertest.Item{link("l", ".."), {Name: "l/.wh.outside"}}, map[string]string{"outside": "whiteout"}},
		"whiteout":                   {[]layertest.Item{{Name: "a/.wh.b"}}, map[string]string{"a/b": "whiteout", "a": "dir 755 0:0"}},
		"opaque":                     {[]layertest.Item{{Name: "a/.wh..wh..opq"}, {Name: "a/b", Body: "x"}}, map[string]string{"a": "opaque dir 755 0:0", "a/b": "file 644 0:0 x", "a/.wh..wh..opq": "none"}},
		"opaque root":                {[]layertest.Item{{Name: ".wh..wh..opq"}}, map[string]string{".": "opaque dir 755 0:0"}},
		"whiteout, then made anew":   {[]layertest.Item{{Name: ".wh.a"}, {Name: "a/"}}, map[string]string{"a": "opaque dir 755 0:0"}},
		"whiteout, then made below":  {[]layertest.Item{{Name: ".wh.a"}, {Name: "a/b", Body: "x"}}, map[string]string{"a": "opaque dir 755 0:0", "a/b": "file 644 0:0 x"}},
		"made anew, then whiteout":   {[]layertest.Item{{Name: "a/b", Body: "x"}, {Name: ".wh.a"}}, map[string]string{"a": "opaque dir 755 0:0", "a/b": "file 644 0:0 x"}},
		"file made, then whiteout":   {[]layertest.Item{{Name: "a", Body: "x"}, {Name: ".wh.a"}}, map[string]string{"a": "file 644 0:0 x"}},
		"old bookkeeping":            {[]layertest.Item{{Name: ".wh..wh.plnk/1", Body: "x"}, {Name: ".wh..wh.aufs", Body: "x"}}, map[string]string{".wh..wh.plnk": "none", ".wh..wh.aufs": "none"}},
		"devices":                    {[]layertest.Item{{Name: "d", Type: tar.TypeChar}, {Name: "b", Type: tar.TypeBlock}, hard("h", "d"), {Name: "x", Body: "x"}}, map[string]string{"d": "none", "b": "none", "h": "none", "x": "file 644 0:0 x"}},
		"forged opaque":              {[]layertest.Item{{Name: "a/", Xattr: map[string]string{opaqueAttr: "y", "trusted.x": "y", "user.overlay.opaque": "y"}}}, map[string]string{"a": "dir 755 0:0"}},
		"file as a directory":        {[]layertest.Item{{Name: "a", Body: "x"}, {Name: "a/b", Body: "x"}}, map[string]string{bad: "not a directory"}},
		"root as a file":             {[]layertest.Item{{Name: ".", Type: tar.TypeSymlink, Link: "/"}}, map[string]string{bad: "root"}},
		"root's mode":                {[]layertest.Item{{Name: "./", Mode: 0o1777, UID: 3}}, map[string]string{".": "dir 1777 3:0"}},
		"huge owner":                 {[]layertest.Item{{Name: "a", UID: 1<<32 - 1}}, map[string]string{bad: "owner"}},
		"long name":                  {[]layertest.Item{{Name: strings.Repeat("a/", 2000) + "x"}}, map[string]string{bad: "too long"}},
		"long part":                  {[]layertest.Item{{Name: strings.Repeat("a", 300)}}, map[string]string{bad: "name too long"}},
		"long by links":              {[]layertest.Item{link("l", strings.Repeat("a/", 1700)), link("m", "l/"+strings.Repeat("b/", 1000)), {Name: "m/x"}}, map[string]string{bad: "too long"}},
		"directory over a file":      {[]layertest.Item{{Name: "a", Body: "x"}, {Name: "a/"}, {Name: "a/b", Body: "y"}}, map[string]string{"a": "dir 755 0:0", "a/b": "file 644 0:0 y"}},
		"file over a directory":      {[]layertest.Item{{Name: "a/b", Body: "x"}, {Name: "a", Body: "y"}, {Name: "c", Body: "z"}}, map[string]string{"a": "file 644 0:0 y", "c": "file 644 0:0 z"}},
		"setuid, pipe, strange mode": {[]layertest.Item{{Name: "s", Mode: 0o6711, UID: 5, GID: 6}, {Name: "p", Type: tar.TypeFifo, Mode: 0o600}}, map[string]string{"s": "file 6711 5:6 ", "p": "fifo 600 0:0"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := into(t, layertest.TarOf(t, c.items...), 0)
			if says := c.want[bad]; says != "" {
				if err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("error %v, want one that says %q", err, says)
				}
				var e *EntryError
				if !errors.As(err, &e) && failure.IsSystem(err) {
					t.Errorf("the machine is blamed: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for path, want := range c.want {
				if got := layertest.Look(t, filepath.Join(dir, path)); got != want {
					t.Errorf("%s: %s, want %s", path, got, want)
				}
			}
		})
	}
}

func TestShift(t *testing.T) {
	layertest.NeedRoot(t)
	v2 := "\x01\x00\x00\x02" + strings.Repeat("\x00", 16)
	v3 := "\x01\x00\x00\x03" + strings.Repeat("\x00", 16) + "\x05\x00\x00\x00"
	dir, err := into(t, layertest.TarOf(t,
		layertest.Item{Name: "a/b", Body: "x", UID: 1, GID: 2, Mode: 0o4755, Xattr: map[string]string{capability: v2, "user.k": "v", "security.selinux": "s"}},
		layertest.Item{Name: "far", UID: 1_000_000},
		layertest.Item{Name: "third", Xattr: map[string]string{capability: v3}},
		layertest.Item{Name: "l", Type: tar.TypeSymlink, Link: "x", UID: 9},
	), 100_000)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{".": "dir 755 100000:100000", "a": "dir 755 100000:100000",
		"a/b": "file 4755 100001:100002 x", "far": "file 644 165534:100000 "} {
		if got := layertest.Look(t, filepath.Join(dir, path)); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "l"), &st); err != nil || st.Uid != 100_009 {
		t.Errorf("the link's owner is %d, %v", st.Uid, err)
	}
	for path, want := range map[string]string{"a/b": v2, "third": v3[:20] + "\xa5\x86\x01\x00"} {
		b := make([]byte, 64)
		n, err := unix.Lgetxattr(filepath.Join(dir, path), capability, b)
		if err != nil || string(b[:n]) != want {
			t.Errorf("%s: capability %x, %v; want %x", path, b[:max(n, 0)], err, want)
		}
	}
	b := make([]byte, 64)
	if n, err := unix.Lgetxattr(filepath.Join(dir, "a/b"), "user.k", b); err != nil || string(b[:n]) != "v" {
		t.Errorf("user.k: %q %v", b[:max(n, 0)], err)
	}
	if n, err := unix.Lgetxattr(filepath.Join(dir, "a/b"), "security.selinux", b); err == nil && string(b[:n]) == "s" {
		t.Error("a label of another machine was kept")
	}
}

// Times are those of the layer, also of directories that were written into later.
func TestTimes(t *testing.T) {
	layertest.NeedRoot(t)
	dir, err := into(t, layertest.TarOf(t, layertest.Item{Name: "a/"}, layertest.Item{Name: "a/b", Body: "x"}, layertest.Item{Name: "a/c/"}, layertest.Item{Name: "a/c/l", Type: tar.TypeSymlink, Link: "x"}), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"a", "a/b", "a/c", "a/c/l"} {
		info, err := os.Lstat(filepath.Join(dir, path))
		if err != nil || !info.ModTime().Equal(layertest.Time) {
			t.Errorf("%s: %v %v", path, info.ModTime(), err)
		}
	}
}

func FuzzCleanName(f *testing.F) {
	for _, s := range []string{"", ".", "..", "a/../b", "/a//b/", "a/./b", "...", "a/..", "\x00/..\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		clean, ok := safetar.Clean(name)
		if !ok {
			return
		}
		if joined := filepath.Join("/root", clean); joined != "/root" && !strings.HasPrefix(joined, "/root/") || strings.HasPrefix(clean, "/") {
			t.Errorf("%q → %q leaves the root", name, clean)
		}
		dir, base := split(clean)
		if filepath.Join(dir, base) != clean && clean != "" || base == ".." || base == "." {
			t.Errorf("%q → %q + %q", name, dir, base)
		}
		if back, ok := safetar.Clean(clean); !ok || back != clean {
			t.Errorf("%q → %q → %q", name, clean, back)
		}
	})
}

// Any bytes as a tar: nothing is made outside, and nothing hangs.
func FuzzUnpack(f *testing.F) {
	for _, items := range [][]layertest.Item{
		{{Name: "a/b", Body: "x"}, {Name: "l", Type: tar.TypeSymlink, Link: "../.."}, {Name: "l/x", Body: "y"}},
		{{Name: ".wh.a"}, {Name: "a/.wh..wh..opq"}, {Name: "h", Type: tar.TypeLink, Link: "a/b"}},
	} {
		f.Add(layertest.TarOf(f, items...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		layertest.NeedRoot(t)
		_, _ = into(t, data, 100_000)
	})
}

// Paths that are kept until the layer is unpacked are bounded together, not
// counted twice, and given back.
func TestNamesThatAreKept(t *testing.T) {
	layertest.NeedRoot(t)
	long := func(i int) string { return strings.Repeat("d", 90) + fmt.Sprintf("%010d", i) } // 100 bytes
	kinds := map[string]func(i int) layertest.Item{
		"directories":        func(i int) layertest.Item { return layertest.Item{Name: long(i) + "/"} },
		"devices":            func(i int) layertest.Item { return layertest.Item{Name: long(i), Type: tar.TypeChar} },
		"opaque directories": func(i int) layertest.Item { return layertest.Item{Name: long(i) + "/.wh..wh..opq"} },
	}
	for name, kind := range kinds {
		for n, ok := range map[int]bool{10: true, 11: false} {
			var items []layertest.Item
			for i := range n {
				items = append(items, kind(i), kind(i)) // the second time it costs nothing
			}
			if err := unpackKeeping(t, 1000, items); (err == nil) != ok || !ok && !strings.Contains(err.Error(), "more than 1000 bytes") {
				t.Errorf("%d %s: %v", n, name, err)
			}
		}
	}
	var items []layertest.Item
	for i := range 50 {
		items = append(items, kinds["devices"](i), layertest.Item{Name: long(i), Body: "x"},
			kinds["opaque directories"](100+i), layertest.Item{Name: long(100 + i), Body: "x"})
	}
	if err := unpackKeeping(t, 1000, items); err != nil {
		t.Errorf("replaced: %v", err)
	}
}

// unpackKeeping unpacks with another bound of kept names.
func unpackKeeping(t *testing.T, most int, items []layertest.Item) error {
	t.Helper()
	tr, err := openTree(t.TempDir(), 0, func() bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	tr.kept.most = most
	u := newUnpacker(context.Background(), tr, 0, endless{})
	u.kept.most = most
	err = u.all(bytes.NewReader(layertest.TarOf(t, items...)))
	var e *EntryError
	if err != nil && !errors.As(err, &e) {
		t.Errorf("not the layer's fault: %v", err)
	}
	return err
}

// The disk fills between the question and the write.
func TestDiskFillsMeanwhile(t *testing.T) {
	u, err := openTree(t.TempDir(), 0, func() bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	defer u.close()
	calls := 0
	u.full = func() bool { calls++; return calls < 3 }
	if err := u.retry(func() error { return unix.ENOSPC }); err != unix.ENOSPC || calls != 3 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

// In the user namespace of an ordinary user owners stay where there are such ids, and directories are opaque by an attribute
// that its root may set.
func TestUserNamespace(t *testing.T) {
	layertest.NeedRoot(t)
	data := layertest.TarOf(t, layertest.Item{Name: "d", Type: tar.TypeDir}, layertest.Item{Name: "d/.wh..wh..opq"},
		layertest.Item{Name: "d/app", UID: 1000}, layertest.Item{Name: "d/far", UID: 100_000})
	for ids, want := range map[int][2]uint32{1: {0, 0}, 65537: {1000, nobody}} {
		dir, err := into(t, data, -ids)
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"d/app", "d/far"} {
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil || st.Uid != want[i] {
				t.Errorf("%d ids: %s belongs to %d, want %d: %v", ids, name, st.Uid, want[i], err)
			}
		}
		var y [1]byte
		if n, err := unix.Lgetxattr(filepath.Join(dir, "d"), userOpaqueAttr, y[:]); err != nil || string(y[:n]) != "y" {
			t.Errorf("%d ids: opaque is %q, %v", ids, y[:n], err)
		}
		if _, err := unix.Lgetxattr(filepath.Join(dir, "d"), opaqueAttr, y[:]); err == nil {
			t.Errorf("%d ids: it has root's attribute", ids)
		}
	}
}
