package specfile

import (
	"fmt"
	"reflect"
	"strings"
)

// unknown says that a type has no such field, and which one may have been meant:
// one of its own, or of what it contains.
func unknown(t reflect.Type, path, name string) string {
	where := ""
	if path != "" {
		where = " in " + path
	}
	known := names(t)
	s := fmt.Sprintf("unknown field %q%s", short(name), where)
	if _, elsewhere := inside(t, name); elsewhere != "" {
		return fmt.Sprintf("%s; it belongs into %s", s, elsewhere)
	}
	if best := nearest(name, known); best != "" {
		return fmt.Sprintf("%s; did you mean %q?", s, best)
	}
	if best, elsewhere := inside(t, nearest(name, inner(t))); elsewhere != "" {
		return fmt.Sprintf("%s; did you mean %q, in %s?", s, best, elsewhere)
	}
	return fmt.Sprintf("%s; known are %s", s, strings.Join(known, ", "))
}

// inside finds a field by its exact name in the structs that t's fields hold.
func inside(t reflect.Type, name string) (found, in string) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type.Kind() != reflect.Struct || name == "" {
			continue
		}
		if _, ok := fieldNamed(f.Type, name); ok {
			return name, jsonName(f)
		}
	}
	return "", ""
}

func inner(t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		if f := t.Field(i); f.Type.Kind() == reflect.Struct {
			out = append(out, names(f.Type)...)
		}
	}
	return out
}

// nearest is the known name that was most likely meant, or "".
func nearest(name string, known []string) string {
	fold := func(s string) string {
		return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(s))
	}
	if len(name) > 64 {
		return ""
	}
	typed := fold(name)
	best, least := "", len(typed)/3+1 // a third of it may be wrong, and one letter of a short one
	for _, k := range known {
		want := fold(k)
		d := distance(typed, want)
		if len(typed) >= 3 && len(want) >= 3 && (strings.HasPrefix(typed, want) || strings.HasPrefix(want, typed)) {
			d = min(d, 1)
		}
		if len(typed) >= 3 && abbreviates(typed, want) { // cmd, img
			d = min(d, 1)
		}
		if d < least || d == least && best == "" {
			best, least = k, d
		}
	}
	return best
}

// abbreviates reports whether short is long with letters left out, but not its first.
func abbreviates(short, long string) bool {
	if short == "" || long == "" || short[0] != long[0] {
		return false
	}
	for i := 0; i < len(long) && short != ""; i++ {
		if long[i] == short[0] {
			short = short[1:]
		}
	}
	return short == ""
}

// distance is how many letters must be put in, left out, changed, or swapped
// with their neighbour to make b of a.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			change := 1
			if x[i-1] == y[j-1] {
				change = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(x)][len(y)]
}
