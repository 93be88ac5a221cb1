package httpapi

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// bytesOf is an edit that makes the body what curl -T sends.
func bytesOf(r *http.Request) { r.Header.Set("Content-Type", "application/octet-stream") }

func (in *insideBench) file(path, more string) string {
	return in.path + "/files" + more + "path=" + url.QueryEscape(path)
}

func TestFiles(t *testing.T) {
	in := newInside(t)
	at := func(p string) string { return filepath.Join(in.work, p) }

	a := in.do("PUT", in.file("a/b/c.txt", "/content?parents=true&mode=0640&"), "hello, world", bytesOf)
	if e := as[api.FileEntry](in.bench, a); a.StatusCode != 201 || e.Size != 12 || e.Mode != "0640" || e.Type != api.FileRegular || e.Name != "c.txt" {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	if b, err := os.ReadFile(at("a/b/c.txt")); err != nil || string(b) != "hello, world" {
		t.Errorf("%q %v", b, err)
	}
	if err := os.Symlink("b/c.txt", at("a/link")); err != nil {
		t.Fatal(err)
	}
	l := get[api.FileList](in.bench, in.file("a", "?"))
	if len(l.Entries) != 2 || l.More {
		t.Errorf("%+v", l)
	}
	l = get[api.FileList](in.bench, in.file("a", "?recursive=true&limit=2&"))
	if len(l.Entries) != 2 || !l.More {
		t.Errorf("%+v", l)
	}
	if e := get[api.FileEntry](in.bench, in.file("a/link", "/stat?")); e.Type != api.FileSymlink || e.Target != "b/c.txt" {
		t.Errorf("%+v", e)
	}
	if e := get[api.FileEntry](in.bench, in.file("a/link", "/stat?follow=true&")); e.Type != api.FileRegular || e.Size != 12 {
		t.Errorf("%+v", e)
	}
	a = in.do("POST", in.file("d", "/directory?mode=0700&"), "")
	if e := as[api.FileEntry](in.bench, a); a.StatusCode != 201 || e.Type != api.FileDirectory || e.Mode != "0700" {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if a := in.do("DELETE", in.file("a", "?recursive=true&"), ""); a.StatusCode != 204 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if a := in.do("DELETE", in.file("a", "?missing_ok=true&"), ""); a.StatusCode != 204 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if _, err := os.Stat(at("a")); err == nil {
		t.Error("is still there")
	}
}

func TestFileProblems(t *testing.T) {
	in := newInside(t)
	if err := os.MkdirAll(filepath.Join(in.work, "dir/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", filepath.Join(in.work, "loop")); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		method, path, more, body string
		status                   int
		code                     string
	}{
		{"GET", "none", "/content?", "", 404, "not-found"},
		{"GET", "none", "?", "", 404, "not-found"},
		{"GET", "none", "/stat?", "", 404, "not-found"},
		{"GET", "none", "/archive?", "", 404, "not-found"},
		{"DELETE", "none", "?", "", 404, "not-found"},
		{"PUT", "none/f", "/content?", "x", 404, "not-found"},
		{"PUT", "none", "/archive?", "x", 404, "not-found"},
		{"GET", "dir", "/content?", "", 409, api.CodeIsDirectory},
		{"PUT", "dir", "/content?", "x", 409, api.CodeIsDirectory},
		{"DELETE", "dir", "?", "", 409, api.CodeNotEmpty},
		{"POST", "dir", "/directory?", "", 409, api.CodeExists},
		{"GET", "loop", "/content?", "", 409, api.CodeLoop},
		{"PUT", "dir", "/archive?", "this is no tar archive at all", 422, "invalid"},
		{"PUT", "f", "/content?mode=9&", "x", 422, "invalid"},
		{"PUT", "f", "/content?mode=0&", "x", 422, "invalid"},
		{"GET", "dir", "?limit=10001&", "", 422, "invalid"},
		{"GET", "", "/stat?", "", 422, "invalid"},
		{"GET", "dir", "/content?offset=-1&", "", 422, "invalid"},
	} {
		var edit []func(*http.Request)
		if x.body != "" {
			edit = append(edit, bytesOf)
		}
		a := in.do(x.method, in.file(x.path, x.more), x.body, edit...)
		if a.StatusCode != x.status {
			t.Errorf("%s %s%s: %d %s", x.method, x.more, x.path, a.StatusCode, a.body)
			continue
		}
		p := in.problem(a, x.status, x.code)
		if x.status < 422 && (len(p.Errors) != 1 || !strings.Contains(p.Errors[0].Value.(string), strings.Split(x.path, "/")[0])) {
			t.Errorf("%s %s: the path is not told: %s", x.method, x.path, a.body)
		}
	}
	in.problem(in.do("PUT", in.file("f", "/content?"), "x", header("Content-Type", "text/plain")), 415, "invalid")
	if a := in.do("HEAD", in.file("dir", "/content?"), ""); a.StatusCode != 409 {
		t.Errorf("%d", a.StatusCode)
	}
}

func TestFileContent(t *testing.T) {
	in := newInside(t)
	if err := os.WriteFile(filepath.Join(in.work, "f"), []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(in.work, "empty"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		file, more, ranges string
		status             int
		body, content      string
	}{
		{"f", "", "", 200, "0123456789", ""},
		{"f", "offset=0&", "", 200, "0123456789", ""},
		{"f", "offset=4&", "", 206, "456789", "bytes 4-9/10"},
		{"f", "", "bytes=2-", 206, "23456789", "bytes 2-9/10"},
		{"f", "", "bytes=2-3", 206, "23", "bytes 2-3/10"},
		{"f", "", "bytes=8-100", 206, "89", "bytes 8-9/10"},
		{"f", "", "bytes=-3", 206, "789", "bytes 7-9/10"},
		{"f", "", "bytes=-300", 206, "0123456789", "bytes 0-9/10"},
		{"f", "", "bytes=10-", 416, "", "bytes */10"},
		{"f", "offset=11&", "", 416, "", "bytes */10"},
		{"f", "", "bytes=0-1,3-4", 200, "0123456789", ""},
		{"f", "", "bytes=5-2", 200, "0123456789", ""},
		{"f", "", "lines=1-2", 200, "0123456789", ""},
		{"empty", "", "", 200, "", ""},
		{"empty", "offset=0&", "", 200, "", ""},
		{"empty", "", "bytes=0-", 200, "", ""},
	} {
		var edit []func(*http.Request)
		if x.ranges != "" {
			edit = append(edit, header("Range", x.ranges))
		}
		a := in.do("GET", in.file(x.file, "/content?"+x.more), "", edit...)
		if a.StatusCode != x.status || a.StatusCode < 300 && a.body != x.body || a.Header.Get("Content-Range") != x.content {
			t.Errorf("%+v: %d %q %v", x, a.StatusCode, a.body, a.Header)
		}
		// Before it is read, an empty file looks like one that the kernel makes up.
		if a.StatusCode < 300 && x.file == "f" && (a.Header.Get("Content-Length") != strconv.Itoa(len(x.body)) || a.Header.Get(api.HeaderFileMode) != "0600") {
			t.Errorf("%+v: %v", x, a.Header)
		}
	}
	in.problem(in.do("GET", in.file("f", "/content?offset=1&"), "", header("Range", "bytes=1-")), 422, "invalid")
	a := in.do("HEAD", in.file("f", "/content?"), "")
	if a.StatusCode != 200 || a.Header.Get("Content-Length") != "10" || a.Header.Get(api.HeaderFileSize) != "10" || a.body != "" || a.Header.Get("Last-Modified") == "" {
		t.Errorf("%d %v", a.StatusCode, a.Header)
	}
	// What the kernel makes up has no length.
	a = in.do("GET", in.file("/proc/version", "/content?"), "", header("Range", "bytes=3-"))
	if want, err := os.ReadFile("/proc/version"); err != nil || a.StatusCode != 200 || a.body != string(want) {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
}

func TestArchive(t *testing.T) {
	in := newInside(t)
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, h := range []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "tree/", Mode: 0o755}, {Typeflag: tar.TypeReg, Name: "tree/f", Mode: 0o640, Size: 3},
		{Typeflag: tar.TypeSymlink, Name: "tree/l", Linkname: "f", Mode: 0o777},
	} {
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(tw, "abc"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	a := in.do("PUT", in.file("new", "/archive?parents=true&"), b.String(), header("Content-Type", "application/x-tar"))
	if a.StatusCode != 204 {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	for more, want := range map[string]string{"": "new/ new/tree/ new/tree/f new/tree/l", "contents=true&": "tree/ tree/f tree/l"} {
		a = in.do("GET", in.file("new", "/archive?"+more), "")
		var names []string
		for r := tar.NewReader(strings.NewReader(a.body)); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Name != "./" {
				names = append(names, strings.TrimPrefix(h.Name, "./"))
			}
		}
		if got := strings.Join(names, " "); a.StatusCode != 200 || a.Header.Get("Content-Type") != "application/x-tar" || got != want {
			t.Errorf("%q: %d %q", more, a.StatusCode, got)
		}
	}
}

// TestLargeFiles pass through without being kept, and a write that breaks off leaves nothing.
func TestLargeFiles(t *testing.T) {
	in := newInside(t)
	const size = 64 << 20
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	send := func(ctx context.Context, body io.Reader) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, "PUT", in.srv.URL+in.file("big", "/content?"), body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		return client.Do(req)
	}
	resp, err := send(t.Context(), io.LimitReader(endless{}, size))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 201 {
		t.Fatal(resp.Status)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", in.srv.URL+in.file("big", "/content?"), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if resp, err = client.Do(req); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if err != nil || n != size {
		t.Errorf("%d %v", n, err)
	}

	// Broken off in the middle.
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		resp, err := send(t.Context(), pr)
		if err == nil {
			_ = resp.Body.Close()
			err = errors.New(resp.Status)
		}
		done <- err
	}()
	if _, err := pw.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	_ = pw.CloseWithError(errors.New("no more"))
	t.Log(<-done)
	in.eventually("nothing is left of it", func() bool {
		entries, err := os.ReadDir(in.work)
		if err != nil || len(entries) != 1 {
			return false
		}
		info, err := entries[0].Info()
		return err == nil && info.Size() == size
	})

	// A reader that leaves in the middle.
	if resp, err = client.Do(req.Clone(t.Context())); err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadFull(resp.Body, make([]byte, 1000))
	_ = resp.Body.Close()
}

// endless is bytes without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestFileShrinks: an answer of which not all comes breaks off, and is not short.
func TestFileShrinks(t *testing.T) {
	in := prepareInside(t)
	in.playInit(t, func(c *net.UnixConn, _ initwire.Kind, _ []byte) {
		_ = initwire.WriteFrame(c, initwire.KindFileEntry, (&initwire.FileEntry{Path: "/f", Type: initwire.TypeFile, Size: 100, ModTime: 1 << 62}).Fields())
		_ = initwire.WriteFrame(c, initwire.KindData, []byte("only this"))
		_ = initwire.WriteFrame(c, initwire.KindDone, nil)
	})
	req, err := http.NewRequestWithContext(t.Context(), "GET", in.srv.URL+in.file("f", "/content?"), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if b, err := io.ReadAll(resp.Body); err == nil || string(b) != "only this" {
		t.Errorf("%q %v", b, err)
	}
}

func TestRanges(t *testing.T) {
	for s, want := range map[string]span{
		"bytes=0-": {true, 0, 0}, "bytes=5-5": {true, 5, 1}, "bytes=-7": {true, -7, 0}, "bytes= 1-2 ": {true, 1, 2},
	} {
		if got, ok := parseRange(s); !ok || got != want {
			t.Errorf("%q: %+v %v", s, got, ok)
		}
	}
	for _, s := range []string{"", "bytes", "bytes=", "bytes=-", "bytes=-0", "bytes=a-", "bytes=1-a", "bytes=2-1", "bytes=1-2,4-5", "bytes=99999999999999999999-"} {
		if got, ok := parseRange(s); ok {
			t.Errorf("%q: %+v", s, got)
		}
	}
}

func FuzzParseRange(f *testing.F) {
	f.Add("bytes=0-1")
	f.Fuzz(func(t *testing.T, s string) {
		if got, ok := parseRange(s); ok && (got.length < 0 || got.length > 0 && got.from < 0) {
			t.Errorf("%q: %+v", s, got)
		}
	})
}
