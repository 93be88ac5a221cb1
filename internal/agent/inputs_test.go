package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/destinations"
	"github.com/musterhq/muster/internal/agent/inputs"
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
	r := newRig(t, rt, "", func(c *Config) { c.Destinations = destinations.Allowed{netip.MustParsePrefix("127.0.0.1/32")} })
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
	for i := range inputs.Together {
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
