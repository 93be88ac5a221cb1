package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/state"
)

// running makes an allocation that runs on node n1.
func (b *bench) running() (muster.JobUID, muster.AllocID) {
	b.Helper()
	b.node("n1")
	uid := b.submit("default", "j", 1)
	id := b.place(uid, "n1", 0, 1)[0]
	b.report("n1", state.AllocUpdate{ID: id, Status: muster.AllocRunning})
	return uid, id
}

// store puts a chunk of a stream into the store.
func (b *bench) store(id muster.AllocID, stream string, offset int64, content string) {
	b.Helper()
	al := b.state.Latest().Alloc(id)
	key := blob.StreamKey(al.Run.Key.Namespace, al.UID, id, stream, offset)
	if _, err := b.blobs.Put(b.Context(), key, strings.NewReader(content)); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) end(id muster.AllocID, o *state.Output) {
	b.Helper()
	b.report("n1", state.AllocUpdate{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded, Output: o})
}

func (b *bench) output(id muster.AllocID, query string) answer {
	b.Helper()
	return b.do("GET", "/v1/allocations/"+string(id)+"/output/stdout"+query, "")
}

func wantOutput(t *testing.T, a answer, body string, start, end int64, st string) {
	t.Helper()
	e := ""
	if end >= 0 {
		e = strconv.FormatInt(end, 10)
	}
	h := a.Header
	if a.StatusCode != 200 || a.body != body || h.Get(headerStart) != strconv.FormatInt(start, 10) || h.Get(headerEnd) != e || h.Get(headerState) != st {
		t.Errorf("%d %.100q start %s end %q state %s note %q\nwant %.100q start %d end %q state %s",
			a.StatusCode, a.body, h.Get(headerStart), h.Get(headerEnd), h.Get(headerState), a.Trailer.Get(headerNote), body, start, e, st)
	}
	if h.Get("Content-Type") != "application/octet-stream" || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("headers %v", h)
	}
}

func TestOutputInline(t *testing.T) {
	b := newBench(t, 1000)
	_, id := b.running()
	content := "binary \x00\xff\r\n end"
	b.end(id, &state.Output{Stage: state.OutputComplete, Stdout: state.Stream{Size: int64(len(content)) + 4, Start: 4, Inline: []byte(content)}})
	n := int64(len(content)) + 4
	wantOutput(t, b.output(id, ""), content, 4, n, "complete")
	wantOutput(t, b.output(id, "?offset=7"), content[3:], 7, n, "complete")
	wantOutput(t, b.output(id, "?follow=true"), content, 4, n, "complete")
	wantOutput(t, b.output(id, "?tail=3"), "end", n-3, n, "complete")
	wantOutput(t, b.output(id, "?tail=1000"), content, 4, n, "complete")
	wantOutput(t, b.output(id, "?tail=0"), "", n, n, "complete")
	wantOutput(t, b.output(id, fmt.Sprintf("?offset=%d", n)), "", n, n, "complete")
	wantOutput(t, b.output(id, "?offset=1000"), "", 1000, n, "complete")
	wantOutput(t, b.do("GET", "/v1/allocations/"+string(id)+"/output/stderr", ""), "", 0, 0, "complete")
	a := b.do("HEAD", "/v1/allocations/"+string(id)+"/output/stdout", "")
	wantOutput(t, a, "", 4, n, "complete")
	b.problem(b.output(id, "?offset=1&tail=1"), 422, "invalid")
	if len(b.nodes.opened) != 0 {
		t.Errorf("the node was asked: %q", b.nodes.opened)
	}
}

func TestOutputStored(t *testing.T) {
	b := newBench(t, 1000)
	_, id := b.running()
	all := make([]byte, 300_000)
	rand.NewChaCha8([32]byte{2}).Read(all)
	// Chunks that overlap, as after a restart of whoever ships them; the first bytes were dropped.
	for _, c := range [][2]int{{1000, 100_000}, {60_000, 100_000}, {100_000, 200_000}, {150_000, 180_000}, {200_000, 300_000}} {
		b.store(id, "stdout", int64(c[0]), string(all[c[0]:c[1]]))
	}
	b.end(id, &state.Output{Stage: state.OutputComplete, Stdout: state.Stream{Size: 300_000, Start: 1000}, BlobBytes: 300_000})
	wantOutput(t, b.output(id, ""), string(all[1000:]), 1000, 300_000, "complete")
	for _, from := range []int{1000, 1001, 59_999, 60_000, 99_999, 100_000, 150_001, 200_000, 299_999} {
		wantOutput(t, b.output(id, fmt.Sprintf("?follow=true&offset=%d", from)), string(all[from:]), int64(from), 300_000, "complete")
	}
	wantOutput(t, b.output(id, "?tail=150001"), string(all[149_999:]), 149_999, 300_000, "complete")
	if a := b.output(id, "?offset=10"); a.ContentLength != 299_000 {
		t.Errorf("length %d", a.ContentLength)
	}
	if len(b.nodes.opened) != 0 {
		t.Errorf("the node was asked: %q", b.nodes.opened)
	}
}

// TestOutputMissingInTheStore: bytes that should be there and are not are an
// error, not an end.
func TestOutputMissingInTheStore(t *testing.T) {
	b := newBench(t, 1000)
	_, id := b.running()
	b.store(id, "stdout", 0, "0123")
	b.end(id, &state.Output{Stage: state.OutputComplete, Stdout: state.Stream{Size: 10}, Stderr: state.Stream{Size: 7, Start: 7}, BlobBytes: 4})
	srv := b.serve()
	if f := b.fetch(srv.URL + "/v1/allocations/" + string(id) + "/output/stdout"); string(f.body) != "0123" || f.err == nil {
		t.Errorf("%q %v", f.body, f.err)
	}
	p := b.problem(b.output(id, "?offset=4"), 404, "not-found")
	if !strings.Contains(p.Detail, "bytes 4 to 10 are missing") {
		t.Errorf("%q", p.Detail)
	}
	wantOutput(t, b.do("GET", "/v1/allocations/"+string(id)+"/output/stderr", ""), "", 7, 7, "complete")
}

func TestOutputIncomplete(t *testing.T) {
	b := newBench(t, 1000)
	_, id := b.running()
	b.store(id, "stdout", 0, "first ")
	b.store(id, "stdout", 6, "second")
	b.propose(&state.NodeTerminating{ID: "n1"}, &state.NodeGone{ID: "n1", Reason: "killed"})
	wantOutput(t, b.output(id, ""), "first second", 0, 12, "incomplete")
	wantOutput(t, b.output(id, "?follow=true&offset=8"), "cond", 8, 12, "incomplete")
	wantOutput(t, b.output(id, "?tail=4"), "cond", 8, 12, "incomplete")
	wantOutput(t, b.do("GET", "/v1/allocations/"+string(id)+"/output/stderr?tail=5", ""), "", 0, 0, "incomplete")
}

func TestOutputPruned(t *testing.T) {
	b := newBench(t, 1000)
	uid, id := b.running()
	b.store(id, "stdout", 0, "gone")
	b.end(id, &state.Output{Stage: state.OutputComplete, Stdout: state.Stream{Size: 4}, BlobBytes: 4, Files: []state.OutputFile{{Path: "a", Size: 1}}})
	if err := b.blobs.DeletePrefix(t.Context(), blob.JobPrefix("default", uid)); err != nil {
		t.Fatal(err)
	}
	b.propose(&state.JobOutputPruned{UIDs: []muster.JobUID{uid}})
	p := b.problem(b.output(id, ""), 410, "too-old")
	if !strings.Contains(p.Detail, "quota") {
		t.Errorf("%q", p.Detail)
	}
	b.problem(b.output(id, "?follow=true"), 410, "too-old")
	b.problem(b.output(id, "?tail=2"), 410, "too-old")
	b.problem(b.do("GET", "/v1/allocations/"+string(id)+"/outputs/0", ""), 410, "too-old")
	wantOutput(t, b.do("GET", "/v1/allocations/"+string(id)+"/output/stderr", ""), "", 0, -1, "pruned")
}

func TestOutputLive(t *testing.T) {
	b := newBench(t, 1000)
	_, id := b.running()
	s := b.nodes.stream(id, "stdout")
	s.write("0123456789")
	b.store(id, "stdout", 0, "012345")
	wantOutput(t, b.output(id, ""), "0123456789", 0, -1, "open")
	wantOutput(t, b.output(id, "?offset=3"), "3456789", 3, -1, "open")
	wantOutput(t, b.output(id, "?tail=2"), "89", 8, -1, "open")
	wantOutput(t, b.output(id, "?tail=7"), "3456789", 3, -1, "open")
	wantOutput(t, b.output(id, "?tail=70"), "0123456789", 0, -1, "open")
	wantOutput(t, b.output(id, "?offset=10"), "", 10, -1, "open")
	if got := b.nodes.opened[0]; got != string(id)+"/stdout@6" {
		t.Errorf("stored bytes were asked of the node: %s", got)
	}
	wantOutput(t, b.do("HEAD", "/v1/allocations/"+string(id)+"/output/stdout?follow=true", ""), "", 0, -1, "open")

	// The node dropped some before they were stored.
	s.update(func() { s.start, s.bytes = 8, s.bytes[8:] })
	wantOutput(t, b.output(id, "?offset=7"), "89", 8, -1, "open")
	wantOutput(t, b.output(id, "?tail=3"), "89", 8, -1, "open")
	a := b.fetch(b.serve().URL + "/v1/allocations/" + string(id) + "/output/stdout")
	if string(a.body) != "012345" || a.err == nil {
		t.Errorf("a gap in the middle: %q %v", a.body, a.err)
	}
}

func TestOutputUnreachableNode(t *testing.T) {
	b := newBench(t, 1000)
	_, id := b.running()
	b.nodes.fail(muster.Faultf(muster.FaultUnavailable, "node n1 cannot be reached"))
	p := b.problem(b.output(id, ""), 503, "unavailable")
	if !strings.Contains(p.Detail, "node n1 cannot be reached") {
		t.Errorf("%q", p.Detail)
	}
	b.store(id, "stdout", 0, "stored")
	a := b.output(id, "")
	wantOutput(t, a, "stored", 0, -1, "open")
	if note := a.Trailer.Get(headerNote); !strings.Contains(note, "cannot be reached") {
		t.Errorf("note %q", note)
	}
	wantOutput(t, b.output(id, "?tail=3"), "red", 3, -1, "open")
}

func TestOutputNotStarted(t *testing.T) {
	b := newBench(t, 1000)
	b.node("n1")
	uid := b.submit("default", "j", 1)
	id := b.place(uid, "n1", 0, 1)[0]
	wantOutput(t, b.output(id, ""), "", 0, -1, "open")
	wantOutput(t, b.output(id, "?tail=5"), "", 0, -1, "open")
	if len(b.nodes.opened) != 0 {
		t.Errorf("the node was asked: %q", b.nodes.opened)
	}
}

type fetched struct {
	status int
	header http.Header
	body   []byte
	err    error // after the body
}

// fetch asks over a real connection, so that broken answers are seen.
func (b *bench) fetch(url string) fetched {
	req, err := http.NewRequestWithContext(b.Context(), "GET", url, nil)
	if err != nil {
		return fetched{err: err}
	}
	req.Header.Set("Authorization", "Bearer "+token)
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return fetched{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return fetched{resp.StatusCode, resp.Header, body, err}
}

// TestOutputFollow goes through the whole life of a stream: before the start,
// from the node, a broken link, shipped meanwhile, stored and forgotten by the node.
func TestOutputFollow(t *testing.T) {
	b := newBench(t, 10_000)
	b.node("n1")
	uid := b.submit("default", "j", 1)
	id := b.place(uid, "n1", 0, 1)[0]
	srv := b.serve()
	done := make(chan fetched)
	go func() {
		done <- b.fetch(srv.URL + "/v1/allocations/" + string(id) + "/output/stdout?follow=true")
	}()
	all := make([]byte, 200_000)
	rand.NewChaCha8([32]byte{3}).Read(all)
	s := b.nodes.stream(id, "stdout")
	s.update(func() { s.breakAfter = 30_000 })
	b.report("n1", state.AllocUpdate{ID: id, Status: muster.AllocRunning})
	for i := 0; i < 150_000; i += 10_000 {
		s.write(string(all[i : i+10_000]))
		if i == 70_000 {
			b.store(id, "stdout", 0, string(all[:80_000]))
		}
	}
	b.eventually("the reader comes near", func() bool {
		b.nodes.mu.Lock()
		defer b.nodes.mu.Unlock()
		return len(b.nodes.opened) > 2
	})
	// The node ends it; everything is stored, and the node forgets it.
	b.store(id, "stdout", 80_000, string(all[80_000:]))
	b.nodes.fail(muster.Faultf(muster.FaultNotFound, "agent: allocation forgotten"))
	s.update(func() { s.start, s.bytes, s.ended = 200_000, nil, true })
	b.end(id, &state.Output{Stage: state.OutputComplete, Stdout: state.Stream{Size: 200_000}, BlobBytes: 200_000})
	f := <-done
	if f.status != 200 || f.err != nil || !bytes.Equal(f.body, all) {
		at := 0
		for at < min(len(f.body), len(all)) && f.body[at] == all[at] {
			at++
		}
		t.Errorf("%d %v, %d bytes, the same up to %d", f.status, f.err, len(f.body), at)
	}
}

func TestOutputFollowEndsWithTheStream(t *testing.T) {
	b := newBench(t, 1000)
	_, id := b.running()
	srv := b.serve()
	s := b.nodes.stream(id, "stdout")
	s.write("one ")
	done := make(chan fetched)
	go func() {
		done <- b.fetch(srv.URL + "/v1/allocations/" + string(id) + "/output/stdout?follow=true&tail=2")
	}()
	b.eventually("asked", func() bool {
		b.nodes.mu.Lock()
		defer b.nodes.mu.Unlock()
		return len(b.nodes.opened) == 2
	})
	s.write("two")
	s.end()
	f := <-done
	if f.err != nil || string(f.body) != "e two" || f.header.Get(headerStart) != "2" {
		t.Errorf("%q %v %v", f.body, f.err, f.header)
	}
}

func TestOutputFollowWaitsForALostNode(t *testing.T) {
	b := newBench(t, 1000)
	_, id := b.running()
	b.store(id, "stdout", 0, "stored ")
	b.nodes.fail(muster.Faultf(muster.FaultUnavailable, "node n1 cannot be reached"))
	srv := b.serve()
	done := make(chan fetched)
	go func() {
		done <- b.fetch(srv.URL + "/v1/allocations/" + string(id) + "/output/stdout?follow=true")
	}()
	b.eventually("asked more than once", func() bool {
		b.nodes.mu.Lock()
		defer b.nodes.mu.Unlock()
		return len(b.nodes.opened) > 1
	})
	s := b.nodes.stream(id, "stdout")
	s.write("stored and back")
	s.end()
	b.nodes.fail(nil)
	if f := <-done; f.err != nil || string(f.body) != "stored and back" {
		t.Errorf("%q %v", f.body, f.err)
	}
}

func TestOutputFollowOfAPurgedJobBreaksOff(t *testing.T) {
	b := newBench(t, 1000)
	uid, id := b.running()
	srv := b.serve()
	done := make(chan fetched)
	b.nodes.fail(muster.Faultf(muster.FaultUnavailable, "node n1 cannot be reached"))
	go func() {
		done <- b.fetch(srv.URL + "/v1/allocations/" + string(id) + "/output/stdout?follow=true")
	}()
	b.eventually("asked", func() bool {
		b.nodes.mu.Lock()
		defer b.nodes.mu.Unlock()
		return len(b.nodes.opened) > 0
	})
	b.report("n1", state.AllocUpdate{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded})
	b.propose(&state.JobsPurged{UIDs: []muster.JobUID{uid}})
	if f := <-done; f.err == nil {
		t.Errorf("%q ended well", f.body)
	}
}

func TestOutputEndsWithTheServer(t *testing.T) {
	b := newBench(t, 1000)
	_, id := b.running()
	b.nodes.stream(id, "stdout").write("x")
	srv := b.serve()
	done := make(chan fetched)
	go func() {
		done <- b.fetch(srv.URL + "/v1/allocations/" + string(id) + "/output/stdout?follow=true")
	}()
	b.eventually("asked", func() bool {
		b.nodes.mu.Lock()
		defer b.nodes.mu.Unlock()
		return len(b.nodes.opened) > 0
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := srv.Config.Shutdown(ctx); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if f := <-done; f.err == nil {
		t.Errorf("%q ended well, and there is more to come", f.body)
	}
}

// TestOutputSlowReader: what a client does not take is not read either.
func TestOutputSlowReader(t *testing.T) {
	b := newBench(t, 1000)
	_, id := b.running()
	s := b.nodes.stream(id, "stdout")
	s.write(strings.Repeat("x", 10<<20))
	w := &gated{ResponseWriter: discard{http.Header{}}, gate: make(chan struct{}), reached: make(chan struct{}, 1)}
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://localhost/v1/allocations/"+string(id)+"/output/stdout", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	counted := &counting{liveOutput: b.nodes}
	b.parts.Output = counted
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.api.Handler().ServeHTTP(w, req)
	}()
	<-w.reached
	if n := counted.read(); n > 64<<10 {
		t.Errorf("%d bytes were read ahead of a client that takes nothing", n)
	}
	close(w.gate)
	<-done
	if n := len(w.written.String()); n != 10<<20 {
		t.Errorf("%d bytes in the end", n)
	}
}

type counting struct {
	liveOutput
	mu buffer
}

func (c *counting) read() int { return len(c.mu.String()) }

func (c *counting) OpenOutput(ctx context.Context, a *state.Alloc, stream string, offset int64, follow bool) (io.ReadCloser, int64, error) {
	r, start, err := c.liveOutput.OpenOutput(ctx, a, stream, offset, follow)
	if err != nil {
		return nil, 0, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.TeeReader(r, &c.mu), r}, start, nil
}

func TestDeclaredOutputs(t *testing.T) {
	b := newBench(t, 1000)
	_, id := b.running()
	if l := get[api.OutputFileList](b, "/v1/allocations/"+string(id)+"/outputs"); l.Files == nil || len(l.Files) != 0 {
		t.Errorf("%+v", l)
	}
	tar := strings.Repeat("tar\x00", 1000)
	if _, err := b.blobs.Put(t.Context(), blob.OutputKey("default", b.state.Latest().Alloc(id).UID, id, 1), strings.NewReader(tar)); err != nil {
		t.Fatal(err)
	}
	b.end(id, &state.Output{Stage: state.OutputComplete, Files: []state.OutputFile{{Path: "a", Size: 3}, {Path: "b/c", Size: 4000}}})
	l := get[api.OutputFileList](b, "/v1/allocations/"+string(id)+"/outputs")
	if len(l.Files) != 2 || l.Files[1] != (api.OutputFile{Path: "b/c", Size: 4000}) {
		t.Errorf("%+v", l)
	}
	a := b.do("GET", "/v1/allocations/"+string(id)+"/outputs/1", "")
	if a.StatusCode != 200 || a.body != tar || a.Header.Get("Content-Type") != "application/x-tar" || a.ContentLength != 4000 {
		t.Errorf("%d %d bytes %v", a.StatusCode, len(a.body), a.Header)
	}
	b.problem(b.do("GET", "/v1/allocations/"+string(id)+"/outputs/2", ""), 404, "not-found")
	b.problem(b.do("GET", "/v1/allocations/"+string(id)+"/outputs/0", ""), 404, "not-found")
}

func TestUploads(t *testing.T) {
	b := newBench(t, 100, func(c *parts) { c.UploadLimit = 1000 })
	rawHeader := header("Content-Type", "application/octet-stream")
	digest := digestOf("content")
	path := "/v1/uploads/" + digest
	if a := b.do("HEAD", path, ""); a.StatusCode != 404 {
		t.Errorf("before: %d", a.StatusCode)
	}
	a := b.do("PUT", path, "content", rawHeader)
	if u := as[api.Upload](b, a); a.StatusCode != 200 || u.Digest != digest || u.Size != 7 {
		t.Errorf("%d %+v", a.StatusCode, u)
	}
	if a := b.do("PUT", path, "content", func(r *http.Request) { r.Header.Del("Content-Type") }); a.StatusCode != 200 {
		t.Errorf("without a content type: %d", a.StatusCode)
	}
	if a := b.do("HEAD", path, ""); a.StatusCode != 200 || a.Header.Get("Muster-Size") != "7" {
		t.Errorf("after: %d %v", a.StatusCode, a.Header)
	}
	b.problem(b.do("PUT", path, "other", rawHeader), 422, "invalid")
	b.problem(b.do("PUT", "/v1/uploads/sha256:x", "content", rawHeader), 422, "invalid")
	b.problem(b.do("PUT", path, "content"), 415, "invalid")
	b.problem(b.do("PUT", path, "content", header("Content-Type", "application/x-www-form-urlencoded")), 415, "invalid")
	b.problem(b.do("PUT", path, "content", rawHeader, header("Content-Encoding", "gzip")), 415, "invalid")
	large := strings.Repeat("x", 1001)
	b.problem(b.do("PUT", "/v1/uploads/"+digestOf(large), large, rawHeader), 413, "invalid")
	b.problem(b.do("GET", path, ""), 405, "invalid")
	cut := b.do("PUT", "/v1/uploads/"+digestOf("cut"), "x", rawHeader, func(r *http.Request) {
		r.Body = io.NopCloser(io.MultiReader(strings.NewReader("cu"), errReader{}))
	})
	b.problem(cut, 422, "invalid")
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestUploadOnLowDisk(t *testing.T) {
	low, err := blob.New(blob.Config{Dir: t.TempDir(), DiskLow: func() error {
		return muster.Faultf(muster.FaultDiskLow, "the disk has 3MiB free")
	}})
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, 100, func(c *parts) { c.Blobs, c.Store = low, low })
	p := b.problem(b.do("PUT", "/v1/uploads/"+digestOf("x"), "x", header("Content-Type", "application/octet-stream")), 507, "disk-low")
	if p.Detail != "the disk has 3MiB free" {
		t.Errorf("%q", p.Detail)
	}
}

func TestBackup(t *testing.T) {
	b := newBench(t, 100)
	if a := b.do("GET", "/v1/backup", ""); a.StatusCode != 200 || a.body != "backup\x00" || !strings.Contains(a.Header.Get("Content-Disposition"), "attachment") {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	b = newBench(t, 100, func(c *parts) {
		c.Backup = func(context.Context, io.Writer) error { return muster.Faultf(muster.FaultUnavailable, "does not lead") }
	})
	b.problem(b.do("GET", "/v1/backup", ""), 503, "unavailable")
	b = newBench(t, 100, func(c *parts) {
		c.Backup = func(_ context.Context, w io.Writer) error {
			_, _ = w.Write(make([]byte, 100_000))
			return errors.New("disk")
		}
	})
	if f := b.fetch(b.serve().URL + "/v1/backup"); f.err == nil {
		t.Errorf("a backup that broke off ended well after %d bytes", len(f.body))
	}
}
