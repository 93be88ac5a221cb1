package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// screen keeps apart what members print, what we say, and the progress bar. What
// members print goes to stdout and stderr as it came; the rest to stderr. Its mutex is held while
// it writes: a slow reader of ours is to slow down the readers of output.
type screen struct {
	mu      sync.Mutex
	stdout  io.Writer
	stderr  io.Writer
	outTerm bool
	errTerm bool

	bar     string // on the terminal's last line, while errTerm
	drawn   bool
	midline bool // a member has begun a line on the terminal that it has not ended
}

func newScreen(stdout, stderr io.Writer) *screen {
	return &screen{stdout: stdout, stderr: stderr, outTerm: isTerminal(stdout), errTerm: isTerminal(stderr)}
}

// stream is where a member's stdout or stderr is written.
func (s *screen) stream(name string) io.Writer {
	if name == "stderr" {
		return writerFunc(func(p []byte) (int, error) { return s.write(s.stderr, s.errTerm, p) })
	}
	return writerFunc(func(p []byte) (int, error) { return s.write(s.stdout, s.outTerm, p) })
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func (s *screen) write(w io.Writer, terminal bool, p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if terminal {
		s.eraseLocked()
	}
	n, err := w.Write(p)
	if terminal && len(p) > 0 {
		s.midline = p[len(p)-1] != '\n'
		s.drawLocked()
	}
	return n, err
}

// say tells the user something, on a line of its own.
func (s *screen) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eraseLocked()
	if s.midline {
		_, _ = io.WriteString(s.stderr, "\n")
		s.midline = false
	}
	_, _ = fmt.Fprintf(s.stderr, "muster: %s\n", clean(fmt.Sprintf(format, args...)))
	s.drawLocked()
}

// setBar changes the line of progress; "" takes it away. Without a terminal there is none.
func (s *screen) setBar(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.errTerm || text == s.bar && s.drawn {
		return
	}
	s.eraseLocked()
	s.bar = clean(text)
	s.drawLocked()
}

func (s *screen) eraseLocked() {
	if s.drawn {
		_, _ = io.WriteString(s.stderr, "\r\x1b[K")
		s.drawn = false
	}
}

func (s *screen) drawLocked() {
	if s.bar == "" || !s.errTerm || s.midline || s.drawn {
		return
	}
	line := []rune(s.bar)
	if f, ok := s.stderr.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 1 && len(line) >= width {
			line = line[:width-1] // a line that wraps could not be erased
		}
	}
	_, _ = io.WriteString(s.stderr, string(line))
	s.drawn = true
}

// prefixed writes whole lines with a prefix, so that those of many members can be told apart.
type prefixed struct {
	w      io.Writer
	prefix string
	begun  []byte // a line without its end
}

// maxLine is how long a line may become before it is cut in two.
const maxLine = 64 << 10

func (p *prefixed) Write(b []byte) (int, error) {
	n := len(b)
	var out bytes.Buffer
	for len(b) > 0 {
		end := bytes.IndexByte(b, '\n')
		if end < 0 && len(p.begun)+len(b) < maxLine {
			p.begun = append(p.begun, b...)
			break
		}
		part, rest := b, []byte(nil)
		if end >= 0 {
			part, rest = b[:end], b[end+1:]
		}
		if room := maxLine - len(p.begun); len(part) > room {
			part, rest = b[:room], b[room:]
		}
		out.WriteString(p.prefix)
		out.Write(p.begun)
		out.Write(part)
		out.WriteByte('\n')
		p.begun, b = p.begun[:0], rest
	}
	if out.Len() > 0 {
		if _, err := p.w.Write(out.Bytes()); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// end writes a last line that has no end.
func (p *prefixed) end() error {
	if len(p.begun) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(p.w, "%s%s\n", p.prefix, p.begun)
	p.begun = nil
	return err
}

// barText draws how far a job is.
func barText(done, failed, running, waiting, count int, note string) string {
	const width = 24
	filled := 0
	if count > 0 {
		filled = min(width, width*(done+failed)/count)
	}
	s := fmt.Sprintf("[%s%s] %d/%d", strings.Repeat("#", filled), strings.Repeat("-", width-filled), done+failed, count)
	for _, part := range []struct {
		n    int
		what string
	}{{running, "running"}, {waiting, "waiting"}, {failed, "failed"}} {
		if part.n > 0 {
			s += fmt.Sprintf(", %d %s", part.n, part.what)
		}
	}
	if note != "" {
		s += "  " + note
	}
	return s
}
