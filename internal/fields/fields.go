// Package fields names the fields of the API's types for readers that refuse what they do not know: of
// files (package specfile) and of request bodies. It is a leaf: it knows no type of this module.
package fields

import (
	"reflect"
	"slices"
	"strings"
)

// Of returns the fields that a text may have for a struct type, in their order. The fields of an
// embedded struct stand among the others, as encoding/json has them.
func Of(t reflect.Type) []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool {
		return f.Anonymous || JSONName(f) == "-"
	})
}

// JSONName is the name of a field in a text; "" if its tag has none.
func JSONName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// Named finds a field of a struct type by its name in a text.
func Named(t reflect.Type, name string) (reflect.StructField, bool) {
	for _, f := range Of(t) {
		if name != "" && JSONName(f) == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// Names are the names of all fields of a struct type, in their order.
func Names(t reflect.Type) []string {
	var out []string
	for _, f := range Of(t) {
		out = append(out, JSONName(f))
	}
	return out
}

// Nearest is the known name that was most likely meant, "" if none is near: letters are wrong, left
// out or swapped, or it is written in another style, as killGrace.
func Nearest(name string, known []string) string {
	fold := func(s string) string {
		return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(s))
	}
	if len(name) > 64 {
		return ""
	}
	typed := fold(name)
	best, least := "", len(typed)/4+1 // a quarter of it may be wrong, and one letter of a short one
	for _, k := range known {
		want := fold(k)
		d := Distance(typed, want)
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

// Distance is the number of edits that make b of a: a letter is put in, left out, changed, or swapped
// with its neighbour.
func Distance(a, b string) int {
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
