package images

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/images/unpack"
)

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

// S-M7: an image of 1.8 MB with 300,000 empty files took all inodes of a disk: others failed meanwhile. What is left for files counts as room.
func TestRoomIsBoundedByInodes(t *testing.T) {
	st := unix.Statfs_t{Files: 200_000, Ffree: 110_000}
	if got := freeByFiles(&st); got != 100_000*unpack.PerEntry {
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
	const piece = unpack.RoomPiece
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
		{"a file, when there are few inodes", 8 << 30, 800_000 + piece/unpack.PerEntry - 1, false},
		{"a piece of empty files, when they just fit", piece, 800_000 + piece/unpack.PerEntry, true},
		{"a piece of empty files, when they do not", piece, 800_000 + piece/unpack.PerEntry - 1, false},
	} {
		st.Ffree = c.ffree
		if got := holds(&st, c.n, piece); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}
