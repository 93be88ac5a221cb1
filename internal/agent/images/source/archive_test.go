package source

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/failure"
)

// What is named as an archive and is none is not even opened: a device may do something then.
func TestArchiveOpensFilesOnly(t *testing.T) {
	dir := t.TempDir()
	pipe, link := dir+"/pipe", dir+"/link"
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(pipe, link); err != nil {
		t.Fatal(err)
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Skip("watching for opens:", err)
	}
	defer func() { _ = unix.Close(watch) }()
	if _, err := unix.InotifyAddWatch(watch, pipe, unix.IN_OPEN); err != nil {
		t.Skip("watching for opens:", err)
	}
	opened := func() bool {
		_, err := unix.Read(watch, make([]byte, 4096))
		return err == nil
	}
	for _, path := range []string{pipe, link} {
		a, err := OpenArchive(context.Background(), path, dir, roomy{})
		if err == nil {
			a.Close()
		}
		if !failure.Is(err, muster.FailureUser) || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", path, err)
		}
		if opened() {
			t.Errorf("%s was opened", path)
		}
	}
	f, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if !opened() {
		t.Error("the watch sees nothing")
	}
	if _, err := OpenArchive(context.Background(), dir+"/none", dir, roomy{}); !failure.IsNotFound(err) {
		t.Errorf("a name of nothing: %v", err)
	}
	if err := os.WriteFile(dir+"/file", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err = openRegular(dir + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if b, err := io.ReadAll(f); string(b) != "x" || err != nil {
		t.Errorf("a file has %q, %v", b, err)
	}
}

// roomy has room for everything.
type roomy struct{}

func (roomy) Reserve(context.Context, int64) error { return nil }
func (roomy) Piece() int64                         { return 1 << 20 }
