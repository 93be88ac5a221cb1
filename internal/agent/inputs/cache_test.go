package inputs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
)

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// roundTrip answers requests without a network, in bubbles.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func respond(status int, body string) (*http.Response, error) {
	return &http.Response{StatusCode: status, Status: fmt.Sprint(status, " ", http.StatusText(status)), Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}}, nil
}

// fetching runs f with inputs that are fetched by answer, in a bubble.
func fetching(t *testing.T, answer func(n int) (*http.Response, error), f func(t *testing.T, s *Cache)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := 0
		s, err := Open(ctx, Config{Dir: filepath.Join(dir, "inputs"), Limit: 1 << 20, Logger: slog.New(slog.DiscardHandler),
			Spawn: func(f func()) bool { go f(); return true }, Added: func() {},
			Client: &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) { n++; return answer(n) })}})
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
	}, func(t *testing.T, s *Cache) {
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
	fetching(t, func(int) (*http.Response, error) { return respond(503, "") }, func(t *testing.T, s *Cache) {
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
			fetching(t, answer, func(t *testing.T, s *Cache) {
				for range 2 { // also for whoever comes later
					_, _, f := s.get(t.Context(), digestOf([]byte("mine")), "http://x/y")
					if f == nil || f.Class != muster.FailureUser || f.Reason != muster.ReasonInput {
						t.Errorf("%+v", f)
					}
				}
				if files, _ := os.ReadDir(s.cfg.Dir); len(files) != 0 {
					t.Errorf("left: %v", files)
				}
			})
		})
	}
	fetching(t, nil, func(t *testing.T, s *Cache) {
		if _, _, f := s.get(t.Context(), digestOf(nil), "file:///etc/passwd"); f == nil || f.Class != muster.FailureUser {
			t.Errorf("%+v", f)
		}
	})
}

// TestSecretsInURLs: what a presigned URL carries is neither told nor logged.
func TestSecretsInURLs(t *testing.T) {
	const where = "http://user:SECRET@x/y?sig=SECRET#SECRET"
	var log bytes.Buffer // a handler writes to it by one at a time
	for name, answer := range map[string]func(int) (*http.Response, error){
		"404": func(int) (*http.Response, error) { return respond(404, "") },
		"cut": func(n int) (*http.Response, error) {
			if n < 3 {
				return nil, errors.New("connection refused")
			}
			return respond(200, "other")
		},
	} {
		fetching(t, answer, func(t *testing.T, s *Cache) {
			s.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
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
	fetching(t, nil, func(t *testing.T, s *Cache) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, errGaveUp)
		defer cancel()
		_, _, f := s.get(ctx, digestOf(nil), "")
		if f == nil || f.Class != muster.FailureOutside {
			t.Errorf("%+v", f)
		}
		if len(s.Needs()) != 0 {
			t.Error("still needed")
		}
	})
}

func TestInputCacheIsBoundedAndKeepsWhatIsInUse(t *testing.T) {
	fetching(t, nil, func(t *testing.T, s *Cache) {
		s.cfg.Limit = 25
		contents := [][]byte{[]byte("0123456789"), []byte("abcdefghij"), []byte("ABCDEFGHIJ")}
		var releases []func()
		for _, c := range contents {
			if err := s.Put(digestOf(c), bytes.NewReader(c)); err != nil {
				t.Fatal(err)
			}
		}
		if s.total != 20 || s.entries[digestOf(contents[0])[7:]] != nil {
			t.Errorf("the oldest of three was not evicted: %d", s.total)
		}
		if err := s.Put(digestOf(contents[1]), bytes.NewReader(contents[1])); err != nil {
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
		if err := s.Put(digestOf(contents[0]), bytes.NewReader(contents[0])); err != nil {
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
		if err := s.Put(digestOf(contents[0]), bytes.NewReader(contents[0])); err != nil {
			t.Fatal(err)
		}
		if g := <-got; g != string(contents[0]) {
			t.Errorf("evicted under a waiter: %q", g)
		}
		for _, release := range releases {
			release()
		}
		if files, _ := os.ReadDir(s.cfg.Dir); len(files) != 2 || s.total != 20 {
			t.Errorf("%d files, total %d", len(files), s.total)
		}
		// Found again by the next agent.
		again, err := Open(t.Context(), Config{Dir: s.cfg.Dir, Limit: 15, Client: s.cfg.Client, Spawn: s.cfg.Spawn, Added: s.cfg.Added, Logger: s.cfg.Logger})
		if err != nil || again.total != 10 {
			t.Errorf("%d %v", again.total, err)
		}
	})
}

// TestNeedsAreBounded: a few dozen jobs with a thousand inputs each must not make a report that the
// server refuses.
func TestNeedsAreBounded(t *testing.T) {
	fetching(t, nil, func(t *testing.T, s *Cache) {
		for i := range maxNeeds + 1 {
			s.wants[wantKey{fmt.Sprintf("%064x", i), ""}] = &want{cancel: func() {}}
		}
		if list := s.Needs(); len(list) != maxNeeds || list[0] != fmt.Sprintf("sha256:%064x", 0) {
			t.Errorf("%d digests", len(list))
		}
	})
}

// A blob is opened when it has come, and is deleted when the last one who uses it has closed it.
func TestBlobGoesWhenItIsClosed(t *testing.T) {
	synctest.Test(t, blobGoes)
}

func blobGoes(t *testing.T) {
	added := 0
	c, err := Open(t.Context(), Config{Dir: filepath.Join(t.TempDir(), "inputs"), Limit: 1 << 20, Logger: slog.New(slog.DiscardHandler), Added: func() { added++ }})
	if err != nil {
		t.Fatal(err)
	}
	digest := digestOf([]byte("layer"))
	type opened struct {
		io.ReadSeekCloser
		err error
	}
	got := make(chan opened)
	for range 2 {
		go func() {
			f, err := c.Blob(t.Context(), digest)
			got <- opened{f, err}
		}()
	}
	synctest.Wait()
	if needs := c.Needs(); len(needs) != 1 || needs[0] != digest || added != 1 {
		t.Errorf("it needs %v, said so %d times", needs, added)
	}
	if err := c.Put(digest, strings.NewReader("layer")); err != nil {
		t.Fatal(err)
	}
	for left := 1; left >= 0; left-- {
		o := <-got
		if o.err != nil {
			t.Fatal(o.err)
		}
		if data, err := io.ReadAll(o); err != nil || string(data) != "layer" {
			t.Errorf("%q, %v", data, err)
		}
		_ = o.Close()
		_ = o.Close()
	}
	files, err := os.ReadDir(c.cfg.Dir)
	if err != nil || len(files) != 0 || c.total != 0 {
		t.Errorf("%d files of %d bytes are left, %v", len(files), c.total, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Blob(ctx, digest); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
