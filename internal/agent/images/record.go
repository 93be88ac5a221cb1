package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// recordVersion is of all records. Those of another version are rubbish: images can be pulled again.
const recordVersion = 1

// layerRecord is what is known of an unpacked layer.
type layerRecord struct {
	Version int
	Diff    string // diff id
	Shift   int
	Tree    treeSum
	// Bad: it is not what it was. It stays only for those that use it already.
	Bad bool `json:",omitempty"`
}

// imageRecord is an image that was here whole when it was written.
type imageRecord struct {
	Version  int
	Digest   string // what its reference was resolved to: an index, or the manifest itself
	Manifest string
	Config   string
	Shift    int
	Layers   []string // diff ids to mount, bottom first, each once
	// Unsaid: the manifest was made here, its layers' digests are their diff ids.
	Unsaid bool `json:",omitempty"`
}

// refRecord is what a reference meant when it was asked last.
type refRecord struct {
	Version int
	Ref     string // canonical
	Digest  string
	At      time.Time
	Stamp   string `json:",omitempty"` // of the file it was read from
}

// writeRecord writes a record whole or not at all, with a sum over itself: a
// power cut may leave a file of the right name with anything in it.
func (s *Store) writeRecord(path string, record any) error {
	b, err := json.Marshal(record)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	return s.writeFile(path, append(hex.AppendEncode(nil, sum[:]), append([]byte{'\n'}, b...)...))
}

func (s *Store) writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(s.path(tmpDir), "file-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

var errRecord = errors.New("the record is damaged or of another version")

func readRecord(path string, record any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, body, _ := bytes.Cut(b, []byte{'\n'})
	sum := sha256.Sum256(body)
	if string(head) != hex.EncodeToString(sum[:]) || json.Unmarshal(body, record) != nil {
		return errRecord
	}
	return nil
}

// treeSum is a short word for a whole directory: equal sums, equal names, types,
// modes, owners, sizes, times and targets of links. Content is not read: what
// changes a file's content changes its time as well.
type treeSum struct {
	Entries int
	Bytes   int64 // on disk, about
	Digest  string
}

// measurer walks a directory.
type measurer struct {
	ctx   context.Context
	root  int
	dir   string
	sum   hash.Hash
	total treeSum
	seen  map[uint64]bool // inodes with more names than one
	buf   []byte
}

func measure(ctx context.Context, dir string) (treeSum, error) {
	root, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_RDONLY, 0)
	if err != nil {
		return treeSum{}, fmt.Errorf("%s: %w", dir, err)
	}
	defer func() { _ = unix.Close(root) }()
	m := &measurer{ctx: ctx, root: root, dir: dir, sum: sha256.New(), seen: map[uint64]bool{}}
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return treeSum{}, fmt.Errorf("%s: %w", dir, err)
	}
	if err := m.add("", &st); err != nil {
		return treeSum{}, err
	}
	if err := m.walk(""); err != nil {
		return treeSum{}, err
	}
	m.total.Digest = hex.EncodeToString(m.sum.Sum(nil))
	return m.total, nil
}

// walk adds what is in a directory, sorted, then what is below. No directory is
// kept open on the way down: a layer may be deep.
func (m *measurer) walk(dir string) error {
	if m.ctx.Err() != nil {
		return context.Cause(m.ctx)
	}
	fd, err := unix.Openat(m.root, dot(dir), unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", dot(dir), err)
	}
	f := os.NewFile(uintptr(fd), dir)
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("%s: %w", dot(dir), err)
	}
	slices.Sort(names)
	var below []string
	for _, name := range names {
		var st unix.Stat_t
		at := path.Join(dir, name)
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		if err := m.add(at, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			below = append(below, at)
		}
	}
	_ = f.Close()
	for _, at := range below {
		if err := m.walk(at); err != nil {
			return err
		}
	}
	return nil
}

// add puts one entry into the sum.
func (m *measurer) add(at string, st *unix.Stat_t) error {
	b := m.buf[:0]
	size, target := st.Size, ""
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR: // its size is the file system's affair
		size = 0
		var y [1]byte
		if n, err := unix.Lgetxattr(path.Join(m.dir, at), opaqueAttr, y[:]); err == nil && n == 1 {
			target = string(y[:])
		}
	case unix.S_IFLNK:
		var err error
		if target, err = readlink(m.root, at); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	for _, text := range []string{at, target} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	for _, n := range []uint64{uint64(st.Mode), uint64(st.Uid), uint64(st.Gid), uint64(size), uint64(st.Mtim.Sec), uint64(st.Mtim.Nsec), uint64(st.Rdev)} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	m.sum.Write(b)
	m.buf = b
	m.total.Entries++
	m.total.Bytes += perEntry
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		m.total.Bytes += block
		return nil
	default:
		return nil
	}
	if st.Nlink > 1 {
		if m.seen[st.Ino] {
			return nil
		}
		m.seen[st.Ino] = true
	}
	m.total.Bytes += (st.Size + block - 1) / block * block
	return nil
}

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.Dir}, parts...)...)
}
