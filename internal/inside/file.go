package inside

import (
	"context"
	"io"
	"strconv"

	"github.com/musterhq/muster/internal/state"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Files are the files of sandboxes. Init does the work, with the rights and in the file system of
// the allocation: paths are never looked at here.
type Files struct{ *entrance }

// List calls each for every entry of a directory, as they come; nothing is kept. An error of each
// ends it, and is returned as it is.
func (f *Files) List(ctx context.Context, id string, list initwire.FileList, each func(*initwire.FileEntry) error) error {
	v, err := f.visit(ctx, id)
	if err != nil {
		return err
	}
	defer v.end()
	var enough error
	err = initwire.ListFiles(v.ctx, v, list, func(e *initwire.FileEntry) error {
		v.heard()
		enough = each(e)
		return enough
	})
	if enough != nil {
		return enough
	}
	return f.problemOf(v.ctx, v.al, err)
}

// Read returns the entry of a regular file and a reader of its bytes, which must be closed. The
// reader works until ctx ends; an error of it says that the bytes are not whole.
func (f *Files) Read(ctx context.Context, id string, read initwire.FileRead) (*initwire.FileEntry, io.ReadCloser, error) {
	al, conn, err := f.enter(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	e, from, err := initwire.ReadFile(ctx, conn, read)
	return e, from, f.problemOf(ctx, al, err)
}

// Write makes or replaces a file: whole, or not at all. src may have a method CutOff that ends a
// read that waits; it is called when the sandbox fails first.
func (f *Files) Write(ctx context.Context, id string, write initwire.FileWrite, src io.Reader) error {
	return f.send(ctx, id, src, func(v *visit, src io.Reader) error { return initwire.WriteFile(v.ctx, v, write, src) })
}

// Delete removes a file, or a directory. What it may remove is in del.
func (f *Files) Delete(ctx context.Context, id string, del initwire.FileDelete) error {
	return f.during(ctx, id, func(v *visit) error { return initwire.DeleteFile(v.ctx, v, del) })
}

// MakeDirectory makes a directory.
func (f *Files) MakeDirectory(ctx context.Context, id string, mk initwire.FileMake) error {
	return f.during(ctx, id, func(v *visit) error { return initwire.MakeDirectory(v.ctx, v, mk) })
}

// during does something that may take any time as long as init makes progress.
func (f *Files) during(ctx context.Context, id string, do func(*visit) error) error {
	v, err := f.visit(ctx, id)
	if err != nil {
		return err
	}
	defer v.end()
	return f.problemOf(v.ctx, v.al, do(v))
}

// Stat is the entry of a file; of a link, if follow is set, that of what it leads to.
func (f *Files) Stat(ctx context.Context, id, path string, follow bool) (*initwire.FileEntry, error) {
	al, err := f.find(id)
	if err != nil {
		return nil, err
	}
	return f.stat(ctx, al, path, follow)
}

// stat asks for an entry of an allocation that was found already.
func (f *Files) stat(ctx context.Context, al *state.Alloc, path string, follow bool) (*initwire.FileEntry, error) {
	conn, err := f.tunnel(ctx, al, nil)
	if err != nil {
		return nil, err
	}
	bounded, cancel := soon(ctx)
	defer cancel()
	e, err := initwire.StatFile(bounded, conn, initwire.FileStat{Path: path, Follow: follow})
	return e, f.problemOf(ctx, al, err)
}

// ReadArchive is a file, or a directory with everything in it, as a tar archive. It ends with ctx.
func (f *Files) ReadArchive(ctx context.Context, id string, read initwire.TarRead) (io.ReadCloser, error) {
	al, conn, err := f.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	from, err := initwire.ReadTar(ctx, conn, read)
	return from, f.problemOf(ctx, al, err)
}

// WriteArchive unpacks a tar archive. It ends at the first entry that cannot be had; what came
// before it stays.
func (f *Files) WriteArchive(ctx context.Context, id string, write initwire.TarWrite, src io.Reader) error {
	return f.send(ctx, id, src, func(v *visit, src io.Reader) error { return initwire.WriteTar(v.ctx, v, write, src) })
}

// cutter is a source of bytes that may keep its reader waiting, such as the body of a request.
// CutOff ends a read that waits, and lets no later one wait.
type cutter interface{ CutOff() }

// send hands the bytes of src to an operation. If src fails, that is the client's doing: its error
// is returned as it is, and not taken for a failure of the sandbox.
func (f *Files) send(ctx context.Context, id string, src io.Reader, do func(*visit, io.Reader) error) error {
	v, err := f.visit(ctx, id)
	if err != nil {
		return err
	}
	defer v.end()
	if c, may := src.(cutter); may {
		defer context.AfterFunc(v.ctx, c.CutOff)()
	}
	sent := &source{r: src, came: v.heard}
	if err := do(v, sent); err != nil {
		// The source may also have failed because it was cut off here, by a server that stops or an
		// init that is silent: then the reason is the visit's. A client that leaves only cancels.
		if cause := context.Cause(v.ctx); sent.err != nil && (cause == nil || cause == context.Canceled) {
			return sent.err
		}
		return f.problemOf(v.ctx, v.al, err)
	}
	return nil
}

// source keeps what went wrong with what a client sends.
type source struct {
	r io.Reader
	// came is called after each read: while the client is waited for, init may be silent.
	came func()
	err  error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.came()
	if err != nil && err != io.EOF && s.err == nil {
		s.err = err
	}
	return n, err
}

// ParseMode reads permission bits in octal, as 0644; 0 if none are given.
func ParseMode(s string) (mode uint32, ok bool) {
	if s == "" {
		return 0, true
	}
	m, err := strconv.ParseUint(s, 8, 32)
	if err != nil || m == 0 || m > 0o7777 {
		return 0, false
	}
	return uint32(m), true
}
