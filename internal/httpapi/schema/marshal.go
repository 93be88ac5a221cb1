package schema

import (
	"bytes"
	"encoding/json"
	"io"
)

// Encode returns v as one line of JSON with a newline. It does not escape < and >, so that the text
// is readable in a terminal.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

// Marshal writes an answer. A failed write is not an error of the answer: the client has left, and
// the HTTP server notices by itself.
func Marshal(w io.Writer, v any) error {
	b, err := Encode(v)
	if err == nil {
		_, _ = w.Write(b)
	}
	return err
}
