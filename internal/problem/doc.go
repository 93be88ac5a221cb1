// Package problem makes the errors that clients are told: problems as of RFC 9457, with a status
// code, the kind of fault, a sentence, and the fields of the request that are wrong. It is the one
// place where a fault's kind becomes a status code.
//
// It must never decide anything, read the state or log. Services return its problems where a
// fault's kind does not say enough; internal/door turns every other error of a request into one;
// transports write them, each in its own form.
package problem
