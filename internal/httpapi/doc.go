// Package httpapi is the HTTP API under /v1: handlers, one file per noun. A handler translates a
// request for the services behind it (internal/claim, inside, submit, operate) and the answer into
// api types. Each operation describes itself in OpenAPI. Requests reach the handlers through
// internal/door, which has checked the token, the host and the limits of the body by then.
//
// Conventions that hold for all operations. What is read of the state comes from one snapshot; the
// index of an answer says which. Writes return when the fact is durable. An error is a problem;
// register logs it only if it is a defect of the server. Streams end with the request or with the
// server (API.streaming).
//
// A handler must never propose a fact, decide anything, let a row out, or answer 5xx to what a
// client did wrong. internal/server gives it the door and the services, and serves its Handler.
package httpapi
