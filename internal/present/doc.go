// Package present turns rows of the state into the types of the API, and changes into events with a
// sentence for people.
//
// Every transport shows the same row in the same way, so the conversions are functions of a
// snapshot's rows and of nothing else. A transport adds what only it knows, such as what the
// leader's loops report of a node.
//
// The package is pure. It must never read a clock, wait, or change a row; it knows no transport and
// no status code. httpapi calls it, and so does internal/explain.
package present
