// Package isolation holds the tests that try to break out of a sandbox: each line of docs/isolation.md, tried from the
// inside by a program that makes its own system calls (probe), against every runtime program that this machine has, with
// a user namespace and without.
//
// There is nothing in it to import. An attempt that succeeds is a defect of the runtime, and no
// test may be weakened for it: either the runtime changes, or the page stops promising.
package isolation
