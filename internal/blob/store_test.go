package blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/musterhq/muster"
)

func open(t *testing.T) *Store {
	t.Helper()
	s, err := New(Config{Dir: filepath.Join(t.TempDir(), "blobs")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func mustPut(t *testing.T, s *Store, key, content string) {
	t.Helper()
	n, err := s.Put(t.Context(), key, strings.NewReader(content))
	if err != nil || n != int64(len(content)) {
		t.Fatalf("put %s: %d bytes, %v", key, n, err)
	}
}

func read(t *testing.T, s *Store, key string, offset int64) string {
	t.Helper()
	r, err := s.Open(t.Context(), key, offset)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// files are all files below the store's directory, whatever they are.
func files(t *testing.T, s *Store) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(s.dir.root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(s.dir.root, path)
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func TestPutOpenStat(t *testing.T) {
	s := open(t)
	key := StreamKey("default", "uid12345", "uid12345-0-1", "stdout", 0)
	mustPut(t, s, key, "hello\x00\xffworld")
	if got := read(t, s, key, 0); got != "hello\x00\xffworld" {
		t.Errorf("read %q", got)
	}
	if got := read(t, s, key, 6); got != "\xffworld" {
		t.Errorf("from 6: %q", got)
	}
	if got := read(t, s, key, 12) + read(t, s, key, 99); got != "" {
		t.Errorf("at and past the end: %q", got)
	}
	info, err := s.Stat(t.Context(), key)
	if err != nil || info.Size != 12 || info.Key != key || time.Since(info.Modified) > time.Minute {
		t.Errorf("stat: %+v %v", info, err)
	}
	if got := s.Usage(); got != 12 {
		t.Errorf("usage %d", got)
	}
	mustPut(t, s, key, "new")
	if got := s.Usage(); got != 3 {
		t.Errorf("usage after replacing: %d", got)
	}
	if got := files(t, s); len(got) != 1 {
		t.Errorf("one blob made the files %q", got)
	}
	missing := StreamKey("default", "uid12345", "uid12345-0-1", "stdout", 7)
	if _, err := s.Open(t.Context(), missing, 0); !muster.IsKind(err, muster.FaultNotFound) || !strings.Contains(err.Error(), missing) {
		t.Errorf("open of what is not there: %v", err)
	}
	if _, err := s.Stat(t.Context(), missing); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("stat of what is not there: %v", err)
	}
	// A directory on the way is no blob.
	if _, err := s.Stat(t.Context(), "jobs/default"); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("stat of a directory: %v", err)
	}
}

func TestPutLeavesNothingBehindOnFailure(t *testing.T) {
	s := open(t)
	key := OutputKey("default", "uid12345", "uid12345-0-1", 0)
	broken := errors.New("the agent went away")
	_, err := s.Put(t.Context(), key, io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) {
		t.Errorf("error of the reader: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = s.Put(ctx, key, &cancelling{strings.NewReader(strings.Repeat("x", 1<<20)), cancel})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error of a cancelled put: %v", err)
	}
	if got := files(t, s); len(got) != 0 {
		t.Errorf("left behind: %q", got)
	}
	if s.Usage() != 0 {
		t.Errorf("usage %d", s.Usage())
	}
	mustPut(t, s, key, "old")
	if _, err = s.Put(t.Context(), key, iotest.ErrReader(broken)); err == nil {
		t.Error("no error")
	}
	if got := read(t, s, key, 0); got != "old" {
		t.Errorf("a failed put changed the blob to %q", got)
	}
}

type cancelling struct {
	io.Reader
	cancel context.CancelFunc
}

func (c *cancelling) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.cancel()
	return n, err
}

func TestListSortsAcrossNeighbours(t *testing.T) {
	s := open(t)
	var want []string
	// "a-b" sorts before "a/": a walk of the directories meets them the other way round.
	for _, ns := range []muster.Namespace{"a", "a-b", "a.c", "b"} {
		for alloc := range 12 {
			id := muster.NewAllocID("uid12345", alloc, 1)
			for _, offset := range []int64{0, 9, 10, 1 << 40} {
				key := StreamKey(ns, "uid12345", id, "stdout", offset)
				mustPut(t, s, key, "x")
				want = append(want, key)
			}
		}
	}
	slices.Sort(want)
	var got []string
	infos, err := s.List(t.Context(), "jobs/")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		got = append(got, i.Key)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d listed, %d put; equal as sets: %v", len(got), len(want), slices.Equal(slices.Sorted(slices.Values(got)), want))
	}
	one, err := s.List(t.Context(), StreamPrefix("a", "uid12345", "uid12345-1-1", "stdout"))
	if err != nil || len(one) != 4 {
		t.Fatalf("%d chunks of member 1, %v", len(one), err)
	}
	for i, offset := range []int64{0, 9, 10, 1 << 40} {
		if got, ok := StreamOffset(one[i].Key); !ok || got != offset {
			t.Errorf("chunk %d at %d, want %d", i, got, offset)
		}
	}
	if none, err := s.List(t.Context(), StreamPrefix("a", "uid12345", "uid12345-1-1", "stderr")); err != nil || len(none) != 0 {
		t.Errorf("an empty stream lists %v, %v", none, err)
	}
}

func TestDeletePrefix(t *testing.T) {
	s := open(t)
	mustPut(t, s, StreamKey("default", "aaaaaaaa", "aaaaaaaa-0-1", "stdout", 0), "12345")
	mustPut(t, s, OutputKey("default", "aaaaaaaa", "aaaaaaaa-0-1", 0), "12345")
	kept := StreamKey("default", "aaaaaaaab", "aaaaaaaab-0-1", "stdout", 0)
	mustPut(t, s, kept, "123")
	if err := s.DeletePrefix(t.Context(), JobPrefix("default", "aaaaaaaa")); err != nil {
		t.Fatal(err)
	}
	if got := files(t, s); !slices.Equal(got, []string{kept}) {
		t.Errorf("left: %q", got)
	}
	if s.Usage() != 3 {
		t.Errorf("usage %d", s.Usage())
	}
	if err := s.DeletePrefix(t.Context(), JobPrefix("default", "aaaaaaaa")); err != nil {
		t.Errorf("again: %v", err)
	}
	if s.Usage() != 3 {
		t.Errorf("usage after doing it again: %d", s.Usage())
	}
	for range 2 {
		if err := s.Delete(t.Context(), kept); err != nil {
			t.Errorf("delete of one: %v", err)
		}
	}
	if s.Usage() != 0 {
		t.Errorf("usage of nothing: %d", s.Usage())
	}
	if _, err := os.Stat(filepath.Join(s.dir.root, "jobs/default/aaaaaaaa")); !os.IsNotExist(err) {
		t.Errorf("empty directories are left: %v", err)
	}
}

func TestKeysCannotLeaveTheStore(t *testing.T) {
	s := open(t)
	long := strings.Repeat("a", 600)
	for _, key := range []string{
		"", "/", "..", ".", "../x", "jobs/../../x", "/etc/passwd", "jobs//x", "jobs/./x", "a\x00b", "a b", "A", "jobs/x.tmp", "x.attrs", `a\b`, "a%2f", "é", long,
	} {
		for name, err := range map[string]error{
			"put":    second(s.Put(t.Context(), key, strings.NewReader("x"))),
			"open":   second(s.Open(t.Context(), key, 0)),
			"stat":   second(s.Stat(t.Context(), key)),
			"list":   second(s.List(t.Context(), key+"/")),
			"delete": s.DeletePrefix(t.Context(), key+"/"),
		} {
			if (name == "list" || name == "delete") && (strings.HasSuffix(key, ".tmp") || strings.HasSuffix(key, ".attrs")) {
				continue // as a directory such a name does no harm
			}
			if !muster.IsKind(err, muster.FaultInvalid) {
				t.Errorf("%s %q: %v", name, key, err)
			}
		}
	}
	for _, prefix := range []string{"jobs", "jobs/default/uid", ""} {
		if err := s.DeletePrefix(t.Context(), prefix); !muster.IsKind(err, muster.FaultInvalid) {
			t.Errorf("delete prefix %q: %v", prefix, err)
		}
	}
	if got, err := filepath.Glob(filepath.Join(filepath.Dir(s.dir.root), "*")); err != nil || len(got) != 1 {
		t.Errorf("beside the store: %q %v", got, err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestCount(t *testing.T) {
	s := open(t)
	mustPut(t, s, StreamKey("default", "aaaaaaaa", "aaaaaaaa-0-1", "stdout", 0), "12345")
	// What a killed process left, and what one is writing now.
	dead := filepath.Join(s.dir.root, "jobs/default/aaaaaaaa/x.17a0.tmp")
	alive := filepath.Join(s.dir.root, "jobs/default/aaaaaaaa/y.17a0.tmp")
	for _, f := range []string{dead, alive} {
		if err := os.WriteFile(f, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hourAgo := time.Now().Add(-time.Hour)
	if err := os.Chtimes(dead, hourAgo, hourAgo); err != nil {
		t.Fatal(err)
	}
	again, err := New(Config{URL: "file://" + s.dir.root})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Add(time.Second)
	if err := os.Chtimes(alive, now, now); err != nil {
		t.Fatal(err)
	}
	if again.Usage() != 0 {
		t.Errorf("before the count: %d", again.Usage())
	}
	for range 2 {
		if err := again.Count(t.Context()); err != nil {
			t.Fatal(err)
		}
		if again.Usage() != 5 {
			t.Errorf("after the count: %d", again.Usage())
		}
	}
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Error("the unfinished file of the dead process is still there")
	}
	if _, err := os.Stat(alive); err != nil {
		t.Error("the file that is being written was taken away")
	}
	if l, err := again.List(t.Context(), "jobs/"); err != nil || len(l) != 1 {
		t.Errorf("listed %v, %v", l, err)
	}
}

// TestCountKeepsWhatIsWritten: a file that is being written keeps its temporary file, also where the system's clock was set
// back since the store was opened.
func TestCountKeepsWhatIsWritten(t *testing.T) {
	s := open(t)
	key := StreamKey("default", "aaaaaaaa", "aaaaaaaa-0-1", "stdout", 0)
	r, w := io.Pipe()
	put := make(chan error)
	go func() {
		_, err := s.Put(t.Context(), key, r)
		put <- err
	}()
	_, _ = w.Write([]byte("12"))
	got := files(t, s)
	if len(got) != 1 || !strings.HasSuffix(got[0], tempSuffix) {
		t.Fatalf("in the middle of a put there are %q", got)
	}
	hourAgo := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(s.dir.root, got[0]), hourAgo, hourAgo); err != nil {
		t.Fatal(err)
	}
	if err := s.Count(t.Context()); err != nil {
		t.Error(err)
	}
	_, _ = w.Write([]byte("345"))
	_ = w.Close()
	if err := <-put; err != nil {
		t.Fatal(err)
	}
	if got := read(t, s, key, 0); got != "12345" {
		t.Errorf("read %q", got)
	}
	if len(s.dir.writing) != 0 {
		t.Errorf("still being written: %v", s.dir.writing)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, u := range []string{"mem://", "ftp://x", "http://x", "file://host/x", "file:///x?create_dir=1", "file:x", "s3 ://", "::", "jobs"} {
		if _, err := New(Config{URL: u}); !muster.IsKind(err, muster.FaultInvalid) {
			t.Errorf("%q: %v", u, err)
		}
	}
	if _, err := New(Config{}); !muster.IsKind(err, muster.FaultInvalid) {
		t.Errorf("nothing given: %v", err)
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Dir: file}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file as directory: %v", err)
	}
}

func TestUploads(t *testing.T) {
	s := open(t)
	content := make([]byte, 100_000)
	rand.NewChaCha8([32]byte{1}).Read(content)
	digest := digestOf(content)
	if _, err := s.Upload(t.Context(), digest); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("before: %v", err)
	}
	for range 2 {
		n, err := s.PutUpload(t.Context(), digest, bytes.NewReader(content), 100_000)
		if err != nil || n != 100_000 {
			t.Fatalf("%d %v", n, err)
		}
	}
	if info, err := s.Upload(t.Context(), digest); err != nil || info.Size != 100_000 {
		t.Errorf("after: %+v %v", info, err)
	}
	if got := read(t, s, UploadKey(digest), 0); got != string(content) {
		t.Error("the content changed")
	}
	other := digestOf([]byte("other"))
	cut := errors.New("connection reset")
	for name, c := range map[string]struct {
		digest string
		r      io.Reader
		limit  int64
		says   string
	}{
		"wrong content":      {other, bytes.NewReader(content), 1 << 20, "not " + other},
		"wrong content, had": {digest, strings.NewReader("x"), 1 << 20, "not " + digest},
		"empty":              {other, strings.NewReader(""), 1 << 20, "not " + other},
		"too large":          {other, bytes.NewReader(content), 99_999, "at most"},
		"cut off":            {other, iotest.ErrReader(cut), 1 << 20, "connection reset"},
		"no digest":          {"sha256:ABC", bytes.NewReader(content), 1 << 20, "is not a digest"},
		"traversal":          {"sha256:../../x", bytes.NewReader(content), 1 << 20, "is not a digest"},
	} {
		_, err := s.PutUpload(t.Context(), c.digest, c.r, c.limit)
		says := c.says
		if name == "too large" {
			says = "the most that an upload may have"
		}
		if !muster.IsKind(err, muster.FaultInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "cut off" && !errors.Is(err, cut) {
			t.Errorf("%s: the cause is lost: %v", name, err)
		}
	}
	if got := files(t, s); len(got) != 1 || s.Usage() != 100_000 {
		t.Errorf("files %q, usage %d", got, s.Usage())
	}
}

func TestUploadOnLowDisk(t *testing.T) {
	s := open(t)
	low := muster.Faultf(muster.FaultDiskLow, "disk is low")
	var asked int
	s.diskLow = func() error {
		if asked++; asked > 1 {
			return low
		}
		return nil
	}
	content := make([]byte, checkDiskEvery+1<<20)
	_, err := s.PutUpload(t.Context(), digestOf(content), bytes.NewReader(content), 1<<30)
	if !muster.IsKind(err, muster.FaultDiskLow) {
		t.Errorf("low in the middle: %v", err)
	}
	_, err = s.PutUpload(t.Context(), digestOf(content), iotest.ErrReader(errors.New("was read")), 1<<30)
	if !errors.Is(err, low) {
		t.Errorf("low from the start: %v", err)
	}
	if got := files(t, s); len(got) != 0 {
		t.Errorf("left behind: %q", got)
	}
}

func TestSweepUploads(t *testing.T) {
	s := open(t)
	age, now := 24*time.Hour, time.Now()
	put := func(content string) string {
		d := digestOf([]byte(content))
		if _, err := s.PutUpload(t.Context(), d, strings.NewReader(content), 100); err != nil {
			t.Fatal(err)
		}
		return d
	}
	unused, used, relied := put("unused"), put("used"), put("relied on")
	referred := func(d string) bool { return d == used }
	sweep := func(what string, want int) {
		t.Helper()
		if n, err := s.SweepUploads(t.Context(), now, age, referred); n != want || err != nil {
			t.Errorf("%s: %d, %v; want %d", what, n, err, want)
		}
	}
	sweep("just uploaded", 0)
	now = now.Add(25 * time.Hour)
	clear(s.asked)
	sweep("in the first hour", 0)
	s.opened = time.Now().Add(-48 * time.Hour)
	young := put("young")
	for _, d := range []string{unused, used, relied} {
		s.asked[d] = time.Now()
	}
	sweep("asked for", 0)
	clear(s.asked)
	if _, err := s.Upload(t.Context(), relied); err != nil {
		t.Fatal(err)
	}
	sweep("one of each", 1)
	for d, want := range map[string]bool{unused: false, used: true, young: true, relied: true} {
		if _, err := s.Stat(t.Context(), UploadKey(d)); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", d, err == nil, want)
		}
	}
	if got := files(t, s); len(got) != 6 {
		t.Errorf("three uploads and the times of three are %q", got)
	}
	// The same content uploaded again is as young as any other.
	put("unused")
	clear(s.asked)
	sweep("uploaded again", 1) // relied
	now = now.Add(age - time.Second)
	sweep("uploaded again, a second before its time", 0)
	now = now.Add(time.Second)
	sweep("uploaded again, at its time", 2) // and young
	if err := s.Delete(t.Context(), UploadKey(used)); err != nil {
		t.Fatal(err)
	}
	sweep("deleted elsewhere", 0)
	if got := files(t, s); len(got) != 0 {
		t.Errorf("left behind: %q", got)
	}
	relied = put("relied on")
	// While it is deleted nobody is told that it is here.
	s.going[relied] = true
	if _, err := s.Upload(t.Context(), relied); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("upload of what is going: %v", err)
	}
	if _, err := s.PutUpload(t.Context(), relied, strings.NewReader("relied on"), 100); !muster.IsKind(err, muster.FaultUnavailable) {
		t.Errorf("put of what is going: %v", err)
	}
}

// TestUploadsAgeByOneClock: the times of files come from the system's clock, and sweeps go by the log's. However far the two
// are apart, an upload is kept for its age by the clock of the sweeps, and as long as somebody relies on it.
func TestUploadsAgeByOneClock(t *testing.T) {
	const year = 8760 * time.Hour
	for _, off := range []time.Duration{0, time.Hour, -time.Hour, year, -year} {
		t.Run(off.String(), func(t *testing.T) {
			s := open(t)
			s.opened = time.Now().Add(-2 * askedFor)
			now := time.Now().Add(off)
			content := "content"
			digest := digestOf([]byte(content))
			if _, err := s.PutUpload(t.Context(), digest, strings.NewReader(content), 100); err != nil {
				t.Fatal(err)
			}
			sweep := func(what string, after time.Duration, want int) {
				t.Helper()
				n, err := s.SweepUploads(t.Context(), now.Add(after), 24*time.Hour, func(string) bool { return false })
				if n != want || err != nil {
					t.Errorf("%s: swept %d, %v; want %d", what, n, err, want)
				}
			}
			sweep("asked for just now", 0, 0)
			sweep("old, and asked for just now", 25*time.Hour, 0)
			clear(s.asked)
			sweep("young", 23*time.Hour, 0)
			sweep("old", 25*time.Hour, 1)
		})
	}
}

// TestSweepOfAStoreThatFailsEnds: the sweep goes past single uploads that fail, but does not try each of thousands in vain.
func TestSweepOfAStoreThatFailsEnds(t *testing.T) {
	s := open(t)
	s.opened = time.Now().Add(-2 * askedFor)
	mustPut(t, s, "uploads/seen", "") // in the place of the directory
	for i := range maxFailures + 5 {
		mustPut(t, s, UploadKey(digestOf([]byte{byte(i)})), "")
	}
	n, err := s.SweepUploads(t.Context(), time.Now(), time.Hour, func(string) bool { return false })
	if want := fmt.Sprintf("of %d uploads: ", maxFailures); n != 0 || err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("swept %d, error %v, want one %q", n, err, want)
	}
}

// TestDiskFull fills a small file system of its own.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("needs the right to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := New(Config{Dir: filepath.Join(dir, "blobs")})
	if err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, "jobs/a/b/c", "fits")
	content := make([]byte, 1<<20)
	for name, err := range map[string]error{
		"put":    second(s.Put(t.Context(), "jobs/a/b/d", bytes.NewReader(content))),
		"upload": second(s.PutUpload(t.Context(), digestOf(content), bytes.NewReader(content), 1<<30)),
	} {
		if !muster.IsKind(err, muster.FaultDiskLow) || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v (%s)", name, err, muster.KindOf(err))
		}
	}
	if got := files(t, s); len(got) != 1 {
		t.Errorf("left behind: %q", got)
	}
	mustPut(t, s, "jobs/a/b/e", "fits again")
}

func TestPutDeleteAtOnce(t *testing.T) {
	s := open(t)
	done := make(chan error)
	for w := range 4 {
		go func() {
			var err error
			for i := range 30 {
				key := StreamKey("default", "aaaaaaaa", muster.NewAllocID("aaaaaaaa", w, 1), "stdout", int64(i))
				_, e := s.Put(t.Context(), key, strings.NewReader("12345"))
				// A job's directory may be deleted under a late writer; it then has nothing to store any more.
				if e != nil && !muster.IsKind(e, muster.FaultNotFound) {
					err = e
				}
			}
			done <- err
		}()
	}
	go func() {
		var err error
		for range 30 {
			if e := s.DeletePrefix(t.Context(), JobPrefix("default", "aaaaaaaa")); e != nil {
				err = fmt.Errorf("delete: %w", e)
			}
		}
		done <- err
	}()
	for range 5 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if err := s.DeletePrefix(t.Context(), JobPrefix("default", "aaaaaaaa")); err != nil {
		t.Error(err)
	}
	if got := files(t, s); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
}

// TestNewLeaderSweepsLater: a server that begins to lead does not know which uploads others have promised.
func TestNewLeaderSweepsLater(t *testing.T) {
	s := open(t)
	s.opened = time.Now().Add(-2 * askedFor)
	content := "promised by another server"
	if _, err := s.PutUpload(t.Context(), digestOf([]byte(content)), strings.NewReader(content), 100); err != nil {
		t.Fatal(err)
	}
	sweep := func(after time.Duration) int {
		t.Helper()
		n, err := s.SweepUploads(t.Context(), time.Now().Add(after), 24*time.Hour, func(string) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	clear(s.asked)
	s.BeginSweeping()
	if n := sweep(48 * time.Hour); n != 0 {
		t.Errorf("%d uploads were deleted at the start of a leadership", n)
	}
	s.opened = time.Now().Add(-2 * askedFor)
	if n := sweep(96 * time.Hour); n != 1 {
		t.Errorf("%d uploads were deleted later", n)
	}
}

// TestSharedDirectoryKeepsWhatOthersWrite: a server that starts does not know what other servers are writing.
func TestSharedDirectoryKeepsWhatOthersWrite(t *testing.T) {
	root := t.TempDir()
	young, old := filepath.Join(root, "young.1-1"+tempSuffix), filepath.Join(root, "old.1-2"+tempSuffix)
	for path, age := range map[string]time.Duration{young: time.Minute, old: 2 * strandedAfter} {
		at := time.Now().Add(-age)
		if err := errors.Join(os.WriteFile(path, []byte("x"), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []struct {
		shared bool
		n      int
	}{{true, 1}, {false, 1}} { // the old one, and then the young one
		d, err := openDirectory(root, want.shared)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := d.removeStranded(t.Context()); n != want.n || err != nil {
			t.Errorf("shared %v: %d removed, %v", want.shared, n, err)
		}
		if _, err := os.Stat(young); want.shared != (err == nil) {
			t.Errorf("shared %v: %v", want.shared, err)
		}
	}
}
