package httpapi

import (
	"context"
	"encoding/json"
	"maps"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/httpapi/route"
	"github.com/musterhq/muster/internal/httpapi/schema"
	"github.com/musterhq/muster/internal/httpapi/servers"
)

// describe sets up huma with the parts of the description that concern the whole API. Routes come
// after it.
func (a *API) describe() {
	registry := huma.NewMapRegistry(route.SchemaPrefix, huma.DefaultSchemaNamer)
	registry.RegisterTypeAlias(reflect.TypeFor[api.Size](), reflect.TypeFor[schema.Size]())
	registry.RegisterTypeAlias(reflect.TypeFor[api.Duration](), reflect.TypeFor[schema.Duration]())
	registry.RegisterTypeAlias(reflect.TypeFor[huma.ErrorModel](), reflect.TypeFor[api.Problem]())
	jsonFormat := huma.Format{Marshal: schema.Marshal, Unmarshal: json.Unmarshal}
	a.huma = humago.New(a.cfg.Door.Mux, huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "Muster", Version: a.cfg.Version,
				Description: "Jobs, their members and allocations, nodes, output and events of a Muster server.\n\n" +
					"Bodies are JSON (`application/json`). Every error is a problem as of RFC 9457: `code` is the kind to decide by, `detail` a sentence, `errors` the fields that are wrong. " +
					"Lists come in pages: pass `next` as `after` until there is none. `index` is the place in the log that an answer shows; `/v1/events?after=INDEX` goes on from there.",
			},
			Components: &huma.Components{
				Schemas: registry,
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"token": {Type: "http", Scheme: "bearer", Description: "The token of the server's data directory."},
				},
			},
			Security: []map[string][]string{{"token": {}}},
			Tags: []*huma.Tag{
				{Name: tagJobs, Description: "What users submit: a template, a count, a restart policy."},
				{Name: tagAllocs, Description: "Attempts to run a member of a job on a node."},
				{Name: tagSandbox, Description: "Into the sandbox of a running allocation: executions, files, ports, usage. docs/exec.md has the protocol of the WebSockets."},
				{Name: tagRunners, Description: "Environments, their warm runners, and the claims by which runners are used. Holders of a claim show its secret in place of the token."},
				{Name: tagHistory, Description: "Jobs that have ended, under names that others may have now."},
				{Name: tagOutput, Description: "What allocations wrote, and the files they left."},
				{Name: tagUploads, Description: "Inputs of jobs that are sent before them."},
				{Name: tagImages, Description: "Images that are loaded on the server, for nodes without a registry."},
				{Name: tagNodes, Description: "Machines that run allocations."},
				{Name: tagNamespaces, Description: "Whose work it is, limits, and how capacity is shared."},
				{Name: tagPools, Description: "Rules by which nodes are made and given up, and the clouds that they come from."},
				{Name: tagCost, Description: "What was spent, and on what."},
				{Name: tagEvents, Description: "What changes, as it changes."},
				{Name: tagServer, Description: "The server itself."},
			},
		},
		Formats:       map[string]huma.Format{"application/json": jsonFormat, "json": jsonFormat},
		DefaultFormat: "application/json",
		Transformers:  []huma.Transformer{ownProblems},

		RejectUnknownQueryParameters: true,
	})
	a.router = &route.Router{Huma: a.huma, Door: a.cfg.Door, Metrics: a.cfg.Metrics}
}

// Tags of operations.
const (
	tagJobs    = "jobs"
	tagAllocs  = "allocations"
	tagSandbox = "sandbox"
	tagRunners = "runners"
	tagOutput  = "output"
	tagUploads = "uploads"
	tagImages  = "images"
	tagNodes   = "nodes"
	tagPools   = "pools"

	tagNamespaces = "namespaces"
	tagCost       = "cost"
	tagHistory    = "history"
	tagEvents     = "events"
	tagServer     = servers.Tag
)

// register adds an operation to the mux and to the description. An operation in a sandbox is
// registered a second time below /v1/runners, where the holder of a claim uses it.
func register[I, O any](a *API, op huma.Operation, handle func(context.Context, *I) (*O, error)) {
	route.Register(a.router, op, handle)
	if below, is := strings.CutPrefix(op.Path, sandboxPath); is && op.Tags[0] == tagSandbox {
		// The same of runners, by their holders; the guard sees to that.
		if a.cfg.Door.TakesBytes(op.Method + " " + op.Path) {
			a.cfg.Door.TakeBytes(op.Method + " " + runnerPath + below)
		}
		op.Path, op.OperationID, op.Tags = runnerPath+below, op.OperationID+"-of-runner", []string{tagRunners}
		op.Responses = maps.Clone(op.Responses)
		register(a, op, handle)
	}
}

// operation, jsonBody and rawBody are those of package route.
func operation(method, path, id, tag, summary, description string) huma.Operation {
	return route.Operation(method, path, id, tag, summary, description)
}

func jsonBody[T any](a *API, op *huma.Operation, required bool) {
	route.JSONBody[T](a.router, op, required)
}

func (a *API) schema(t reflect.Type) *huma.Schema { return a.router.Schema(t) }

func rawBody(contentType, description string, headers map[string]string) map[string]*huma.Response {
	return route.RawBody(contentType, description, headers)
}

// sandboxPath begins the paths of operations in sandboxes, runnerPath those of the same operations
// on runners.
const sandboxPath, runnerPath = "/v1/allocations/{id}/", "/v1/runners/{id}/"

// finishDescription writes the description as JSON. It must come when all routes are known.
func (a *API) finishDescription() error {
	o := a.huma.OpenAPI()
	for _, s := range o.Components.Schemas.Map() {
		for _, p := range s.Properties {
			if p.Type == huma.TypeArray {
				p.Nullable = false // lists are never null here
			}
		}
	}
	var err error
	a.openapi, err = json.Marshal(o)
	return err
}

// Page has the parameters of every list that comes in pages. A page is one snapshot; what changes
// between two pages may be missed or shown twice, but rows that stay are shown once.
type Page struct {
	After string `query:"after" maxLength:"200" doc:"Start of the page: next of the previous page."`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Maximum number."`
}
