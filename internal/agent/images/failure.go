package images

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/musterhq/muster"
)

func failure(class muster.FailureClass, reason muster.Reason, format string, args ...any) *muster.Failure {
	return &muster.Failure{Class: class, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// notFound: the user named something that is not there.
func notFound(format string, args ...any) *muster.Failure {
	return failure(muster.FailureUser, muster.ReasonImageNotFound, format, args...)
}

// unusable: the image, or its name, can never be used here as it is.
func unusable(format string, args ...any) *muster.Failure {
	return failure(muster.FailureUser, muster.ReasonImage, format, args...)
}

// outside: a registry or the way to it is out of order. Trying again may help.
func outside(format string, args ...any) *muster.Failure {
	return failure(muster.FailureOutside, muster.ReasonImage, format, args...)
}

// nodeFault: this node's disk or system.
func nodeFault(format string, args ...any) *muster.Failure {
	return failure(muster.FailureNode, muster.ReasonNodeFault, format, args...)
}

// nodeFull: the images that others use leave no room. The node is sound, and another one may have room.
func nodeFull(format string, args ...any) *muster.Failure {
	return failure(muster.FailureNode, muster.ReasonNodeFull, format, args...)
}

// isClass says whether err is a failure of this class.
func isClass(err error, class muster.FailureClass) bool {
	var f *muster.Failure
	return errors.As(err, &f) && f.Class == class
}

// naming puts the object's name before the sentence of a failure; other errors
// than failures are contexts that ended, or faults of this node.
func naming(object string, err error) error {
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
	return nodeFault("%s: %v", object, err)
}

// said is what an error of the network says, without the URL: the query of a
// URL may be a credential.
func said(err error) string {
	var u *url.Error
	var answer *transport.Error
	var unknown *tls.CertificateVerificationError
	var dns *net.DNSError
	switch {
	case errors.As(err, &unknown): // also if it answered by plain http then
		return "its certificate is not trusted: " + bounded(unknown.Err.Error())
	case errors.As(err, &answer):
		return status(answer)
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host " + dns.Name + ": check the spelling of the registry"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.As(err, &u):
		return said(u.Err)
	}
	return bounded(err.Error())
}

// status is an answer of a registry in one line.
func status(e *transport.Error) string {
	s := fmt.Sprint("status ", e.StatusCode)
	if len(e.Errors) > 0 {
		s += " (" + bounded(string(e.Errors[0].Code)+": "+e.Errors[0].Message) + ")"
	}
	return s
}

// bounded makes text of others fit for a sentence of ours.
func bounded(s string) string {
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
