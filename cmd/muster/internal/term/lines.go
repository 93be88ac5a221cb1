package term

import (
	"bytes"
	"fmt"
	"io"
)

// Prefixed writes whole lines with a prefix, so that the output of many members can be told apart.
// A line that comes in parts is held back until it is complete: the parts of two members must not
// meet in one line.
type Prefixed struct {
	w      io.Writer
	prefix string
	begun  []byte // a line without its end
}

// maxLine is how long a line may become before it is cut in two, in bytes. It bounds what is held
// back.
const maxLine = 64 << 10

// NewPrefixed returns a writer that puts the prefix before each line and passes lines on to w. End
// must be called after the last write.
func NewPrefixed(w io.Writer, prefix string) *Prefixed { return &Prefixed{w: w, prefix: prefix} }

// Write implements io.Writer. It passes on the lines that are complete, all with one write.
func (p *Prefixed) Write(b []byte) (int, error) {
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

// End writes a last line that has no line break, and adds one.
func (p *Prefixed) End() error {
	if len(p.begun) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(p.w, "%s%s\n", p.prefix, p.begun)
	p.begun = nil
	return err
}
