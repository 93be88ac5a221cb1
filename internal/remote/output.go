package remote

import (
	"fmt"
	"sync"
)

// excerpt keeps the first and the last bytes of what is written to it, at most limit of them.
type excerpt struct {
	limit int

	mu   sync.Mutex
	head []byte
	tail []byte // a ring of limit/2 bytes; next says where its oldest byte is
	next int
	all  int64
}

// Write never fails: a command that says too much goes on.
func (e *excerpt) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all += int64(len(p))
	written := len(p)
	if room := e.limit - e.limit/2 - len(e.head); room > 0 {
		n := min(room, len(p))
		e.head = append(e.head, p[:n]...)
		p = p[n:]
	}
	most := e.limit / 2
	if len(p) > most {
		p = p[len(p)-most:]
	}
	for len(p) > 0 {
		if len(e.tail) < most {
			n := min(most-len(e.tail), len(p))
			e.tail = append(e.tail, p[:n]...)
			p = p[n:]
			continue
		}
		n := copy(e.tail[e.next:], p)
		e.next = (e.next + n) % most
		p = p[n:]
	}
	return written, nil
}

// kept is what was kept, and how many bytes are missing between its head and its tail.
func (e *excerpt) kept() (head, tail []byte, missing int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	head = append([]byte(nil), e.head...)
	tail = append(append([]byte(nil), e.tail[e.next:]...), e.tail[:e.next]...)
	return head, tail, e.all - int64(len(head)) - int64(len(tail))
}

// bytes is all of it, with a mark where something is missing.
func (e *excerpt) bytes() ([]byte, int64) {
	head, tail, missing := e.kept()
	if missing > 0 {
		head = fmt.Appendf(head, "[… %d bytes left out …]", missing)
	}
	return append(head, tail...), missing
}

func (e *excerpt) String() string {
	b, _ := e.bytes()
	return string(b)
}
