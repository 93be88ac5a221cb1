package output

import (
	"bytes"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/sandbox/sandboxtest"
	"github.com/musterhq/muster/internal/testwait"
	initwire "github.com/musterhq/muster/internal/wire/init"
	"pgregory.net/rapid"
)

// TestSpool: whatever is written, read and taken in whatever order, what is kept is
// all that was not taken, in segments of bounded size.
func TestSpool(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "spool-")
		must(t, err)
		defer func() { _ = os.RemoveAll(dir) }()
		fd, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
		must(t, err)
		defer func() { _ = syscall.Close(fd) }()
		p := NewSpool(new(atomic.Int64), fd, "exec-x.stdout")
		p.whole = rapid.Int64Range(1000, 3000).Draw(rt, "segment")
		cut := make(chan struct{})
		var end, taken int64
		reader := p.Reader(0)
		defer reader.Close()
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				n := rapid.Int64Range(0, 4000).Draw(rt, "n")
				p.Write(sandboxtest.Written(end, n), cut)
				end += n
			},
			"take": func(rt *rapid.T) {
				offset := rapid.Int64Range(-1, end+5).Draw(rt, "offset")
				p.Take(offset)
				taken = max(taken, min(offset, end))
			},
			"read": func(rt *rapid.T) {
				if reader.offset == end {
					return
				}
				if err := reader.Wait(nil); err != nil {
					if reader.offset >= taken {
						rt.Fatalf("at %d of %d: %v", reader.offset, end, err)
					}
					reader.offset = taken
					return
				}
				buf := make([]byte, rapid.IntRange(1, 4000).Draw(rt, "buffer"))
				at := reader.offset
				n, err := reader.Read(buf)
				if err != nil || n == 0 {
					if at < taken {
						reader.offset = taken
						return
					}
					rt.Fatalf("%d, %v", n, err)
				}
				if !bytes.Equal(buf[:n], sandboxtest.Written(at, int64(n))) {
					rt.Fatalf("what is at %d is not what was written", at)
				}
			},
			"": func(rt *rapid.T) {
				first, last := p.Bounds()
				if last != end || first > taken && end > taken || taken-first > 2*p.whole {
					rt.Fatalf("keeps %d to %d of %d, taken %d", first, last, end, taken)
				}
				var size int64
				entries, err := os.ReadDir(dir)
				must(t, err)
				for _, f := range entries {
					info, err := f.Info()
					must(t, err)
					if info.Size() > p.whole {
						rt.Fatalf("%s has %d bytes", f.Name(), info.Size())
					}
					size += info.Size()
				}
				if p.all.Load() != size {
					rt.Fatalf("%d bytes are counted, %d are on disk", p.all.Load(), size)
				}
				if size != end-first {
					rt.Fatalf("%d bytes on disk, %d to %d are kept", size, first, end)
				}
			},
		})
		if p.file >= 0 {
			_ = syscall.Close(p.file)
		}
		p.update(func() { p.finished = true })
		p.Remove()
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
			rt.Fatalf("left: %v, %v", entries, err)
		}
	})
}

// TestSpoolFullDisk: the program waits for the disk, and nothing is lost.
func TestSpoolFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small disk needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	ballast := filepath.Join(dir, "ballast")
	must(t, os.WriteFile(ballast, make([]byte, 900<<10), 0o600))
	p := NewSpool(new(atomic.Int64), sandboxtest.OpenDir(t, dir), "exec-x.stdout")
	cut := make(chan struct{})
	wrote := make(chan struct{})
	go func() {
		p.Write(sandboxtest.Written(0, 600<<10), cut)
		close(wrote)
	}()
	testwait.Within(t, sandboxtest.Patience, "nothing fits", func() bool { return p.Size() > 0 })
	select {
	case <-wrote:
		t.Fatal("600 kB fit into 100")
	case <-time.After(100 * time.Millisecond):
	}
	must(t, os.Remove(ballast))
	<-wrote
	if _, end := p.Bounds(); end != 600<<10 || p.Lost() != 0 {
		t.Errorf("%d, lost %d", end, p.Lost())
	}
	must(t, os.WriteFile(ballast, make([]byte, 400<<10), 0o600))
	close(cut)
	p.Write(sandboxtest.Written(600<<10, 1<<20), cut)
	if _, end := p.Bounds(); end+p.Lost() != 600<<10+1<<20 || p.Lost() == 0 {
		t.Errorf("%d, lost %d", end, p.Lost())
	}
}

// TestSpoolsFull: when the spools of others hold all that may be held, a program waits until they hold less.
func TestSpoolsFull(t *testing.T) {
	all := new(atomic.Int64)
	all.Store(initwire.SpoolsLimit)
	p := NewSpool(all, sandboxtest.OpenDir(t, t.TempDir()), "exec-x.stdout")
	room := make(chan bool)
	go func() { room <- p.waitForRoom(nil) }()
	select {
	case <-room:
		t.Fatal("there was room")
	case <-time.After(50 * time.Millisecond):
	}
	all.Add(-1)
	if !<-room {
		t.Error("no room")
	}
	// The little that is left at the end is kept whatever there is.
	all.Store(initwire.SpoolsLimit)
	cut := make(chan struct{})
	close(cut)
	if !p.waitForRoom(cut) {
		t.Error("no room for the rest")
	}
}
