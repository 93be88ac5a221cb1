package muster

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Counted is a number of things for a sentence: 1 node, 3 nodes. The noun is in the singular and takes an s.
func Counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Because appends a reason to a sentence, as ": why". It is empty without a reason.
func Because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// Truncate is s as valid UTF-8. Of a longer text it has the first most bytes, cut between two characters, and an ellipsis.
func Truncate(s string, most int) string {
	if len(s) > most {
		cut := most
		for cut > most-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}

// Invisible reports whether a character changes how the text around it is shown without being seen itself: marks of
// direction, of width zero, and separators of lines. Text of others that people read has none of them. What joins
// characters of one script or emoji (U+200C, U+200D) is left alone.
func Invisible(r rune) bool {
	switch r {
	case '\u200c', '\u200d':
		return false
	}
	return unicode.In(r, unicode.Bidi_Control, unicode.Cf, unicode.Zl, unicode.Zp)
}
