package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/httpapi/schema"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/problem"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

type readFileIn struct {
	FilePath
	Offset schema.Optional[int64] `query:"offset" minimum:"0" doc:"Offset of the first byte."`
	Range  string                 `header:"Range" maxLength:"200" doc:"bytes=FROM-, bytes=FROM-TO or bytes=-LAST."`
}

// span is the part of a file that a client asks for, in bytes. Without partly it is the whole file.
type span struct {
	partly       bool
	from, length int64 // length 0: all from there on
}

// parseRange reads a Range header. ok is false for a header that HTTP lets a server ignore: several
// parts, other units, or an error of syntax. The answer is the whole file then. A part that is
// counted from the end has a negative from.
func parseRange(s string) (span, bool) {
	spec, ok := strings.CutPrefix(s, "bytes=")
	from, to, dash := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok || !dash || strings.Contains(spec, ",") {
		return span{}, false
	}
	if from == "" {
		n, err := strconv.ParseUint(to, 10, 63)
		return span{partly: true, from: -int64(n)}, err == nil && n > 0
	}
	f, err := strconv.ParseUint(from, 10, 63)
	if err != nil {
		return span{}, false
	}
	out := span{partly: true, from: int64(f)}
	if to != "" {
		t, err := strconv.ParseUint(to, 10, 62)
		if err != nil || t < f {
			return span{}, false
		}
		out.length = int64(t-f) + 1
	}
	return out, true
}

func (a fileHandlers) readFile(ctx context.Context, in *readFileIn) (*huma.StreamResponse, error) {
	if _, err := in.find(a.cfg.State.Latest()); err != nil {
		return nil, err
	}
	want, isRange := parseRange(in.Range)
	switch {
	case in.Offset.Given && isRange:
		return nil, problem.Invalid("query.offset", "is given together with a Range; give one of them")
	case in.Offset.Given:
		want = span{partly: in.Offset.Value > 0, from: in.Offset.Value}
	case isRange:
		// How long it is has to be known before a part can be named.
		e, err := a.cfg.Inside.Files.Stat(ctx, in.ID, in.Path, true)
		if err != nil {
			return nil, err
		}
		if e.Unsized || e.Size == 0 {
			want = span{} // empty, or made up by the kernel as it is read: it has no parts
		} else if want.from < 0 {
			want.from = max(e.Size+want.from, 0)
		}
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		ctx, cancel := a.streaming(ctx)
		defer cancel()
		if r.Method == http.MethodHead {
			a.headFile(ctx, w, in.ID, in.Path)
			return
		}
		if err := a.sendFile(ctx, w, r, in.ID, in.Path, want); err != nil {
			a.fail(ctx, "read-file", err).Write(w)
		}
	}}, nil
}

func (a fileHandlers) headFile(ctx context.Context, w http.ResponseWriter, id, path string) {
	e, err := a.cfg.Inside.Files.Stat(ctx, id, path, true)
	switch {
	case err != nil:
	case e.Type == initwire.TypeDirectory:
		err = problem.New(http.StatusConflict, api.CodeIsDirectory, fmt.Sprintf("%q: is a directory", problem.Printable(path)))
	case e.Type != initwire.TypeFile:
		err = problem.New(http.StatusUnprocessableEntity, string(muster.FaultInvalid), fmt.Sprintf("%q: is no regular file", problem.Printable(path)))
	}
	if err != nil {
		a.fail(ctx, "read-file", err).Write(w)
		return
	}
	fileHeaders(w.Header(), e)
	if !e.Unsized {
		w.Header().Set("Content-Length", strconv.FormatInt(max(e.Size, 0), 10))
	}
}

func fileHeaders(h http.Header, e *initwire.FileEntry) {
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Last-Modified", inside.Modified(e.ModTime).Format(http.TimeFormat))
	h.Set("Accept-Ranges", "bytes")
	h.Set(api.HeaderFileMode, inside.Mode(e.Mode))
	if e.Unsized {
		h.Set("Accept-Ranges", "none")
		return
	}
	h.Set(api.HeaderFileSize, strconv.FormatInt(max(e.Size, 0), 10))
}

// sendFile streams the bytes. It returns an error only if nothing was sent yet; the caller answers
// with it. Later errors break the connection off (Door.Download).
func (a fileHandlers) sendFile(ctx context.Context, w http.ResponseWriter, r *http.Request, id, path string, want span) error {
	e, from, err := a.cfg.Inside.Files.Read(ctx, id, initwire.FileRead{Path: path, Offset: want.from, Length: want.length})
	if err != nil {
		return err
	}
	size := max(e.Size, 0)
	if !e.Unsized && want.partly && want.from >= size && (size > 0 || want.from > 0) {
		_ = from.Close()
		p := problem.New(http.StatusRequestedRangeNotSatisfiable, string(muster.FaultInvalid),
			fmt.Sprintf("%q has %d bytes, and %d was asked for", problem.Printable(path), size, want.from))
		p.Headers.Set("Content-Range", "bytes */"+strconv.FormatInt(size, 10))
		return p
	}
	fileHeaders(w.Header(), e)
	status := http.StatusOK
	if !e.Unsized {
		length := size - min(want.from, size)
		if want.length > 0 {
			length = min(length, want.length)
		}
		w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
		if want.partly && length > 0 {
			status = http.StatusPartialContent
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", want.from, want.from+length-1, size))
		}
	}
	a.cfg.Door.Download(w, r, status, from)
	return nil
}
