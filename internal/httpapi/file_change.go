package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

func (a *API) fileChange(op func(method, path, id, summary, description string) huma.Operation) {
	change := op(http.MethodPatch, "/files", "change-files", "Delete and write files",
		"First everything in delete, then everything in write, each in its order. What fails does not keep the others from being done: the answer then is the problem of the first, and errors names each.")
	change.DefaultStatus = http.StatusNoContent
	jsonBody[api.FileChange](a, &change, true)
	register(a, change, a.changeFiles)
}

type changeFilesIn struct {
	AllocPath
	RequestBody
}

func (a *API) changeFiles(ctx context.Context, in *changeFilesIn) (*struct{}, error) {
	var q api.FileChange
	if p := decode(in.JSON, &q); p != nil {
		return nil, p
	}
	if p := wrongChange(&q); p != nil {
		return nil, p
	}
	al, err := in.find(a.cfg.State.Latest())
	if err != nil {
		return nil, err
	}
	for i := range q.Write {
		if err := a.mayBe(in.ID, fmt.Sprintf("body.write[%d].user", i), q.Write[i].User); err != nil {
			return nil, err
		}
	}
	var first *problem.Problem
	var fields []api.ProblemField
	failed := func(location, path string, err error) error {
		var file *initwire.FileError
		if !errors.As(err, &file) {
			return a.broke(ctx, al, err) // the sandbox, not the file: the rest would fare no better
		}
		if first == nil {
			first = fileProblem(file)
		}
		fields = append(fields, api.ProblemField{Location: location, Message: problem.Printable(file.Message), Value: problem.Printable(path)})
		return nil
	}
	for i, path := range q.Delete {
		if err := a.deleteOne(ctx, al, path); err != nil {
			if err := failed(fmt.Sprintf("body.delete[%d]", i), path, err); err != nil {
				return nil, err
			}
		}
	}
	for i := range q.Write {
		if err := a.writeOne(ctx, al, &q.Write[i]); err != nil {
			if err := failed(fmt.Sprintf("body.write[%d]", i), q.Write[i].Path, err); err != nil {
				return nil, err
			}
		}
	}
	if first == nil {
		return &struct{}{}, nil
	}
	rest := len(q.Delete) + len(q.Write) - len(fields)
	if rest > 0 || len(fields) > 1 {
		first.Detail = fmt.Sprintf("%s; failed are %d, done are the other %d", first.Detail, len(fields), rest)
	}
	first.Errors = fields
	return nil, first
}

// wrongChange refuses what nothing of is done.
func wrongChange(q *api.FileChange) *problem.Problem {
	var bad []api.ProblemField
	check := func(location, path string) {
		switch {
		case path == "":
			bad = append(bad, api.ProblemField{Location: location, Message: "is missing; give a path"})
		case len(path) > initwire.MaxPath || strings.IndexByte(path, 0) >= 0:
			bad = append(bad, api.ProblemField{Location: location, Message: "is longer than the system takes, or has a NUL"})
		}
	}
	for i, p := range q.Delete {
		check(fmt.Sprintf("body.delete[%d]", i), p)
	}
	for i := range q.Write {
		w, at := &q.Write[i], fmt.Sprintf("body.write[%d]", i)
		check(at+".path", w.Path)
		if _, err := fileMode(w.Mode); err != nil {
			bad = append(bad, api.ProblemField{Location: at + ".mode", Message: fmt.Sprintf("is %q; write permission bits in octal, as 0644", problem.Clip(w.Mode))})
		}
		if w.Content != "" && len(w.ContentBase64) > 0 {
			bad = append(bad, api.ProblemField{Location: at, Message: "has content twice; give one of content and content_base64"})
		}
		if strings.HasSuffix(w.Path, "/") && (w.Content != "" || len(w.ContentBase64) > 0) {
			bad = append(bad, api.ProblemField{Location: at, Message: "is a directory by its name, and has content; leave out the / at the end, or the content"})
		}
	}
	if n := len(q.Delete) + len(q.Write); n > api.FileMaxChange {
		bad = append(bad, api.ProblemField{Location: "body", Message: fmt.Sprintf("names %d paths; at most %d, send the others in further requests", n, api.FileMaxChange)})
	}
	if len(bad) == 0 {
		return nil
	}
	return problem.Wrong(bad[:min(len(bad), 50)])
}

func (a *API) deleteOne(ctx context.Context, al *state.Alloc, path string) error {
	conn, err := a.tunnel(ctx, al, nil)
	if err != nil {
		return err
	}
	bounded, cancel := soon(ctx)
	defer cancel()
	return initwire.DeleteFile(bounded, conn, initwire.FileDelete{Path: path, Recursive: true, MissingOK: true})
}

func (a *API) writeOne(ctx context.Context, al *state.Alloc, w *api.FileContent) error {
	mode, _ := fileMode(w.Mode) // checked
	conn, err := a.tunnel(ctx, al, nil)
	if err != nil {
		return err
	}
	bounded, cancel := soon(ctx)
	defer cancel()
	if strings.HasSuffix(w.Path, "/") {
		return initwire.MakeDirectory(bounded, conn, initwire.FileMake{Path: w.Path, Mode: mode, Parents: true, User: w.User})
	}
	content := w.ContentBase64
	if len(content) == 0 {
		content = []byte(w.Content)
	}
	return initwire.WriteFile(bounded, conn, initwire.FileWrite{
		Path: w.Path, Mode: mode, User: w.User, Parents: true, Sized: true, Size: int64(len(content)),
	}, bytes.NewReader(content))
}
