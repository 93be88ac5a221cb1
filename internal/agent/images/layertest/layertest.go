package layertest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// NeedRoot skips the test where layers cannot be unpacked.
func NeedRoot(t testing.TB) {
	t.Helper()
	dir := t.TempDir()
	// These are what whiteouts, opaque directories and owners take.
	if err := unix.Mknod(filepath.Join(dir, "w"), unix.S_IFCHR, 0); err != nil {
		t.Skip("unpacking layers needs the right to make device nodes:", err)
	}
	if err := unix.Setxattr(dir, "trusted.overlay.opaque", []byte("y"), 0); err != nil {
		t.Skip("unpacking layers needs the right to set trusted attributes:", err)
	}
	if err := os.Chown(dir, 12345, 12345); err != nil {
		t.Skip("unpacking layers needs the right to change owners:", err)
	}
}

// Item is an entry of a layer's tar, short to write.
type Item struct {
	// Name ends in a slash if it is a directory and has no type.
	Name string
	// Type is one of archive/tar; 0: a file, or a directory by its name.
	Type byte
	// Body is the content of a file.
	Body string
	// Link is the target of a link.
	Link string
	// Mode is the usual one if it is 0.
	Mode int64
	// UID and GID are its owners.
	UID int
	GID int
	// Xattr are extended attributes, by their names.
	Xattr map[string]string
}

// Time is when all items were changed.
var Time = time.Unix(1_700_000_000, 0)

// TarOf is a tar of these items. Modes that are not given are the usual ones.
func TarOf(t testing.TB, items ...Item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, it := range items {
		h := &tar.Header{Name: it.Name, Typeflag: it.Type, Linkname: it.Link, Mode: it.Mode, Uid: it.UID, Gid: it.GID, ModTime: Time, Size: int64(len(it.Body))}
		switch {
		// Without a type the name tells it.
		case it.Type == 0 && strings.HasSuffix(it.Name, "/"):
			h.Typeflag = tar.TypeDir
		case it.Type == 0:
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		for k, v := range it.Xattr {
			if h.PAXRecords == nil {
				h.PAXRecords = map[string]string{}
			}
			// This is how tar programs write them.
			h.PAXRecords["SCHILY.xattr."+k] = v
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(it.Body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Gz compresses bytes by gzip.
func Gz(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	// Tests need it to be fast, not small.
	w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Names are the names in a directory.
func Names(t testing.TB, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

// Look describes what is at a path of a layer in a few words.
func Look(t testing.TB, path string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "none"
	}
	owner := fmt.Sprintf("%o %d:%d", st.Mode&0o7777, st.Uid, st.Gid)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		var y [1]byte
		if n, _ := unix.Lgetxattr(path, "trusted.overlay.opaque", y[:]); n == 1 {
			return "opaque dir " + owner
		}
		return "dir " + owner
	case unix.S_IFLNK:
		to, _ := os.Readlink(path)
		return "link " + to
	case unix.S_IFREG:
		b, _ := os.ReadFile(path)
		return "file " + owner + " " + string(b)
	case unix.S_IFIFO:
		return "fifo " + owner
	}
	// Overlay's whiteout is the device 0/0.
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 {
		return "whiteout"
	}
	return "other"
}

// Write writes a file, and makes the directories above it.
func Write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
