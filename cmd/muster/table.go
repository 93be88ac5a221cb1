package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image/color"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
	"github.com/musterhq/muster"
	"golang.org/x/term"
)

// isTerminal reports whether a person reads what is written there, on something that knows escapes.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// printJSON prints a value for programs.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(jsonWriter{a.stdout})
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// jsonWriter passes JSON on with everything escaped that a terminal could take for an order or that changes how text
// around it reads. Package json escapes below U+0020 alone. Such characters stand within strings only, where \u is the
// same character. Each Write has whole characters, as an Encoder's do.
type jsonWriter struct{ w io.Writer }

func (j jsonWriter) Write(b []byte) (int, error) {
	if !bytes.ContainsFunc(b, unprintable) {
		return j.w.Write(b)
	}
	var out bytes.Buffer
	for _, r := range string(b) {
		if unprintable(r) {
			for _, u := range utf16.AppendRune(nil, r) {
				fmt.Fprintf(&out, `\u%04x`, u)
			}
		} else {
			out.WriteRune(r)
		}
	}
	if _, err := j.w.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(b), nil
}

func unprintable(r rune) bool { return r != '\n' && forbidden(r) && r != unicode.ReplacementChar }

// maxStyled is how many rows are laid out with style; more of them are for programs anyway.
const maxStyled = 1000

// printTable prints rows under headers: with style on a terminal, else in plain columns.
func (a *app) printTable(headers []string, rows [][]string) {
	for _, r := range rows {
		for i := range r {
			r[i] = oneLine(r[i])
		}
	}
	if !isTerminal(a.stdout) || len(rows) > maxStyled {
		plainTable(a.stdout, headers, rows)
		return
	}
	header, cell := lipgloss.NewStyle().Bold(true).PaddingRight(2), lipgloss.NewStyle().PaddingRight(2)
	t := table.New().Border(lipgloss.HiddenBorder()).
		BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(false).BorderHeader(false).BorderColumn(false).
		Headers(headers...).Rows(rows...).Wrap(false).
		StyleFunc(func(row, col int) lipgloss.Style {
			if row == table.HeaderRow {
				return header
			}
			return cell.Foreground(colour(rows[row][col]))
		})
	_, _ = lipgloss.Fprintln(a.stdout, t.String())
}

// plainTable prints columns with two spaces between them, nothing at the ends of lines.
func plainTable(w io.Writer, headers []string, rows [][]string) {
	widths := make([]int, len(headers))
	for _, r := range append([][]string{headers}, rows...) {
		for i, c := range r {
			widths[i] = max(widths[i], lipgloss.Width(c))
		}
	}
	var b strings.Builder
	for _, r := range append([][]string{headers}, rows...) {
		line := ""
		for i, c := range r {
			line += c + strings.Repeat(" ", widths[i]-lipgloss.Width(c)+2)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, _ = io.WriteString(w, b.String())
}

// printFields prints names and values, a line each, without those that are empty.
func (a *app) printFields(pairs ...string) {
	width := 0
	for i := 0; i+1 < len(pairs); i += 2 {
		width = max(width, len(pairs[i]))
	}
	var b strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			// Further lines of a value are indented: none reads as a field of its own.
			value := strings.ReplaceAll(clean(pairs[i+1]), "\n", "\n"+strings.Repeat(" ", width+2))
			fmt.Fprintf(&b, "%-*s  %s\n", width, pairs[i], value)
		}
	}
	_, _ = io.WriteString(a.stdout, b.String())
}

// clean takes out of a text from elsewhere what would move a terminal's cursor or change its state.
func clean(s string) string {
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

// oneLine is clean for what stands in a line of a list: text of others with a line break in it would read as a line of its own.
func oneLine(s string) string { return breaks.Replace(clean(s)) }

var breaks = strings.NewReplacer("\n", "·", "\t", "·")

func forbidden(r rune) bool {
	return r != '\n' && r != '\t' && unicode.IsControl(r) || r == unicode.ReplacementChar || muster.Invisible(r)
}

// ago is how long before now a moment was, in at most two units.
func ago(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return brief(now.Sub(*t))
}

// brief is a duration for people: 350ms, 4.2s, 3m12s, 5h3m, 2d4h.
func brief(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return strings.TrimSuffix(d.Round(time.Second).String(), "m0s") + suffixIf(d.Round(time.Second)%time.Minute == 0, "m")
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

func suffixIf(yes bool, s string) string {
	if yes {
		return s
	}
	return ""
}

// orDash shows that there is nothing.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// colour is that of a word which says how something is.
func colour(word string) color.Color {
	switch word {
	case "succeeded", "running", "serving", "good":
		return lipgloss.Color("2")
	case "failed", "lost", "broken", "flaky":
		return lipgloss.Color("1")
	case "waiting", "placed", "starting", "launching", "booting", "unready", "stopping", "draining", "terminating":
		return lipgloss.Color("3")
	}
	return lipgloss.NoColor{}
}
