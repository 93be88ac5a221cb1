package outputs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Collect makes a tar of each declared output below the work directory, in the allocation's
// directory to. An output that is missing is a failure, unless it is optional. Names in a tar are
// relative to the work directory; links are kept as links and never followed out of it; sockets,
// pipes and devices are left out. It is not ok if ctx ended first.
func Collect(ctx context.Context, work string, declared []wire.Output, to journal.AllocDir) (list []wire.OutputReport, f *muster.Failure, ok bool) {
	root, err := os.OpenRoot(work)
	if err != nil {
		return nil, contract.FileFailure(muster.ReasonOutputMissing, "outputs", err), true
	}
	defer func() { _ = root.Close() }()
	if err := to.MakeOutputs(); err != nil {
		return nil, contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "outputs: %v", err), true
	}
	holes := mostHoles
	for _, out := range declared {
		name := filepath.Clean(out.Path)
		_, err := root.Stat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist) && out.Optional:
			continue
		case errors.Is(err, fs.ErrNotExist):
			return nil, contract.Failure(muster.FailureUser, muster.ReasonOutputMissing, "output %s was not made", out.Path), true
		case err != nil:
			return nil, contract.FileFailure(muster.ReasonOutputMissing, "output "+out.Path, err), true
		}
		size, err := writeTar(ctx, root, name, to.Output(len(list)), &holes)
		switch {
		case ctx.Err() != nil:
			return nil, nil, false
		case errors.Is(err, errHoles):
			return nil, contract.Failure(muster.FailureUser, muster.ReasonOutputNotStored, "output %s: %v", out.Path, err), true
		case errors.Is(err, journal.ErrDiskFull):
			return nil, contract.Failure(muster.FailureOutside, muster.ReasonOutputNotStored, "output %s: %v", out.Path, err), true
		case err != nil:
			return nil, contract.FileFailure(muster.ReasonOutputMissing, "output "+out.Path, err), true
		}
		list = append(list, wire.OutputReport{Path: out.Path, Size: size})
	}
	return list, nil, true
}

// smallFile is up to how many bytes a file is copied without a look at the room on the disk.
const smallFile = 1 << 20

// mostHoles is how many bytes that were never written the outputs of one allocation may have. A
// file with holes costs its owner nothing, and its copy fills the disk of the node.
const mostHoles int64 = 1 << 30

// errHoles is what the user is told of too many holes.
var errHoles = fmt.Errorf("its sparse files have holes of more than %s together; write smaller files, or pack them", muster.Bytes(mostHoles))

// collector is one output on its way into its tar.
type collector struct {
	tw *tar.Writer
	// holes is what is left of mostHoles.
	holes *int64
	// disk is the directory of the tar: room must be left there.
	disk string
}

// mayAdd is an error if there is no room for a file: errHoles, or journal.ErrDiskFull.
func (c *collector) mayAdd(info fs.FileInfo) error {
	size := info.Size()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		if *c.holes -= max(0, size-st.Blocks*512); *c.holes < 0 {
			return errHoles
		}
	}
	if size > smallFile {
		return journal.Room(c.disk, size)
	}
	return nil
}

// writeTar makes the tar of one output at dest, and says how large it is. A tar that failed stays:
// it goes with the allocation.
func writeTar(ctx context.Context, work *os.Root, name, dest string, holes *int64) (int64, error) {
	f, err := os.OpenFile(dest, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	tw := tar.NewWriter(f)
	c := &collector{tw, holes, filepath.Dir(dest)}
	err = c.addToTar(ctx, work, name)
	if e := tw.Close(); err == nil {
		err = e
	}
	size, e := f.Seek(0, io.SeekCurrent)
	if err == nil {
		err = e
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return size, err
}

// addToTar adds a path and, of a directory, all below it, in the order of names. The path itself
// may be a link to somewhere inside.
func (c *collector) addToTar(ctx context.Context, work *os.Root, name string) error {
	info, err := work.Stat(name)
	if err != nil {
		return err
	}
	if err := c.addEntry(ctx, work, name, info); err != nil || !info.IsDir() {
		return err
	}
	return c.addChildren(ctx, work, name)
}

// addChildren adds all that is below a directory.
func (c *collector) addChildren(ctx context.Context, work *os.Root, dir string) error {
	// Each directory is opened from the root: a path that was a directory a moment ago may be a
	// link now.
	entries, err := fs.ReadDir(work.FS(), filepath.ToSlash(dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		info, err := work.Lstat(name)
		if err != nil {
			return err
		}
		if err := c.addEntry(ctx, work, name, info); err != nil {
			return err
		}
		if info.IsDir() {
			if err := c.addChildren(ctx, work, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// addEntry adds one directory, link or file. Anything else it leaves out.
func (c *collector) addEntry(ctx context.Context, work *os.Root, name string, info fs.FileInfo) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// Times are in whole seconds: a fraction would cost a kilobyte of header for each file.
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime().Truncate(time.Second)}
	switch {
	case info.IsDir():
		if name == "." {
			return nil
		}
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		return c.tw.WriteHeader(h)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := work.Readlink(name)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return c.tw.WriteHeader(h)
	case !info.Mode().IsRegular():
		return nil
	}
	// Opening would wait for ever if it were a pipe by now, hence O_NONBLOCK.
	f, err := work.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	now, err := f.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(now, info) {
		return fmt.Errorf("%s changed while it was collected", name)
	}
	h.Typeflag, h.Size = tar.TypeReg, now.Size()
	if err := c.mayAdd(now); err != nil {
		return err
	}
	if err := c.tw.WriteHeader(h); err != nil {
		return err
	}
	// The header has the size: what the file grows by meanwhile is left out.
	n, err := io.Copy(c.tw, &untilReader{ctx, io.LimitReader(f, h.Size)})
	if err == nil && n < h.Size {
		err = fmt.Errorf("%s became shorter while it was collected", name)
	}
	return err
}

// untilReader reads until ctx ends.
type untilReader struct {
	ctx context.Context
	r   io.Reader
}

func (u *untilReader) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}
