package specfile

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/fields"
)

// decoder puts nodes into the types of package api, by their json tags. It goes
// on after a problem, to tell all of them at once.
type decoder struct {
	problems []Problem
	// budget is how many values may be read: those written, and a bounded number through aliases.
	budget int
	// bytes is how much text may be read: that of the file, and as much again through aliases as a file may have. A few
	// aliases of a long text cost nothing here, where they share it, and gigabytes once they are written out as JSON.
	bytes int
	long  bool // bytes is spent, and that was said
	// unknownIn are the mappings with unknown fields. Whatever they lack may be one of these, misspelt.
	unknownIn map[string]bool
	// listed are the types whose fields were listed once. All other unknown fields of them are only named.
	listed map[reflect.Type]bool
}

// maxProblems bounds what is gathered: a wrong file of a million lines has one cause.
const maxProblems = 200

func (d *decoder) fail(at *node, path, format string, args ...any) {
	if len(d.problems) < maxProblems {
		d.problems = append(d.problems, Problem{Line: at.line, Column: at.column, Width: at.width, Path: path, Message: fmt.Sprintf(format, args...)})
	}
}

// explains reports whether a problem with what was read may come from a field that could not be
// read. Left is the part of its path that is not written in the file.
func (d *decoder) explains(p Problem, left string) bool {
	if len(d.problems) == 0 {
		return false
	}
	if d.budget < 0 || d.long {
		return true // the rest of the file was not read
	}
	for _, q := range d.problems {
		// Of a part that could not be read, the whole has something to say only elsewhere.
		if q.Path != "" && (within(p.Path, q.Path) || within(q.Path, p.Path) && (left != "" || q.Line == p.Line)) {
			return true
		}
	}
	// A missing field is missing if what it belongs to is there and has no unknown field.
	return left != "" && (strings.ContainsAny(left, ".[") || d.unknownIn[strings.TrimSuffix(strings.TrimSuffix(p.Path, left), ".")])
}

// within reports whether a path is another one, or leads to a part of it.
func within(path, of string) bool {
	rest, ok := strings.CutPrefix(path, of)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// unread gives a text that could not be read a value. Otherwise other fields would look wrong beside
// an empty one, as volumes without an image.
func unread(v reflect.Value) {
	if v.Kind() == reflect.String {
		v.SetString("?")
	}
}

// value puts a node into v, which path names.
func (d *decoder) value(n *node, v reflect.Value, path string) {
	d.budget--
	if d.budget < 0 {
		if d.budget == -1 {
			d.fail(n, path, "the file's aliases repeat more than %d values; write fewer of them", aliasBudget)
		}
		return
	}
	if d.bytes -= n.textBytes(); d.bytes < 0 {
		if !d.long {
			d.fail(n, path, "the file's aliases repeat more than %s of text; write fewer of them", muster.Bytes(aliasBytes))
		}
		d.long = true
		return
	}
	if n.kind == nothing {
		d.fail(n, path, "has no value; give one or leave it out")
		unread(v)
		return
	}
	switch to := v.Addr().Interface().(type) {
	case *api.Size:
		d.quantity(n, path, "a size, as 64MiB", func(s string) (err error) { *to, err = api.ParseSize(s); return err })
		return
	case *api.Duration:
		d.quantity(n, path, "a duration, as 90s", func(s string) (err error) { *to, err = api.ParseDuration(s); return err })
		return
	}
	if to, ok := v.Addr().Interface().(*muster.Secret); ok {
		// What is wrong with it is told without it.
		if n.kind == list || n.kind == mapping {
			d.fail(n, path, "is %s; it should be text", n.kind)
			return
		}
		*to = muster.NewSecret(n.value)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), path)
	case reflect.Struct:
		d.fields(n, v, path)
	case reflect.Map:
		d.mapping(n, v, path)
	case reflect.Slice:
		if n.kind != list {
			d.fail(n, path, "is %s; it should be a list%s", n.kind, exampleList(n))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.items), len(n.items)))
		for i, item := range n.items {
			d.value(item, v.Index(i), path+"["+strconv.Itoa(i)+"]")
		}
	case reflect.String:
		// Numbers and truths are taken as they are written: what else could be meant by 0755 or 1.10 where text is wanted?
		if n.kind == list || n.kind == mapping {
			d.fail(n, path, "is %s; it should be text", n.kind)
			unread(v)
			return
		}
		v.SetString(n.value)
	case reflect.Bool:
		if n.kind != truth {
			d.fail(n, path, "is %s; it should be true or false", d.what(n))
			return
		}
		v.SetBool(strings.EqualFold(n.value, "true"))
	case reflect.Int:
		d.integer(n, v, path)
	case reflect.Float64:
		f, err := strconv.ParseFloat(n.value, 64)
		if n.kind != number || err != nil || strings.ContainsAny(n.value, "xX_") || f-f != 0 {
			d.fail(n, path, "is %s; it should be a number, as 0.5", d.what(n))
			return
		}
		v.SetFloat(f)
	default:
		panic("specfile: package api has a field of a kind that is not read: " + path + " " + v.Type().String())
	}
}

// what says of a node what it is, with its value if that is short.
func (d *decoder) what(n *node) string {
	switch n.kind {
	case text:
		return fmt.Sprintf("the text %q", short(n.value))
	case number, truth:
		return short(n.value)
	}
	return n.kind.String()
}

func exampleList(n *node) string {
	if n.kind == text && len(n.value) <= 40 && !strings.ContainsAny(n.value, "[]{},:#&*!|>'\"%@`\n") {
		return fmt.Sprintf(", as [%s]", strings.Join(strings.Fields(n.value), ", "))
	}
	return ""
}

func (d *decoder) quantity(n *node, path, example string, parse func(string) error) {
	if n.kind != text && n.kind != number {
		d.fail(n, path, "is %s; it should be %s", d.what(n), example)
		return
	}
	if err := parse(n.value); err != nil {
		d.fail(n, path, "is wrong: %v", err)
	}
}

func (d *decoder) integer(n *node, v reflect.Value, path string) {
	digits := strings.TrimPrefix(n.value, "-")
	plain := digits == "0" || digits != "" && digits[0] != '0' && strings.Trim(digits, "0123456789") == ""
	if n.kind != number || !plain {
		d.fail(n, path, "is %s; it should be a whole number", d.what(n))
		return
	}
	i, err := strconv.ParseInt(n.value, 10, 64)
	if err != nil {
		d.fail(n, path, "is %s, which is out of range", short(n.value))
		return
	}
	v.SetInt(i)
}

// mapping reads names and values that the user chooses, as env.
func (d *decoder) mapping(n *node, v reflect.Value, path string) {
	if n.kind != mapping {
		d.fail(n, path, "is %s; it should be a mapping, as NAME: value", d.what(n))
		return
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(n.entries)))
	for i := range n.entries {
		e := &n.entries[i]
		to := reflect.New(v.Type().Elem()).Elem()
		d.value(e.value, to, path+"."+e.key.value)
		v.SetMapIndex(reflect.ValueOf(e.key.value), to)
	}
}

// sawUnknown notes that the mapping at a path has an unknown field.
func (d *decoder) sawUnknown(path string) {
	if d.unknownIn == nil {
		d.unknownIn = map[string]bool{}
	}
	d.unknownIn[path] = true
}

// fields reads the fields of one of package api's types.
func (d *decoder) fields(n *node, v reflect.Value, path string) {
	if n.kind != mapping {
		d.fail(n, path, "is %s; it should be a mapping with the fields %s", d.what(n), strings.Join(fields.Names(v.Type()), ", "))
		return
	}
	if kind := kubernetesKind(n); path == "" && kind != "" {
		d.sawUnknown(path)
		d.fail(n.entries[0].key, "", "this is a Kubernetes manifest of kind %s, whose fields are others; docs/coming-from.md compares them, and a job file needs no more than image, command and count", short(kind))
		return
	}
	for i := range n.entries {
		e := &n.entries[i]
		at := e.key.value
		if path != "" {
			at = path + "." + at
		}
		field, known := fields.Named(v.Type(), e.key.value)
		if !known {
			d.sawUnknown(path)
			if len(d.problems) < maxProblems { // the nearest name takes its time
				d.unknown(e.key, v.Type(), path)
			}
			continue
		}
		to := v.FieldByIndex(field.Index)
		before := len(d.problems)
		// Kubernetes writes half a core as 500m. In files of ours a number is what is usual.
		if field.Tag.Get("unit") == "cores" && e.value.kind == text {
			d.quantity(e.value, at, "a number, as 0.5", func(s string) (err error) { *to.Addr().Interface().(*float64), err = api.ParseCores(s); return err })
		} else {
			d.value(e.value, to, at)
		}
		if zero := field.Tag.Get("zero"); zero != "" && to.IsZero() && len(d.problems) == before {
			d.fail(e.value, at, "is %s, which is not allowed; leave it out for the default (%s), or give another value", short(e.value.value), zero)
		}
	}
}
