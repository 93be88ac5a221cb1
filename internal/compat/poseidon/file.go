package poseidon

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// file is an entry of a directory.
type file struct {
	Name             string `json:"name"`
	EntryType        string `json:"entryType"`
	LinkTarget       string `json:"linkTarget,omitempty"`
	Size             int64  `json:"size"`
	ModificationTime int64  `json:"modificationTime"`
	Permissions      string `json:"permissions"`
	Owner            string `json:"owner"`
	Group            string `json:"group"`
}

// where is what requests that look at files have in common.
func where(r *http.Request) (name string, privileged bool) {
	return cmp.Or(r.URL.Query().Get("path"), "./"), lenient(r, "privilegedExecution", false)
}

// lenient reads a parameter of the query as Poseidon does: what strconv.ParseBool does not know is
// the default.
func lenient(r *http.Request, name string, unless bool) bool {
	v, err := strconv.ParseBool(r.URL.Query().Get(name))
	if err != nil {
		return unless
	}
	return v
}

func (p *Poseidon) listFiles(w http.ResponseWriter, r *http.Request, c *state.Claim) error {
	name, privileged := where(r)
	recursive := lenient(r, "recursive", true)
	l := &listing{w: w, top: name, recursive: recursive}
	err := p.as(c, privileged, l.untouched, func(user string) error {
		return p.cfg.Inside.Files.List(r.Context(), string(c.Runner), initwire.FileList{
			Path: name, Recursive: recursive, User: user, NoFollow: true, NoHidden: true,
		}, l.add)
	})
	if err == nil {
		l.end()
		return nil
	}
	if !l.untouched() {
		// Half an answer is on its way: the only honest end is a broken one.
		p.logger.DebugContext(r.Context(), "list broken off", "runner", c.Runner, "error", err)
		panic(http.ErrAbortHandler)
	}
	return p.notRead(r.Context(), err)
}

// notRead is 424 for what is the fault of the files, and of no server.
func (p *Poseidon) notRead(ctx context.Context, err error) error {
	switch pr := p.problem(ctx, "read files", err); pr.Status {
	case http.StatusNotFound, http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusConflict:
		if pr.Code != api.CodeNotRunning {
			return refused(http.StatusFailedDependency, "%s", pr.Detail)
		}
	}
	return err
}

// Who unprivileged executions run as: a user of this name if the image has one, else this number.
const (
	plainUser   = "user"
	plainNumber = "65534:65534"
	rootUser    = "0:0"
)

// as does something as the user who it is to be done as; again tells whether it can be done once
// more, by number. In a runner without an image there is but one.
func (p *Poseidon) as(c *state.Claim, privileged bool, again func() bool, do func(user string) error) error {
	switch {
	case !p.contained(c):
		return do("")
	case privileged:
		return do(rootUser)
	}
	err := do(plainUser)
	if problem.IsInvalid(err) && again() {
		return do(plainNumber)
	}
	return err
}

func always() bool { return true }

// contained reports whether a claim's runner is a container.
func (p *Poseidon) contained(c *state.Claim) bool {
	al := p.cfg.State.Latest().Alloc(c.Runner)
	return al == nil || al.Run.Spec.Image != ""
}

// owner of what is written.
func (p *Poseidon) owner(c *state.Claim) string {
	if p.contained(c) {
		return rootUser
	}
	return ""
}

// listing is a list of files on its way to the client. It is sent as it comes, so that nothing
// bounds it.
type listing struct {
	w         http.ResponseWriter
	top       string
	recursive bool
	buf       bytes.Buffer
	n         int
	sent      bool
}

func (l *listing) untouched() bool { return l.n == 0 }

// add is called for each entry.
func (l *listing) add(e *initwire.FileEntry) error {
	if l.n == 0 {
		l.buf.WriteString(`{"files":[`)
	} else {
		l.buf.WriteByte(',')
	}
	l.n++
	enc := json.NewEncoder(&l.buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(file{ // never fails
		Name: l.name(e), EntryType: letter(e.Type), LinkTarget: e.Target, Size: max(e.Size, 0), ModificationTime: e.ModTime / 1e9,
		Permissions: permissions(e.Mode), Owner: cmp.Or(e.User, strconv.Itoa(e.UID)), Group: cmp.Or(e.Group, strconv.Itoa(e.GID)),
	})
	if l.buf.Len() < 64<<10 {
		return nil
	}
	return l.flush()
}

// name is what ls prints: the bare name of what is in the directory that was asked for, else the
// path as it was asked for and the rest of it.
func (l *listing) name(e *initwire.FileEntry) string {
	if l.recursive {
		return e.Path
	}
	top := l.top
	if !strings.HasSuffix(top, "/") {
		top += "/"
	}
	return cmp.Or(strings.TrimPrefix(e.Path, top), e.Path)
}

func (l *listing) flush() error {
	if !l.sent {
		l.sent = true
		l.w.Header().Set("Content-Type", "application/json")
		l.w.WriteHeader(http.StatusOK)
	}
	door.ExtendWrite(l.w)
	_, err := l.w.Write(l.buf.Bytes())
	l.buf.Reset()
	return err
}

func (l *listing) end() {
	if l.n == 0 {
		l.buf.WriteString(`{"files":[`)
	}
	l.buf.WriteString("]}\n")
	_ = l.flush() // whoever asked may have left
	door.EndWrite(l.w)
}

// letter is the type as ls shows it. What init says is not believed beyond its own sandbox.
func letter(t byte) string {
	switch t {
	case initwire.TypeDirectory, initwire.TypeLink, initwire.TypePipe, initwire.TypeSocket, initwire.TypeBlock, initwire.TypeChar:
		return string(t)
	}
	return string(byte(initwire.TypeFile))
}

// permissions are the nine letters.
func permissions(mode uint32) string {
	b := []byte("rwxrwxrwx")
	for i := range b {
		if mode&(1<<(8-i)) == 0 {
			b[i] = '-'
		}
	}
	for _, special := range []struct {
		bit uint32
		at  int
		set byte
	}{{0o4000, 2, 's'}, {0o2000, 5, 's'}, {0o1000, 8, 't'}} {
		if mode&special.bit != 0 {
			if b[special.at] == '-' {
				special.set -= 'a' - 'A'
			}
			b[special.at] = special.set
		}
	}
	return string(b)
}

func (p *Poseidon) readFile(w http.ResponseWriter, r *http.Request, c *state.Claim) error {
	name, privileged := where(r)
	ctx, cancel := p.streaming(r.Context())
	defer cancel()
	return p.as(c, privileged, always, func(user string) error {
		e, from, err := p.cfg.Inside.Files.Read(ctx, string(c.Runner), initwire.FileRead{Path: name, User: user})
		if err != nil {
			if problem.IsInvalid(err) && user == plainUser {
				return err
			}
			return p.notRead(ctx, err)
		}
		h := w.Header()
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(strings.ToValidUTF8(name, "_"))}))
		if !e.Unsized {
			h.Set("Content-Length", strconv.FormatInt(max(e.Size, 0), 10))
		}
		p.cfg.Door.Download(w, r, http.StatusOK, from)
		return nil
	})
}

// fileChanges is what is to be deleted, and then to be written.
type fileChanges struct {
	Delete []string   `json:"delete"`
	Copy   []fileCopy `json:"copy"`
}

type fileCopy struct {
	Path    string `json:"path"`
	Content []byte `json:"content"`
}

// Files belong to root, and others read and run them; in directories everybody may make something,
// and delete what is his own.
const (
	fileMode      = 0o744
	directoryMode = 0o1777
)

func (p *Poseidon) changeFiles(w http.ResponseWriter, r *http.Request, c *state.Claim) error {
	var want fileChanges
	done, err := p.read(w, r, maxFiles, &want)
	if err != nil {
		return err
	}
	defer done()
	var wrong []string
	try := func(what, name string, err error) (goOn bool) {
		if err == nil {
			return true
		}
		if _, gone := p.claimed(string(c.Runner)); gone != nil || r.Context().Err() != nil {
			return false
		}
		pr := p.problem(r.Context(), "change files", err)
		if pr.Status >= 500 && pr.Status != http.StatusInsufficientStorage || pr.Code == api.CodeNotRunning {
			return false // the sandbox, not the file: the others would fare no better
		}
		if what == "write" {
			wrong = append(wrong, fmt.Sprintf("%s %q: %s", what, clip(name), pr.Detail))
		} else {
			// Poseidon runs rm --force and ignores its status: clients send ./* whether or not it
			// can be emptied.
			p.logger.DebugContext(r.Context(), "file not deleted", "runner", c.Runner, "path", clip(name), "error", pr.Detail)
		}
		return true
	}
	for _, name := range want.Delete {
		if err := p.deleteFile(r, c, name); !try("delete", name, err) {
			return err
		}
	}
	for _, f := range want.Copy {
		if err := p.writeFile(r, c, &f); !try("write", f.Path, err) {
			return err
		}
	}
	if len(wrong) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	const most = 50
	text := fmt.Sprintf("%d of %d files: %s", len(wrong), len(want.Copy), strings.Join(wrong[:min(len(wrong), most)], "; "))
	return &answer{http.StatusInternalServerError, message{text, codeUnknown}}
}

// cleaned is a path as Poseidon hands it on: without .., doubled slashes, and a slash at its end.
// So x/ deletes a link x and not what is in the directory that it leads to, and a/../b needs no a.
func cleaned(name string) string {
	if name == "" {
		return "" // and not the directory that it would be by path.Clean
	}
	return path.Clean(name)
}

func (p *Poseidon) deleteFile(r *http.Request, c *state.Claim, name string) error {
	// A volume is emptied as rm does it, which then fails to remove it; Poseidon ignores that.
	del := initwire.FileDelete{Path: cleaned(name), Recursive: true, MissingOK: true, EmptyMount: true}
	if name == "./*" {
		// The only pattern; Poseidon quotes all other paths, so that * is a name in them.
		del = initwire.FileDelete{Path: ".", Contents: true, MissingOK: true}
	}
	return p.cfg.Inside.Files.Delete(r.Context(), string(c.Runner), del)
}

func (p *Poseidon) writeFile(r *http.Request, c *state.Claim, f *fileCopy) error {
	if strings.HasSuffix(f.Path, "/") {
		return p.cfg.Inside.Files.MakeDirectory(r.Context(), string(c.Runner), initwire.FileMake{Path: cleaned(f.Path), Mode: directoryMode, Parents: true, User: p.owner(c), Replace: true})
	}
	return p.cfg.Inside.Files.Write(r.Context(), string(c.Runner), initwire.FileWrite{
		Path: cleaned(f.Path), Mode: fileMode, User: p.owner(c), Parents: true, ParentMode: directoryMode, Sized: true, Size: int64(len(f.Content)), Replace: true,
	}, bytes.NewReader(f.Content))
}
