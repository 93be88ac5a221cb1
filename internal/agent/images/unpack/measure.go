package unpack

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

// TreeSum stands for a whole directory: with equal sums, all names, types, modes, owners, sizes,
// times and targets of links are equal. Content is not read, because what changes a file's content
// changes its time as well.
type TreeSum struct {
	// Entries is how many files and directories there are, with the directory itself.
	Entries int
	// Bytes is about how many bytes they take on the disk.
	Bytes int64
	// Digest is of all that is compared, in hexadecimal digits.
	Digest string
}

// measurer walks a directory.
type measurer struct {
	ctx context.Context
	// dir is the directory, and root a descriptor of it.
	root  int
	dir   string
	sum   hash.Hash
	total TreeSum
	// seen are inodes that have several names: their content counts once.
	seen map[uint64]bool
	buf  []byte
}

// Measure sums up a directory and all below it.
func Measure(ctx context.Context, dir string) (TreeSum, error) {
	root, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_RDONLY, 0)
	if err != nil {
		return TreeSum{}, fmt.Errorf("%s: %w", dir, err)
	}
	defer func() { _ = unix.Close(root) }()
	m := &measurer{ctx: ctx, root: root, dir: dir, sum: sha256.New(), seen: map[uint64]bool{}}
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return TreeSum{}, fmt.Errorf("%s: %w", dir, err)
	}
	if err := m.add("", &st); err != nil {
		return TreeSum{}, err
	}
	if err := m.walk(""); err != nil {
		return TreeSum{}, err
	}
	m.total.Digest = hex.EncodeToString(m.sum.Sum(nil))
	return m.total, nil
}

// walk adds what is in a directory, sorted, then what is below. It keeps no directory open on its
// way down, because a layer may be deep.
func (m *measurer) walk(dir string) error {
	// A large layer takes seconds.
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
	// The sum must not depend on the order in which the file system has them.
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
		for _, attr := range []string{opaqueAttr, userOpaqueAttr} { // a layer has one or the other
			if n, err := unix.Lgetxattr(path.Join(m.dir, at), attr, y[:]); err == nil && n == 1 {
				target = string(y[:])
			}
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
	m.total.Bytes += PerEntry
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		m.total.Bytes += block
		return nil
	default:
		return nil
	}
	// The content of several names is on the disk once.
	if st.Nlink > 1 {
		if m.seen[st.Ino] {
			return nil
		}
		m.seen[st.Ino] = true
	}
	m.total.Bytes += (st.Size + block - 1) / block * block
	return nil
}
