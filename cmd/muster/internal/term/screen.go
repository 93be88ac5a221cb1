package term

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Screen keeps apart three things on one terminal: what members print, what muster says, and the
// line of progress. What members print goes to stdout and stderr as it came; the rest goes to
// stderr.
//
// The mutex is held while it writes. A slow reader of ours is meant to slow down the readers of
// output: else what was not read yet would pile up here.
type Screen struct {
	mu      sync.Mutex
	stdout  io.Writer
	stderr  io.Writer
	outTerm bool
	errTerm bool

	bar     string // on the terminal's last line, while errTerm
	drawn   bool
	midline bool // a member has begun a line on the terminal that it has not ended
}

// NewScreen returns a screen on two writers. Each may be a terminal or not.
func NewScreen(stdout, stderr io.Writer) *Screen {
	return &Screen{stdout: stdout, stderr: stderr, outTerm: IsTerminal(stdout), errTerm: IsTerminal(stderr)}
}

// Stream is where a member's output is written: "stderr" goes to stderr, every other name to
// stdout.
func (s *Screen) Stream(name string) io.Writer {
	if name == "stderr" {
		return writerFunc(func(p []byte) (int, error) { return s.write(s.stderr, s.errTerm, p) })
	}
	return writerFunc(func(p []byte) (int, error) { return s.write(s.stdout, s.outTerm, p) })
}

// HasBar reports whether there is a line of progress. There is one on a terminal only: in a file,
// each change would be one more line.
func (s *Screen) HasBar() bool { return s.errTerm }

// writerFunc makes a writer of a function.
type writerFunc func(p []byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// write passes output on. The bar is taken off before and drawn again after it, but not in the
// middle of a line of output: there it would become part of that line.
func (s *Screen) write(w io.Writer, terminal bool, p []byte) (int, error) {
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

// Say tells the user something, on a line of its own that begins with "muster: ". It ends a line of
// output that has no end yet.
func (s *Screen) Say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eraseLocked()
	if s.midline {
		_, _ = io.WriteString(s.stderr, "\n")
		s.midline = false
	}
	_, _ = fmt.Fprintf(s.stderr, "muster: %s\n", Clean(fmt.Sprintf(format, args...)))
	s.drawLocked()
}

// SetBar changes the line of progress; "" takes it away. Nothing happens if there is no terminal.
func (s *Screen) SetBar(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.errTerm || text == s.bar && s.drawn {
		return
	}
	s.eraseLocked()
	s.bar = Clean(text)
	s.drawLocked()
}

// eraseLocked takes the bar off the terminal. Its text is kept, to be drawn again.
func (s *Screen) eraseLocked() {
	if s.drawn {
		_, _ = io.WriteString(s.stderr, "\r\x1b[K")
		s.drawn = false
	}
}

// drawLocked draws the bar, cut to the width of the terminal: a line that wraps could not be
// erased, because the terminal erases one row only.
func (s *Screen) drawLocked() {
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

// Remaining estimates how long the rest takes, from how long a part of it took; "" before there is
// something to estimate from.
func Remaining(part, rest int64, took time.Duration) string {
	if part <= 0 || rest <= 0 || took < 2*time.Second {
		return ""
	}
	left := time.Duration(float64(took) / float64(part) * float64(rest))
	return "ETA " + Brief(max(left, time.Second).Truncate(time.Second))
}

// Percent is how much of all is done. It is 100 only at the end.
func Percent(done, all int64) string {
	if all <= 0 {
		return ""
	}
	return fmt.Sprintf("%d%%", int64(float64(done)/float64(all)*100))
}

// ProgressBar draws how far a job is: members that are done of all, then how many run, wait and
// failed. The note stands behind it.
func ProgressBar(done, failed, running, waiting, count int, note string) string {
	const width = 24
	filled := 0
	if count > 0 {
		filled = min(width, width*(done+failed)/count)
	}
	s := fmt.Sprintf("[%s%s] %s %d/%d", strings.Repeat("#", filled), strings.Repeat("-", width-filled), Percent(int64(done+failed), int64(count)), done+failed, count)
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
