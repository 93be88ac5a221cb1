package term

import (
	"slices"
	"testing"

	"charm.land/lipgloss/v2"
)

func TestNumbersAreTheColumnsOfNumbersOnly(t *testing.T) {
	rows := [][]string{{"a", "3/8", "-", "12", "4GiB"}, {"b", "10/100", "0.5", "-", "7"}}
	if got := numeric(rows, 5); !slices.Equal(got, []bool{false, true, true, true, false}) {
		t.Errorf("%v", got)
	}
}

func TestLastColumnIsCutToTheTerminal(t *testing.T) {
	long := "1 node considered: 1 short of cpu (5 asked, at most 4 free); näher geht es nicht"
	rows := [][]string{{"job", long}, {"another", "short"}}
	cutToWidth([]string{"JOB", "REASON"}, rows, 40)
	if got := lipgloss.Width(rows[0][1]); got != 40-len("another")-2 || rows[1][1] != "short" {
		t.Errorf("%d columns: %q", got, rows)
	}
	// What is left of a narrow terminal is still enough to recognise.
	rows = [][]string{{"job", long}}
	cutToWidth([]string{"JOB", "REASON"}, rows, 5)
	if got := lipgloss.Width(rows[0][1]); got != minCut {
		t.Errorf("%d columns: %q", got, rows)
	}
}
