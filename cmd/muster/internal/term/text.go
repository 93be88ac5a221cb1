package term

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/musterhq/muster"
)

// ShellWords writes a command as a shell would take it, for hints that can be copied and for
// tables. It is cut after 400 characters: some commands are whole scripts.
func ShellWords(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = w
		if w == "" || strings.ContainsFunc(w, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%", r)
		}) {
			out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	const most = 400
	if s := strings.Join(out, " "); len([]rune(s)) <= most {
		return s
	}
	return string([]rune(strings.Join(out, " "))[:most]) + "…"
}

// Reflow fills the paragraphs of a help text to 80 columns, so that the source can break its lines
// anywhere. Indented lines stay as they are: they are examples.
func Reflow(text string) string {
	const width = 80
	var out []string
	column := 0
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		if line == "" || line[0] == ' ' {
			out, column = append(out, line), 0
			continue
		}
		for _, word := range strings.Fields(line) {
			if column > 0 && column+1+len(word) <= width {
				out[len(out)-1] += " " + word
				column += 1 + len(word)
			} else {
				out, column = append(out, word), len(word)
			}
		}
	}
	return strings.Join(out, "\n")
}

// Clean takes out of a text from elsewhere what would move a terminal's cursor or change its state.
// Line breaks and tabs stay.
func Clean(s string) string {
	if !strings.ContainsFunc(s, forbidden) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if forbidden(r) {
			return '·'
		}
		return r
	}, s)
}

// OneLine is Clean for what stands in a line of a list. There a line break in a text of others
// would read as a line of its own, which says what they like.
func OneLine(s string) string { return breaks.Replace(Clean(s)) }

// breaks shows where a line break or a tab was.
var breaks = strings.NewReplacer("\n", "·", "\t", "·")

// forbidden reports whether a character could change what a terminal shows: control characters,
// those that are invisible or change the direction of text, and the replacement character, which
// stands for bytes that are no text.
func forbidden(r rune) bool {
	return r != '\n' && r != '\t' && unicode.IsControl(r) || r == unicode.ReplacementChar || muster.Invisible(r)
}

// Ago is how long before now a moment was, in at most two units and whole seconds; "-" if there was
// none. Milliseconds of an age say nothing: it is older when it is read.
func Ago(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	if d := now.Sub(*t); d >= time.Second {
		return Brief(d.Truncate(time.Second))
	}
	return "<1s"
}

// Brief is a duration for people: 350ms, 4.2s, 3m12s, 5h3m, 2d4h. It has at most two units, because
// who reads a table compares and does not calculate. A negative duration is 0s: the clocks of two
// hosts differ a little.
func Brief(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return strings.TrimSuffix(d.Round(time.Second).String(), "m0s") + SuffixIf(d.Round(time.Second)%time.Minute == 0, "m")
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// SuffixIf is s if yes, else nothing. It saves a branch where a sentence may have a second part.
func SuffixIf(yes bool, s string) string {
	if yes {
		return s
	}
	return ""
}

// OrDash is s, or "-" if s is empty: an empty cell of a table would shift the others for whoever
// splits lines at spaces.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
