package term

import (
	"bytes"
	"strings"
	"testing"
)

func TestPrefixedLines(t *testing.T) {
	var out bytes.Buffer
	p := NewPrefixed(&out, "[7] ")
	long := strings.Repeat("x", maxLine+10)
	for _, part := range []string{"a", "b\nc\n", "\n", long, "\n", "end"} {
		if n, err := p.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := p.End(); err != nil {
		t.Fatal(err)
	}
	want := "[7] ab\n[7] c\n[7] \n[7] " + long[:maxLine] + "\n[7] " + long[maxLine:] + "\n[7] end\n"
	if out.String() != want {
		t.Errorf("%d bytes, want %d", out.Len(), len(want))
	}
}

func TestScreenKeepsTheBarApart(t *testing.T) {
	var both bytes.Buffer
	s := &Screen{stdout: &both, stderr: &both, outTerm: true, errTerm: true}
	s.SetBar("1 of 2")
	s.SetBar("1 of 2")
	_, _ = s.Stream("stdout").Write([]byte("hel"))
	s.SetBar("2 of 2") // not in the middle of a line
	_, _ = s.Stream("stdout").Write([]byte("lo\n"))
	s.Say("note \x1b[31m")
	s.SetBar("")
	want := "1 of 2" + "\r\x1b[K" + "hel" + "lo\n" + "2 of 2" + "\r\x1b[K" + "muster: note ·[31m\n" + "2 of 2" + "\r\x1b[K"
	if both.String() != want {
		t.Errorf("got  %q\nwant %q", both.String(), want)
	}
}
