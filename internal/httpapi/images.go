package httpapi

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
)

// imageHandlers handle images in the caches of nodes. The cache is not in the state: each request
// asks the agent of the node.
type imageHandlers struct{ *API }

func (a imageHandlers) routes() {
	op := func(method, path, id, summary, description string) huma.Operation {
		op := operation(method, "/v1/nodes/{id}"+path, id, tagNodes, summary, description)
		op.Errors = append(op.Errors, http.StatusNotFound, http.StatusUnprocessableEntity, http.StatusServiceUnavailable)
		return op
	}
	register(a.API, op(http.MethodGet, "/images", "list-images", "List the images on a node", ""), a.listImages)

	pull := op(http.MethodPost, "/images", "pull-image", "Pull an image to a node",
		"Ahead of its use. The answer is a stream of ImageProgress, one JSON object a line; the last one has the digest, or a problem.")
	pull.Responses = map[string]*huma.Response{"200": {
		Description: "Progress, and the result.",
		Content:     map[string]*huma.MediaType{"application/x-ndjson": {Schema: a.schema(reflect.TypeFor[api.ImageProgress]())}},
	}}
	jsonBody[api.ImagePull](a.API, &pull, true)
	register(a.API, pull, a.pullImage)

	register(a.API, op(http.MethodPost, "/images/prune", "prune-images", "Delete images from a node", "Those that no sandbox uses, and that were not used lately."), a.pruneImages)
}

type imageListOut struct{ Body api.ImageList }

func (a imageHandlers) listImages(ctx context.Context, in *NodePath) (*imageListOut, error) {
	list, err := a.cfg.Operate.Images.List(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &imageListOut{*list}, nil
}

type pullImageIn struct {
	NodePath
	RequestBody
}

func (a imageHandlers) pullImage(ctx context.Context, in *pullImageIn) (*huma.StreamResponse, error) {
	var want api.ImagePull
	if p := door.Decode(in.JSON, &want); p != nil {
		return nil, p
	}
	ctx, cancel := a.streaming(ctx)
	progress, err := a.cfg.Operate.Images.Pull(ctx, in.ID, want)
	if err != nil {
		cancel()
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		_, w := humago.Unwrap(hc)
		defer cancel()
		out := door.Lines{W: w}
		for line, err := range progress {
			switch {
			case err != nil && !out.Begun:
				a.fail(ctx, "pull-image", err).Write(w)
				return
			case err != nil:
				line.Problem = &a.fail(ctx, "pull-image", err).Problem
			}
			if !out.Send(line) {
				break
			}
		}
		door.EndWrite(w)
	}}, nil
}

type pruneIn struct {
	NodePath
	All bool `query:"all" doc:"Also recently used ones."`
}

type prunedOut struct{ Body api.ImagesPruned }

func (a imageHandlers) pruneImages(ctx context.Context, in *pruneIn) (*prunedOut, error) {
	p, err := a.cfg.Operate.Images.Prune(ctx, in.ID, in.All)
	if err != nil {
		return nil, err
	}
	return &prunedOut{*p}, nil
}
