package failure

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/musterhq/muster"
)

// because makes one of a class, for a reason.
func because(class muster.FailureClass, reason muster.Reason, format string, args ...any) *muster.Failure {
	return &muster.Failure{Class: class, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// NotFound is the failure of a user who named something that does not exist.
func NotFound(format string, args ...any) *muster.Failure {
	return because(muster.FailureUser, muster.ReasonImageNotFound, format, args...)
}

// Unusable is the failure of a user whose image, or its name, can never be used here as it is.
func Unusable(format string, args ...any) *muster.Failure {
	return because(muster.FailureUser, muster.ReasonImage, format, args...)
}

// Outside is the failure of a registry, or of the way to it. Trying again may help.
func Outside(format string, args ...any) *muster.Failure {
	return because(muster.FailureOutside, muster.ReasonImage, format, args...)
}

// Node is a failure of this node's disk or system.
func Node(format string, args ...any) *muster.Failure {
	return because(muster.FailureNode, muster.ReasonNodeFault, format, args...)
}

// NodeFull is a failure for want of room: images that are in use fill it. The node is sound, and
// another one may have room.
func NodeFull(format string, args ...any) *muster.Failure {
	return because(muster.FailureNode, muster.ReasonNodeFull, format, args...)
}

// Is reports whether err is a failure of this class.
func Is(err error, class muster.FailureClass) bool {
	var f *muster.Failure
	return errors.As(err, &f) && f.Class == class
}

// Naming puts the object's name before the sentence of a failure. An error that is no failure is
// the end of a context, which stays as it is, or a fault of this node.
func Naming(object string, err error) error {
	var f *muster.Failure
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f) && strings.HasPrefix(f.Message, "image "):
		return f // named by whoever was asked for the grant
	case errors.As(err, &f):
		named := *f
		named.Message = object + ": " + f.Message
		return &named
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return Node("%s: %v", object, err)
}

// Bounded makes text that others wrote fit for a sentence: one line of valid UTF-8, at most 240
// bytes long.
func Bounded(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	const most = 240
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// IsNotFound reports whether err is a failure of NotFound.
func IsNotFound(err error) bool {
	var f *muster.Failure
	return errors.As(err, &f) && f.Reason == muster.ReasonImageNotFound
}
