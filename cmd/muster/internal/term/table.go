package term

import (
	"fmt"
	"image/color"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"
)

// IsTerminal reports whether a person reads what is written there, on a terminal that knows escape
// sequences. It is false for a file, a pipe, and a terminal that calls itself dumb.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// Width is how many columns the terminal has that is written to; 0 if it is none, or if it is not
// known. What is not on a terminal is read by programs and never cut.
func Width(w io.Writer) int {
	f, is := w.(*os.File)
	if !is || !IsTerminal(w) {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// Cut shortens a text to so many columns of a terminal, and says so with an ellipsis. 0 columns are
// no limit.
func Cut(text string, columns int) string {
	if columns <= 0 {
		return text
	}
	return ansi.Truncate(text, columns, "…")
}

// WriteTable prints rows under headers: with style on a terminal, and there cut to its width, else
// in plain columns. The cells may hold text from elsewhere: each is made one line that holds no
// escape sequence. It changes the rows that it is given.
func WriteTable(w io.Writer, headers []string, rows [][]string) {
	for _, r := range rows {
		for i := range r {
			r[i] = OneLine(r[i])
		}
	}
	if !IsTerminal(w) {
		WritePlainTable(w, headers, rows)
		return
	}
	right := numeric(rows, len(headers))
	shown, widths := fit(headers, rows, right, Width(w))
	bold := lipgloss.NewStyle().Bold(true)
	var b strings.Builder
	b.WriteString(tableLine(headers, shown, widths, right, func(string) lipgloss.Style { return bold }))
	for _, r := range rows {
		b.WriteString(tableLine(r, shown, widths, right, func(cell string) lipgloss.Style { return lipgloss.NewStyle().Foreground(colour(cell)) }))
	}
	_, _ = lipgloss.Fprint(w, b.String())
}

// tableLine lays out one row: the cells of the columns that are shown, as wide as these are. There
// are no borders, because what is in a table is copied and searched, and no spaces at the end,
// because they would wrap.
func tableLine(cells []string, shown, widths []int, right []bool, style func(cell string) lipgloss.Style) string {
	line := ""
	for n, col := range shown {
		text := Cut(cells[col], widths[col])
		space := strings.Repeat(" ", widths[col]-lipgloss.Width(text))
		if n > 0 {
			line += "  "
		}
		if text != "" {
			text = style(cells[col]).Render(text)
		}
		if right[col] {
			line += space + text
		} else {
			line += text + space
		}
	}
	return strings.TrimRight(line, " ") + "\n"
}

// number is a cell that people compare by its last digit: 12, 0.5, 3/8, 40%, 1.5GiB/8GiB.
var number = regexp.MustCompile(`^[0-9][0-9.,]*([KMGTPE]i?B|B)?(/[0-9][0-9.,]*([KMGTPE]i?B|B)?)?%?$`)

// numeric says which columns have only numbers, with a dash for none.
func numeric(rows [][]string, columns int) []bool {
	right := make([]bool, columns)
	for col := range right {
		for _, r := range rows {
			if r[col] == "-" || r[col] == "" {
				continue
			}
			if right[col] = number.MatchString(r[col]); !right[col] {
				break
			}
		}
	}
	return right
}

// minCut is how much is left of a column that is cut, in columns of the terminal.
const minCut = 8

// fit chooses which columns are shown and how wide each is, so that a row is one line of the
// terminal. If it has to, it leaves out columns that are empty, and then cuts the widest texts. The
// first column and numbers are never cut: names are copied, and a part of a number is another one.
// What is cut is in the answer of --json and of the show commands. A width of 0 is no limit.
func fit(headers []string, rows [][]string, numeric []bool, width int) (shown, widths []int) {
	widths = make([]int, len(headers))
	total := -2
	for col, h := range headers {
		shown, widths[col] = append(shown, col), lipgloss.Width(h)
		for _, r := range rows {
			widths[col] = max(widths[col], lipgloss.Width(r[col]))
		}
		total += widths[col] + 2
	}
	if width <= 0 {
		return shown, widths
	}
	for n := len(shown) - 1; n > 0 && total > width; n-- {
		col := shown[n]
		if !slices.ContainsFunc(rows, func(r []string) bool { return r[col] != "" && r[col] != "-" }) {
			shown, total = slices.Delete(shown, n, n+1), total-widths[col]-2
		}
	}
	for total > width {
		widest := -1
		for _, col := range shown[1:] {
			if !numeric[col] && widths[col] > minCut && (widest < 0 || widths[col] >= widths[widest]) {
				widest = col
			}
		}
		if widest < 0 {
			break // a terminal that narrow wraps
		}
		widths[widest]--
		total--
	}
	return shown, widths
}

// WritePlainTable prints columns with two spaces between them and nothing at the ends of lines, so
// that a program can split them. Widths are those that a terminal shows, which are not counts of
// bytes. The cells are printed as they are: the caller has cleaned them.
func WritePlainTable(w io.Writer, headers []string, rows [][]string) {
	left := make([]bool, len(headers))
	shown, widths := fit(headers, rows, left, 0)
	var b strings.Builder
	for _, r := range append([][]string{headers}, rows...) {
		b.WriteString(tableLine(r, shown, widths, left, func(string) lipgloss.Style { return lipgloss.NewStyle() }))
	}
	_, _ = io.WriteString(w, b.String())
}

// WriteFields prints names and values, a line each. The arguments are pairs of a name and its
// value. Pairs without a value are left out, because most things lack most fields.
func WriteFields(w io.Writer, pairs ...string) {
	width := 0
	for i := 0; i+1 < len(pairs); i += 2 {
		width = max(width, len(pairs[i]))
	}
	var b strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			// Further lines of a value are indented: none reads as a field of its own.
			value := strings.ReplaceAll(Clean(pairs[i+1]), "\n", "\n"+strings.Repeat(" ", width+2))
			fmt.Fprintf(&b, "%-*s  %s\n", width, pairs[i], value)
		}
	}
	_, _ = io.WriteString(w, b.String())
}

// colour is the colour of a word that says how something is: green for what is well, red for what
// failed, yellow for what is on its way. Other words have none.
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
