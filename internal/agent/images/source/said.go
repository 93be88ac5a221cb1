package source

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"syscall"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/musterhq/muster/internal/agent/images/failure"
)

// said is what an error of the network says, without the URL, whose query may be a credential.
func said(err error) string {
	var u *url.Error
	var answer *transport.Error
	var unknown *tls.CertificateVerificationError
	var dns *net.DNSError
	switch {
	case errors.As(err, &unknown): // also if it answered by plain http then
		return "its certificate is not trusted: " + failure.Bounded(unknown.Err.Error())
	case errors.As(err, &answer):
		return status(answer)
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host " + dns.Name + ": check the spelling of the registry, and whether the node can resolve names"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.As(err, &u):
		return said(u.Err)
	}
	return failure.Bounded(err.Error())
}

// status is an answer of a registry in one line.
func status(e *transport.Error) string {
	s := fmt.Sprint("status ", e.StatusCode)
	if len(e.Errors) > 0 {
		s += " (" + failure.Bounded(string(e.Errors[0].Code)+": "+e.Errors[0].Message) + ")"
	}
	return s
}
