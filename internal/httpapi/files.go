package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/problem"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// fileHandlers handle files in sandboxes. Each request asks the init of the sandbox, which acts
// with the rights of the sandbox: no path leads out of it. If the allocation has ended, its files
// are gone (410).
type fileHandlers struct{ *API }

func (a fileHandlers) routes() {
	fileErrors := []int{http.StatusForbidden, http.StatusInsufficientStorage}
	op := func(method, path, id, summary, description string) huma.Operation {
		return sandboxOperation(method, path, id, summary, description, fileErrors...)
	}
	register(a.API, op(http.MethodGet, "/files", "list-files", "List a directory", "What is in a directory; of anything else, the thing itself. Links are not followed below the path."), a.listFiles)
	register(a.API, op(http.MethodGet, "/files/stat", "stat-file", "Show a file", ""), a.statFile)

	get := op(http.MethodGet, "/files/content", "read-file", "Read a file",
		"The bytes of a regular file; links are followed. With `Range: bytes=FROM-` or `FROM-TO`, or `offset`, a part of them. An answer that breaks off is not whole. HEAD answers the headers alone.")
	get.Responses = rawBody("application/octet-stream", "The bytes.", map[string]string{
		api.HeaderFileSize: "Size of the whole file.", api.HeaderFileMode: "Its permission bits in octal.", "Last-Modified": "When it was written.",
	})
	get.Responses["206"] = &huma.Response{Description: "A part of them."}
	get.Errors = append(get.Errors, http.StatusRequestedRangeNotSatisfiable)
	register(a.API, get, a.readFile)

	put := op(http.MethodPut, "/files/content", "write-file", "Write a file", "The body becomes the file, whole or not at all: nobody sees half of it. Of a link, what it leads to is replaced.")
	put.DefaultStatus = http.StatusCreated
	a.byteBody(&put, "application/octet-stream")
	register(a.API, put, a.writeFile)

	del := op(http.MethodDelete, "/files", "delete-file", "Delete a file or a directory", "Links are deleted, never followed.")
	del.DefaultStatus = http.StatusNoContent
	register(a.API, del, a.deleteFile)

	a.fileChange(op)

	mk := op(http.MethodPost, "/files/directory", "make-directory", "Make a directory", "")
	mk.DefaultStatus = http.StatusCreated
	register(a.API, mk, a.makeDirectory)

	pack := op(http.MethodGet, "/files/archive", "read-archive", "Fetch files as a tar archive", "A file, or a directory with everything in it, links as links. An answer that breaks off is not whole.")
	pack.Responses = rawBody("application/x-tar", "The archive.", nil)
	register(a.API, pack, a.readArchive)

	unpack := op(http.MethodPut, "/files/archive", "write-archive", "Unpack a tar archive into a directory", "Nothing is written outside of the directory. It ends at the first entry that cannot be had; what came before it stays.")
	unpack.DefaultStatus = http.StatusNoContent
	a.byteBody(&unpack, "application/octet-stream", "application/x-tar")
	register(a.API, unpack, a.writeArchive)
}

// byteBody describes a body that the handler reads as it comes, and tells the door not to read it
// first.
func (a *API) byteBody(op *huma.Operation, types ...string) {
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{}}
	for _, t := range types {
		op.RequestBody.Content[t] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}
	}
	op.Errors = append(op.Errors, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	a.cfg.Door.TakeBytes(op.Method + " " + op.Path)
}

// FilePath names a file in a sandbox. A relative path is below the working directory of the
// allocation's command.
type FilePath struct {
	AllocPath
	Path string `query:"path" required:"true" minLength:"1" maxLength:"4095" doc:"Absolute, or relative to the directory in which the allocation's command started."`
}

// fileMode parses permission bits in octal; "" is 0, which means the default of the operation.
func fileMode(s string) (uint32, error) {
	m, ok := inside.ParseMode(s)
	if !ok {
		return 0, problem.Invalid("query.mode", "is %q; write permission bits in octal, as 0644", problem.Clip(s))
	}
	return m, nil
}

type listFilesIn struct {
	FilePath
	Recursive bool `query:"recursive" doc:"Recursive."`
	Limit     int  `query:"limit" minimum:"1" maximum:"10000" default:"1000" doc:"Maximum number."`
}

type fileListOut struct{ Body api.FileList }

func (a fileHandlers) listFiles(ctx context.Context, in *listFilesIn) (*fileListOut, error) {
	list, err := a.cfg.Inside.Files.ListSome(ctx, in.ID, initwire.FileList{Path: in.Path, Recursive: in.Recursive}, in.Limit)
	if err != nil {
		return nil, err
	}
	return &fileListOut{*list}, nil
}

type statFileIn struct {
	FilePath
	Follow bool `query:"follow" doc:"Follow a symlink."`
}

type fileOut struct{ Body api.FileEntry }

func (a fileHandlers) statFile(ctx context.Context, in *statFileIn) (*fileOut, error) {
	return a.showFile(ctx, in.ID, in.Path, in.Follow)
}

// showFile shows a file as it is now. The answers of write and make directory use it too, so they
// may already show a later change.
func (a fileHandlers) showFile(ctx context.Context, id, path string, follow bool) (*fileOut, error) {
	e, err := a.cfg.Inside.Files.Stat(ctx, id, path, follow)
	if err != nil {
		return nil, err
	}
	return &fileOut{inside.Entry(e)}, nil
}

type writeFileIn struct {
	FilePath
	Mode    string `query:"mode" maxLength:"6" doc:"Permission bits in octal. Default: those of the file that is replaced, else 0644."`
	Parents bool   `query:"parents" doc:"Make missing parent directories."`
	User    string `query:"user" maxLength:"200" doc:"Its owner, as NAME, UID, NAME:GROUP or UID:GID. Default: the allocation's user."`
	ByteBody
}

func (a fileHandlers) writeFile(ctx context.Context, in *writeFileIn) (*fileOut, error) {
	mode, err := fileMode(in.Mode)
	if err != nil {
		return nil, err
	}
	if err := a.cfg.Inside.MayActAs(in.ID, "query.user", in.User); err != nil {
		return nil, err
	}
	err = a.cfg.Inside.Files.Write(ctx, in.ID, initwire.FileWrite{
		Path: in.Path, Mode: mode, User: in.User, Parents: in.Parents, Sized: in.length >= 0, Size: max(in.length, 0),
	}, door.ClientBody{Patient: in.from})
	if err != nil {
		return nil, err
	}
	return a.showFile(ctx, in.ID, in.Path, true)
}

type deleteFileIn struct {
	FilePath
	Recursive bool `query:"recursive" doc:"A directory with everything in it."`
	MissingOK bool `query:"missing_ok" doc:"A missing path is no error."`
	Contents  bool `query:"contents" doc:"Only the directory's entries; the directory stays."`
}

func (a fileHandlers) deleteFile(ctx context.Context, in *deleteFileIn) (*struct{}, error) {
	err := a.cfg.Inside.Files.Delete(ctx, in.ID, initwire.FileDelete{Path: in.Path, Recursive: in.Recursive, MissingOK: in.MissingOK, Contents: in.Contents})
	if err != nil {
		return nil, err
	}
	return &struct{}{}, nil
}

type makeDirectoryIn struct {
	FilePath
	Mode    string `query:"mode" maxLength:"6" doc:"Permission bits in octal. Default: 0755."`
	Parents bool   `query:"parents" doc:"Make missing parent directories; an existing directory is no error."`
	User    string `query:"user" maxLength:"200" doc:"Its owner. Default: the allocation's user."`
}

func (a fileHandlers) makeDirectory(ctx context.Context, in *makeDirectoryIn) (*fileOut, error) {
	mode, err := fileMode(in.Mode)
	if err != nil {
		return nil, err
	}
	if err := a.cfg.Inside.MayActAs(in.ID, "query.user", in.User); err != nil {
		return nil, err
	}
	if err := a.cfg.Inside.Files.MakeDirectory(ctx, in.ID, initwire.FileMake{Path: in.Path, Mode: mode, Parents: in.Parents, User: in.User}); err != nil {
		return nil, err
	}
	return a.showFile(ctx, in.ID, in.Path, true)
}

type readArchiveIn struct {
	FilePath
	Contents bool `query:"contents" doc:"The directory's entries, without the directory's own name."`
	Follow   bool `query:"follow" doc:"If the path itself is a symlink, follow it."`
}

func (a fileHandlers) readArchive(ctx context.Context, in *readArchiveIn) (*huma.StreamResponse, error) {
	path := in.Path
	if in.Contents {
		path += "/."
	}
	ctx, cancel := a.streaming(ctx)
	from, err := a.cfg.Inside.Files.ReadArchive(ctx, in.ID, initwire.TarRead{Paths: []string{path}, Follow: in.Follow})
	if err != nil {
		cancel()
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer cancel()
		r, w := humago.Unwrap(hc)
		w.Header().Set("Content-Type", "application/x-tar")
		a.cfg.Door.Download(w, r, http.StatusOK, from)
	}}, nil
}

type writeArchiveIn struct {
	FilePath
	User       string `query:"user" maxLength:"200" doc:"The owner of everything. Default: the allocation's user."`
	KeepOwners bool   `query:"keep_owners" doc:"Use the numeric owners of the archive instead."`
	Parents    bool   `query:"parents" doc:"Make the directory if it is missing."`
	ByteBody
}

func (a fileHandlers) writeArchive(ctx context.Context, in *writeArchiveIn) (*struct{}, error) {
	owner := in.User
	if in.KeepOwners && owner == "" {
		owner = "owners of the archive"
	}
	if err := a.cfg.Inside.MayActAs(in.ID, "query.user", owner); err != nil {
		return nil, err
	}
	err := a.cfg.Inside.Files.WriteArchive(ctx, in.ID, initwire.TarWrite{Path: in.Path, User: in.User, KeepOwners: in.KeepOwners, Make: in.Parents}, door.ClientBody{Patient: in.from})
	if err != nil {
		return nil, err
	}
	return &struct{}{}, nil
}
