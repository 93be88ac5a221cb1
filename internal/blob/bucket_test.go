package blob

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"gocloud.dev/blob/memblob"

	"github.com/musterhq/muster"
)

// bucket is a store in a bucket that is no directory.
func bucket(t *testing.T) *Store {
	t.Helper()
	s := &Store{
		bucket: memblob.OpenBucket(nil), diskLow: func() error { return nil }, logger: slog.New(slog.DiscardHandler),
		opened: time.Now(), asked: map[string]time.Time{}, going: map[string]bool{}, writing: map[string]bool{},
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestBucket: what is done by way of a directory's files is done by a bucket's
// calls as well.
func TestBucket(t *testing.T) {
	s := bucket(t)
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("check: %v", err)
	}
	var want []string
	for _, ns := range []muster.Namespace{"a", "a-b"} {
		for i := range 30 { // more than are deleted at once
			key := StreamKey(ns, "uid12345", muster.NewAllocID("uid12345", i, 1), "stdout", 0)
			mustPut(t, s, key, "12345")
			want = append(want, key)
		}
	}
	slices.Sort(want)
	infos, err := s.List(t.Context(), "jobs/")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range infos {
		got = append(got, i.Key)
	}
	if !slices.Equal(got, want) || infos[0].Size != 5 {
		t.Errorf("listed %q", got)
	}
	if got := read(t, s, want[0], 2) + read(t, s, want[0], 5) + read(t, s, want[0], 9); got != "345" {
		t.Errorf("read %q", got)
	}
	if _, err := s.Open(t.Context(), "jobs/none", 3); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("open of what is not there: %v", err)
	}
	broken := errors.New("broken")
	if _, err := s.Put(t.Context(), want[0], iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("broken reader: %v", err)
	}
	if got := read(t, s, want[0], 0); got != "12345" {
		t.Errorf("a failed put left %q", got)
	}
	if s.Usage() != 300 {
		t.Errorf("usage %d", s.Usage())
	}
	if err := s.DeletePrefix(t.Context(), JobPrefix("a", "uid12345")); err != nil {
		t.Fatal(err)
	}
	if left, err := s.List(t.Context(), "jobs/"); err != nil || len(left) != 30 || s.Usage() != 150 {
		t.Errorf("%d left, usage %d, %v", len(left), s.Usage(), err)
	}
	s.used.Store(7)
	if err := s.Count(t.Context()); err != nil || s.Usage() != 150 {
		t.Errorf("counted %d, %v", s.Usage(), err)
	}
	digest := digestOf([]byte("content"))
	if _, err := s.PutUpload(t.Context(), digest, strings.NewReader("other"), 10); !muster.IsKind(err, muster.FaultInvalid) {
		t.Errorf("wrong content: %v", err)
	}
	if _, err := s.Upload(t.Context(), digest); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("a refused upload is there: %v", err)
	}
	if n, err := s.PutUpload(t.Context(), digest, strings.NewReader("content"), 10); n != 7 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	clear(s.asked)
	s.opened = time.Now().Add(-2 * time.Hour)
	for want, hours := range []time.Duration{0, 25} {
		if n, err := s.SweepUploads(t.Context(), time.Now().Add(hours*time.Hour), 24*time.Hour, func(string) bool { return false }); n != want || err != nil {
			t.Errorf("swept %d, %v", n, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Put(ctx, want[0], strings.NewReader("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// These tests link no driver of buckets, like programs with the build tag lean.
func TestBucketWithoutDriver(t *testing.T) {
	for _, url := range []string{"s3://bucket?region=x", "gs://bucket", "azblob://container"} {
		_, err := New(Config{URL: url})
		if !muster.IsKind(err, muster.FaultInvalid) || !strings.Contains(err.Error(), "without the drivers") || !strings.Contains(err.Error(), "make build") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
