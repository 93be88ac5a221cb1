package images

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
)

type endless struct{}

func (endless) room(context.Context, int64) error { return nil }
func (endless) piece() int64                      { return roomPiece }

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
	_, err = unpack(context.Background(), dir, bytes.NewReader(data), shift, endless{}, func() bool { return false })
	if got := names(t, parent); len(got) != 2 {
		t.Errorf("beside the layer: %v", got)
	}
	if b, e := os.ReadFile(filepath.Join(parent, "outside")); string(b) != "mine" || e != nil {
		t.Errorf("the file outside has %q, %v", b, e)
	}
	return dir, err
}

func TestEvilLayers(t *testing.T) {
	needRoot(t)
	link := func(name, to string) item { return item{name: name, typ: tar.TypeSymlink, link: to} }
	hard := func(name, to string) item { return item{name: name, typ: tar.TypeLink, link: to} }
	const bad = "!"
	for name, c := range map[string]struct {
		items []item
		want  map[string]string // path → look; "!" → what the error says
	}{
		"upwards":                    {[]item{{name: "../outside", body: "x"}}, map[string]string{bad: "upwards"}},
		"upwards inside":             {[]item{{name: "a/../../outside", body: "x"}}, map[string]string{bad: "upwards"}},
		"absolute":                   {[]item{{name: "/etc/x", body: "x"}}, map[string]string{"etc/x": "file 644 0:0 x"}},
		"link up, written through":   {[]item{link("l", ".."), {name: "l/outside", body: "x"}}, map[string]string{"outside": "file 644 0:0 x"}},
		"link deep up":               {[]item{link("l", "../../../../../.."), {name: "l/etc/x", body: "x"}}, map[string]string{"etc/x": "file 644 0:0 x"}},
		"absolute link":              {[]item{link("l", "/etc"), {name: "l/x", body: "x"}}, map[string]string{"etc/x": "file 644 0:0 x", "l": "link /etc"}},
		"link to a link":             {[]item{link("a", "b"), link("b", "/c"), {name: "a/x", body: "x"}}, map[string]string{"c/x": "file 644 0:0 x"}},
		"links in a circle":          {[]item{link("a", "b"), link("b", "a"), {name: "a/x", body: "x"}}, map[string]string{bad: "too many links"}},
		"link that grows":            {[]item{link("a", "a/a/a/a"), {name: "a/x", body: "x"}}, map[string]string{bad: "too many links"}},
		"proc":                       {[]item{link("p", "/proc/self/root"), {name: "p/outside", body: "x"}}, map[string]string{"proc/self/root/outside": "file 644 0:0 x"}},
		"file over a link":           {[]item{link("a", "/outside"), {name: "a", body: "x"}}, map[string]string{"a": "file 644 0:0 x"}},
		"directory over a link":      {[]item{link("a", ".."), {name: "a/"}, {name: "a/x", body: "x"}}, map[string]string{"a": "dir 755 0:0", "a/x": "file 644 0:0 x"}},
		"hard link out":              {[]item{hard("h", "../outside")}, map[string]string{bad: "leads out"}},
		"hard link out by a link":    {[]item{link("l", ".."), hard("h", "l/outside")}, map[string]string{bad: "not in this layer"}},
		"hard link absolute":         {[]item{{name: "a", body: "x"}, hard("h", "/a")}, map[string]string{"h": "file 644 0:0 x"}},
		"hard link to a link":        {[]item{link("l", "/outside"), hard("h", "l"), {name: "h", body: "x"}}, map[string]string{"h": "file 644 0:0 x", "l": "link /outside"}},
		"hard link written through":  {[]item{{name: "a", body: "a"}, hard("h", "a"), {name: "h", body: "x"}}, map[string]string{"a": "file 644 0:0 a", "h": "file 644 0:0 x"}},
		"hard link to itself":        {[]item{{name: "a", body: "a"}, hard("a", "a")}, map[string]string{"a": "file 644 0:0 a"}},
		"hard link over its parent":  {[]item{{name: "a/b", body: "a"}, hard("a", "a/b")}, map[string]string{bad: "in place"}},
		"hard link to a directory":   {[]item{{name: "a/"}, hard("h", "a")}, map[string]string{bad: "not a file"}},
		"hard link to a whiteout":    {[]item{{name: ".wh.a"}, hard("h", "a")}, map[string]string{bad: "not a file"}},
		"whiteout of ..":             {[]item{{name: ".wh..."}}, map[string]string{bad: "no name"}},
		"whiteout of .":              {[]item{{name: "a/.wh.."}}, map[string]string{bad: "no name"}},
		"whiteout of nothing":        {[]item{{name: "a/.wh."}}, map[string]string{bad: "no name"}},
		"whiteout through a link":    {[]item{link("l", ".."), {name: "l/.wh.outside"}}, map[string]string{"outside": "whiteout"}},
		"whiteout":                   {[]item{{name: "a/.wh.b"}}, map[string]string{"a/b": "whiteout", "a": "dir 755 0:0"}},
		"opaque":                     {[]item{{name: "a/.wh..wh..opq"}, {name: "a/b", body: "x"}}, map[string]string{"a": "opaque dir 755 0:0", "a/b": "file 644 0:0 x", "a/.wh..wh..opq": "none"}},
		"opaque root":                {[]item{{name: ".wh..wh..opq"}}, map[string]string{".": "opaque dir 755 0:0"}},
		"whiteout, then made anew":   {[]item{{name: ".wh.a"}, {name: "a/"}}, map[string]string{"a": "opaque dir 755 0:0"}},
		"whiteout, then made below":  {[]item{{name: ".wh.a"}, {name: "a/b", body: "x"}}, map[string]string{"a": "opaque dir 755 0:0", "a/b": "file 644 0:0 x"}},
		"made anew, then whiteout":   {[]item{{name: "a/b", body: "x"}, {name: ".wh.a"}}, map[string]string{"a": "opaque dir 755 0:0", "a/b": "file 644 0:0 x"}},
		"file made, then whiteout":   {[]item{{name: "a", body: "x"}, {name: ".wh.a"}}, map[string]string{"a": "file 644 0:0 x"}},
		"old bookkeeping":            {[]item{{name: ".wh..wh.plnk/1", body: "x"}, {name: ".wh..wh.aufs", body: "x"}}, map[string]string{".wh..wh.plnk": "none", ".wh..wh.aufs": "none"}},
		"devices":                    {[]item{{name: "d", typ: tar.TypeChar}, {name: "b", typ: tar.TypeBlock}, hard("h", "d"), {name: "x", body: "x"}}, map[string]string{"d": "none", "b": "none", "h": "none", "x": "file 644 0:0 x"}},
		"forged opaque":              {[]item{{name: "a/", xattr: map[string]string{opaqueAttr: "y", "trusted.x": "y", "user.overlay.opaque": "y"}}}, map[string]string{"a": "dir 755 0:0"}},
		"file as a directory":        {[]item{{name: "a", body: "x"}, {name: "a/b", body: "x"}}, map[string]string{bad: "not a directory"}},
		"root as a file":             {[]item{{name: ".", typ: tar.TypeSymlink, link: "/"}}, map[string]string{bad: "root"}},
		"root's mode":                {[]item{{name: "./", mode: 0o1777, uid: 3}}, map[string]string{".": "dir 1777 3:0"}},
		"huge owner":                 {[]item{{name: "a", uid: 1<<32 - 1}}, map[string]string{bad: "owner"}},
		"long name":                  {[]item{{name: strings.Repeat("a/", 2000) + "x"}}, map[string]string{bad: "too long"}},
		"long part":                  {[]item{{name: strings.Repeat("a", 300)}}, map[string]string{bad: "name too long"}},
		"long by links":              {[]item{link("l", strings.Repeat("a/", 1700)), link("m", "l/"+strings.Repeat("b/", 1000)), {name: "m/x"}}, map[string]string{bad: "too long"}},
		"directory over a file":      {[]item{{name: "a", body: "x"}, {name: "a/"}, {name: "a/b", body: "y"}}, map[string]string{"a": "dir 755 0:0", "a/b": "file 644 0:0 y"}},
		"file over a directory":      {[]item{{name: "a/b", body: "x"}, {name: "a", body: "y"}, {name: "c", body: "z"}}, map[string]string{"a": "file 644 0:0 y", "c": "file 644 0:0 z"}},
		"setuid, pipe, strange mode": {[]item{{name: "s", mode: 0o6711, uid: 5, gid: 6}, {name: "p", typ: tar.TypeFifo, mode: 0o600}}, map[string]string{"s": "file 6711 5:6 ", "p": "fifo 600 0:0"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := into(t, tarOf(t, c.items...), 0)
			if says := c.want[bad]; says != "" {
				if err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("error %v, want one that says %q", err, says)
				}
				var e *entryError
				if !errors.As(err, &e) && isSystem(err) {
					t.Errorf("the machine is blamed: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for path, want := range c.want {
				if got := look(t, filepath.Join(dir, path)); got != want {
					t.Errorf("%s: %s, want %s", path, got, want)
				}
			}
		})
	}
}

func TestShift(t *testing.T) {
	needRoot(t)
	v2 := "\x01\x00\x00\x02" + strings.Repeat("\x00", 16)
	v3 := "\x01\x00\x00\x03" + strings.Repeat("\x00", 16) + "\x05\x00\x00\x00"
	dir, err := into(t, tarOf(t,
		item{name: "a/b", body: "x", uid: 1, gid: 2, mode: 0o4755, xattr: map[string]string{capability: v2, "user.k": "v", "security.selinux": "s"}},
		item{name: "far", uid: 1_000_000},
		item{name: "third", xattr: map[string]string{capability: v3}},
		item{name: "l", typ: tar.TypeSymlink, link: "x", uid: 9},
	), 100_000)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{".": "dir 755 100000:100000", "a": "dir 755 100000:100000",
		"a/b": "file 4755 100001:100002 x", "far": "file 644 165534:100000 "} {
		if got := look(t, filepath.Join(dir, path)); got != want {
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
	needRoot(t)
	dir, err := into(t, tarOf(t, item{name: "a/"}, item{name: "a/b", body: "x"}, item{name: "a/c/"}, item{name: "a/c/l", typ: tar.TypeSymlink, link: "x"}), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"a", "a/b", "a/c", "a/c/l"} {
		info, err := os.Lstat(filepath.Join(dir, path))
		if err != nil || !info.ModTime().Equal(someTime) {
			t.Errorf("%s: %v %v", path, info.ModTime(), err)
		}
	}
}

func FuzzCleanName(f *testing.F) {
	for _, s := range []string{"", ".", "..", "a/../b", "/a//b/", "a/./b", "...", "a/..", "\x00/..\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		clean, ok := cleanName(name)
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
		if back, ok := cleanName(clean); !ok || back != clean {
			t.Errorf("%q → %q → %q", name, clean, back)
		}
	})
}

// Any bytes as a tar: nothing is made outside, and nothing hangs.
func FuzzUnpack(f *testing.F) {
	for _, items := range [][]item{
		{{name: "a/b", body: "x"}, {name: "l", typ: tar.TypeSymlink, link: "../.."}, {name: "l/x", body: "y"}},
		{{name: ".wh.a"}, {name: "a/.wh..wh..opq"}, {name: "h", typ: tar.TypeLink, link: "a/b"}},
	} {
		f.Add(tarOf(f, items...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		needRoot(t)
		_, _ = into(t, data, 100_000)
	})
}

func FuzzReference(f *testing.F) {
	for _, s := range []string{"busybox", "python:3.13", "ghcr.io/x/y@sha256:" + strings.Repeat("a", 64), "localhost:5000/a/b:c", "docker.io/library/x",
		"oci:/a/b:c", "docker-archive:/x.tar:repo/a:1", "a@b@c", "[::1]:5000/x", "x:y@sha256:" + strings.Repeat("0", 64), "../x", "a/../b", "oci:/a/../b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, given string) {
		r, err := parseReference(given)
		if err != nil {
			return
		}
		if r.kind == fromRegistry && (strings.Contains(r.repo.RepositoryStr(), "..") || r.digest == nil && r.tag == "" || r.digest != nil && r.tag != "") {
			t.Errorf("%q → %+v", given, r)
		}
		if r.kind != fromRegistry && (!filepath.IsAbs(r.path) || strings.Contains(r.path, "/../") || strings.Contains(r.path, ":")) {
			t.Errorf("%q → path %q", given, r.path)
		}
		// The canonical form means the same.
		back, err := parseReference(r.canonical)
		if err != nil || back.canonical != r.canonical || back.kind != r.kind || back.path != r.path {
			t.Errorf("%q → %q → %q, %v", given, r.canonical, back.canonical, err)
		}
	})
}

func TestReferences(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("a", 64)
	for given, want := range map[string]string{
		"busybox":                              "docker.io/library/busybox:latest",
		"python:3.13":                          "docker.io/library/python:3.13",
		"team/app":                             "docker.io/team/app:latest",
		"docker.io/busybox":                    "docker.io/library/busybox:latest",
		"index.docker.io/library/busybox":      "docker.io/library/busybox:latest",
		"ghcr.io/x/y" + digest:                 "ghcr.io/x/y" + digest,
		"ghcr.io/x/y:tag" + digest:             "ghcr.io/x/y" + digest,
		"localhost/x":                          "localhost/x:latest",
		"localhost:5000/x/y:1":                 "localhost:5000/x/y:1",
		"oci:/a/b":                             "oci:/a/b",
		"oci:/a/b/:v1":                         "oci:/a/b:v1",
		"docker-archive:/a/b.tar":              "docker-archive:/a/b.tar",
		"docker-archive:/a/b.tar:x:1":          "docker-archive:/a/b.tar:docker.io/library/x:1",
		"docker-archive:/a/b.tar:r.io/x":       "docker-archive:/a/b.tar:r.io/x:latest",
		"":                                     "",
		"a b":                                  "",
		"a\nb":                                 "",
		"oci:relative":                         "",
		"oci:/a:":                              "",
		"docker-archive:/a:b" + digest:         "",
		"x/../y":                               "",
		"x//y":                                 "",
		"-x":                                   "",
		"x@sha512:" + strings.Repeat("a", 128): "",
		"x@sha256:abc":                         "",
		"docker://busybox":                     "",
		strings.Repeat("a", 2000):              "",
	} {
		r, err := parseReference(given)
		if err != nil && want != "" || err == nil && r.canonical != want {
			t.Errorf("%.80q → %q, %v; want %q", given, r.canonical, err, want)
		}
	}
	for host, want := range map[string]bool{"localhost": true, "LOCALHOST.:1": true, "127.0.0.1:80": true, "127.9.9.9": true, "[::1]:5": true,
		"[::ffff:127.0.0.1]:5": true, "a.localhost": true, "0.0.0.0:1": true,
		"10.0.0.1:5000": false, "localhost.evil.com": false, "example.com": false, "127.0.0.1.evil.com": false} {
		if isHere(hostOf(host)) != want {
			t.Errorf("isHere(%q) is not %v", host, want)
		}
	}
}

// Paths that are kept until the layer is unpacked are bounded together, not
// counted twice, and given back.
func TestNamesThatAreKept(t *testing.T) {
	needRoot(t)
	long := func(i int) string { return strings.Repeat("d", 90) + fmt.Sprintf("%010d", i) } // 100 bytes
	kinds := map[string]func(i int) item{
		"directories":        func(i int) item { return item{name: long(i) + "/"} },
		"devices":            func(i int) item { return item{name: long(i), typ: tar.TypeChar} },
		"opaque directories": func(i int) item { return item{name: long(i) + "/.wh..wh..opq"} },
	}
	for name, kind := range kinds {
		for n, ok := range map[int]bool{10: true, 11: false} {
			var items []item
			for i := range n {
				items = append(items, kind(i), kind(i)) // the second time it costs nothing
			}
			if err := unpackKeeping(t, 1000, items); (err == nil) != ok || !ok && !strings.Contains(err.Error(), "more than 1000 bytes") {
				t.Errorf("%d %s: %v", n, name, err)
			}
		}
	}
	var items []item
	for i := range 50 {
		items = append(items, kinds["devices"](i), item{name: long(i), body: "x"},
			kinds["opaque directories"](100+i), item{name: long(100 + i), body: "x"})
	}
	if err := unpackKeeping(t, 1000, items); err != nil {
		t.Errorf("replaced: %v", err)
	}
}

// unpackKeeping unpacks with another bound of kept names.
func unpackKeeping(t *testing.T, most int, items []item) error {
	t.Helper()
	tr, err := openTree(t.TempDir(), 0, func() bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	tr.kept.most = most
	u := newUnpacker(context.Background(), tr, 0, endless{})
	u.kept.most = most
	err = u.all(bytes.NewReader(tarOf(t, items...)))
	var e *entryError
	if err != nil && !errors.As(err, &e) {
		t.Errorf("not the layer's fault: %v", err)
	}
	return err
}

// S-M7: an image of 1.8 MB with 300,000 empty files took all inodes of a disk: others failed meanwhile. What is left for files counts as room.
func TestRoomIsBoundedByInodes(t *testing.T) {
	st := unix.Statfs_t{Files: 200_000, Ffree: 110_000}
	if got := freeByFiles(&st); got != 100_000*perEntry {
		t.Errorf("%d", got)
	}
	st.Ffree = 5_000 // below the floor
	if got := freeByFiles(&st); got >= 0 {
		t.Errorf("%d", got)
	}
	if got := freeByFiles(&unix.Statfs_t{}); got < 1<<50 {
		t.Errorf("a file system without a bound: %d", got)
	}
}

// A file may be larger than the number of free inodes suggests: with 15 million of them left, a file of 8 GiB was refused as if
// the disk were full, on every node, however much room it had.
func TestLargeFileNeedsOneInode(t *testing.T) {
	const piece = roomPiece
	st := unix.Statfs_t{Bsize: 4096, Blocks: 64 << 20, Bavail: 16 << 20, Files: 16_000_000, Ffree: 15_000_000} // 64 GiB of 256 are free
	for _, c := range []struct {
		what  string
		n     int64
		ffree uint64
		want  bool
	}{
		{"a file of 8 GiB", 8 << 30, 15_000_000, true},
		{"a file of all that is free, the floor left out", 63 << 30, 15_000_000, true},
		{"a file of more than that", 63<<30 + 1, 15_000_000, false},
		{"a file, when there are few inodes", 8 << 30, 800_000 + piece/perEntry - 1, false},
		{"a piece of empty files, when they just fit", piece, 800_000 + piece/perEntry, true},
		{"a piece of empty files, when they do not", piece, 800_000 + piece/perEntry - 1, false},
	} {
		st.Ffree = c.ffree
		if got := holds(&st, c.n, piece); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}
