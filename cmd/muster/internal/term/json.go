package term

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
)

// WriteJSON prints a value for programs, indented by two spaces.
func WriteJSON(w io.Writer, v any) error {
	e := JSONEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// JSONEncoder returns an encoder that writes a value on each line. It escapes what a terminal could
// take for an order, and it does not escape HTML, which nobody reads here.
func JSONEncoder(w io.Writer) *json.Encoder {
	e := json.NewEncoder(jsonWriter{w})
	e.SetEscapeHTML(false)
	return e
}

// jsonWriter passes JSON on, with every character escaped that a terminal could take for an order
// or that changes how the text around it reads. Package json escapes only what is below U+0020.
// Such characters occur only within strings, where \u stands for the same character. Each Write has
// whole characters, as those of an Encoder do.
type jsonWriter struct{ w io.Writer }

// Write implements io.Writer. It reports the bytes that it was given, not those that it wrote: the
// encoder would take any other number for an error.
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

// unprintable reports whether a character must be escaped. The replacement character is let
// through: the encoder makes it of bytes that are not UTF-8, and programs know it.
func unprintable(r rune) bool { return r != '\n' && forbidden(r) && r != unicode.ReplacementChar }
