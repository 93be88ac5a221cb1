package specfile

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Error is all that is wrong with a file.
type Error struct {
	File     string
	Problems []Problem
}

// Problem is one thing that is wrong.
type Problem struct {
	// Line and Column count from 1, the column in characters; 0 where no place can be named.
	Line, Column int
	// Path of the field, as "inputs[2].path"; "" where it is none.
	Path    string
	Message string
	// Text is the line, shortened around the column if it is long; Caret is where in it the
	// column is, in characters from 0. Width is how many characters are meant.
	Text  string
	Caret int
	Width int
}

// maxShown bounds how many problems an error prints.
const maxShown = 20

// Error prints each problem as file:line:column: field message, with the line and a caret below.
func (e *Error) Error() string {
	var b strings.Builder
	for i, p := range e.Problems {
		if i == maxShown {
			fmt.Fprintf(&b, "\n%s: and %d more", e.File, len(e.Problems)-maxShown)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		p.print(&b, e.File)
	}
	return b.String()
}

func (p *Problem) print(b *strings.Builder, file string) {
	b.WriteString(file)
	if p.Line > 0 {
		fmt.Fprintf(b, ":%d:%d", p.Line, p.Column)
	}
	b.WriteString(": ")
	if p.Path != "" {
		b.WriteString(printable(p.Path) + " ")
	}
	b.WriteString(p.Message)
	if p.Text == "" {
		return
	}
	number := fmt.Sprintf("%4d", p.Line)
	fmt.Fprintf(b, "\n%s | %s\n%s | %s%s", number, p.Text, strings.Repeat(" ", len(number)), strings.Repeat(" ", p.Caret), strings.Repeat("^", max(p.Width, 1)))
}

// source is the file that is read.
type source struct {
	name string
	data []byte
	yaml bool // it is read as YAML, which ends lines by more than \n
}

// starts are the offsets at which lines begin.
func (s *source) starts() []int {
	out := []int{0}
	for i := 0; i < len(s.data); i++ {
		switch c := s.data[i]; {
		case c == '\n':
			out = append(out, i+1)
		case !s.yaml || c < 0x80 && c != '\r':
		case c == '\r':
			if i+1 == len(s.data) || s.data[i+1] != '\n' {
				out = append(out, i+1)
			}
		case bytes.HasPrefix(s.data[i:], []byte("\u0085")):
			out = append(out, i+2)
		case bytes.HasPrefix(s.data[i:], []byte("\u2028")), bytes.HasPrefix(s.data[i:], []byte("\u2029")):
			out = append(out, i+3)
		}
	}
	return out
}

// line is the n-th line, from 1, without its end.
func (s *source) line(starts []int, n int) []byte {
	if n < 1 || n > len(starts) {
		return nil
	}
	end := len(s.data)
	if n < len(starts) {
		end = starts[n]
	}
	return bytes.TrimRight(s.data[starts[n-1]:end], "\r\n\u0085\u2028\u2029")
}

// position is the line and column of an offset.
func (s *source) position(offset int) (line, column int) {
	offset = min(max(offset, 0), len(s.data))
	starts := s.starts()
	line = sort.SearchInts(starts, offset+1)
	return line, utf8.RuneCount(s.data[starts[line-1]:offset]) + 1
}

// fail makes the error of problems in the order of the file, each with its line.
func (s *source) fail(problems ...Problem) *Error {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	starts := s.starts()
	for i := range problems[:min(len(problems), maxShown)] {
		problems[i].show(s.line(starts, problems[i].Line))
	}
	return &Error{File: s.name, Problems: problems}
}

// show cuts the line around the problem's column.
func (p *Problem) show(line []byte) {
	const before, most = 60, 100
	if len(line) == 0 {
		return
	}
	rest := line
	skip := 0
	for ; skip < p.Column-1-before && len(rest) > 0; skip++ {
		_, n := utf8.DecodeRune(rest)
		rest = rest[n:]
	}
	var text strings.Builder
	shown := 0
	for ; shown < most && len(rest) > 0; shown++ {
		r, n := utf8.DecodeRune(rest)
		text.WriteRune(plain(r))
		rest = rest[n:]
	}
	p.Text = strings.TrimRight(text.String(), " ")
	p.Caret = max(p.Column-1-skip, 0)
	if skip > 0 {
		p.Text, p.Caret = "…"+p.Text, p.Caret+1
	}
	if len(rest) > 0 {
		p.Text += "…"
	}
	p.Width = max(1, min(p.Width, utf8.RuneCountInString(p.Text)-p.Caret))
}

// plain is a character that takes one place and moves no cursor.
func plain(r rune) rune {
	switch {
	case r == '\t' || r == '\r':
		return ' '
	case r == utf8.RuneError || !unicode.IsPrint(r):
		return '·'
	}
	return r
}

func printable(s string) string { return strings.Map(plain, s) }
