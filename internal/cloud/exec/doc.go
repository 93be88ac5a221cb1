// Package exec is a provider whose cloud is a program of the operator's: each call runs it once,
// with one JSON request on its stdin, and takes one JSON answer from its stdout. docs/providers.md is
// the contract for those who write one.
//
// The fleet calls it like any provider. It must never believe an answer that it does not understand, never
// take a call that broke off for one that did nothing, and never hand the program an instance that it does not name.
package exec
