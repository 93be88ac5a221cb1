package httpapi

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/problem"
)

// providerHandlers handle checks of providers.
type providerHandlers struct{ *API }

func (a providerHandlers) routes() {
	check := operation(http.MethodPost, "/v1/providers/{name}/check", "check-provider", tagPools, "Try a provider out",
		"Launches one instance, waits for its agent, runs one command there, and destroys the instance, whatever happened before. "+
			"The answer is a stream of CheckProgress, one JSON object a line; the last one has ok, or a problem with the remote error in words. Whoever breaks off the request ends the check: the instance is destroyed all the same.")
	check.Responses = map[string]*huma.Response{"200": {
		Description: "Progress, and the result.",
		Content:     map[string]*huma.MediaType{"application/x-ndjson": {Schema: a.schema(reflect.TypeFor[api.CheckProgress]())}},
	}}
	check.Errors = append(check.Errors, http.StatusNotFound, http.StatusServiceUnavailable)
	jsonBody[api.ProviderCheck](a.API, &check, false)
	register(a.API, check, a.checkProvider)
}

type checkIn struct {
	Name string `path:"name" maxLength:"200" doc:"Name of the provider."`
	RequestBody
}

func (a providerHandlers) checkProvider(ctx context.Context, in *checkIn) (*huma.StreamResponse, error) {
	var want api.ProviderCheck
	if len(in.JSON) > 0 {
		if p := door.Decode(in.JSON, &want); p != nil {
			return nil, p
		}
	}
	run, err := a.cfg.Operate.Providers.Check(in.Name, want)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		_, w := humago.Unwrap(hc)
		ctx, cancel := a.streaming(ctx)
		defer cancel()
		out := door.Lines{W: w}
		send := func(line api.CheckProgress) {
			if !out.Send(line) {
				cancel() // nobody reads any more
			}
		}
		err := run(ctx, func(step, text string) {
			send(api.CheckProgress{Step: step, Text: problem.Printable(text)})
		})
		switch {
		case err != nil && !out.Begun:
			a.fail(ctx, "check-provider", err).Write(w)
			return
		case err != nil:
			p := problem.Of(err).Problem
			// The words of the provider or its instance are what the operator wants to see, even if
			// the kind of the error would hide them elsewhere.
			p.Detail = problem.Printable(err.Error())
			send(api.CheckProgress{Step: "done", Text: p.Detail, Problem: &p})
		default:
			send(api.CheckProgress{Step: "done", Text: "everything went well", OK: true})
		}
		door.EndWrite(w)
	}}, nil
}
