// Package allocspec makes of an allocation what its agent needs to run it. Package link sends that.
//
// It is pure: state in, wire out. It must never leave out what an agent of the version before needs.
package allocspec
