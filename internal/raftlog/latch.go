package raftlog

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
)

// Op names a storage operation, in words that fit after "cannot".
type Op string

// The operations that Config.Fault is asked about, and that StorageError names.
const (
	OpStore          Op = "append to the log"
	OpRead           Op = "read the log"
	OpCompact        Op = "compact the log"
	OpSegment        Op = "make a log segment"
	OpWrite          Op = "write to the log"
	OpSync           Op = "fsync the log"
	OpDelete         Op = "delete a log segment"
	OpMeta           Op = "record the log's segments"
	OpVote           Op = "record the term or vote"
	OpSnapshotCreate Op = "begin a snapshot"
	OpSnapshotWrite  Op = "write a snapshot"
	OpSnapshotSync   Op = "fsync a snapshot"
	OpSnapshotKeep   Op = "keep a snapshot"
	OpSnapshotRead   Op = "read a snapshot"
	OpDecode         Op = "understand a log entry"
)

// Fault decides, in tests and in the simulator, that a storage operation fails.
// It is asked before the operation, on the goroutine that does it; what it
// returns is taken for the operation's own error. path is the file, or empty.
type Fault func(op Op, path string) error

// latch holds the first storage error for ever.
//
// raft goes on after a failed write: it steps down, is elected again and
// writes after the hole, although the kernel may have dropped the pages of the
// failed fsync and reports them clean. So the first error closes the log.
//
// Nobody learns of it before fatal has returned, and by default it does not:
// whoever waits for an answer would otherwise report the end in words of its
// own, and perhaps end the process with another status.
type latch struct {
	dir   string
	fault Fault       // may be nil
	fatal func(error) // called once; ends the process unless a test says otherwise

	armed  atomic.Bool                  // false while Open runs: its errors are returned, not fatal
	early  atomic.Pointer[StorageError] // the last error before it was armed
	closed atomic.Bool                  // the first error is there, and fatal runs or has run
	first  atomic.Pointer[StorageError] // set when fatal has returned
	failed chan struct{}                // closed then
}

func newLatch(dir string, fault Fault, fatal func(error)) *latch {
	return &latch{dir: dir, fault: fault, fatal: fatal, failed: make(chan struct{})}
}

// exit is what a server does with a storage error. 74 is EX_IOERR.
func exit(err error) {
	fmt.Fprintf(os.Stderr, "muster: %v; the server stops here, so that nothing it confirmed is lost\n", err)
	os.Exit(74)
}

// do runs one storage operation, unless there was an error before or the fault
// hook wants one now.
func (l *latch) do(op Op, path string, f func() error) error {
	_, err := l.run(op, path, f, func(error) bool { return false })
	return err
}

// try is do for an operation that has not written anything yet: a shortage of descriptors or memory is returned and not held.
func (l *latch) try(op Op, path string, f func() error) error {
	passed, err := l.run(op, path, f, isShortage)
	if passed {
		return fmt.Errorf("cannot %s: %w", op, err)
	}
	return err
}

// run does it; errors that pass takes are returned as they are.
func (l *latch) run(op Op, path string, f func() error, pass func(error) bool) (passed bool, err error) {
	if l.closed.Load() {
		<-l.failed
		return false, l.err()
	}
	if l.fault != nil {
		err = l.fault(op, path)
	}
	if err == nil {
		err = f()
	}
	switch {
	case err == nil:
		return false, nil
	case pass(err):
		return true, err
	}
	return false, l.trip(op, err)
}

// isShortage tells what says nothing about the disk: the process or the machine has no descriptors or memory left, which
// whoever holds many connections can bring about.
func isShortage(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// trip records err if it is the first, and returns the first.
func (l *latch) trip(op Op, err error) error {
	var known *StorageError
	if errors.As(err, &known) { // a lower layer has named it better
		op, err = known.Op, known.Err
	}
	e := &StorageError{Dir: l.dir, Op: op, Err: err}
	if !l.armed.Load() {
		l.early.Store(e)
		return e
	}
	if l.closed.CompareAndSwap(false, true) {
		l.fatal(e)
		l.first.Store(e)
		close(l.failed)
	}
	<-l.failed
	return l.err()
}

// err is the first error, or nil.
func (l *latch) err() error {
	if e := l.first.Load(); e != nil {
		return e
	}
	return nil
}

// halt ends the goroutine of raft that met a storage error. Returning it would
// make raft panic in some places (a term that cannot be saved, an entry that
// cannot be read) and carry on in others. Deferred calls run, so raft still
// answers what it had in flight. Any other err is returned, and while Open runs
// every one: there the goroutine is the caller's.
func (l *latch) halt(err error) error {
	if err != nil && l.err() != nil {
		runtime.Goexit()
	}
	return err
}
