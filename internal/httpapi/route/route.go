package route

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/metrics"
	"github.com/musterhq/muster/internal/problem"
)

// SchemaPrefix begins references to the types of the description. Their names are those of package
// api.
const SchemaPrefix = "#/components/schemas/"

// Router is where operations are registered. It does not change while they are.
type Router struct {
	Huma huma.API
	Door *door.Door
	// Metrics count requests; nil: nothing does.
	Metrics *metrics.Metrics
}

// Operation begins the description of an operation, with the errors that every operation may have.
// Callers add theirs.
func Operation(method, path, id, tag, summary, description string) huma.Operation {
	return huma.Operation{
		Method: method, Path: path, OperationID: id, Tags: []string{tag}, Summary: summary, Description: description,
		Errors: []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusMisdirectedRequest},
	}
}

// Register adds an operation to the mux and to the description. An error of handle becomes a problem.
func Register[I, O any](r *Router, op huma.Operation, handle func(context.Context, *I) (*O, error)) {
	r.Metrics.Route(op.Method+" "+op.Path, max(op.DefaultStatus, http.StatusOK))
	huma.Register(r.Huma, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := handle(ctx, in)
		if err != nil {
			return nil, r.Fail(ctx, op.OperationID, err)
		}
		return out, nil
	})
}

// Fail makes a problem of an error. The log gets a line if the error is a defect of the server.
// what is the id of the operation.
func (r *Router) Fail(ctx context.Context, what string, err error) *problem.Problem {
	return r.Door.Fail(ctx, what, err)
}

// JSONBody describes a JSON body of type T. The handler decodes it itself, with door.Decode.
func JSONBody[T any](r *Router, op *huma.Operation, required bool) {
	op.RequestBody = &huma.RequestBody{
		Required: required,
		Content:  map[string]*huma.MediaType{"application/json": {Schema: r.Schema(reflect.TypeFor[T]())}},
	}
	decoded(op)
}

// AnyBody describes a JSON body whose fields are described elsewhere. The handler decodes it itself.
func AnyBody(op *huma.Operation, description string) {
	op.RequestBody = &huma.RequestBody{
		Required: true, Description: description,
		Content: map[string]*huma.MediaType{"application/json": {Schema: &huma.Schema{Type: huma.TypeObject}}},
	}
	decoded(op)
}

// decoded is for bodies that the door has read within its limits and the handler decodes: huma's own
// limits must not apply.
func decoded(op *huma.Operation) {
	op.SkipValidateBody = true
	op.MaxBodyBytes = door.MaxBody + 1
	op.BodyReadTimeout = -1
	op.Errors = append(op.Errors, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity)
}

// Schema describes a type, under its name.
func (r *Router) Schema(t reflect.Type) *huma.Schema {
	return r.Huma.OpenAPI().Components.Schemas.Schema(t, true, t.Name())
}

// RawBody describes an answer that is a stream of bytes, with its headers by name.
func RawBody(contentType, description string, headers map[string]string) map[string]*huma.Response {
	r := &huma.Response{
		Description: description,
		Content:     map[string]*huma.MediaType{contentType: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}},
		Headers:     map[string]*huma.Param{},
	}
	for name, means := range headers {
		r.Headers[name] = &huma.Param{Description: means, Schema: &huma.Schema{Type: huma.TypeString}}
	}
	return map[string]*huma.Response{"200": r}
}

// NoToken marks an operation that needs no token. The door has its own list of these paths; this is
// only the description.
func NoToken(op huma.Operation) huma.Operation {
	op.Security = []map[string][]string{}
	return op
}

// RequestBody has the JSON body of a request, which the door has read whole and within its limits.
// Inputs of operations with a JSON body embed it. JSON is empty if there was no body; the handler
// decodes it with door.Decode, which is stricter than huma.
type RequestBody struct {
	JSON []byte
}

// Resolve implements huma.Resolver: huma calls it before the handler.
func (b *RequestBody) Resolve(ctx huma.Context) []error {
	r, _ := humago.Unwrap(ctx)
	b.JSON = door.Body(r)
	return nil
}
