package muster

import (
	"testing"
	"unicode/utf8"
)

func TestTruncate(t *testing.T) {
	for _, c := range []struct {
		s    string
		most int
		want string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc…"}, {"aäö", 4, "aä…"}, {"ääö", 3, "ä…"},
		{"a\xffb", 9, "a?b"}, {"ab\xe2\x82", 9, "ab?"}, {"\x80\x80\x80\x80\x80\x80\x80\x80", 6, "?…"}, {"x€€", 3, "x…"}, {"x😀😀", 4, "x…"},
	} {
		if got := Truncate(c.s, c.most); got != c.want || !utf8.ValidString(got) {
			t.Errorf("Truncate(%q, %d) = %q, want %q", c.s, c.most, got, c.want)
		}
	}
}
