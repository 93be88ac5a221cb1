package httpapi

import (
	"context"
	"fmt"

	"github.com/danielgtaylor/huma/v2"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
)

// ownProblems turns the errors that huma makes by itself, for parameters that are wrong, into the
// form of all other problems. It runs for every answer and leaves the others alone.
func ownProblems(_ huma.Context, _ string, v any) (any, error) {
	switch m := v.(type) {
	case *problem.Problem:
		return &m.Problem, nil
	case *huma.ErrorModel:
		p := &api.Problem{Title: m.Title, Status: m.Status, Detail: m.Detail, Code: string(muster.FaultInvalid)}
		if m.Status >= 500 {
			p.Code = string(muster.FaultInternal)
		}
		for _, e := range m.Errors {
			if e != nil {
				p.Errors = append(p.Errors, api.ProblemField{Location: problem.Clip(e.Location), Message: problem.Clip(e.Message), Value: echo(e.Value)})
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

// echo is a wrong value as the answer repeats it: only a short scalar, because the client may have
// sent a secret or megabytes.
func echo(v any) any {
	switch v := v.(type) {
	case string:
		return problem.Clip(v)
	case bool, int, int64, float64:
		return v
	}
	return nil
}

// fail makes a problem of an error. what is the id of the operation.
func (a *API) fail(ctx context.Context, what string, err error) *problem.Problem {
	return a.router.Fail(ctx, what, err)
}
