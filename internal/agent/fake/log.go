package fake

import (
	"io"
	"sync"

	"github.com/musterhq/muster/internal/agent/contract"
)

// Pattern is the byte that "print" prints at an offset of what it prints: a repeated "abcdefg\n".
func Pattern(offset int64) byte { return "abcdefg\n"[offset%8] }

// log is one stream.
type log struct {
	limit int64

	mu    sync.Mutex
	start int64
	kept  []byte
}

func (l *log) write(p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, p...)
	if over := int64(len(l.kept)) - l.limit; l.limit > 0 && over > 0 {
		l.start += over
		l.kept = l.kept[over:] // the next append that finds no room copies only these
	}
}

func (l *log) print(n int) {
	buf := make([]byte, 64<<10) // a multiple of the pattern
	for i := range buf {
		buf[i] = Pattern(int64(i))
	}
	for n > 0 {
		part := min(n, len(buf))
		l.write(buf[:part])
		n -= part
	}
}

func (l *log) Bounds() (start, end int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start, l.start + int64(len(l.kept)), nil
}

func (l *log) ReadAt(p []byte, offset int64) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset >= l.start+int64(len(l.kept)) {
		return 0, io.EOF
	}
	if offset < l.start {
		return 0, contract.ErrOutputDropped
	}
	return copy(p, l.kept[offset-l.start:]), nil
}
