package output

import (
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for what must happen; the machine may be busy.
const patience = 2 * time.Minute

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openDir(t testing.TB, dir string) int {
	t.Helper()
	fd, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	return fd
}

// written is what the tests write from an offset of a stream on.
func written(offset, n int64) []byte {
	b := make([]byte, n)
	for i := range b {
		at := offset + int64(i)
		b[i] = byte(at ^ at>>8 ^ at>>16)
	}
	return b
}
