package cli

import (
	"strings"
)

// cutLast is strings.Cut at the last separator.
func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// nearest is the known name that was probably meant; "" if none is near. A name may differ by a
// third of its length, but by three characters at most. A long enough beginning of a name counts as
// near too: other tools shorten ids.
func nearest(name string, known []string) string {
	best, least := "", max(1, min(3, len(name)/3))+1
	for _, k := range known {
		if len(name) >= 4 && strings.HasPrefix(k, name) && least > 1 {
			best, least = k, 1 // as ids are shortened elsewhere
			continue
		}
		if d := distance(name, k); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance is how many bytes must be changed, added or taken away to make b of a (Levenshtein). It
// keeps one row of the matrix, for there may be hundreds of names.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
