package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/images"
)

// loadedHandlers handle the images that are loaded on the server.
type loadedHandlers struct{ *API }

func (a loadedHandlers) routes() {
	if a.cfg.Images == nil {
		return
	}
	op := func(method, id, summary, description string, errors ...int) huma.Operation {
		op := operation(method, "/v1/images", id, tagImages, summary, description)
		op.Errors = append(op.Errors, errors...)
		return op
	}
	load := op(http.MethodPost, "load-image", "Load images on the server", images.LoadDescription, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	load.RequestBody = byteBody()
	a.cfg.Door.TakeBytes(load.Method + " " + load.Path)
	register(a.API, load, func(ctx context.Context, in *loadImageIn) (*loadedOut, error) {
		list, err := a.cfg.Images.Load(ctx, images.Request{Name: in.Name, Rootfs: in.Rootfs, Platform: in.Platform}, in.length, in.from)
		return &loadedOut{list}, err
	})
	register(a.API, op(http.MethodGet, "list-loaded-images", "List the images on the server", ""), func(context.Context, *struct{}) (*loadedOut, error) {
		return &loadedOut{a.cfg.Images.List()}, nil
	})
	register(a.API, op(http.MethodDelete, "remove-image", "Remove an image from the server", images.RemoveDescription, http.StatusNotFound, http.StatusConflict), a.remove)
}

type loadImageIn struct {
	ByteBody
	Name     string `query:"name" maxLength:"1024" doc:"Name of the image, as web:1. Default: the names in the tar."`
	Rootfs   bool   `query:"rootfs" doc:"The tar is a root file system, which becomes an image of one layer."`
	Platform string `query:"platform" maxLength:"100" doc:"Of a root file system, as linux/arm64. Default: that of the server."`
}

type removeImageIn struct {
	Name string `query:"name" required:"true" maxLength:"1024" doc:"Name of the image, as web:1."`
}

type loadedOut struct{ Body *api.LoadedImageList }

func (a loadedHandlers) remove(ctx context.Context, in *removeImageIn) (*struct{}, error) {
	return nil, a.cfg.Images.Remove(ctx, in.Name)
}
