package httpapi

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

// sandboxOperation begins the description of an operation in a sandbox, with the errors that all of
// them have: for the state of the allocation (404, 409, 410), for the request (422), for the
// sandbox (502) and for the way to its node (503).
func sandboxOperation(method, path, id, summary, description string, errors ...int) huma.Operation {
	op := operation(method, "/v1/allocations/{id}"+path, id, tagSandbox, summary, description)
	op.Errors = append(op.Errors, http.StatusNotFound, http.StatusConflict, http.StatusGone,
		http.StatusUnprocessableEntity, http.StatusBadGateway, http.StatusServiceUnavailable)
	op.Errors = append(op.Errors, errors...)
	return op
}
