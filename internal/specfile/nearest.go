package specfile

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/musterhq/muster/internal/fields"
)

// unknown says that a type has no such field, and which one may have been meant:
// one of its own, or of what it contains.
func unknown(t reflect.Type, path, name string) string {
	where := ""
	if path != "" {
		where = " in " + path
	}
	known := fields.Names(t)
	s := fmt.Sprintf("unknown field %q%s", short(name), where)
	if _, elsewhere := inside(t, name); elsewhere != "" {
		return fmt.Sprintf("%s; it belongs into %s", s, elsewhere)
	}
	if best := fields.Nearest(name, known); best != "" {
		return fmt.Sprintf("%s; did you mean %q?", s, best)
	}
	if best, elsewhere := inside(t, fields.Nearest(name, inner(t))); elsewhere != "" {
		return fmt.Sprintf("%s; did you mean %q, in %s?", s, best, elsewhere)
	}
	return fmt.Sprintf("%s; known are %s", s, strings.Join(known, ", "))
}

// inside finds a field by its exact name in the structs that t's fields hold.
func inside(t reflect.Type, name string) (found, in string) {
	for _, f := range fields.Of(t) {
		if f.Type.Kind() != reflect.Struct || name == "" {
			continue
		}
		if _, ok := fields.Named(f.Type, name); ok {
			return name, fields.JSONName(f)
		}
	}
	return "", ""
}

func inner(t reflect.Type) []string {
	var out []string
	for _, f := range fields.Of(t) {
		if f.Type.Kind() == reflect.Struct {
			out = append(out, fields.Names(f.Type)...)
		}
	}
	return out
}
