package unpack

import (
	"archive/tar"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/safetar"
)

// unpacker writes the entries of one layer's tar into a tree.
type unpacker struct {
	ctx  context.Context
	tree *tree
	// shift is added to owners. Ids beyond the range of a user namespace become nobody.
	shift int
	// ids, if not 0, are all ids that there are: those of the user namespace of this process.
	ids  int
	room Room

	// granted is how many bytes of room were granted and not yet used.
	granted int64
	// entries is how many entries came, which is bounded.
	entries int
	// dirs are the times of directories. They are set when nothing is made in them any more.
	dirs map[string]unix.Timespec
	// leftOut are the paths of device nodes, which are not made.
	leftOut map[string]bool
	// buf is what contents are copied by.
	buf   []byte
	notes Notes
	// kept counts the paths of dirs and leftOut.
	kept kept
}

// kept counts the bytes of the paths that are kept in memory until the layer is unpacked. The
// number of entries bounds how many there are, but each may be long.
type kept struct{ size, most int }

// keep counts a path, or refuses the layer.
func (n *kept) keep(path string) error {
	if n.size += len(path); n.size > n.most {
		return evil("the names of its directories and devices have more than %d bytes together", n.most)
	}
	return nil
}

// drop counts a path that is no longer kept.
func (n *kept) drop(path string) { n.size -= len(path) }

// Room is asked for room on the disk before bytes are written.
type Room interface {
	// Reserve takes room for n bytes, or says why there is none. It may wait while other layers are
	// deleted.
	Reserve(ctx context.Context, n int64) error
	// Piece is how many bytes to ask for at a time, at least.
	Piece() int64
}

// Notes count what was done differently from what the layer says.
type Notes struct {
	// Devices are device nodes, which are left out.
	Devices int
	// Attributes are extended attributes that mean something elsewhere only, or did not fit.
	Attributes int
	// Owners are those beyond the range, whose files belong to nobody.
	Owners int
}

// Bounds and constants of layers.
const (
	// maxEntries is how many entries a layer may have.
	maxEntries = 1_000_000
	// idRange is how many ids a user namespace of a node has, and nobody one of them.
	idRange = 65536
	nobody  = 65534
	// PerEntry is how many bytes an entry counts beside its content, and block what content is
	// rounded up to.
	PerEntry = 512
	block    = 4096
	// RoomPiece is how much room is asked for at a time, at most.
	RoomPiece = 8 << 20
	// MaxTrailing is how many bytes may come behind the end of a layer's tar.
	MaxTrailing = 64 << 20
	// maxNames is how many bytes of names are kept in memory.
	maxNames = 64 << 20

	// whiteoutPrefix begins names that hide a name of lower layers, whiteoutOpaque hides all that
	// lower layers have in a directory, and what else begins with whiteoutMeta is bookkeeping.
	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh."
	whiteoutOpaque = ".wh..wh..opq"
	// xattrRecord begins pax records of extended attributes, and capability is one of those.
	xattrRecord = "SCHILY.xattr."
	capability  = "security.capability"
)

// Unpack writes a tar into dir, which is empty and which nobody else uses. Every owner is moved by
// shift. Below 0 it says how many ids the user namespace has in which this process is root: owners
// are not moved then, and what marks a directory as opaque is an attribute that this root may set,
// see the option userxattr of the overlay file system. When the disk is full, it asks full whether there is room now. An *EntryError is the
// layer's fault. Of other errors, failure.IsSystem tells which are the machine's.
func Unpack(ctx context.Context, dir string, r io.Reader, shift int, room Room, full func() bool) (Notes, error) {
	ids := max(0, -shift)
	shift = max(0, shift)
	t, err := openTree(dir, shift, full)
	if err != nil {
		return Notes{}, err
	}
	defer t.close()
	u := newUnpacker(ctx, t, shift, room)
	if u.ids = ids; ids > 0 {
		t.opaqueAttr = userOpaqueAttr
	}
	err = u.all(r)
	return u.notes, err
}

// newUnpacker makes one for a tree that is empty.
func newUnpacker(ctx context.Context, t *tree, shift int, room Room) *unpacker {
	return &unpacker{ctx: ctx, tree: t, shift: shift, room: room,
		dirs: map[string]unix.Timespec{}, leftOut: map[string]bool{}, buf: make([]byte, 256<<10), kept: kept{most: maxNames}}
}

// all unpacks the whole tar.
func (u *unpacker) all(r io.Reader) error {
	if err := u.start(); err != nil {
		return err
	}
	tr := tar.NewReader(r)
	for {
		if err := u.ctx.Err(); err != nil {
			return context.Cause(u.ctx)
		}
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := u.entry(h, tr); err != nil {
			var e *EntryError
			if errors.As(err, &e) {
				return evil("entry %q: %s", failure.Bounded(h.Name), e.Why)
			}
			return fmt.Errorf("entry %q: %w", failure.Bounded(h.Name), err)
		}
	}
	return u.finish()
}

// start gives the root its owner and mode. The layer may have an entry for the root that says
// otherwise.
func (u *unpacker) start() error {
	// MkdirTemp has made it for nobody else.
	err := unix.Fchmod(u.tree.root, 0o755)
	if err == nil {
		err = unix.Fchown(u.tree.root, u.shift, u.shift)
	}
	return err
}

// finish sets the times of directories, deepest first.
func (u *unpacker) finish() error {
	for _, at := range slices.Backward(slices.Sorted(maps.Keys(u.dirs))) {
		var st unix.Stat_t
		if err := unix.Fstatat(u.tree.root, dot(at), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue // replaced by a later entry
		}
		if err := setTime(u.tree.root, dot(at), u.dirs[at]); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	return nil
}

// setTime sets both times of a name in a directory, even if it is a link.
func setTime(dirFD int, name string, t unix.Timespec) error {
	return unix.UtimesNanoAt(dirFD, name, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
}

// use takes room for an entry.
func (u *unpacker) use(n int64) error {
	if n > u.granted {
		// Asking for each entry would take the store's lock each time.
		ask := max(n-u.granted, u.room.Piece())
		if err := u.room.Reserve(u.ctx, ask); err != nil {
			return err
		}
		u.granted += ask
	}
	u.granted -= n
	return nil
}

// entry unpacks one entry, whatever it is.
func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if u.entries++; u.entries > maxEntries {
		return evil("the layer has more than %d entries", maxEntries)
	}
	if h.Size < 0 || h.Size > 1<<50 {
		return evil("a size of %d bytes", h.Size)
	}
	// The name may say anything: it is cleaned, and then followed part by part.
	name, ok := safetar.Clean(h.Name)
	if !ok {
		return evil("its name leads upwards")
	}
	if len(name) > maxPath {
		return evil("its name is too long")
	}
	// Each entry takes room, even one without content: an inode, and a name in its directory.
	cost := int64(PerEntry)
	if h.Typeflag == tar.TypeDir {
		cost += block
	}
	if err := u.use(cost); err != nil {
		return err
	}
	if name == "" {
		if h.Typeflag != tar.TypeDir {
			return evil("the root of the layer is not a directory")
		}
		return u.meta(h, u.tree.root, ".", "")
	}
	dir, base := split(name)
	if done, err := u.whiteout(dir, base); done || err != nil {
		return err
	}
	fd, at, err := u.tree.enter(dir, true)
	if err != nil {
		return err
	}
	return u.make(h, content, fd, base, path.Join(at, base))
}

// whiteout handles names that hide something in lower layers. It answers false for all other names.
func (u *unpacker) whiteout(dir, base string) (done bool, err error) {
	if strings.HasPrefix(dir, whiteoutMeta) || strings.Contains(dir, "/"+whiteoutMeta) {
		// This is bookkeeping of an old file system.
		return true, nil
	}
	if !strings.HasPrefix(base, whiteoutPrefix) {
		return false, nil
	}
	if strings.HasPrefix(base, whiteoutMeta) && base != whiteoutOpaque {
		return true, nil
	}
	fd, at, err := u.tree.enter(dir, true)
	if err != nil {
		return true, err
	}
	if base == whiteoutOpaque {
		return true, u.tree.hide(at)
	}
	// The rest of the name is what is hidden.
	hidden := strings.TrimPrefix(base, whiteoutPrefix)
	if hidden == "" || hidden == "." || hidden == ".." {
		return true, evil("it hides %q, which is no name", hidden)
	}
	return true, u.tree.whiteout(fd, at, hidden)
}

// make makes one entry. fd is its directory, base its name there, and at its path below the root,
// which has no links in it.
func (u *unpacker) make(h *tar.Header, content io.Reader, fd int, base, at string) error {
	if len(at) > maxPath {
		return evil("its name is too long")
	}
	switch h.Typeflag {
	// A device of the image's would be one of the node's.
	case tar.TypeChar, tar.TypeBlock:
		u.notes.Devices++
		return u.leave(at)
	case tar.TypeDir, tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse, tar.TypeSymlink, tar.TypeLink, tar.TypeFifo:
	default:
		return evil("type %q is not known", h.Typeflag)
	}
	if h.Typeflag == tar.TypeLink {
		return u.link(h, at)
	}
	if u.leftOut[at] {
		delete(u.leftOut, at)
		u.kept.drop(at)
	}
	exists, hidden, err := u.tree.clear(fd, at, h.Typeflag == tar.TypeDir)
	if err != nil {
		return err
	}
	if u.tree.fd < 0 { // the directory was forgotten with what was removed from it
		if fd, err = u.again(at); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if !exists {
			err = u.tree.retry(func() error { return unix.Mkdirat(fd, base, 0o700) })
		}
		if err == nil && hidden {
			err = u.tree.hide(at)
		}
	case tar.TypeSymlink:
		if len(h.Linkname) == 0 || len(h.Linkname) >= unix.PathMax {
			return evil("a link to a name of %d bytes", len(h.Linkname))
		}
		err = u.tree.retry(func() error { return unix.Symlinkat(h.Linkname, fd, base) })
	case tar.TypeFifo:
		err = u.tree.retry(func() error { return unix.Mknodat(fd, base, unix.S_IFIFO|0o600, 0) })
	default:
		return u.file(h, content, fd, base)
	}
	if err != nil {
		return err
	}
	return u.meta(h, fd, base, at)
}

// leave notes an entry that is left out, so that hard links to it are left out too.
func (u *unpacker) leave(at string) error {
	if u.leftOut[at] {
		return nil
	}
	u.leftOut[at] = true
	return u.kept.keep(at)
}

// again enters the directory of a path, after it was forgotten.
func (u *unpacker) again(at string) (int, error) {
	fd, _, err := u.tree.enter(parent(at), true)
	return fd, err
}

// link makes a hard link to a file of this layer.
func (u *unpacker) link(h *tar.Header, at string) error {
	target, ok := safetar.Clean(h.Linkname)
	if !ok || target == "" {
		return evil("a link to %q, which leads out of the layer", failure.Bounded(h.Linkname))
	}
	targetDir, targetBase := split(target)
	targetAt, err := u.tree.resolve(targetDir, false)
	if err != nil {
		return err
	}
	// The directory is followed through links, the last name is not.
	from := path.Join(targetAt, targetBase)
	if u.leftOut[from] {
		return u.leave(at)
	}
	var st unix.Stat_t
	err = unix.Fstatat(u.tree.root, from, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == unix.ENOENT:
		return evil("a link to %q, which is not in this layer", failure.Bounded(h.Linkname))
	case err != nil:
		return err
	// Neither of these can have a second name.
	case st.Mode&unix.S_IFMT == unix.S_IFDIR || isWhiteout(&st):
		return evil("a link to %q, which is not a file", failure.Bounded(h.Linkname))
	case from == at:
		return nil
	case strings.HasPrefix(from, at+"/"):
		return evil("a link in place of the directory of what it links to")
	}
	fd, err := u.again(at)
	if err != nil {
		return err
	}
	if _, _, err := u.tree.clear(fd, at, false); err != nil {
		return err
	}
	return u.tree.retry(func() error { return unix.Linkat(u.tree.root, from, u.tree.root, at, 0) })
}

// file writes a regular file.
func (u *unpacker) file(h *tar.Header, content io.Reader, fd int, base string) error {
	// Before anything is written, because a header may say any size.
	if err := u.use((h.Size + block - 1) / block * block); err != nil {
		return err
	}
	var f int
	err := u.tree.retry(func() (err error) {
		f, err = unix.Openat(fd, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	err = u.copy(f, content)
	if err == nil {
		err = u.owner(h, f, "")
	}
	if err == nil {
		err = u.attributes(h, func(name string, value []byte) error { return unix.Fsetxattr(f, name, value, 0) })
	}
	if e := unix.Close(f); err == nil {
		err = e
	}
	if err == nil {
		err = setTime(fd, base, timeOf(h))
	}
	return err
}

// copy writes the content of a file.
func (u *unpacker) copy(f int, content io.Reader) error {
	for {
		n, err := content.Read(u.buf)
		if e := u.write(f, u.buf[:n]); e != nil {
			return e
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := u.ctx.Err(); err != nil {
			return context.Cause(u.ctx)
		}
	}
}

// write writes all of p.
func (u *unpacker) write(f int, p []byte) error {
	for len(p) > 0 {
		var n int
		err := u.tree.retry(func() (err error) {
			n, err = unix.Write(f, p)
			return err
		})
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// meta gives an entry that is not a regular file its owner, mode, attributes and time.
func (u *unpacker) meta(h *tar.Header, fd int, base, at string) error {
	if err := u.owner(h, fd, base); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		if _, ok := u.dirs[at]; !ok {
			if err := u.kept.keep(at); err != nil {
				return err
			}
		}
		u.dirs[at] = timeOf(h)
		return u.attributes(h, func(name string, value []byte) error { return unix.Lsetxattr(u.tree.path(at), name, value, 0) })
	}
	return setTime(fd, base, timeOf(h))
}

// owner sets owner and mode, in this order, because a change of the owner takes setuid away. base
// is empty if fd is the entry itself.
func (u *unpacker) owner(h *tar.Header, fd int, base string) error {
	uid, err := u.id(h.Uid)
	if err != nil {
		return err
	}
	gid, err := u.id(h.Gid)
	if err != nil {
		return err
	}
	mode := uint32(h.Mode & 0o7777)
	if base == "" {
		if err = unix.Fchown(fd, uid, gid); err == nil {
			err = unix.Fchmod(fd, mode)
		}
		return err
	}
	err = unix.Fchownat(fd, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && h.Typeflag != tar.TypeSymlink {
		err = unix.Fchmodat(fd, base, mode, 0)
	}
	return err
}

// id moves an owner into the range of the node's user namespace.
func (u *unpacker) id(id int) (int, error) {
	if id < 0 || id >= 1<<32-1 {
		return 0, evil("the owner %d", id)
	}
	if u.ids > 0 && id >= u.ids {
		u.notes.Owners++
		if id = nobody; id >= u.ids {
			id = 0 // the only one that there is
		}
	}
	if u.shift == 0 {
		return id, nil
	}
	// The user namespace has no such id.
	if id >= idRange {
		u.notes.Owners++
		id = nobody
	}
	return id + u.shift, nil
}

// timeOf is the time of an entry; 1970 if it has none.
func timeOf(h *tar.Header) unix.Timespec {
	if h.ModTime.IsZero() {
		return unix.Timespec{}
	}
	return unix.Timespec{Sec: h.ModTime.Unix(), Nsec: int64(h.ModTime.Nanosecond())}
}

// attributes sets the extended attributes that mean the same everywhere. The others are labels of
// the machine that made the image, or would change what the overlay shows.
func (u *unpacker) attributes(h *tar.Header, set func(string, []byte) error) error {
	for record, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(record, xattrRecord)
		if !ok {
			continue
		}
		data := []byte(value)
		switch {
		// Capabilities of a file count only with the owner of its user namespace.
		case name == capability && h.Typeflag != tar.TypeDir:
			data = shiftCapability(data, u.shift)
		case strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay."):
		default:
			u.notes.Attributes++
			continue
		}
		switch err := set(name, data); err {
		case nil:
		case unix.EOPNOTSUPP, unix.E2BIG, unix.ERANGE, unix.EINVAL, unix.ENOSPC: // ENOSPC: more than an inode holds
			u.notes.Attributes++
		case unix.EPERM:
			if u.ids == 0 {
				return fmt.Errorf("attribute %s: %w", failure.Bounded(name), err)
			}
			u.notes.Attributes++ // root of a user namespace may not do all that root may
		default:
			return fmt.Errorf("attribute %s: %w", failure.Bounded(name), err)
		}
	}
	return nil
}

// shiftCapability moves the owner in the third form of file capabilities. The other forms have no
// owner.
func shiftCapability(b []byte, shift int) []byte {
	const third, length, at = 0x03, 24, 20
	if len(b) != length || b[3] != third {
		return b
	}
	b = slices.Clone(b)
	binary.LittleEndian.PutUint32(b[at:], binary.LittleEndian.Uint32(b[at:])+uint32(shift))
	return b
}
