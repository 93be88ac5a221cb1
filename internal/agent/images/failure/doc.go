// Package failure makes the failures of the node's image store: whose fault it is that an image
// cannot be had, and a sentence that says why.
//
// A sentence must never contain a credential, nor a URL, which may carry one. Text that others
// wrote goes through Bounded before it becomes part of a sentence. The package decides nothing: its
// callers know what an error means.
//
// The store and its packages source and unpack use it.
package failure
