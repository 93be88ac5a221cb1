package httpapi

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

// sandboxOperation begins the description of an operation in a sandbox.
func sandboxOperation(method, path, id, summary, description string, errors ...int) huma.Operation {
	op := operation(method, "/v1/allocations/{id}"+path, id, tagSandbox, summary, description)
	op.Errors = append(op.Errors, http.StatusNotFound, http.StatusConflict, http.StatusGone,
		http.StatusUnprocessableEntity, http.StatusBadGateway, http.StatusServiceUnavailable)
	op.Errors = append(op.Errors, errors...)
	return op
}
