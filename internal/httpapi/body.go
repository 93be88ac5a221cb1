package httpapi

import (
	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster/internal/door"
)

// RequestBody takes the JSON body that the door has read. It is a field of the inputs of operations
// that have one.
type RequestBody struct {
	JSON []byte
}

// Resolve is called by huma before the handler.
func (b *RequestBody) Resolve(ctx huma.Context) []error {
	r, _ := humago.Unwrap(ctx)
	b.JSON = door.Body(r)
	return nil
}

// ByteBody is the body of a request as it comes from the wire.
type ByteBody struct {
	from   *door.Patient
	length int64 // -1: not said
}

// Resolve is called by huma before the handler.
func (b *ByteBody) Resolve(ctx huma.Context) []error {
	r, w := humago.Unwrap(ctx)
	b.from, b.length = door.NewPatient(w, r), r.ContentLength
	return nil
}
