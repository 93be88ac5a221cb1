package safetar

import (
	"archive/tar"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
)

const (
	// blockSize is the unit of a tar: headers have it, and contents are padded to it.
	blockSize = 512
	// maxPath is how long a name may be: the kernel takes no longer path.
	maxPath = 4096
	// volumeLabel is the type of an entry that only names the whole tar.
	volumeLabel = 'V'
)

// Error is what is wrong with a tar, or with one of its entries.
type Error struct {
	// Name is of the entry, as the tar has it; empty if the tar itself is damaged.
	Name, Why string
	// Outside: the name leads out of the directory.
	Outside bool
}

// Error names the entry, if there is one.
func (e Error) Error() string {
	if e.Name == "" {
		return "the tar " + e.Why
	}
	return "the tar's entry " + strconv.Quote(e.Name) + " " + e.Why
}

// Entry is an entry of a tar, with names that stay below the directory.
type Entry struct {
	*tar.Header
	// Path is the clean form of the entry's name. It is empty for the directory itself.
	Path string
	// Target is the clean form of what a hard link names. It is empty if that is not below the
	// directory.
	Target string
}

// Reader reads the entries of a tar, and by Read the content of the last one.
type Reader struct {
	from source
	tar  *tar.Reader
	// last is the name of the last entry, for errors.
	last string
}

// NewReader begins to read a tar.
func NewReader(r io.Reader) *Reader {
	t := &Reader{from: source{r: r}}
	t.tar = tar.NewReader(&t.from)
	return t
}

// Next returns the next entry, or io.EOF at the end of the tar. Files have the type tar.TypeReg,
// however the tar writes that. An Error says what is wrong with the tar; any other error is that of
// the reader below.
func (r *Reader) Next() (*Entry, error) {
	for {
		h, err := r.tar.Next()
		if err == io.EOF && r.from.begun {
			return nil, Error{Why: "ends where an entry should come"}
		}
		if err != nil {
			return nil, r.wrong(err)
		}
		r.from.enter(h)
		if h.Typeflag == tar.TypeXGlobalHeader || h.Typeflag == volumeLabel {
			continue
		}
		r.last = h.Name
		return entry(h)
	}
}

// Read reads the content of the last entry.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.tar.Read(p)
	if err == io.ErrUnexpectedEOF && r.from.err == nil {
		err = Error{Name: r.last, Why: "is cut short"}
	}
	return n, err
}

// wrong turns an error of archive/tar into an Error, unless the reader below has failed.
func (r *Reader) wrong(err error) error {
	switch {
	case err == io.EOF:
		return err
	case r.from.err != nil:
		return r.from.err
	}
	why := "is none, or is damaged: " + strings.TrimPrefix(err.Error(), "archive/tar: ")
	if err == io.ErrUnexpectedEOF {
		why = "is cut short"
	}
	// An entry that cannot be read has no name, so the one before it says where the tar is damaged.
	if r.last != "" {
		why += ", at or after its entry " + strconv.Quote(r.last)
	}
	return Error{Why: why}
}

// entry checks an entry and cleans its names.
func entry(h *tar.Header) (*Entry, error) {
	if h.Typeflag == tar.TypeCont {
		h.Typeflag = tar.TypeReg
	}
	if h.Typeflag == tar.TypeReg && strings.HasSuffix(h.Name, "/") {
		h.Typeflag = tar.TypeDir // as old programs write it
	}
	// A few bytes of a sparse file would become any number of them on the disk.
	sparse := h.Typeflag == tar.TypeGNUSparse
	for key := range h.PAXRecords {
		sparse = sparse || strings.HasPrefix(key, "GNU.sparse.")
	}
	if sparse {
		return nil, Error{Name: h.Name, Why: "is a sparse file, which is not supported"}
	}
	e := &Entry{Header: h}
	var err error
	if e.Path, err = below(h.Name); err != nil {
		return nil, err
	}
	if e.Path == "" && h.Typeflag != tar.TypeDir {
		return nil, Error{Name: h.Name, Why: "has no name"}
	}
	if h.Typeflag == tar.TypeLink {
		// The caller knows what to do about a link that leads out.
		e.Target, _ = below(h.Linkname)
	}
	return e, nil
}

// below is the clean form of a name that must not lead out of the directory.
func below(name string) (string, error) {
	clean, ok := Clean(name)
	switch {
	case strings.HasPrefix(name, "/"):
		return "", Error{Name: name, Why: "has an absolute name", Outside: true}
	case !ok:
		return "", Error{Name: name, Why: "leads out of the directory", Outside: true}
	case len(clean) > maxPath:
		return "", Error{Name: name[:100] + "…", Why: "has a name that is longer than the system takes"}
	}
	return clean, nil
}

// Clean is a name without dots and empty parts, relative to the directory; empty for the directory
// itself. ok is false if a part of the name leads upwards: what that means would depend on the
// links on the way.
func Clean(name string) (clean string, ok bool) {
	parts := strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
	kept := parts[:0]
	for _, part := range parts {
		if part == ".." {
			return "", false
		}
		if part != "." {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, "/"), true
}

// source is the reader below. It notices what archive/tar does not tell: an error that is not the
// tar's, and a header that no entry follows.
type source struct {
	r   io.Reader
	err error
	// read is how many bytes were read, and left how many of the last entry are still to come.
	read, left int64
	// begun: something other than zeros came behind the last entry.
	begun bool
}

// enter notes that the header of an entry was read.
func (s *source) enter(h *tar.Header) {
	size := h.Size
	switch h.Typeflag {
	// Some programs give these the size of what they stand for, and no content follows.
	case tar.TypeLink, tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeDir, tar.TypeFifo:
		size = 0
	}
	s.left, s.begun = size+(-(s.read+size)&(blockSize-1)), false
	if s.left < 0 { // a header may give any size, and there are no more bytes than this
		s.left = math.MaxInt64
	}
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	content := min(int64(n), s.left)
	s.left -= content
	s.read += int64(n)
	for _, c := range p[content:n] {
		s.begun = s.begun || c != 0
	}
	return n, err
}
