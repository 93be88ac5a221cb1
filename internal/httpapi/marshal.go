package httpapi

import (
	"bytes"
	"encoding/json"
	"io"
)

// encode is v as JSON and a newline, readable in a terminal: < and > stay.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

// marshal writes an answer. That the client is gone is no error of the answer: the server notices
// by itself.
func marshal(w io.Writer, v any) error {
	b, err := encode(v)
	if err == nil {
		_, _ = w.Write(b)
	}
	return err
}
