package client

import (
	"errors"
	"net/http"

	"github.com/musterhq/muster/api"
)

// IsNotFound reports whether the server said that the object does not exist.
func IsNotFound(err error) bool { return isStatus(err, http.StatusNotFound) }

// IsAuth reports whether the server did not let the client in: the token is missing or wrong, or it is not
// for this request. A 403 with another code is about something else, as a file that may not be written.
func IsAuth(err error) bool {
	return isStatus(err, http.StatusUnauthorized) || isStatus(err, http.StatusForbidden) && (Code(err) == "" || Code(err) == api.CodeForbidden)
}

// IsConflict reports whether the object is not in a state that allows the request.
func IsConflict(err error) bool { return isStatus(err, http.StatusConflict) }

func isStatus(err error, status int) bool {
	var p *api.Problem
	return errors.As(err, &p) && p.Status == status
}

// IsUnreachable reports whether the server could not be reached.
func IsUnreachable(err error) bool {
	var u *Unreachable
	return errors.As(err, &u)
}

// IsGone reports whether the object is over: an allocation that has ended.
func IsGone(err error) bool { return isStatus(err, http.StatusGone) }

// Code is the code of a refusal, as api.CodeEnded; "" if the error is none.
func Code(err error) string {
	var p *api.Problem
	if errors.As(err, &p) {
		return p.Code
	}
	return ""
}
