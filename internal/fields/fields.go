// Package fields names the fields of the API's types for readers that refuse what they do not know: of
// files (package specfile) and of request bodies (package door). It is a leaf: it knows no type of
// this module.
//
// The two readers share the fields and the suggestions, and nothing else, because they answer
// differently. A file may say 8080 where text is wanted, since YAML needs no quotes; its problems
// have a line and a caret, and reading ends at a field that is given twice. A body has JSON's types;
// its problems have a path and are listed together, fields that are given twice and unknown ones
// among them; and it has base64, unsigned numbers and texts of bounded length.
package fields

import (
	"reflect"
	"slices"
	"strings"
	"sync"
)

// described is what is known of a struct type.
type described struct {
	fields []reflect.StructField
	named  map[string]int // index in fields
}

// types holds a *described for each struct type that was asked for. Package reflect takes
// microseconds to list the fields of a type, and a request body asks for each of its fields.
var types sync.Map

func describe(t reflect.Type) *described {
	if d, ok := types.Load(t); ok {
		return d.(*described)
	}
	d := &described{named: map[string]int{}}
	for _, f := range reflect.VisibleFields(t) {
		name := JSONName(f)
		if f.Anonymous || name == "-" {
			continue
		}
		if _, taken := d.named[name]; !taken && name != "" {
			d.named[name] = len(d.fields)
		}
		d.fields = append(d.fields, f)
	}
	types.Store(t, d)
	return d
}

// Of returns the fields that a text may have for a struct type, in their order. The fields of an
// embedded struct stand among the others, as encoding/json has them.
func Of(t reflect.Type) []reflect.StructField { return slices.Clone(describe(t).fields) }

// JSONName is the name of a field in a text; "" if its tag has none.
func JSONName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// Named finds a field of a struct type by its name in a text.
func Named(t reflect.Type, name string) (reflect.StructField, bool) {
	d := describe(t)
	i, ok := d.named[name]
	if !ok {
		return reflect.StructField{}, false
	}
	return d.fields[i], true
}

// Names are the names of all fields of a struct type, in their order.
func Names(t reflect.Type) []string {
	var out []string
	for _, f := range describe(t).fields {
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
