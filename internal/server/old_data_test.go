package server

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/state"
)

// A data directory of every format opens: with a snapshot, and with entries behind it. testdata/make-data made them,
// by programs of their time.
func TestOldDataDirectoriesOpen(t *testing.T) {
	all, err := filepath.Glob("testdata/format-*.tgz")
	if err != nil || len(all) == 0 {
		t.Fatalf("%d data directories: %v", len(all), err)
	}
	for _, archive := range all {
		t.Run(filepath.Base(archive), func(t *testing.T) {
			dir := t.TempDir()
			extract(t, archive, dir)
			e := withLog(t, dir, func(*raftlog.Log) {})
			got := outline(e.s.Latest())
			if want := must(os.ReadFile(strings.TrimSuffix(archive, ".tgz") + ".golden"))(t); got != string(want) {
				t.Errorf("it holds\n%s\nwant\n%s", got, want)
			}
			if len(e.facts) == 0 {
				t.Error("no entries behind the snapshot")
			}
			// And a whole server starts on it, and raises the gate.
			_, end := serve(t, dir)
			if err := end(); err != nil {
				t.Fatal(err)
			}
			e = withLog(t, dir, func(*raftlog.Log) {})
			if meta := e.s.Latest().Meta(); meta.LogFormat() != state.FormatNewest {
				t.Errorf("the gate is %d, want %d", meta.LogFormat(), state.FormatNewest)
			}
		})
	}
}

// outline is what a data directory holds, in words that no later version changes.
func outline(snap *state.Snapshot) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
		add("job %s version %d stage %s count %d priority %d", j.Key, j.Version, j.Stage, j.Count(), j.Priority())
		snap.JobAllocs(j.UID, 0, func(a *state.Alloc) bool {
			add("  alloc %d attempt %d version %d status %s outcome %q runner %q", a.Index, a.Attempt, a.Version, a.Status, a.Outcome, a.Runner)
			return true
		})
		return true
	})
	snap.Claims("", func(c *state.Claim) bool {
		add("claim %s note %q runner %s", c.State, c.Note, c.Runner)
		return true
	})
	snap.Nodes("", func(n *state.Node) bool {
		add("node stage %s intent %s pool %s", n.Stage, n.Intent, n.Pool)
		return true
	})
	state.LoadedImagesOf(snap).Each(func(im *state.LoadedImage) bool {
		add("image %s digest %s blobs %d", im.Name, im.Digest, len(im.Blobs))
		return true
	})
	return strings.Join(lines, "\n") + "\n"
}

func extract(t *testing.T, archive, dir string) {
	t.Helper()
	f := must(os.Open(archive))(t)
	defer func() { _ = f.Close() }()
	r := tar.NewReader(must(gzip.NewReader(f))(t))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o700)
		} else {
			err = os.WriteFile(path, must(io.ReadAll(r))(t), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
