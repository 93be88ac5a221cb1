package cloudtest

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/musterhq/muster"
)

// ErrorRow is one row of a cloud's table of errors: what the cloud answers, and what fault that is.
type ErrorRow struct {
	// Name is the row in the cloud's words.
	Name string
	// Call is what was asked for, in the words of the driver's test; empty: a create.
	Call string
	// Status, Header and Body are the answer.
	Status int
	Header http.Header
	Body   string

	Kind  muster.FaultKind
	Scope muster.Scope
	// Field is checked if it is not empty, After if it is not 0.
	Field string
	After time.Duration
	// Succeeds: the driver takes the answer for a success, and Kind does not count.
	Succeeds bool
}

// Errors checks a cloud's table of errors. For each row, call makes a driver whose cloud answers as
// the row says, makes the row's call and returns its error.
func Errors(t *testing.T, table []ErrorRow, call func(t *testing.T, row ErrorRow) error) {
	t.Helper()
	for _, row := range table {
		t.Run(row.Name, func(t *testing.T) {
			err := call(t, row)
			if row.Succeeds {
				if err != nil {
					t.Errorf("%v", err)
				}
				return
			}
			var f *muster.Fault
			if !errors.As(err, &f) {
				t.Fatalf("%v is no fault", err)
			}
			if f.Kind != row.Kind || f.Scope != row.Scope {
				t.Errorf("kind %s of %s, not %s of %s: %v", f.Kind, f.Scope, row.Kind, row.Scope, err)
			}
			if row.Field != "" && f.Field != row.Field {
				t.Errorf("field %q, not %q: %v", f.Field, row.Field, err)
			}
			if row.After != 0 && f.After != row.After {
				t.Errorf("after %s, not %s: %v", f.After, row.After, err)
			}
			if err.Error() == "" {
				t.Error("the fault says nothing")
			}
		})
	}
}
