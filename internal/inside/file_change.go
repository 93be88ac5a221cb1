package inside

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Change deletes and writes files: first all that is to be deleted, then all that is to be written,
// each in its order. What fails does not keep the others from being done: the error is then the
// problem of the first, and its fields name each.
func (f *Files) Change(ctx context.Context, id string, q *api.FileChange) error {
	if p := wrongChange(q); p != nil {
		return p
	}
	al, err := f.find(id)
	if err != nil {
		return err
	}
	for i := range q.Write {
		if err := f.MayActAs(id, fmt.Sprintf("body.write[%d].user", i), q.Write[i].User); err != nil {
			return err
		}
	}
	var first *problem.Problem
	var fields []api.ProblemField
	failed := func(location, path string, err error) error {
		var file *initwire.FileError
		if !errors.As(err, &file) {
			// The sandbox failed, and not the file: the rest would fare no better.
			return f.problemOf(ctx, al, err)
		}
		if first == nil {
			first = fileProblem(file)
		}
		fields = append(fields, api.ProblemField{Location: location, Message: problem.Printable(file.Message), Value: problem.Printable(path)})
		return nil
	}
	for i, path := range q.Delete {
		if err := f.deleteOne(ctx, al, path); err != nil {
			if err := failed(fmt.Sprintf("body.delete[%d]", i), path, err); err != nil {
				return err
			}
		}
	}
	for i := range q.Write {
		if err := f.writeOne(ctx, al, &q.Write[i]); err != nil {
			if err := failed(fmt.Sprintf("body.write[%d]", i), q.Write[i].Path, err); err != nil {
				return err
			}
		}
	}
	if first == nil {
		return nil
	}
	rest := len(q.Delete) + len(q.Write) - len(fields)
	if rest > 0 || len(fields) > 1 {
		first.Detail = fmt.Sprintf("%s; failed are %d, done are the other %d", first.Detail, len(fields), rest)
	}
	first.Errors = fields
	return first
}

// wrongChange checks the whole request first: if a part of it is wrong in itself, nothing of it is
// done.
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
		if _, ok := ParseMode(w.Mode); !ok {
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

// deleteOne deletes a file or a directory with all that is in it. One that is not there is deleted.
func (f *Files) deleteOne(ctx context.Context, al *state.Alloc, path string) error {
	conn, err := f.tunnel(ctx, al, nil)
	if err != nil {
		return err
	}
	bounded, cancel := soon(ctx)
	defer cancel()
	return initwire.DeleteFile(bounded, conn, initwire.FileDelete{Path: path, Recursive: true, MissingOK: true})
}

// writeOne writes a file, or makes a directory if its path ends with a slash. Missing directories
// above it are made.
func (f *Files) writeOne(ctx context.Context, al *state.Alloc, w *api.FileContent) error {
	mode, _ := ParseMode(w.Mode) // checked
	conn, err := f.tunnel(ctx, al, nil)
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
