package bridge

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type output struct {
	bytes.Buffer
	closed bool
}

func (o *output) Close() error { o.closed = true; return nil }

// bridged runs a bridge to a socket that serve serves.
func bridged(t *testing.T, in io.Reader, serve func(*net.UnixConn)) (*output, *output, error) {
	t.Helper()
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		serve(c.(*net.UnixConn))
	}()
	var stdout, stderr output
	err = Run(t.Context(), filepath.Join(dir, "s"), in, &stdout, &stderr)
	<-served
	return &stdout, &stderr, err
}

// The other side may end first and still listen.
func TestOtherSideEndsFirst(t *testing.T) {
	r, w := io.Pipe()
	var heard []byte
	stdout, stderr, err := bridged(t, r, func(c *net.UnixConn) {
		_, _ = c.Write([]byte("all"))
		_ = c.CloseWrite()
		_, _ = w.Write([]byte("more"))
		_ = w.Close()
		heard, _ = io.ReadAll(c)
		_ = c.Close()
	})
	if err != nil || stdout.String() != Greeting+"all" || stderr.Len() != 0 || string(heard) != "more" || !stdout.closed || !stderr.closed {
		t.Errorf("%q %q %q %v", stdout, stderr, heard, err)
	}
}

// When it closes altogether, nothing of ours keeps the bridge up.
func TestOtherSideCloses(t *testing.T) {
	r, w := io.Pipe()
	defer func() { _ = w.Close() }()
	stdout, _, err := bridged(t, r, func(c *net.UnixConn) {
		_, _ = c.Write([]byte("all"))
		_ = c.Close()
	})
	_ = r.Close()
	if err != nil || stdout.String() != Greeting+"all" {
		t.Errorf("%q %v", stdout, err)
	}
}

func TestExit(t *testing.T) {
	dir := t.TempDir()
	err := Run(context.Background(), filepath.Join(dir, "none"), nil)
	if Exit(err) != ExitMissing {
		t.Errorf("%d for %v", Exit(err), err)
	}
	if Exit(nil) != 0 || Exit(io.EOF) != 1 || Exit(os.ErrPermission) != ExitDenied {
		t.Error(Exit(nil), Exit(io.EOF), Exit(os.ErrPermission))
	}
}
