// Package schema has what the API's description needs to know of types whose form on the wire does
// not follow from their Go form: sizes, durations, and parameters that may be left out. It also
// encodes the bodies of answers.
//
// It must never know an operation. internal/httpapi uses it.
package schema

import (
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// Size and Duration describe api.Size and api.Duration, which write themselves as text.
type (
	Size     int64
	Duration int64
)

// Schema implements huma.SchemaProvider.
func (Size) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		OneOf: []*huma.Schema{
			{Type: huma.TypeString, Pattern: `^[0-9]+(\.[0-9]+)? *([KMGT]iB|[kKMGT]B|B)?$`, Description: "A number with a unit."},
			{Type: huma.TypeInteger, Description: "Bytes."},
		},
		Examples: []any{"64MiB", "1.5GiB"},
	}
}

// Schema implements huma.SchemaProvider.
func (Duration) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Examples: []any{"90s", "1h30m"}, Description: "A number with a unit (ms, s, m, h), or several."}
}

// Optional is a parameter that may be left out, if the zero value means something else than its
// absence.
type Optional[T any] struct {
	Value T
	Given bool
}

// Receiver and OnParamSet implement huma.ParamWrapper and huma.ParamReactor.
func (o *Optional[T]) Receiver() reflect.Value { return reflect.ValueOf(o).Elem().Field(0) }

// OnParamSet records whether the parameter was given.
func (o *Optional[T]) OnParamSet(given bool, _ any) { o.Given = given }

// Schema is the schema of the value.
func (o Optional[T]) Schema(r huma.Registry) *huma.Schema {
	return huma.SchemaFromType(r, reflect.TypeFor[T]())
}
