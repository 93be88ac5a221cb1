package client

import (
	"context"
	"io"
	"net/http"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Images is the cache of images of a node.
func (c ClusterAPI) Images(ctx context.Context, node muster.NodeID) (*api.ImageList, error) {
	return fetch[api.ImageList](ctx, c.caller, request{method: http.MethodGet, path: path("v1", "nodes", string(node), "images")})
}

// PullImage pulls an image to a node ahead of its use, and tells its digest. Progress, if not nil, is
// called for each line of progress. Pulling again what is there is quick: it may be repeated by the caller.
func (c ClusterAPI) PullImage(ctx context.Context, node muster.NodeID, want api.ImagePull, progress func(api.ImageProgress)) (digest string, err error) {
	r := request{method: http.MethodPost, path: path("v1", "nodes", string(node), "images")}
	err = follow(ctx, c.caller, r, want, "pulling "+want.Ref, func(p api.ImageProgress) (done bool, err error) {
		switch {
		case p.Problem != nil:
			return true, p.Problem
		case p.Digest != "":
			digest, done = p.Digest, true
		case progress != nil:
			progress(p)
		}
		return done, nil
	})
	return digest, err
}

// PruneImages deletes from a node's cache what no sandbox uses; with all, also what was used lately.
func (c ClusterAPI) PruneImages(ctx context.Context, node muster.NodeID, all bool) (*api.ImagesPruned, error) {
	r := request{method: http.MethodPost, path: path("v1", "nodes", string(node), "images", "prune"), query: values("all", yes(all)), once: true, slow: true}
	return fetch[api.ImagesPruned](ctx, c.caller, r)
}

// ImageLoad says how a tar is loaded. Its zero value takes the names that the tar gives its images.
type ImageLoad struct {
	// Name is the name that the image gets.
	Name string
	// Rootfs: the tar is a root file system, which becomes an image of one layer.
	Rootfs bool
	// Platform is of a root file system, as linux/arm64; empty: that of the server.
	Platform string
}

// LoadImage loads images on the server, from a tar as docker save writes it, of an OCI layout or of
// a root file system. size is how many bytes it has, -1 if that is not known. It is tried once, as
// the tar may be a pipe.
func (c ClusterAPI) LoadImage(ctx context.Context, l ImageLoad, tar io.Reader, size int64) (*api.LoadedImageList, error) {
	return fetch[api.LoadedImageList](ctx, c.caller, request{
		method: http.MethodPost, path: "/v1/images", query: values("name", l.Name, "rootfs", yes(l.Rootfs), "platform", l.Platform),
		header: http.Header{"Content-Type": {"application/octet-stream"}}, size: size, once: true, slow: true,
		body: func() (io.ReadCloser, error) { return io.NopCloser(tar), nil },
	})
}

// LoadedImages are the images that are loaded on the server.
func (c ClusterAPI) LoadedImages(ctx context.Context) (*api.LoadedImageList, error) {
	return fetch[api.LoadedImageList](ctx, c.caller, request{method: http.MethodGet, path: "/v1/images"})
}

// RemoveImage removes an image from the server. Done again, the image is not found.
func (c ClusterAPI) RemoveImage(ctx context.Context, name string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: "/v1/images", query: values("name", name), once: true, slow: true}, nil)
}
