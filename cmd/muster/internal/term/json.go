package term

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
)

func WriteJSON(w io.Writer, v any) error {
	e := JSONEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// JSONEncoder writes values for programs, a line each. Nothing in them reaches a terminal as an order.
func JSONEncoder(w io.Writer) *json.Encoder {
	e := json.NewEncoder(jsonWriter{w})
	e.SetEscapeHTML(false)
	return e
}

// jsonWriter passes JSON on with everything escaped that a terminal could take for an order or that changes how text
// around it reads. Package json escapes below U+0020 alone. Such characters stand within strings only, where \u is the
// same character. Each Write has whole characters, as an Encoder's do.
type jsonWriter struct{ w io.Writer }

func (j jsonWriter) Write(b []byte) (int, error) {
	if !bytes.ContainsFunc(b, unprintable) {
		return j.w.Write(b)
	}
	var out bytes.Buffer
	for _, r := range string(b) {
		if unprintable(r) {
			for _, u := range utf16.AppendRune(nil, r) {
				fmt.Fprintf(&out, `\u%04x`, u)
			}
		} else {
			out.WriteRune(r)
		}
	}
	if _, err := j.w.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(b), nil
}

func unprintable(r rune) bool { return r != '\n' && forbidden(r) && r != unicode.ReplacementChar }
