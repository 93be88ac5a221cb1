package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// problem is an error answer: an api.Problem with its headers.
type problem struct {
	api.Problem
	headers http.Header
}

// Status, headers and content type as huma asks for them.
func (p *problem) GetStatus() int              { return p.Status }
func (p *problem) GetHeaders() http.Header     { return p.headers }
func (p *problem) ContentType(_ string) string { return "application/problem+json" }

// newProblem makes an error answer.
func newProblem(status int, code, detail string, fields ...api.ProblemField) *problem {
	return &problem{
		Problem: api.Problem{Title: http.StatusText(status), Status: status, Detail: detail, Code: code, Errors: fields},
		headers: http.Header{},
	}
}

// invalid says which field of the request is wrong.
func invalid(location, format string, args ...any) *problem {
	return wrong([]api.ProblemField{{Location: location, Message: fmt.Sprintf(format, args...)}})
}

// wrong says which fields of the request are.
func wrong(fields []api.ProblemField) *problem {
	detail := "the request is wrong in one field"
	if len(fields) != 1 {
		detail = fmt.Sprintf("the request is wrong in %d fields", len(fields))
	}
	return newProblem(http.StatusUnprocessableEntity, string(muster.FaultInvalid), detail, fields...)
}

// statusOf is where a fault kind becomes a status code. There is no other place.
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

// statusGone is told to the log and the metrics of a request whose client left.
const statusGone = 499

// problemOf makes an error answer of any error. What is a defect of ours is
// not told to the client; see API.fail.
func problemOf(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return newProblem(http.StatusRequestEntityTooLarge, string(muster.FaultInvalid),
			fmt.Sprintf("the body has more than %s, which is the most that this request may have", muster.Bytes(tooLarge.Limit)))
	}
	var f *muster.Fault
	if !errors.As(err, &f) {
		switch {
		case errors.Is(err, context.Canceled):
			return newProblem(statusGone, "", "the client went away")
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
	out := newProblem(status, string(f.Kind), detail)
	if f.Kind == muster.FaultInvalid && f.Field != "" {
		out.Errors = []api.ProblemField{{Location: f.Field, Message: f.Error()}}
	}
	switch status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		after := max(f.After, time.Second)
		out.headers.Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	}
	return out
}

// fail is problemOf with a line in the log for what is our defect.
func (a *API) fail(ctx context.Context, what string, err error) *problem {
	p := problemOf(err)
	switch p.Status {
	case http.StatusBadGateway:
		// A sandbox or its node died under the request: that is life, and the client is told.
		a.logger.InfoContext(ctx, "request broken off", "request", what, "error", err)
	case http.StatusInternalServerError:
		a.logger.ErrorContext(ctx, "request failed", "request", what, "error", err)
	}
	return p
}

// write sends the problem, outside of huma.
func (p *problem) write(w http.ResponseWriter) {
	h := w.Header()
	for k, v := range p.headers {
		h[k] = v
	}
	b, err := json.Marshal(&p.Problem)
	if err != nil {
		// Only a field's value can do that.
		p.Errors = nil
		b, _ = json.Marshal(&p.Problem)
	}
	h.Set("Content-Type", p.ContentType(""))
	h.Set("Cache-Control", "no-store")
	h.Del("Content-Length")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(b, '\n'))
}

// ownProblems turns the error model of huma into ours.
func ownProblems(_ huma.Context, _ string, v any) (any, error) {
	switch m := v.(type) {
	case *problem:
		return &m.Problem, nil
	case *huma.ErrorModel:
		p := &api.Problem{Title: m.Title, Status: m.Status, Detail: m.Detail, Code: string(muster.FaultInvalid)}
		if m.Status >= 500 {
			p.Code = string(muster.FaultInternal)
		}
		for _, e := range m.Errors {
			if e != nil {
				p.Errors = append(p.Errors, api.ProblemField{Location: clip(e.Location), Message: clip(e.Message), Value: echo(e.Value)})
			}
		}
		if len(p.Errors) == 1 {
			p.Detail = "the request is wrong in one field"
		} else if len(p.Errors) > 1 {
			p.Detail = fmt.Sprintf("the request is wrong in %d fields", len(p.Errors))
		}
		return p, nil
	}
	return v, nil
}

// echo is a wrong value as it is told back: only a short scalar.
func echo(v any) any {
	switch v := v.(type) {
	case string:
		return clip(v)
	case bool, int, int64, float64:
		return v
	}
	return nil
}

// clip bounds what a request makes us repeat.
func clip(s string) string { return muster.Truncate(s, 200) }

// notFound is the answer for an object that does not exist.
func notFound(format string, args ...any) error {
	return muster.Faultf(muster.FaultNotFound, format, args...)
}
