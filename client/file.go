package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Paths inside a sandbox are absolute, or below the directory where the
// allocation's command started.

// ListFiles lists what is in a directory, with all that is below it if it is
// recursive, or the one entry of anything else. Limit bounds the list; 0 is the server's choice.
func (c SandboxAPI) ListFiles(ctx context.Context, id muster.AllocID, path string, recursive bool, limit int) (*api.FileList, error) {
	q := values("path", path, "recursive", yes(recursive), "limit", positive(limit))
	return fetch[api.FileList](ctx, c.caller, request{method: http.MethodGet, path: allocPath(id, "files"), query: q})
}

// StatFile is one entry; of a symlink the link itself, or with follow what it leads to.
func (c SandboxAPI) StatFile(ctx context.Context, id muster.AllocID, path string, follow bool) (*api.FileEntry, error) {
	return fetch[api.FileEntry](ctx, c.caller, request{method: http.MethodGet, path: allocPath(id, "files", "stat"), query: values("path", path, "follow", yes(follow))})
}

// ReadFile is a file's bytes from an offset on. It is whole only if it is read to io.EOF. The caller closes it.
func (c SandboxAPI) ReadFile(ctx context.Context, id muster.AllocID, path string, offset int64) (io.ReadCloser, error) {
	return c.download(ctx, allocPath(id, "files", "content"), values("path", path, "offset", positive64(offset)))
}

// FileWrite says how a file is written. Zero fields are the sandbox's choice.
type FileWrite struct {
	Path    string
	Mode    string // in octal, as 0644
	Parents bool   // make missing directories
	User    string // its owner
}

// WriteFile writes a file whole or not at all. Open opens the content anew for
// each attempt; size is how long it is, -1 if that is not known.
func (c SandboxAPI) WriteFile(ctx context.Context, id muster.AllocID, w FileWrite, size int64, open func() (io.ReadCloser, error)) (*api.FileEntry, error) {
	q := values("path", w.Path, "mode", w.Mode, "parents", yes(w.Parents), "user", w.User)
	r := request{
		method: http.MethodPut, path: allocPath(id, "files", "content"), query: q, body: open, size: size, slow: true,
		header: http.Header{"Content-Type": {"application/octet-stream"}},
	}
	if size == 0 {
		r.body = func() (io.ReadCloser, error) { return http.NoBody, nil }
	}
	return fetch[api.FileEntry](ctx, c.caller, r)
}

// DeleteFile deletes a file, or a directory: an empty one, or with recursive all that is below it.
func (c SandboxAPI) DeleteFile(ctx context.Context, id muster.AllocID, path string, recursive bool) error {
	// Deleting again what a lost answer was about would say that it is not there.
	r := request{method: http.MethodDelete, path: allocPath(id, "files"), query: values("path", path, "recursive", yes(recursive)), once: true, slow: recursive}
	err := c.call(ctx, r, nil)
	return err
}

// ChangeFiles deletes some files and writes others, in this order. What fails does not keep the others from being done: the
// *api.Problem names each in its errors.
func (c SandboxAPI) ChangeFiles(ctx context.Context, id muster.AllocID, change api.FileChange) error {
	r, err := jsonBody(request{method: http.MethodPatch, path: allocPath(id, "files"), slow: true}, change)
	if err != nil {
		return err
	}
	err = c.call(ctx, r, nil)
	return err
}

// MakeDir makes a directory. With Parents missing ones above it are made as well, and one that is there is fine.
func (c SandboxAPI) MakeDir(ctx context.Context, id muster.AllocID, w FileWrite) (*api.FileEntry, error) {
	q := values("path", w.Path, "mode", w.Mode, "parents", yes(w.Parents), "user", w.User)
	return fetch[api.FileEntry](ctx, c.caller, request{method: http.MethodPost, path: allocPath(id, "files", "directory"), query: q, once: !w.Parents})
}

// ReadArchive is a file or tree as a tar stream, in which all names begin with
// the last name of path; with contents, of what is in the directory, without it. It is whole
// only if it is read to io.EOF. The caller closes it.
func (c SandboxAPI) ReadArchive(ctx context.Context, id muster.AllocID, path string, contents bool) (io.ReadCloser, error) {
	return c.download(ctx, allocPath(id, "files", "archive"), values("path", path, "contents", yes(contents)))
}

// ArchiveWrite says how an archive is unpacked.
type ArchiveWrite struct {
	Path       string // a directory
	User       string // owner of all; "" for the sandbox's user
	KeepOwners bool   // those in the archive instead
}

// WriteArchive unpacks a tar stream into a directory. It is not repeated, and
// what was unpacked before an error is there.
func (c SandboxAPI) WriteArchive(ctx context.Context, id muster.AllocID, w ArchiveWrite, archive io.Reader) error {
	r := request{
		method: http.MethodPut, path: allocPath(id, "files", "archive"), query: values("path", w.Path, "user", w.User, "keep_owners", yes(w.KeepOwners)),
		body: func() (io.ReadCloser, error) { return io.NopCloser(archive), nil }, size: -1, once: true, slow: true,
		header: http.Header{"Content-Type": {"application/x-tar"}},
	}
	err := c.call(ctx, r, nil)
	return err
}

func (c SandboxAPI) download(ctx context.Context, path string, q url.Values) (io.ReadCloser, error) {
	resp, err := c.stream(ctx, request{method: http.MethodGet, path: path, query: q})
	if err != nil {
		return nil, err
	}
	return &broken{resp.Body, c.Address()}, nil
}

// yes is how a query says that something is so.
func yes(v bool) string {
	if v {
		return strconv.FormatBool(v)
	}
	return ""
}
