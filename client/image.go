package client

import (
	"context"
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
func (c ClusterAPI) PullImage(ctx context.Context, node muster.NodeID, ref string, progress func(api.ImageProgress)) (digest string, err error) {
	r := request{method: http.MethodPost, path: path("v1", "nodes", string(node), "images")}
	err = follow(ctx, c.caller, r, api.ImagePull{Ref: ref}, "pulling "+ref, func(p api.ImageProgress) (done bool, err error) {
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
