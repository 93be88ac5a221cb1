package buckets

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"gocloud.dev/blob/memblob"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/blob"
)

// Opening a bucket asks nobody yet: it shows that its driver is linked in.
func TestBucketsCanBeOpened(t *testing.T) {
	t.Setenv("AZURE_STORAGE_ACCOUNT", "nobody")
	t.Setenv("AZURE_STORAGE_KEY", "a2V5")
	for _, u := range []string{"s3://bucket?region=us-east-1&anonymous=true", "gs://bucket?access_id=-", "azblob://container"} {
		s, err := blob.New(blob.Config{URL: u, Open: Open})
		if err != nil {
			t.Errorf("%s: %v", u, err)
			continue
		}
		_ = s.Close()
	}
}

func storeIn(t *testing.T, b blob.Bucket) *blob.Store {
	t.Helper()
	s, err := blob.New(blob.Config{URL: "s3://bucket", Open: func(context.Context, string) (blob.Bucket, error) { return b, nil }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustPut(t *testing.T, s *blob.Store, key, content string) {
	t.Helper()
	n, err := s.Put(t.Context(), key, strings.NewReader(content))
	if err != nil || n != int64(len(content)) {
		t.Fatalf("put %s: %d bytes, %v", key, n, err)
	}
}

func read(t *testing.T, s *blob.Store, key string, offset int64) string {
	t.Helper()
	r, err := s.Open(t.Context(), key, offset)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestBucket: what is done by way of a directory's files is done by a bucket's
// calls as well.
func TestBucket(t *testing.T) { synctest.Test(t, testBucket) }

func testBucket(t *testing.T) {
	b := bucket{memblob.OpenBucket(nil)}
	s := storeIn(t, b)
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("check: %v", err)
	}
	var want []string
	for _, ns := range []muster.Namespace{"a", "a-b"} {
		for i := range 30 { // more than are deleted at once
			key := blob.StreamKey(ns, "uid12345", muster.NewAllocID("uid12345", i, 1), "stdout", 0)
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
	if err := s.DeletePrefix(t.Context(), blob.JobPrefix("a", "uid12345")); err != nil {
		t.Fatal(err)
	}
	if left, err := s.List(t.Context(), "jobs/"); err != nil || len(left) != 30 || s.Usage() != 150 {
		t.Errorf("%d left, usage %d, %v", len(left), s.Usage(), err)
	}
	again := storeIn(t, b)
	if err := again.Count(t.Context()); err != nil || again.Usage() != 150 {
		t.Errorf("counted %d, %v", again.Usage(), err)
	}
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("content")))
	if _, err := s.PutUpload(t.Context(), digest, strings.NewReader("other"), 10); !muster.IsKind(err, muster.FaultInvalid) {
		t.Errorf("wrong content: %v", err)
	}
	if _, err := s.Upload(t.Context(), digest); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("a refused upload is there: %v", err)
	}
	if n, err := s.PutUpload(t.Context(), digest, strings.NewReader("content"), 10); n != 7 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	time.Sleep(2 * time.Hour) // an upload that somebody asked for stays for an hour
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
