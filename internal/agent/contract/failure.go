package contract

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/musterhq/muster"
)

// Errors of runtimes.
var (
	// ErrNoSandbox: no sandbox was ever started in the directory, or it has ended.
	ErrNoSandbox = errors.New("no sandbox was started here")
	// ErrNoFreezer: sandboxes cannot be frozen on this node, or not this one.
	ErrNoFreezer = errors.New("sandboxes cannot be frozen here: there is no freezer among the cgroups")
	// ErrNoInit: the sandbox has no init that can be connected to.
	ErrNoInit = errors.New("this sandbox has no init to connect to")
	// ErrOutputDropped: the bytes asked for were dropped by the output limit.
	ErrOutputDropped = errors.New("that part of the output was dropped by the output limit")
)

// MaxMessage bounds the message of a failure, in bytes. Servers of URLs, registries and commands
// choose the words, and a muster server refuses reports that are larger than it expects. In JSON a
// byte can become six.
const MaxMessage = 1500

// Failure makes a failure; the message is a sentence that names what is wrong, cut at MaxMessage.
func Failure(class muster.FailureClass, reason muster.Reason, format string, args ...any) *muster.Failure {
	return &muster.Failure{Class: class, Reason: reason, Message: muster.Truncate(fmt.Sprintf(format, args...), MaxMessage)}
}

// AsFailure is err as a failure: err itself if it is one, else one of the given class that says
// what and err.
func AsFailure(err error, class muster.FailureClass, reason muster.Reason, what string) *muster.Failure {
	var f *muster.Failure
	if errors.As(err, &f) {
		return f
	}
	return Failure(class, reason, "%s: %v", what, err)
}

// FileFailure turns an error of a file into a failure. What the disk or the process table refuses
// is the node's failure, anything else the user's, for the given reason.
func FileFailure(reason muster.Reason, what string, err error) *muster.Failure {
	for _, e := range []error{
		syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ESTALE,
	} {
		if errors.Is(err, e) {
			return Failure(muster.FailureNode, muster.ReasonNodeFault, "%s: %v", what, err)
		}
	}
	return Failure(muster.FailureUser, reason, "%s: %v", what, err)
}
