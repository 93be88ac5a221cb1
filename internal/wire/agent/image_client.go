package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"

	"github.com/musterhq/muster"
)

const (
	// pullSilence ends a pull of which there was no answer: an agent says
	// something at least every few seconds.
	pullSilence = time.Minute
	// pruneTimeout leaves time to delete many large images.
	pruneTimeout = 5 * time.Minute
	// maxProgress bounds one line of a pull.
	maxProgress = 64 << 10
)

// PutGrant hands over the right to pull an image, or that there is none.
func (c *Client) PutGrant(ctx context.Context, g PullGrant) error {
	return c.exchange(ctx, helloTimeout, http.MethodPut, "/v1/grants", g, nil)
}

// Images lists the node's cache.
func (c *Client) Images(ctx context.Context) (ImageList, error) {
	var l ImageList
	err := c.exchange(ctx, helloTimeout, http.MethodGet, "/v1/images", nil, &l)
	return l, err
}

// PruneImages deletes unused layers without an image and unused images without a reference; all:
// everything that is unused.
func (c *Client) PruneImages(ctx context.Context, all bool) (Pruned, error) {
	path := "/v1/images/prune"
	if all {
		path += "?all=true"
	}
	var p Pruned
	err := c.exchange(ctx, pruneTimeout, http.MethodPost, path, nil, &p)
	return p, err
}

// PullImage asks for an image and yields how it goes. The last item has a
// digest or a failure; if the stream breaks off before, the last pair carries the error.
func (c *Client) PullImage(ctx context.Context, want PullImage) iter.Seq2[PullProgress, error] {
	return func(yield func(PullProgress, error) bool) {
		const path = "/v1/images"
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		timer := time.AfterFunc(pullSilence, func() { cancel(errStalled) })
		defer timer.Stop()
		resp, err := c.beginPull(ctx, path, want)
		if err != nil {
			yield(PullProgress{}, err)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		bound := &io.LimitedReader{R: &watched{r: resp.Body, timer: timer, limit: pullSilence}}
		dec := json.NewDecoder(bound)
		for {
			bound.N = maxProgress
			var p PullProgress
			if err := dec.Decode(&p); err != nil {
				if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
					err = fmt.Errorf("the agent ended the pull of %s without saying how", want.Ref)
				}
				yield(PullProgress{}, unreached(path, cause(ctx, err)))
				return
			}
			if !yield(p, nil) || p.Digest != "" || p.Failure != nil {
				return
			}
		}
	}
}

func (c *Client) beginPull(ctx context.Context, path string, want PullImage) (*http.Response, error) {
	b, err := json.Marshal(want)
	if err != nil {
		return nil, muster.Faultf(muster.FaultInvalid, "agent: %s: %v", path, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent"+path, bytes.NewReader(b))
	if err != nil {
		return nil, muster.Faultf(muster.FaultInvalid, "agent: %s: %v", path, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, unreached(path, cause(ctx, err))
	}
	if !succeeded(resp) {
		defer func() { _ = resp.Body.Close() }()
		return nil, refused(resp)
	}
	return resp, nil
}
