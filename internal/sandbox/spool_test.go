package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

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
		p := newSpool(new(atomic.Int64), fd, "exec-x.stdout")
		p.whole = rapid.Int64Range(1000, 3000).Draw(rt, "segment")
		cut := make(chan struct{})
		var end, taken int64
		reader := spoolReader{p: p, file: -1}
		defer reader.close()
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				n := rapid.Int64Range(0, 4000).Draw(rt, "n")
				p.write(written(end, n), cut)
				end += n
			},
			"take": func(rt *rapid.T) {
				offset := rapid.Int64Range(-1, end+5).Draw(rt, "offset")
				p.take(offset)
				taken = max(taken, min(offset, end))
			},
			"read": func(rt *rapid.T) {
				if reader.offset == end {
					return
				}
				if err := reader.wait(nil); err != nil {
					if reader.offset >= taken {
						rt.Fatalf("at %d of %d: %v", reader.offset, end, err)
					}
					reader.offset = taken
					return
				}
				buf := make([]byte, rapid.IntRange(1, 4000).Draw(rt, "buffer"))
				at := reader.offset
				n, err := reader.read(buf)
				if err != nil || n == 0 {
					if at < taken {
						reader.offset = taken
						return
					}
					rt.Fatalf("%d, %v", n, err)
				}
				if !bytes.Equal(buf[:n], written(at, int64(n))) {
					rt.Fatalf("what is at %d is not what was written", at)
				}
			},
			"": func(rt *rapid.T) {
				first, last := p.bounds()
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
		p.remove()
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
	p := newSpool(new(atomic.Int64), openDir(t, dir), "exec-x.stdout")
	cut := make(chan struct{})
	wrote := make(chan struct{})
	go func() {
		p.write(written(0, 600<<10), cut)
		close(wrote)
	}()
	testwait.Within(t, patience, "nothing fits", func() bool { return p.size() > 0 })
	select {
	case <-wrote:
		t.Fatal("600 kB fit into 100")
	case <-time.After(100 * time.Millisecond):
	}
	must(t, os.Remove(ballast))
	<-wrote
	if _, end := p.bounds(); end != 600<<10 || p.lostBytes() != 0 {
		t.Errorf("%d, lost %d", end, p.lostBytes())
	}
	must(t, os.WriteFile(ballast, make([]byte, 400<<10), 0o600))
	close(cut)
	p.write(written(600<<10, 1<<20), cut)
	if _, end := p.bounds(); end+p.lostBytes() != 600<<10+1<<20 || p.lostBytes() == 0 {
		t.Errorf("%d, lost %d", end, p.lostBytes())
	}
}

// TestSpoolsFull: when the spools of others hold all that may be held, a program waits until they hold less.
func TestSpoolsFull(t *testing.T) {
	all := new(atomic.Int64)
	all.Store(initwire.SpoolsLimit)
	p := newSpool(all, openDir(t, t.TempDir()), "exec-x.stdout")
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

// TestDetached: goes on without a client, and its output can be had from any offset, as often as wanted, while and after it runs.
func TestDetached(t *testing.T) {
	b := plain(t)
	gate := filepath.Join(b.dir, "gate")
	must(t, syscall.Mkfifo(gate, 0o600))
	x := b.exec(&initwire.Exec{ID: "d", Detached: true, Command: []string{
		"sh", "-c", "echo first; echo err >&2; read x <" + gate + "; echo second; exit 6"}})
	if x.Started.ID != "d" || x.Started.At == 0 {
		t.Errorf("%+v", x.Started)
	}
	var seen [2]string
	for seen[0] != "first\n" || seen[1] != "err\n" {
		kind, data, _, err := x.Next()
		must(t, err)
		seen[kind-initwire.KindStdout] += string(data)
	}
	must(t, x.Close())
	again := b.attach(&initwire.Attach{ID: "d"})
	later := b.attach(&initwire.Attach{ID: "d", StdoutOffset: 2, StderrOffset: 4})
	if !b.running("d") {
		t.Error("ended with its client")
	}
	must(t, os.WriteFile(gate, []byte("\n"), 0))
	if h, err := listen(again); err != nil || h.stdout != "first\nsecond\n" || h.stderr != "err\n" || h.ended.Exit != 6 || h.ended.Why != "" {
		t.Errorf("%+v, %v", h, err)
	}
	if h, err := listen(later); err != nil || h.stdout != "rst\nsecond\n" || h.stderr != "" || h.ended.Exit != 6 {
		t.Errorf("%+v, %v", h, err)
	}
	if h, err := listen(b.attach(&initwire.Attach{ID: "d", StdoutOffset: initwire.FromKept, StderrOffset: initwire.FromKept})); err != nil || !strings.HasSuffix(h.stdout, "second\n") || h.stderr != "" {
		t.Errorf("after its end: %+v, %v", h, err)
	}
	_, err := initwire.AttachExec(t.Context(), b.dial(), &initwire.Attach{ID: "d", StdoutOffset: 14})
	var failed *initwire.Failed
	if !errors.As(err, &failed) || failed.Reason != initwire.ReasonOutputGone || !strings.Contains(failed.Message, "14") {
		t.Errorf("past its end: %v", err)
	}
	// All is taken: nothing is kept, but how it ended.
	h, err := listen(b.attach(&initwire.Attach{ID: "d", StdoutOffset: 13, StderrOffset: 4}))
	if err != nil || h.stdout+h.stderr != "" || h.ended.Exit != 6 {
		t.Errorf("%+v, %v", h, err)
	}
	if left, _ := filepath.Glob(filepath.Join(b.dir, "exec-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	_, err = initwire.AttachExec(t.Context(), b.dial(), &initwire.Attach{ID: "d"})
	if !errors.As(err, &failed) || failed.Reason != initwire.ReasonOutputGone {
		t.Errorf("from what is gone: %v", err)
	}
}

// TestDetachedStdin: whoever attaches may go on typing.
func TestDetachedStdin(t *testing.T) {
	b := plain(t)
	for _, tty := range []bool{false, true} {
		id := fmt.Sprintf("typed-%v", tty)
		x := b.exec(&initwire.Exec{ID: id, Detached: true, Stdin: true, TTY: tty, Command: []string{"sh", "-c", "test -t 0 && stty -echo -onlcr; echo up; cat; echo over"}})
		if _, data, _, err := x.Next(); err != nil || string(data) != "up\n" {
			t.Fatalf("%q, %v", data, err)
		}
		must(t, x.WriteStdin([]byte("one\n")))
		if _, data, _, err := x.Next(); err != nil || string(data) != "one\n" {
			t.Fatalf("%q, %v", data, err)
		}
		must(t, x.Close())
		mute := b.attach(&initwire.Attach{ID: id, StdoutOffset: 7})
		must(t, mute.WriteStdin([]byte("not heard\n")))
		x = b.attach(&initwire.Attach{ID: id, StdoutOffset: 7, Stdin: true})
		must(t, x.WriteStdin([]byte("two\n")))
		must(t, x.CloseStdin())
		for _, x := range []*initwire.Execution{x, mute} {
			if h, err := listen(x); err != nil || h.stdout != "two\nover\n" || h.ended.Exit != 0 {
				t.Errorf("tty %v: %+v, %v", tty, h, err)
			}
		}
	}
}

// TestDetachedFull: the spool bounds what is kept, then the program waits until it is said that something was taken; not an byte is lost.
func TestDetachedFull(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 100 MB")
	}
	const size = 100 << 20
	b := plain(t)
	x := b.exec(&initwire.Exec{ID: "full", Detached: true, Command: []string{"head", "-c", strconv.Itoa(size), "/dev/zero"}})
	must(t, x.Close())
	kept := func() (n int64) {
		files, _ := filepath.Glob(filepath.Join(b.dir, "exec-full.stdout.*"))
		for _, f := range files {
			if info, err := os.Stat(f); err == nil {
				n += info.Size()
			}
		}
		return n
	}
	testwait.Within(t, patience, "the spool does not fill", func() bool { return kept() >= initwire.SpoolLimit })
	time.Sleep(200 * time.Millisecond)
	if n := kept(); n > initwire.SpoolLimit+initwire.MaxBytes || !b.running("full") {
		t.Fatalf("%d bytes are kept, it runs: %v", n, b.running("full"))
	}
	x = b.attach(&initwire.Attach{ID: "full", Stdin: false})
	var got, said int64
	for {
		_, data, ended, err := x.Next()
		must(t, err)
		if ended != nil {
			if ended.Exit != 0 || ended.Lost != 0 {
				t.Errorf("%+v", ended)
			}
			break
		}
		got += int64(len(data))
		if got-said >= 8<<20 {
			must(t, x.Taken(got, 0))
			said = got
		}
		if n := kept(); n > initwire.SpoolLimit+8<<20 {
			t.Fatalf("%d bytes are kept", n)
		}
	}
	if got != size {
		t.Errorf("%d bytes of %d", got, size)
	}
}

// TestDetachedKilled: what it printed before it was killed is all there, and so is how it ended.
func TestDetachedKilled(t *testing.T) {
	b := plain(t)
	x := b.exec(&initwire.Exec{ID: "k", Detached: true, Command: []string{"sh", "-c", "echo one; echo two >&2; kill -9 $$"}})
	must(t, x.Close())
	h, err := listen(b.attach(&initwire.Attach{ID: "k"}))
	if err != nil || h.stdout != "one\n" || h.stderr != "two\n" || h.ended.Signal != 9 {
		t.Errorf("%+v, %v", h, err)
	}
	x = b.exec(&initwire.Exec{ID: "slow", Detached: true, Timeout: 100 * time.Millisecond, Command: []string{"sh", "-c", "echo one; sleep 100000"}})
	must(t, x.Close())
	h, err = listen(b.attach(&initwire.Attach{ID: "slow"}))
	if err != nil || h.stdout != "" && h.stdout != "one\n" || !h.ended.TimedOut {
		t.Errorf("%+v, %v", h, err)
	}
}
