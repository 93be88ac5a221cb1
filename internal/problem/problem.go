package problem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// ContentType is the media type of a problem.
const ContentType = "application/problem+json"

// StatusGone is told to the log and the metrics of a request whose client left. No client ever sees
// it.
const StatusGone = 499

// ErrStopping ends what goes on for as long as its client stays, when the server is shut down.
var ErrStopping = muster.Faultf(muster.FaultUnavailable, "the server is stopping")

// ErrClientGone says that the client does not take the answer, or has left. Nobody is told.
var ErrClientGone = errors.New("the client does not take the answer")

// Problem is an error answer: the problem itself, and the headers that go with it.
type Problem struct {
	api.Problem
	// Headers are for HTTP, such as Retry-After. Never nil.
	Headers http.Header
}

// GetStatus, GetHeaders and ContentType are the names by which huma asks for what an error answer
// has.
func (p *Problem) GetStatus() int              { return p.Status }
func (p *Problem) GetHeaders() http.Header     { return p.Headers }
func (p *Problem) ContentType(_ string) string { return ContentType }

// New makes a problem. The code is the kind by which clients decide, and detail a sentence for
// people.
func New(status int, code, detail string, fields ...api.ProblemField) *Problem {
	return &Problem{
		Problem: api.Problem{Title: http.StatusText(status), Status: status, Detail: detail, Code: code, Errors: fields},
		Headers: http.Header{},
	}
}

// Invalid says what is wrong with one field of the request. The location is a path such as
// body.spec.count or query.after.
func Invalid(location, format string, args ...any) *Problem {
	return Wrong([]api.ProblemField{{Location: location, Message: fmt.Sprintf(format, args...)}})
}

// Wrong says which fields of the request are wrong.
func Wrong(fields []api.ProblemField) *Problem {
	detail := "the request is wrong in one field"
	if len(fields) != 1 {
		detail = fmt.Sprintf("the request is wrong in %d fields", len(fields))
	}
	return New(http.StatusUnprocessableEntity, string(muster.FaultInvalid), detail, fields...)
}

// NotFound is the error of an object that does not exist.
func NotFound(format string, args ...any) error {
	return muster.Faultf(muster.FaultNotFound, format, args...)
}

// statusOf makes a status code of a fault's kind. A service that knows more than the kind says chooses
// the status itself.
func statusOf(kind muster.FaultKind) int {
	switch kind {
	case muster.FaultInvalid:
		return http.StatusUnprocessableEntity
	case muster.FaultNotFound:
		return http.StatusNotFound
	case muster.FaultConflict, muster.FaultAlreadyExists:
		return http.StatusConflict
	case muster.FaultTooOld:
		return http.StatusGone
	case muster.FaultDiskLow:
		return http.StatusInsufficientStorage
	case muster.FaultRateLimited, muster.FaultQuota:
		return http.StatusTooManyRequests
	case muster.FaultUnavailable, muster.FaultTransient, muster.FaultCapacity, muster.FaultAmbiguous:
		return http.StatusServiceUnavailable
	case muster.FaultAuth:
		// The credentials of a provider or a bucket, not the caller's: those never get this far.
		return http.StatusBadGateway
	}
	return http.StatusInternalServerError
}

// Of makes a problem of any error. What is a defect of ours is not told to the client: the caller
// logs it.
func Of(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return New(http.StatusRequestEntityTooLarge, string(muster.FaultInvalid),
			fmt.Sprintf("the body has more than %s, which is the most that this request may have", muster.Bytes(tooLarge.Limit)))
	}
	var f *muster.Fault
	if !errors.As(err, &f) {
		switch {
		case errors.Is(err, context.Canceled):
			return New(StatusGone, "", "the client went away")
		case errors.Is(err, context.DeadlineExceeded):
			f = muster.Faultf(muster.FaultUnavailable, "")
		default:
			f = muster.Faultf(muster.FaultInternal, "")
		}
	}
	status := statusOf(f.Kind)
	detail := err.Error()
	if status == http.StatusInternalServerError {
		detail = "a defect of the server; its log says more"
	}
	out := New(status, string(f.Kind), detail)
	if f.Kind == muster.FaultInvalid && f.Field != "" {
		out.Errors = []api.ProblemField{{Location: f.Field, Message: f.Error()}}
	}
	switch status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		after := max(f.After, time.Second)
		out.Headers.Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	}
	return out
}

// IsInvalid reports whether an error says that what was asked for cannot be.
func IsInvalid(err error) bool {
	return err != nil && Of(err).Code == string(muster.FaultInvalid)
}

// Write sends the problem. It must be the first thing that is written.
func (p *Problem) Write(w http.ResponseWriter) {
	h := w.Header()
	for k, v := range p.Headers {
		h[k] = v
	}
	b, err := json.Marshal(&p.Problem)
	if err != nil {
		// Only a field's value can do that.
		p.Errors = nil
		b, _ = json.Marshal(&p.Problem)
	}
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-store")
	h.Del("Content-Length")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(b, '\n'))
}

// Clip bounds what a request makes us repeat, to 200 bytes.
func Clip(s string) string { return muster.Truncate(s, 200) }

// Printable makes text fit to be repeated in a sentence that comes from where nobody is trusted,
// such as a sandbox or a provider's program: at most 1,000 bytes, and a replacement for whatever is
// not printable.
func Printable(s string) string {
	const most = 1000
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\ufffd'
	}, s)
}

// Names refuses names in a request that cannot name anything. The location says which field has
// them.
func Names(location string, names ...string) error {
	for _, n := range names {
		if err := muster.CheckName(n); err != nil {
			return Invalid(location, "%v", err)
		}
	}
	return nil
}
