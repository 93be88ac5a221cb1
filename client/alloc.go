package client

import (
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// AllocQuery selects allocations. Zero fields select all.
type AllocQuery struct {
	Node  muster.NodeID // of all jobs only
	Live  bool          // not those that have ended; of all jobs only
	Index *int          // of one job only: this member's
	After string
	Limit int
}

func (q AllocQuery) values() url.Values {
	v := values("node", string(q.Node), "after", q.After, "limit", positive(q.Limit))
	if q.Live {
		v.Set("live", "true")
	}
	if q.Index != nil {
		v.Set("index", strconv.Itoa(*q.Index))
	}
	return v
}

// Allocs is a page of all allocations.
func (c JobAPI) Allocs(ctx context.Context, q AllocQuery) (*api.AllocList, error) {
	return fetch[api.AllocList](ctx, c.caller, request{method: http.MethodGet, path: "/v1/allocations", query: q.values()})
}

// AllAllocs goes through the pages. After an error it ends.
func (c JobAPI) AllAllocs(ctx context.Context, q AllocQuery) iter.Seq2[api.Alloc, error] {
	return pages(func(after string) ([]api.Alloc, string, error) {
		q.After, q.Limit = after, whole(q.Limit)
		l, err := c.Allocs(ctx, q)
		return l.Allocs, l.Next, err
	})
}

// JobAllocs is a page of a job's allocations.
func (c JobAPI) JobAllocs(ctx context.Context, key muster.JobKey, q AllocQuery) (*api.AllocList, error) {
	return fetch[api.AllocList](ctx, c.caller, request{method: http.MethodGet, path: jobPath(key, "allocations"), query: q.values()})
}

// AllJobAllocs goes through the pages. After an error it ends.
func (c JobAPI) AllJobAllocs(ctx context.Context, key muster.JobKey, q AllocQuery) iter.Seq2[api.Alloc, error] {
	return pages(func(after string) ([]api.Alloc, string, error) {
		q.After, q.Limit = after, whole(q.Limit)
		l, err := c.JobAllocs(ctx, key, q)
		return l.Allocs, l.Next, err
	})
}

// Alloc is one allocation.
func (c JobAPI) Alloc(ctx context.Context, id muster.AllocID) (*api.Alloc, error) {
	return fetch[api.Alloc](ctx, c.caller, request{method: http.MethodGet, path: path("v1", "allocations", string(id))})
}

// Outputs lists the declared outputs that were stored of an allocation.
func (c JobAPI) Outputs(ctx context.Context, id muster.AllocID) (*api.OutputFileList, error) {
	return fetch[api.OutputFileList](ctx, c.caller, request{method: http.MethodGet, path: path("v1", "allocations", string(id), "outputs")})
}

// OutputTar is the n-th declared output of an allocation as a tar stream. It is
// whole only if it is read to io.EOF. The caller closes it.
func (c JobAPI) OutputTar(ctx context.Context, id muster.AllocID, n int) (io.ReadCloser, error) {
	return c.rawBody(ctx, path("v1", "allocations", string(id), "outputs", strconv.Itoa(n)))
}
