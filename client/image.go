package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Images is the cache of images of a node.
func (c ClusterAPI) Images(ctx context.Context, node muster.NodeID) (*api.ImageList, error) {
	out := &api.ImageList{}
	err := c.call(ctx, request{method: http.MethodGet, path: path("v1", "nodes", string(node), "images")}, out)
	return out, err
}

// PullImage pulls an image to a node ahead of its use, and tells its digest. Progress, if not nil, is
// called for each line of progress. Pulling again what is there is quick: it may be repeated by the caller.
func (c ClusterAPI) PullImage(ctx context.Context, node muster.NodeID, ref string, progress func(api.ImageProgress)) (digest string, err error) {
	r, err := jsonBody(request{method: http.MethodPost, path: path("v1", "nodes", string(node), "images")}, api.ImagePull{Ref: ref})
	if err != nil {
		return "", err
	}
	resp, err := c.stream(ctx, r)
	if err != nil {
		return "", err
	}
	body := &broken{resp.Body, c.Address()}
	defer func() { _ = body.Close() }()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var p api.ImageProgress
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return "", fmt.Errorf("pulling %s: the answer is not of the API: %w", ref, err)
		}
		switch {
		case p.Problem != nil:
			return "", p.Problem
		case p.Digest != "":
			return p.Digest, nil
		case progress != nil:
			progress(p)
		}
	}
	if err := lines.Err(); err != nil && ctx.Err() == nil && !errors.Is(err, bufio.ErrTooLong) {
		return "", err
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return "", &Unreachable{c.Address(), io.ErrUnexpectedEOF}
}

// PruneImages deletes from a node's cache what no sandbox uses; with all, also what was used lately.
func (c ClusterAPI) PruneImages(ctx context.Context, node muster.NodeID, all bool) (*api.ImagesPruned, error) {
	out := &api.ImagesPruned{}
	r := request{method: http.MethodPost, path: path("v1", "nodes", string(node), "images", "prune"), query: values("all", yes(all)), once: true, slow: true}
	err := c.call(ctx, r, out)
	return out, err
}
