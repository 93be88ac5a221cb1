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

// Pools are all of them.
func (c ClusterAPI) Pools(ctx context.Context) (*api.PoolList, error) {
	out := &api.PoolList{}
	err := c.call(ctx, request{method: http.MethodGet, path: "/v1/pools"}, out)
	return out, err
}

// Pool is one pool.
func (c ClusterAPI) Pool(ctx context.Context, name muster.PoolName) (*api.Pool, error) {
	out := &api.Pool{}
	err := c.call(ctx, request{method: http.MethodGet, path: path("v1", "pools", string(name))}, out)
	return out, err
}

// ResumePool lets nodes of a pool be destroyed again after its breaker has tripped.
func (c ClusterAPI) ResumePool(ctx context.Context, name muster.PoolName, o api.PoolResume) (*api.Pool, error) {
	r, err := jsonBody(request{method: http.MethodPost, path: path("v1", "pools", string(name), "resume")}, o)
	if err != nil {
		return nil, err
	}
	out := &api.Pool{}
	err = c.call(ctx, r, out)
	return out, err
}

// CheckProvider tries a provider out on a real instance. Progress, if not nil, is called for each
// step. It is tried once: an error of the check itself is an *api.Problem that says what went wrong there.
func (c ClusterAPI) CheckProvider(ctx context.Context, name muster.ProviderName, o api.ProviderCheck, progress func(api.CheckProgress)) error {
	r, err := jsonBody(request{method: http.MethodPost, path: path("v1", "providers", string(name), "check"), once: true}, o)
	if err != nil {
		return err
	}
	resp, err := c.stream(ctx, r)
	if err != nil {
		return err
	}
	body := &broken{resp.Body, c.Address()}
	defer func() { _ = body.Close() }()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var p api.CheckProgress
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return fmt.Errorf("checking provider %s: the answer is not of the API: %w", name, err)
		}
		switch {
		case p.Problem != nil:
			return p.Problem
		case p.OK:
			return nil
		case progress != nil:
			progress(p)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := lines.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return err
	}
	return &Unreachable{c.Address(), io.ErrUnexpectedEOF}
}
