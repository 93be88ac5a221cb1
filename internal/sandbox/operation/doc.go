// Package operation is the connection of an operation that takes longer than a question and an
// answer: it reads and writes the frames of internal/wire/init for packages files, execs and ports
// of internal/sandbox.
//
// While it waits for its client, a goroutine must never hold what others need. So Conn gives up
// what its Holder holds before each wait, and takes it again after it. The package knows no kind of
// operation.
package operation
