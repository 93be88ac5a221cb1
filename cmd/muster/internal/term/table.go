package term

import (
	"fmt"
	"image/color"
	"io"
	"os"
	"regexp"
	"strings"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"
)

// IsTerminal reports whether a person reads what is written there, on a terminal that knows escape
// sequences. It is false for a file, a pipe, and a terminal that calls itself dumb.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// maxStyled is how many rows are laid out with style. A longer table is for a program anyway, and
// to lay it out takes time that grows faster than its rows.
const maxStyled = 1000

// WriteTable prints rows under headers: with style on a terminal, else in plain columns. The cells
// may hold text from elsewhere: each is made one line that holds no escape sequence. It changes the
// rows that it is given.
func WriteTable(w io.Writer, headers []string, rows [][]string) {
	for _, r := range rows {
		for i := range r {
			r[i] = OneLine(r[i])
		}
	}
	if !IsTerminal(w) || len(rows) > maxStyled {
		WritePlainTable(w, headers, rows)
		return
	}
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			cutToWidth(headers, rows, width)
		}
	}
	right := numeric(rows, len(headers))
	header, cell := lipgloss.NewStyle().Bold(true).PaddingRight(2), lipgloss.NewStyle().PaddingRight(2)
	// There are no borders: what is in a table is copied and searched.
	t := table.New().Border(lipgloss.HiddenBorder()).
		BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(false).BorderHeader(false).BorderColumn(false).
		Headers(headers...).Rows(rows...).Wrap(false).
		StyleFunc(func(row, col int) lipgloss.Style {
			style := header
			if row != table.HeaderRow {
				style = cell.Foreground(colour(rows[row][col]))
			}
			if right[col] {
				style = style.Align(lipgloss.Right)
			}
			return style
		})
	_, _ = lipgloss.Fprintln(w, t.String())
}

// number is a cell that people compare by its last digit: 12, 0.5, 3/8, 40%.
var number = regexp.MustCompile(`^[0-9][0-9.,]*(/[0-9]+)?%?$`)

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

// minCut is how much of the last column is left at least, in columns of the terminal.
const minCut = 12

// cutToWidth shortens the last column, which has the longest text in every table, so that a row is
// one line of the terminal. What is cut is in the answer of --json and of the show commands.
func cutToWidth(headers []string, rows [][]string, width int) {
	last := len(headers) - 1
	used := 0
	for col := range last {
		widest := lipgloss.Width(headers[col])
		for _, r := range rows {
			widest = max(widest, lipgloss.Width(r[col]))
		}
		used += widest + 2
	}
	left := max(width-used, minCut)
	for _, r := range rows {
		r[last] = ansi.Truncate(r[last], left, "…")
	}
}

// WritePlainTable prints columns with two spaces between them and nothing at the ends of lines, so
// that a program can split them. Widths are those that a terminal shows, which are not counts of
// bytes. The cells are printed as they are: the caller has cleaned them.
func WritePlainTable(w io.Writer, headers []string, rows [][]string) {
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
