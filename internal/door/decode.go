package door

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/fields"
	"github.com/musterhq/muster/internal/problem"
)

const (
	// maxDepth is far deeper than any body of ours.
	maxDepth = 64
	// maxProblems bounds an answer: a body of a million wrong fields has one cause.
	maxProblems = 50
)

// Decode reads a JSON body strictly into v, a pointer to a struct: no unknown or misspelt field,
// none given twice, no null, nothing of another type, and no 0 where 0 would be taken for "left
// out". encoding/json is too lenient for what people write by hand: it ignores a misspelt field,
// and the job then runs without what was asked for.
func Decode(raw []byte, v any) *problem.Problem {
	bad := func(format string, args ...any) *problem.Problem {
		return problem.New(http.StatusBadRequest, string(muster.FaultInvalid), "the body is not JSON",
			api.ProblemField{Location: "body", Message: fmt.Sprintf(format, args...)})
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return bad("is missing; send a JSON object")
	}
	if !utf8.Valid(raw) {
		return bad("is not UTF-8 text")
	}
	var whole json.RawMessage
	if err := json.Unmarshal(raw, &whole); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			line, column := position(raw, int(syntax.Offset))
			return bad("line %d, column %d: %s", line, column, syntax)
		}
		return bad("%s", problem.Clip(err.Error()))
	}
	c := &shape{dec: json.NewDecoder(bytes.NewReader(raw))}
	c.dec.UseNumber()
	c.value(reflect.TypeOf(v).Elem(), "", "body", 0)
	if len(c.problems) > 0 {
		return problem.Wrong(c.problems)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		where := "body"
		var wrongType *json.UnmarshalTypeError
		if errors.As(err, &wrongType) && wrongType.Field != "" {
			where += "." + wrongType.Field
		}
		return problem.Invalid(problem.Clip(where), "%s", problem.Clip(err.Error()))
	}
	return nil
}

// position is the line and column, both from 1, of an offset that encoding/json tells.
func position(raw []byte, offset int) (line, column int) {
	before := raw[:min(max(offset-1, 0), len(raw))]
	line = 1 + bytes.Count(before, []byte("\n"))
	return line, utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
}

// shape walks a JSON text beside the type that it is for. The text is known to be valid JSON.
type shape struct {
	dec      *json.Decoder
	problems []api.ProblemField
}

// add notes a problem with what is at a path, until there are enough of them.
func (c *shape) add(path, format string, args ...any) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, api.ProblemField{Location: problem.Clip(path), Message: fmt.Sprintf(format, args...)})
	}
}

var (
	sizeType     = reflect.TypeFor[api.Size]()
	durationType = reflect.TypeFor[api.Duration]()
	bytesType    = reflect.TypeFor[[]byte]()
)

// value reads the next value and checks it against a type. A nil type only reads over the value:
// what it belongs to was found wrong already. tag is that of the struct field which the value is
// for.
func (c *shape) value(t reflect.Type, tag reflect.StructTag, path string, depth int) {
	token, err := c.dec.Token()
	if err != nil {
		c.add(path, "cannot be read: %s", problem.Clip(err.Error()))
		return
	}
	if depth > maxDepth {
		if depth == maxDepth+1 {
			c.add(path, "is nested more than %d deep", maxDepth)
		}
		t = nil
	}
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if d, ok := token.(json.Delim); ok {
		if d == '{' {
			c.object(t, path, depth)
		} else {
			c.array(t, path, depth)
		}
		return
	}
	if t != nil {
		c.scalar(t, tag, path, token)
	}
}

// object reads the rest of an object whose brace was read. Its fields are those of a struct, or the
// keys of a map.
func (c *shape) object(t reflect.Type, path string, depth int) {
	isStruct := t != nil && t.Kind() == reflect.Struct
	if t != nil && !isStruct && t.Kind() != reflect.Map {
		c.add(path, "is an object; it should be %s", wanted(t))
		t = nil
	}
	seen := map[string]bool{}
	for c.dec.More() {
		token, err := c.dec.Token()
		if err != nil {
			c.add(path, "cannot be read: %s", problem.Clip(err.Error()))
			return
		}
		name, _ := token.(string)
		at := path + "." + problem.Clip(name)
		if seen[name] {
			c.add(at, "is given twice")
		}
		seen[name] = true
		switch {
		case t == nil:
			c.value(nil, "", at, depth+1)
		case !isStruct:
			c.value(t.Elem(), "", at, depth+1)
		default:
			f, known := fields.Named(t, name)
			if !known {
				c.add(at, "%s", unknown(t, name))
				c.value(nil, "", at, depth+1)
				continue
			}
			c.value(f.Type, f.Tag, at, depth+1)
		}
	}
	_, _ = c.dec.Token() // the closing brace
}

// array reads the rest of a list whose bracket was read.
func (c *shape) array(t reflect.Type, path string, depth int) {
	var item reflect.Type
	if t != nil && t.Kind() == reflect.Slice {
		item = t.Elem()
	} else if t != nil {
		c.add(path, "is a list; it should be %s", wanted(t))
	}
	for i := 0; c.dec.More(); i++ {
		c.value(item, "", path+"["+strconv.Itoa(i)+"]", depth+1)
	}
	_, _ = c.dec.Token() // the closing bracket
}

// scalar checks a text, a number, true, false or null. A field with the tag zero takes no 0: what
// the tag says would be put in its place, which is never what a client means that writes 0.
func (c *shape) scalar(t reflect.Type, tag reflect.StructTag, path string, token json.Token) {
	if token == nil {
		c.add(path, "is null; give a value or leave it out")
		return
	}
	number, isNumber := token.(json.Number)
	text, isText := token.(string)
	fits := false
	zero := false
	switch {
	case t == sizeType || t == durationType:
		if fits = isNumber || isText; fits {
			b, _ := json.Marshal(token)
			v := reflect.New(t)
			if err := json.Unmarshal(b, v.Interface()); err != nil {
				c.add(path, "%s", problem.Clip(err.Error()))
				return
			}
			zero = v.Elem().IsZero()
		}
	case t.Kind() == reflect.String:
		fits = isText
		if most, err := strconv.Atoi(tag.Get("maxLength")); err == nil && utf8.RuneCountInString(text) > most {
			c.add(path, "has more than %d characters", most)
		} else if err == nil {
			// What has such a bound is a line for people, shown in lists among others' lines.
			if i := strings.IndexFunc(text, func(r rune) bool { return unicode.IsControl(r) || muster.Invisible(r) }); i >= 0 {
				c.add(path, "has at position %d what is neither text nor a space; write one line of printable text", utf8.RuneCountInString(text[:i])+1)
			}
		}
	case t == bytesType:
		if fits = isText; fits {
			if _, err := base64.StdEncoding.DecodeString(text); err != nil {
				c.add(path, "is not base64: %v", err)
				return
			}
		}
	case t.Kind() == reflect.Bool:
		_, fits = token.(bool)
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
		n, err := strconv.ParseInt(number.String(), 10, 64)
		fits, zero = isNumber && err == nil, n == 0
	case t.Kind() == reflect.Uint64:
		n, err := strconv.ParseUint(number.String(), 10, 64)
		fits, zero = isNumber && err == nil, n == 0
	case t.Kind() == reflect.Float64:
		f, err := strconv.ParseFloat(number.String(), 64)
		fits, zero = isNumber && err == nil, f == 0
	}
	if !fits {
		c.add(path, "is %s; it should be %s", described(token), wanted(t))
		return
	}
	if means := tag.Get("zero"); zero && means != "" {
		c.add(path, "is %s, which is not allowed; leave it out for the default (%s), or give another value", described(token), means)
	}
}

// described is a value as an answer repeats it.
func described(token json.Token) string {
	switch v := token.(type) {
	case string:
		return "the text " + strconv.QuoteToGraphic(problem.Clip(v))
	case json.Number:
		return "the number " + problem.Clip(v.String())
	}
	return fmt.Sprint(token)
}

// wanted says what a type is called by those who write JSON.
func wanted(t reflect.Type) string {
	switch {
	case t == sizeType:
		return `a size, as "64MiB" or a number of bytes`
	case t == durationType:
		return `a duration, as "90s"`
	case t == bytesType:
		return "a text in base64"
	}
	switch t.Kind() {
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Uint64:
		return "a whole number, not negative"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}

// unknown says that there is no such field, and which was probably meant.
func unknown(t reflect.Type, name string) string {
	known := fields.Names(t)
	if best := fields.Nearest(name, known); best != "" {
		return fmt.Sprintf("is not known; did you mean %s?", best)
	}
	for _, f := range fields.Of(t) {
		if f.Type.Kind() == reflect.Struct {
			if _, ok := fields.Named(f.Type, name); ok {
				return "is not known here; it belongs in " + fields.JSONName(f)
			}
		}
	}
	slices.Sort(known)
	return "is not known; known are " + strings.Join(known, ", ")
}
