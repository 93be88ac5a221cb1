package httpapi

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
)

// fail is problem.Of with a line in the log for what is our defect.
func (a *API) fail(ctx context.Context, what string, err error) *problem.Problem {
	p := problem.Of(err)
	switch p.Status {
	case http.StatusBadGateway:
		// A sandbox or its node died under the request: that is life, and the client is told.
		a.logger.InfoContext(ctx, "request broken off", "request", what, "error", err)
	case http.StatusInternalServerError:
		a.logger.ErrorContext(ctx, "request failed", "request", what, "error", err)
	}
	return p
}

// ownProblems turns the error model of huma into ours.
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

// echo is a wrong value as it is told back: only a short scalar.
func echo(v any) any {
	switch v := v.(type) {
	case string:
		return problem.Clip(v)
	case bool, int, int64, float64:
		return v
	}
	return nil
}
