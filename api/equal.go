package api

import (
	"bytes"
	"encoding/json"
)

// Equal reports whether two specs with defaults filled in ask for the same.
func (s *JobSpec) Equal(o *JobSpec) bool {
	a, err1 := json.Marshal(s)
	b, err2 := json.Marshal(o)
	return err1 == nil && err2 == nil && bytes.Equal(a, b)
}
