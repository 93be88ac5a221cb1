package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
)

func (a fileHandlers) fileChange(op func(method, path, id, summary, description string) huma.Operation) {
	change := op(http.MethodPatch, "/files", "change-files", "Delete and write files",
		"First everything in delete, then everything in write, each in its order. What fails does not keep the others from being done: the answer then is the problem of the first, and errors names each.")
	change.DefaultStatus = http.StatusNoContent
	jsonBody[api.FileChange](a.API, &change, true)
	register(a.API, change, a.changeFiles)
}

type changeFilesIn struct {
	AllocPath
	RequestBody
}

func (a fileHandlers) changeFiles(ctx context.Context, in *changeFilesIn) (*struct{}, error) {
	var q api.FileChange
	if p := door.Decode(in.JSON, &q); p != nil {
		return nil, p
	}
	if err := a.cfg.Inside.Files.Change(ctx, in.ID, &q); err != nil {
		return nil, err
	}
	return &struct{}{}, nil
}
