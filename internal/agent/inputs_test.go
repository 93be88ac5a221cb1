package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func withInputs(id muster.AllocID, inputs ...wire.Input) wire.DesiredAlloc {
	al := run(id, "exit", "0")
	al.Spec.Inputs = inputs
	return al
}

func TestInputsArePlaced(t *testing.T) {
	rt := newPlayed()
	pushed, fetched := []byte("pushed"), bytes.Repeat([]byte("fetched"), 100_000)
	var gets atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		gets.Add(1)
		_, _ = w.Write(fetched)
	}))
	defer srv.Close()
	r := newRig(t, rt, "", func(c *Config) { c.Destinations = Destinations{netip.MustParsePrefix("127.0.0.1/32")} })
	inputs := []wire.Input{
		{Path: "inline.txt", Content: []byte("inline")},
		{Path: "deep/er/tool", Content: []byte("#!"), Mode: 0o755},
		{Path: "pushed", Digest: digestOf(pushed), Mode: 0o600},
		{Path: "deep/fetched", Digest: digestOf(fetched), URL: srv.URL},
	}
	r.must(set(withInputs("u-0-1", inputs...), withInputs("u-1-1", inputs...)))
	r.eventually("it needs the pushed one", func() bool { return reflect.DeepEqual(r.whole().Needs, []string{digestOf(pushed)}) })
	if err := r.client.PutInput(t.Context(), digestOf(pushed), strings.NewReader("other")); muster.KindOf(err) != muster.FaultInvalid {
		t.Errorf("other bytes: %v", err)
	}
	if err := r.client.PutInput(t.Context(), "sha256:xyz", strings.NewReader("")); muster.KindOf(err) != muster.FaultInvalid {
		t.Errorf("no digest: %v", err)
	}
	if err := r.client.PutInput(t.Context(), digestOf(pushed), bytes.NewReader(pushed)); err != nil {
		t.Fatal(err)
	}
	for _, id := range []muster.AllocID{"u-0-1", "u-1-1"} {
		if got := r.until(id, muster.AllocEnded); got.Outcome != muster.OutcomeSucceeded {
			t.Fatalf("%+v", got)
		}
		work := rt.config(id).Work
		for name, want := range map[string]struct {
			content []byte
			mode    os.FileMode
		}{
			"inline.txt": {[]byte("inline"), 0o644}, "deep/er/tool": {[]byte("#!"), 0o755},
			"pushed": {pushed, 0o600}, "deep/fetched": {fetched, 0o644},
		} {
			b, err := os.ReadFile(filepath.Join(work, name))
			info, _ := os.Stat(filepath.Join(work, name))
			if err != nil || !bytes.Equal(b, want.content) || info.Mode() != want.mode {
				t.Errorf("%s: %d bytes, %v, %v", name, len(b), info.Mode(), err)
			}
		}
		entries, _ := os.ReadDir(work)
		if len(entries) != 3 {
			t.Errorf("left in the work directory: %v", entries)
		}
	}
	if n := gets.Load(); n != 1 {
		t.Errorf("fetched %d times", n)
	}
	if needs := r.whole().Needs; len(needs) != 0 {
		t.Errorf("still needs %v", needs)
	}
}

// One small input that is named often fills a disk as well as a large one: what is copied is counted.
func TestInputsAreBoundedTogether(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "", func(c *Config) { c.InputLimit = 100 })
	pushed := bytes.Repeat([]byte("x"), 100)
	var fits, more []wire.Input
	for i := range inputsTogether {
		fits = append(fits, wire.Input{Path: fmt.Sprint("in/", i), Digest: digestOf(pushed)})
	}
	more = append(append(more, fits...), wire.Input{Path: "last", Content: []byte("y")})
	r.must(set(withInputs("u-0-1", fits...), withInputs("u-1-1", more...)))
	r.eventually("it needs the pushed one", func() bool { return len(r.whole().Needs) == 1 })
	if err := r.client.PutInput(t.Context(), digestOf(pushed), bytes.NewReader(pushed)); err != nil {
		t.Fatal(err)
	}
	if got := r.until("u-0-1", muster.AllocEnded); got.Outcome != muster.OutcomeSucceeded {
		t.Errorf("as much as may be: %+v", got.Failure)
	}
	got := r.until("u-1-1", muster.AllocEnded)
	if f := got.Failure; f == nil || f.Class != muster.FailureUser || f.Reason != muster.ReasonInput || !strings.Contains(f.Message, "input last: the inputs of the job are larger than 1.6KiB together") {
		t.Errorf("one byte more: %+v", f)
	}
	if err := filepath.WalkDir(r.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "last" {
			t.Errorf("it was copied to %s", path)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestInputsCannotEscape(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	outside := t.TempDir()
	shared := t.TempDir()
	for link, target := range map[string]string{"abs": outside, "up": "../../..", "file": filepath.Join(outside, "file")} {
		if err := os.Symlink(target, filepath.Join(shared, link)); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	try := func(workdir, path string) wire.AllocReport {
		n++
		al := withInputs(muster.AllocID(fmt.Sprintf("u-%d-1", n)), wire.Input{Path: path, Content: []byte("x")})
		al.Spec.Workdir = workdir
		r.must(set(al))
		return r.until(al.ID, muster.AllocEnded)
	}
	for _, path := range []string{"/etc/x", "../x", "a/../../x", "", ".", "a/.."} {
		if got := try("", path); got.Failure == nil || got.Failure.Reason != muster.ReasonSpec || got.Failure.Class != muster.FailureUser {
			t.Errorf("%q: %+v", path, got)
		}
	}
	for _, path := range []string{"abs/x", "up/x", "abs/deep/x"} {
		if got := try(shared, path); got.Failure == nil || got.Failure.Reason != muster.ReasonInput || got.Failure.Class != muster.FailureUser {
			t.Errorf("%q: %+v", path, got)
		}
	}
	// A link in the place of the file itself is replaced, not written through.
	if got := try(shared, "file"); got.Outcome != muster.OutcomeSucceeded {
		t.Errorf("%+v", got)
	}
	if b, err := os.ReadFile(filepath.Join(shared, "file")); err != nil || string(b) != "x" {
		t.Errorf("%q %v", b, err)
	}
	if left, _ := os.ReadDir(outside); len(left) != 0 {
		t.Errorf("written outside: %v", left)
	}
	if got := try(filepath.Join(shared, "missing"), "x"); got.Failure == nil || got.Failure.Reason != muster.ReasonNoWorkdir || !strings.Contains(got.Failure.Message, "missing") {
		t.Errorf("%+v", got)
	}
}

// roundTrip answers requests without a network, in bubbles.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func respond(status int, body string) (*http.Response, error) {
	return &http.Response{StatusCode: status, Status: fmt.Sprint(status, " ", http.StatusText(status)), Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}}, nil
}

// fetching runs f with inputs that are fetched by answer, in a bubble.
func fetching(t *testing.T, answer func(n int) (*http.Response, error), f func(t *testing.T, s *inputs)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := 0
		s, err := newInputs(ctx, inputsConfig{dir: filepath.Join(dir, "inputs"), limit: 1 << 20, log: slog.New(slog.DiscardHandler),
			spawn: func(f func()) bool { go f(); return true }, added: func() {},
			client: &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) { n++; return answer(n) })}})
		if err != nil {
			t.Fatal(err)
		}
		f(t, s)
		cancel()
		synctest.Wait()
	})
}

func TestFetchTriesAgainWhatIsOutside(t *testing.T) {
	content := "the input"
	fetching(t, func(n int) (*http.Response, error) {
		switch n {
		case 1:
			return nil, io.ErrUnexpectedEOF
		case 2:
			return respond(503, "")
		case 3:
			return respond(429, "")
		}
		return respond(200, content)
	}, func(t *testing.T, s *inputs) {
		began := time.Now()
		path, release, f := s.get(t.Context(), digestOf([]byte(content)), "http://x/y")
		if f != nil {
			t.Fatal(f)
		}
		defer release()
		if b, err := os.ReadFile(path); err != nil || string(b) != content {
			t.Errorf("%q %v", b, err)
		}
		if took := time.Since(began); took != (500+1000+2000)*time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

func TestFetchGivesUp(t *testing.T) {
	fetching(t, func(int) (*http.Response, error) { return respond(503, "") }, func(t *testing.T, s *inputs) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 90*time.Second, errGaveUp)
		defer cancel()
		_, _, f := s.get(ctx, digestOf(nil), "http://x/y")
		if f == nil || f.Class != muster.FailureOutside || f.Reason != muster.ReasonInput || !strings.Contains(f.Message, "503") {
			t.Errorf("%+v", f)
		}
		synctest.Wait()
		if len(s.wants) != 0 {
			t.Error("it is fetched on though nobody waits")
		}
	})
}

func TestFetchThatCanNeverSucceed(t *testing.T) {
	for name, answer := range map[string]func(int) (*http.Response, error){
		"404":         func(int) (*http.Response, error) { return respond(404, "") },
		"other bytes": func(int) (*http.Response, error) { return respond(200, "other") },
	} {
		t.Run(name, func(t *testing.T) {
			fetching(t, answer, func(t *testing.T, s *inputs) {
				for range 2 { // also for whoever comes later
					_, _, f := s.get(t.Context(), digestOf([]byte("mine")), "http://x/y")
					if f == nil || f.Class != muster.FailureUser || f.Reason != muster.ReasonInput {
						t.Errorf("%+v", f)
					}
				}
				if files, _ := os.ReadDir(s.dir); len(files) != 0 {
					t.Errorf("left: %v", files)
				}
			})
		})
	}
	fetching(t, nil, func(t *testing.T, s *inputs) {
		if _, _, f := s.get(t.Context(), digestOf(nil), "file:///etc/passwd"); f == nil || f.Class != muster.FailureUser {
			t.Errorf("%+v", f)
		}
	})
}

// TestSecretsInURLs: what a presigned URL carries is neither told nor logged.
func TestSecretsInURLs(t *testing.T) {
	const where = "http://user:SECRET@x/y?sig=SECRET#SECRET"
	var log syncBuffer
	for name, answer := range map[string]func(int) (*http.Response, error){
		"404": func(int) (*http.Response, error) { return respond(404, "") },
		"cut": func(n int) (*http.Response, error) {
			if n < 3 {
				return nil, errors.New("connection refused")
			}
			return respond(200, "other")
		},
	} {
		fetching(t, answer, func(t *testing.T, s *inputs) {
			s.log = slog.New(slog.NewTextHandler(&log, nil))
			_, _, f := s.get(t.Context(), digestOf([]byte("mine")), where)
			if f == nil || !strings.Contains(f.Message, "http://x/y") || strings.Contains(f.Message, "SECRET") {
				t.Errorf("%s: %+v", name, f)
			}
		})
	}
	if got := log.String(); !strings.Contains(got, "http://x/y") || strings.Contains(got, "SECRET") {
		t.Errorf("log: %s", got)
	}
}

func TestPushedInputThatNeverComes(t *testing.T) {
	fetching(t, nil, func(t *testing.T, s *inputs) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, errGaveUp)
		defer cancel()
		_, _, f := s.get(ctx, digestOf(nil), "")
		if f == nil || f.Class != muster.FailureOutside {
			t.Errorf("%+v", f)
		}
		if len(s.needs()) != 0 {
			t.Error("still needed")
		}
	})
}

func TestInputCacheIsBoundedAndKeepsWhatIsInUse(t *testing.T) {
	fetching(t, nil, func(t *testing.T, s *inputs) {
		s.limit = 25
		contents := [][]byte{[]byte("0123456789"), []byte("abcdefghij"), []byte("ABCDEFGHIJ")}
		var releases []func()
		for _, c := range contents {
			if err := s.put(digestOf(c), bytes.NewReader(c)); err != nil {
				t.Fatal(err)
			}
		}
		if s.total != 20 || s.entries[digestOf(contents[0])[7:]] != nil {
			t.Errorf("the oldest of three was not evicted: %d", s.total)
		}
		if err := s.put(digestOf(contents[1]), bytes.NewReader(contents[1])); err != nil {
			t.Fatal(err)
		}
		for _, c := range contents[1:] {
			_, release, f := s.get(t.Context(), digestOf(c), "")
			if f != nil {
				t.Fatal(f)
			}
			releases = append(releases, release)
		}
		// Two in use: a third is over the limit, and goes as soon as nobody waits for it.
		if err := s.put(digestOf(contents[0]), bytes.NewReader(contents[0])); err != nil {
			t.Fatal(err)
		}
		if s.total != 20 || s.entries[digestOf(contents[1])[7:]] == nil || s.entries[digestOf(contents[2])[7:]] == nil {
			t.Errorf("in use and evicted: %d", s.total)
		}
		got := make(chan string)
		go func() {
			path, release, _ := s.get(t.Context(), digestOf(contents[0]), "")
			b, _ := os.ReadFile(path)
			release()
			got <- string(b)
		}()
		synctest.Wait()
		if err := s.put(digestOf(contents[0]), bytes.NewReader(contents[0])); err != nil {
			t.Fatal(err)
		}
		if g := <-got; g != string(contents[0]) {
			t.Errorf("evicted under a waiter: %q", g)
		}
		for _, release := range releases {
			release()
		}
		if files, _ := os.ReadDir(s.dir); len(files) != 2 || s.total != 20 {
			t.Errorf("%d files, total %d", len(files), s.total)
		}
		// Found again by the next agent.
		again, err := newInputs(t.Context(), inputsConfig{dir: s.dir, limit: 15, client: s.client, spawn: s.spawn, added: s.added, log: s.log})
		if err != nil || again.total != 10 {
			t.Errorf("%d %v", again.total, err)
		}
	})
}

// TestNeedsAreBounded: a few dozen jobs with a thousand inputs each must not make a report that the server refuses.
func TestNeedsAreBounded(t *testing.T) {
	fetching(t, nil, func(t *testing.T, s *inputs) {
		for i := range maxNeeds + 1 {
			s.wants[wantKey{fmt.Sprintf("%064x", i), ""}] = &want{cancel: func() {}}
		}
		if list := s.needs(); len(list) != maxNeeds || list[0] != fmt.Sprintf("sha256:%064x", 0) {
			t.Errorf("%d digests", len(list))
		}
	})
}
