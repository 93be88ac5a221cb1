package client

import (
	"context"
	"net/http"
	"time"

	"github.com/musterhq/muster/api"
)

// HistoryQuery says which ended jobs are wanted. Empty fields leave nothing out.
type HistoryQuery struct {
	Namespace, Name, Status string
	// Since and Until bound when jobs ended: from the first, and before the second.
	Since, Until time.Time
	After        string
	Limit        int
}

// EndedJobs is a page of the jobs that have ended, the newest first.
func (c JobAPI) EndedJobs(ctx context.Context, q HistoryQuery) (*api.History, error) {
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339Nano)
	}
	v := values("namespace", q.Namespace, "name", q.Name, "status", q.Status, "since", at(q.Since), "until", at(q.Until), "after", q.After, "limit", positive(q.Limit))
	return fetch[api.History](ctx, c.caller, request{method: http.MethodGet, path: "/v1/history", query: v})
}

// EndedJob is one job that has ended, by its id, with a page of its attempts.
func (c JobAPI) EndedJob(ctx context.Context, id, after string, limit int) (*api.EndedJobDetail, error) {
	v := values("after", after, "limit", positive(limit))
	return fetch[api.EndedJobDetail](ctx, c.caller, request{method: http.MethodGet, path: path("v1", "history", id), query: v})
}
