package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/sandbox/sandboxtest"
	"github.com/musterhq/muster/internal/testwait"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

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
	testwait.Within(t, sandboxtest.Patience, "the spool does not fill", func() bool { return kept() >= initwire.SpoolLimit })
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
