package sandboxtest

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Pair are the two ends of a connection, neither of which blocks.
func Pair(t testing.TB) (a, b *os.File) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fds[0]), "client"), os.NewFile(uintptr(fds[1]), "init")
}

// WantCode checks the code of an error and that it names the path.
func WantCode(t testing.TB, what string, err error, code, path string) {
	t.Helper()
	var wrong *initwire.FileError
	if code == "" {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		return
	}
	if !errors.As(err, &wrong) || wrong.Code != code || wrong.Path != path || wrong.Message == "" {
		t.Errorf("%s: %#v, want %s of %q", what, err, code, path)
	}
}

// ReaderFunc is a reader whose Read is the function itself.
type ReaderFunc func([]byte) (int, error)

// Read calls f.
func (f ReaderFunc) Read(p []byte) (int, error) { return f(p) }

// ListenOn listens until the end of the test, and says on which port. It skips the test where the
// address cannot be had.
func ListenOn(t testing.TB, network, address string) (*net.TCPListener, int) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Skipf("listen on %s: %v", address, err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.(*net.TCPListener), l.Addr().(*net.TCPAddr).Port
}

// Patience is how long a test waits for what must happen; the machine may be busy.
const Patience = 2 * time.Minute

// Endpoint makes an endpoint of a file that does not block.
func Endpoint(t testing.TB, f *os.File) *system.Endpoint {
	t.Helper()
	l, err := system.EndpointOf(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Written are n bytes of a stream from an offset on. Each byte follows from its offset, so that a
// test sees what was lost or moved.
func Written(offset, n int64) []byte {
	b := make([]byte, n)
	for i := range b {
		at := offset + int64(i)
		b[i] = byte(at ^ at>>8 ^ at>>16)
	}
	return b
}

// OpenDir opens a directory until the end of the test.
func OpenDir(t testing.TB, dir string) int {
	t.Helper()
	fd, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	return fd
}
