package output

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/sandbox/sandboxtest"
	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
	"pgregory.net/rapid"
)

type onDisk struct {
	offset int64
	data   []byte
}

// kept are the segments of a stream as they lie in a directory.
func kept(t testing.TB, dir string) (all []onDisk) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		offset, ok := initwire.ParseSegmentName(initwire.Stdout, e.Name())
		if !ok {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, onDisk{offset, data})
	}
	slices.SortFunc(all, func(a, b onDisk) int { return int(a.offset - b.offset) })
	return all
}

// TestStream: whatever is written in whatever pieces, what is kept is the end of
// it, without a gap, within the limit and not much less.
func TestStream(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "stream-")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		limit := rapid.Int64Range(0, 300_000).Draw(rt, "limit")
		fd, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = syscall.Close(fd) }()
		s := NewStream(fd, initwire.Stdout, limit)
		limit = max(limit, initwire.MinOutputLimit)
		end := int64(0)
		for _, n := range rapid.SliceOfN(rapid.Int64Range(0, 65536), 0, 30).Draw(rt, "writes") {
			s.write(sandboxtest.Written(end, n))
			end += n
		}
		if s.file >= 0 {
			_ = syscall.Close(s.file)
		}
		if s.end != end || s.Lost != 0 {
			rt.Fatalf("end %d of %d, lost %d", s.end, end, s.Lost)
		}
		total := int64(0)
		segments := kept(t, dir)
		for i, g := range segments {
			if len(g.data) == 0 || int64(len(g.data)) > initwire.SegmentSize(limit) {
				rt.Fatalf("segment at %d has %d bytes", g.offset, len(g.data))
			}
			if i > 0 && segments[i-1].offset+int64(len(segments[i-1].data)) != g.offset {
				rt.Fatalf("gap before %d", g.offset)
			}
			if !bytes.Equal(g.data, sandboxtest.Written(g.offset, int64(len(g.data)))) {
				rt.Fatalf("segment at %d is not what was written there", g.offset)
			}
			total += int64(len(g.data))
		}
		if total > limit || total < min(end, limit-limit/8-65536) {
			rt.Fatalf("%d bytes are kept of %d, limit %d", total, end, limit)
		}
		if len(segments) > 0 && segments[0].offset+total != end {
			rt.Fatalf("what is kept ends at %d of %d", segments[0].offset+total, end)
		}
		if end == 0 && len(segments) > 0 {
			rt.Fatal("an empty stream made a file")
		}
	})
}

// TestFullDisk: what a full disk refuses is lost and counted, nothing blocks, and
// when there is room again the stream goes on at the right offset.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small disk needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 600<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	s := NewStream(sandboxtest.OpenDir(t, dir), initwire.Stdout, 4<<20) // segments of 512 KiB
	end := int64(0)
	write := func(n int64) {
		for n > 0 {
			part := min(n, 50_000)
			s.write(sandboxtest.Written(end, part))
			end += part
			n -= part
		}
	}
	write(2 << 20)
	if s.end != end || s.Lost == 0 {
		t.Fatalf("end %d of %d, lost %d", s.end, end, s.Lost)
	}
	before := kept(t, dir)
	if len(before) == 0 {
		t.Fatal("nothing is kept")
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	lost := s.Lost
	write(200_000)
	after := kept(t, dir)
	last := after[len(after)-1]
	if s.Lost != lost || last.offset+int64(len(last.data)) != end || !bytes.Equal(last.data, sandboxtest.Written(last.offset, int64(len(last.data)))) {
		t.Errorf("lost %d more, the last segment is at %d to %d of %d", s.Lost-lost, last.offset, last.offset+int64(len(last.data)), end)
	}
	if s.end != end {
		t.Errorf("end %d of %d", s.end, end)
	}
}

// TestFollow reads a pipe until it ends, or, if somebody keeps it open, until the deadline.
func TestFollow(t *testing.T) {
	for _, closed := range []bool{true, false} {
		dir := t.TempDir()
		r, w, err := system.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		s := NewStream(sandboxtest.OpenDir(t, dir), initwire.Stdout, 1<<20)
		s.follow(r)
		if _, err := syscall.Write(w, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if closed {
			_ = syscall.Close(w)
			s.Finish(time.Now().Add(time.Hour))
		} else {
			s.Finish(time.Now().Add(100 * time.Millisecond))
			_ = syscall.Close(w)
		}
		if got := kept(t, dir); len(got) != 1 || string(got[0].data) != "hello" {
			t.Errorf("closed %v: kept %v", closed, got)
		}
	}
}
