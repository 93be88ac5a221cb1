// Package httpapi is the HTTP API under /v1: handlers, one file per noun. They translate requests
// for the services behind them (internal/claim, inside, submit, operate) and answers into api
// types, and describe themselves in OpenAPI. Requests reach them through internal/door.
//
// A handler must never propose a fact, decide anything, let a row out, or answer 5xx to what a
// client did wrong. internal/server gives it the door and the services, and serves its Handler.
package httpapi
