package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
)

// What is asked is what the protocol says, and what is answered is read.
func TestFiles(t *testing.T) {
	var asked, sent []string
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		asked, sent = append(asked, r.Method+" "+r.URL.String()), append(sent, string(b))
		switch {
		case r.Method == http.MethodDelete, r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "archive"):
			w.WriteHeader(http.StatusNoContent)
		case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/files"):
			answer(w, 200, api.FileList{Entries: []api.FileEntry{{Path: "/a b"}}})
		case r.Method != http.MethodGet:
			answer(w, 201, api.FileEntry{Path: "/x", Size: int64(len(b))})
		case strings.HasSuffix(r.URL.Path, "stat"):
			answer(w, 200, api.FileEntry{Path: "/x"})
		default:
			_, _ = io.WriteString(w, "bytes")
		}
	}))
	ctx := t.Context()
	read := func(r io.ReadCloser, err error) string {
		if err != nil {
			return err.Error()
		}
		defer func() { _ = r.Close() }()
		b, err := io.ReadAll(r)
		return string(b) + errString(err)
	}
	l, err := c.ListFiles(ctx, "a-0-1", "/a b", true, 10)
	if err != nil || l.Entries[0].Path != "/a b" {
		t.Error(l, err)
	}
	_, err1 := c.StatFile(ctx, "a", "/x", true)
	w, err2 := c.WriteFile(ctx, "a", FileWrite{Path: "x", Mode: "0600", Parents: true, User: "bob"}, 3, func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("abc")), nil })
	_, err3 := c.WriteFile(ctx, "a", FileWrite{Path: "x"}, 0, nil)
	_, err4 := c.MakeDir(ctx, "a", FileWrite{Path: "d", Parents: true})
	err5 := c.DeleteFile(ctx, "a", "d", true)
	err6 := c.WriteArchive(ctx, "a", ArchiveWrite{Path: "/d", KeepOwners: true}, bytes.NewReader([]byte("tar")))
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil || w.Size != 3 {
		t.Error(err, w)
	}
	if got := read(c.ReadFile(ctx, "a", "/x", 5)) + read(c.ReadArchive(ctx, "a", "/d", true)); got != "bytesbytes" {
		t.Error(got)
	}
	want := []string{
		"GET /v1/allocations/a-0-1/files?limit=10&path=%2Fa+b&recursive=true",
		"GET /v1/allocations/a/files/stat?follow=true&path=%2Fx",
		"PUT /v1/allocations/a/files/content?mode=0600&parents=true&path=x&user=bob",
		"PUT /v1/allocations/a/files/content?path=x",
		"POST /v1/allocations/a/files/directory?parents=true&path=d",
		"DELETE /v1/allocations/a/files?path=d&recursive=true",
		"PUT /v1/allocations/a/files/archive?keep_owners=true&path=%2Fd",
		"GET /v1/allocations/a/files/content?offset=5&path=%2Fx",
		"GET /v1/allocations/a/files/archive?contents=true&path=%2Fd",
	}
	if strings.Join(asked, "\n") != strings.Join(want, "\n") {
		t.Errorf("asked\n%s", strings.Join(asked, "\n"))
	}
	if strings.Join(sent, "|") != "||abc||||tar||" {
		t.Errorf("sent %q", sent)
	}
}

func errString(err error) string {
	if err == nil {
		return ""
	}
	return " " + err.Error()
}

// A transfer that breaks off is told as broken.
func TestFilesBreakOff(t *testing.T) {
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "part")
		cut(t, w)
	}))
	r, err := c.ReadArchive(t.Context(), "a", "/", false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if b, err := io.ReadAll(r); !IsUnreachable(err) || string(b) != "part" {
		t.Errorf("%q %v", b, err)
	}
}

func TestPullImage(t *testing.T) {
	var lines []api.ImageProgress
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			answer(w, 200, api.ImageList{Limit: 7})
			return
		}
		if strings.HasSuffix(r.URL.Path, "prune") {
			answer(w, 200, api.ImagesPruned{Freed: 9})
			return
		}
		var b api.ImagePull
		_ = json.NewDecoder(r.Body).Decode(&b)
		if b.Ref != "python:3.13" || r.URL.Path != "/v1/nodes/n1/images" {
			t.Error(b, r.URL)
		}
		for _, l := range lines {
			_ = json.NewEncoder(w).Encode(l)
		}
	}))
	seen := 0
	pull := func() (string, error) {
		return c.PullImage(t.Context(), "n1", api.ImagePull{Ref: "python:3.13"}, func(api.ImageProgress) { seen++ })
	}
	lines = []api.ImageProgress{{Done: 1, Total: 2}, {Done: 2, Total: 2}, {Digest: "sha256:a"}}
	if d, err := pull(); err != nil || d != "sha256:a" || seen != 2 {
		t.Error(d, err, seen)
	}
	lines = []api.ImageProgress{{Done: 1}, {Problem: &api.Problem{Status: 404, Code: api.CodeImageNotFound}}}
	if _, err := pull(); Code(err) != api.CodeImageNotFound {
		t.Error(err)
	}
	lines = lines[:1]
	if _, err := pull(); !IsUnreachable(err) {
		t.Error(err)
	}
	l, err := c.Images(t.Context(), "n1")
	p, perr := c.PruneImages(t.Context(), "n1", true)
	if err := errors.Join(err, perr); err != nil || l.Limit != 7 || p.Freed != 9 {
		t.Error(l, p, err)
	}
}
