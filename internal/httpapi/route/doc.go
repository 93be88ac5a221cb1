// Package route registers operations of the HTTP API: at the mux of the door, in the description and
// in the metrics. Handlers are in packages that use it: internal/httpapi, and those below it.
//
// It must never know an operation, or decide what one answers.
package route
