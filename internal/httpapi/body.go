package httpapi

import (
	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/httpapi/route"
)

// RequestBody has the JSON body of a request.
type RequestBody = route.RequestBody

// ByteBody is a body that the handler reads as it comes from the wire, such as a file. It is never
// in memory as a whole.
type ByteBody struct {
	from   *door.Patient
	length int64 // -1: not said
}

// Resolve implements huma.Resolver: huma calls it before the handler. The read deadline moves on
// with each piece, so that a slow upload may take hours but a silent one ends.
func (b *ByteBody) Resolve(ctx huma.Context) []error {
	r, w := humago.Unwrap(ctx)
	b.from, b.length = door.NewPatient(w, r), r.ContentLength
	return nil
}

// byteBody describes a ByteBody.
func byteBody() *huma.RequestBody {
	return &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
	}}
}
