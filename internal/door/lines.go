package door

import (
	"encoding/json"
	"net/http"
)

// Lines is an answer of JSON objects, one a line. The status goes out with the first line: before
// it, Begun is false and another answer may still be written to W.
type Lines struct {
	W     http.ResponseWriter
	Begun bool
}

// Send writes a line at once. It reports whether the client still reads.
func (l *Lines) Send(line any) bool {
	if !l.Begun {
		l.Begun = true
		l.W.Header().Set("Content-Type", "application/x-ndjson")
	}
	ExtendWrite(l.W)
	// Text stays readable in a terminal: < and > are not escaped.
	enc := json.NewEncoder(l.W)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(line); err != nil {
		return false
	}
	_ = http.NewResponseController(l.W).Flush()
	return true
}
