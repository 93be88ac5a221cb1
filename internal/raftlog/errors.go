package raftlog

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/musterhq/muster/internal/raftlog/image"
)

// What a caller may meet. All but ErrAmbiguous and StorageError mean that the
// proposal was not committed and never will be.
var (
	ErrNotLeader = errors.New("this server does not lead")
	ErrStopping  = errors.New("the server is stopping")
	ErrDiskLow   = errors.New("the disk is nearly full")
	ErrTooLarge  = errors.New("the proposal is too large")

	// ErrAmbiguous: it was handed to raft, and then leadership, the disk or the
	// caller's patience went away. Look at the state before asking again.
	ErrAmbiguous = errors.New("it is not known whether the proposal was committed")
)

// ambiguous is ErrAmbiguous with its cause. A cause that by itself would mean
// "not committed" gives its words only: whoever tests for it first must not
// take the one for the other, and propose a second time.
func ambiguous(cause error) error {
	if errors.Is(cause, ErrNotLeader) || errors.Is(cause, ErrStopping) {
		return fmt.Errorf("%w: %v", ErrAmbiguous, cause)
	}
	return fmt.Errorf("%w: %w", ErrAmbiguous, cause)
}

// Why a data directory or a backup is refused.
var (
	ErrLocked   = errors.New("in use by another server")
	ErrNewer    = image.ErrNewer
	ErrDamaged  = image.ErrDamaged
	ErrNotEmpty = errors.New("not empty")
)

// LockedError is ErrLocked with the server that has the directory.
type LockedError struct {
	// Pid is its process; 0: not known.
	Pid int
}

// Error names the process.
func (e *LockedError) Error() string {
	if e.Pid == 0 {
		return ErrLocked.Error()
	}
	return fmt.Sprintf("%v, process %d", ErrLocked, e.Pid)
}

// Unwrap makes it an ErrLocked.
func (e *LockedError) Unwrap() error { return ErrLocked }

// StorageError is the first error that the disk under the log gave. There is
// no second: everything after it is refused with this one.
type StorageError struct {
	Dir string // the data directory, for the operator
	Op  Op     // what was being done
	Err error
}

func (e *StorageError) Error() string {
	if unknown := (*Fatal)(nil); errors.As(e.Err, &unknown) {
		return fmt.Sprintf("data directory %s: this version cannot read the log: %v", e.Dir, e.Err)
	}
	return fmt.Sprintf("data directory %s: cannot %s: %v", e.Dir, e.Op, cause(e.Err))
}

func (e *StorageError) Unwrap() error { return e.Err }

// Fatal is what a Machine gives as a result, by itself or wrapped, when a
// committed entry holds something that it does not understand: a newer version
// wrote it. To pass over it would make another state of the same log. So nothing
// more is applied, no snapshot or backup is made any more, and the process ends
// as it does after a storage error.
type Fatal struct{ Err error }

func (f *Fatal) Error() string { return f.Err.Error() }
func (f *Fatal) Unwrap() error { return f.Err }

// cause drops the layers around an operating system's error: they repeat what
// the sentence says already.
func cause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
