package clitest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/musterhq/muster/api"
)

// at is the file on this host that a request names. It cannot leave the folder by its name; links
// are followed, as tests choose them.
func (s *Server) at(r *http.Request) string {
	return filepath.Join(s.Inside.Root, path.Clean("/"+r.URL.Query().Get("path")))
}

// fileProblem answers an error of a file, as a server does: it names the path alone.
func (s *Server) fileProblem(w http.ResponseWriter, r *http.Request, err error) {
	p := &api.Problem{Status: 409, Title: "Conflict", Code: "conflict", Detail: fmt.Sprintf("%q: %v", r.URL.Query().Get("path"), err)}
	if errors.Is(err, fs.ErrNotExist) {
		p.Status, p.Code, p.Detail = 404, "not-found", fmt.Sprintf("%q: no such file or directory", r.URL.Query().Get("path"))
	}
	s.problem(w, p)
}

// entryOf is what the API says of a file. Owners are made up, since those of this host differ.
func entryOf(name, at string, info fs.FileInfo) api.FileEntry {
	e := api.FileEntry{Path: at, Name: name, Type: api.FileRegular, Size: info.Size(), Mode: fmt.Sprintf("%04o", info.Mode().Perm()), Modified: info.ModTime(), User: "root", Group: "root"}
	switch {
	case info.IsDir():
		e.Type = api.FileDirectory
	case info.Mode()&fs.ModeSymlink != 0:
		e.Type = api.FileSymlink
	}
	return e
}

// listFiles lists a directory, or the tree below it. Paths are those that the request has named, as
// a server lists them.
func (s *Server) listFiles(w http.ResponseWriter, r *http.Request) {
	l := api.FileList{Entries: []api.FileEntry{}}
	root := s.at(r)
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if p == root {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		// Paths begin with what the request has named.
		e := entryOf(d.Name(), strings.TrimSuffix(r.URL.Query().Get("path"), "/")+strings.TrimPrefix(p, root), info)
		if e.Type == api.FileSymlink {
			e.Target, _ = os.Readlink(p)
		}
		l.Entries = append(l.Entries, e)
		if d.IsDir() && r.URL.Query().Get("recursive") != "true" {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		s.fileProblem(w, r, err)
		return
	}
	s.answer(w, 200, l)
}

// statFile describes one file, or what it leads to.
func (s *Server) statFile(w http.ResponseWriter, r *http.Request) {
	look := os.Lstat
	if r.URL.Query().Get("follow") == "true" {
		look = os.Stat
	}
	info, err := look(s.at(r))
	if err != nil {
		s.fileProblem(w, r, err)
		return
	}
	s.answer(w, 200, entryOf(info.Name(), r.URL.Query().Get("path"), info))
}

// readArchive sends a tar archive, made by the tar of this host: what is unpacked was not packed by
// our own code.
func (s *Server) readArchive(w http.ResponseWriter, r *http.Request) {
	p := s.at(r)
	// The archive has the source's own name at its top, or no top at all.
	args := []string{"-c", "-C", filepath.Dir(p), filepath.Base(p)}
	if r.URL.Query().Get("contents") == "true" {
		args = []string{"-c", "-C", p, "."}
	}
	cmd := exec.CommandContext(r.Context(), "tar", args...)
	cmd.Stdout = w
	if err := cmd.Run(); err != nil {
		s.fileProblem(w, r, fs.ErrNotExist)
	}
}

// writeArchive unpacks a tar archive with the tar of this host. The directory must be there: a
// server makes none above a copy either.
func (s *Server) writeArchive(w http.ResponseWriter, r *http.Request) {
	if info, err := os.Stat(s.at(r)); err != nil || !info.IsDir() {
		_, _ = io.Copy(io.Discard, r.Body)
		s.fileProblem(w, r, fs.ErrNotExist)
		return
	}
	// Whether owners are kept is noted: as an ordinary user, tar could not set them.
	s.Do(func() { s.Inside.Owners = append(s.Inside.Owners, r.URL.Query().Get("keep_owners")) })
	cmd := exec.CommandContext(r.Context(), "tar", "-x", "-p", "-C", s.at(r))
	cmd.Stdin = r.Body
	if out, err := cmd.CombinedOutput(); err != nil {
		s.problem(w, &api.Problem{Status: 422, Title: "Unprocessable Entity", Detail: string(out)})
		return
	}
	w.WriteHeader(204)
}
