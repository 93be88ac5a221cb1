package term

import (
	"slices"
	"strings"
	"testing"

	"charm.land/lipgloss/v2"
)

func TestNumbersAreTheColumnsOfNumbersOnly(t *testing.T) {
	rows := [][]string{{"a", "3/8", "-", "12", "4GiB", "1d"}, {"b", "10/100", "0.5", "-", "7B/1.5GiB", "2m"}}
	if got := numeric(rows, 6); !slices.Equal(got, []bool{false, true, true, true, true, false}) {
		t.Errorf("%v", got)
	}
}

// lines lays rows out as for a terminal of that width, without colours.
func lines(headers []string, rows [][]string, width int) []string {
	right := numeric(rows, len(headers))
	shown, widths := fit(headers, rows, right, width)
	var out []string
	for _, r := range append([][]string{headers}, rows...) {
		out = append(out, tableLine(r, shown, widths, right, func(string) lipgloss.Style { return lipgloss.NewStyle() }))
	}
	return out
}

func TestTableIsCutToTheTerminal(t *testing.T) {
	headers := []string{"JOB", "DONE", "NOTE", "COMMAND", "REASON"}
	rows := func() [][]string {
		return [][]string{
			{"a-job-with-a-name", "7/1000", "-", "python3 train.py --epochs 3", "1 node considered: näher geht es nicht, 5 asked"},
			{"b", "-", "", "true", ""},
		}
	}
	for width, want := range map[int]string{
		0: `JOB                  DONE  NOTE  COMMAND                      REASON
a-job-with-a-name  7/1000  -     python3 train.py --epochs 3  1 node considered: näher geht es nicht, 5 asked
b                       -        true
`,
		// What is empty goes first, then the widest texts are cut.
		80: `JOB                  DONE  COMMAND                     REASON
a-job-with-a-name  7/1000  python3 train.py --epochs…  1 node considered: näher…
b                       -  true
`,
		// Names and numbers are never cut.
		20: `JOB                  DONE  COMMAND   REASON
a-job-with-a-name  7/1000  python3…  1 node …
b                       -  true
`,
	} {
		got := lines(headers, rows(), width)
		if strings.Join(got, "") != want {
			t.Errorf("width %d:\n%s", width, strings.Join(got, ""))
		}
		for _, l := range got {
			if n := lipgloss.Width(strings.TrimSuffix(l, "\n")); width >= 80 && n > width {
				t.Errorf("width %d: %d columns: %q", width, n, l)
			}
		}
	}
}

func TestPlainTableIsWhole(t *testing.T) {
	var b strings.Builder
	long := strings.Repeat("x", 300)
	WriteTable(&b, []string{"JOB", "DONE", "REASON"}, [][]string{{"a", "12", long}, {"b", "7", ""}})
	if want := "JOB  DONE  REASON\na    12    " + long + "\nb    7\n"; b.String() != want {
		t.Errorf("%s", b.String())
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		text    string
		columns int
		want    string
	}{{"abc", 0, "abc"}, {"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"日本語", 5, "日本…"}, {"日本語", 4, "日…"}, {"", 3, ""}} {
		if got := Cut(c.text, c.columns); got != c.want {
			t.Errorf("%q in %d: %q", c.text, c.columns, got)
		}
	}
}
