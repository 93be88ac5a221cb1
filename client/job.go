package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// NewKey draws an idempotency key.
func NewKey() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Submit submits a job. With a key it may be repeated, by the client itself as
// well, and is done once; without one it is tried once.
func (c JobAPI) Submit(ctx context.Context, s api.JobSubmission, key string) (*api.JobSubmitted, error) {
	r, err := jsonBody(request{method: http.MethodPost, path: "/v1/jobs", once: key == ""}, s)
	if err != nil {
		return nil, err
	}
	if key != "" {
		r.header.Set("Idempotency-Key", key)
	}
	return fetch[api.JobSubmitted](ctx, c.caller, r)
}

// Validate asks what a submission would run into.
func (c JobAPI) Validate(ctx context.Context, s api.JobSubmission) (*api.JobValidation, error) {
	r, err := jsonBody(request{method: http.MethodPost, path: "/v1/jobs/validate"}, s)
	if err != nil {
		return nil, err
	}
	return fetch[api.JobValidation](ctx, c.caller, r)
}

// ValidatePlan asks also what a submission would do now.
func (c JobAPI) ValidatePlan(ctx context.Context, s api.JobSubmission) (*api.JobValidation, error) {
	r, err := jsonBody(request{method: http.MethodPost, path: "/v1/jobs/validate", query: url.Values{"plan": {"true"}}}, s)
	if err != nil {
		return nil, err
	}
	return fetch[api.JobValidation](ctx, c.caller, r)
}

// Job is one job, with its spec.
func (c JobAPI) Job(ctx context.Context, key muster.JobKey) (*api.Job, error) {
	return fetch[api.Job](ctx, c.caller, request{method: http.MethodGet, path: jobPath(key)})
}

func jobPath(key muster.JobKey, more ...string) string {
	ns := key.Namespace
	ns = cmp.Or(ns, muster.DefaultNamespace)
	return path(append([]string{"v1", "jobs", string(ns), key.Name}, more...)...)
}

// Stop tells a job to stop. On one that has ended or is stopping it changes
// nothing, so that it may be repeated.
func (c JobAPI) Stop(ctx context.Context, key muster.JobKey, reason string) (*api.Job, error) {
	r, err := jsonBody(request{method: http.MethodPost, path: jobPath(key, "stop")}, api.JobStop{Reason: reason})
	if err != nil {
		return nil, err
	}
	return fetch[api.Job](ctx, c.caller, r)
}

// Retry has members of a batch job that did not succeed wait again. With a key it may be repeated,
// by the client itself as well, and is done once; without one it is tried once.
func (c JobAPI) Retry(ctx context.Context, key muster.JobKey, q api.JobRetry, idempotency string) (*api.JobRetried, error) {
	r, err := jsonBody(request{method: http.MethodPost, path: jobPath(key, "retry"), once: idempotency == ""}, q)
	if err != nil {
		return nil, err
	}
	if idempotency != "" {
		r.header.Set("Idempotency-Key", idempotency)
	}
	return fetch[api.JobRetried](ctx, c.caller, r)
}

// History is the versions of a job that are remembered, the newest first.
func (c JobAPI) History(ctx context.Context, key muster.JobKey) (*api.JobHistory, error) {
	return fetch[api.JobHistory](ctx, c.caller, request{method: http.MethodGet, path: jobPath(key, "history")})
}

// Scale gives a service more or fewer members.
func (c JobAPI) Scale(ctx context.Context, key muster.JobKey, s api.JobScale) (*api.JobSubmitted, error) {
	return c.resubmit(ctx, jobPath(key, "scale"), s)
}

// Revert goes back to an earlier version of a service.
func (c JobAPI) Revert(ctx context.Context, key muster.JobKey, r api.JobRevert) (*api.JobSubmitted, error) {
	return c.resubmit(ctx, jobPath(key, "revert"), r)
}

// resubmit is sent once: done again it might make another version.
func (c JobAPI) resubmit(ctx context.Context, path string, body any) (*api.JobSubmitted, error) {
	r, err := jsonBody(request{method: http.MethodPost, path: path, once: true}, body)
	if err != nil {
		return nil, err
	}
	return fetch[api.JobSubmitted](ctx, c.caller, r)
}

// JobQuery selects jobs. Zero fields select all.
type JobQuery struct {
	Namespace muster.Namespace
	Stage     muster.JobStage
	Status    string // one of api.JobStatuses
	Newest    bool   // by submission, the newest first; else by namespace and name
	Waits     bool   // also why waiting jobs wait
	After     string // Next of the page before
	Limit     int    // of a page; 0 is the server's choice
}

// Jobs is a page of jobs.
func (c JobAPI) Jobs(ctx context.Context, q JobQuery) (*api.JobList, error) {
	v := values("namespace", string(q.Namespace), "stage", string(q.Stage), "status", q.Status, "after", q.After, "limit", positive(q.Limit))
	if q.Newest {
		v.Set("sort", "newest")
	}
	if q.Waits {
		v.Set("waits", "true")
	}
	return fetch[api.JobList](ctx, c.caller, request{method: http.MethodGet, path: "/v1/jobs", query: v})
}

// AllJobs goes through the pages. After an error it ends.
func (c JobAPI) AllJobs(ctx context.Context, q JobQuery) iter.Seq2[api.Job, error] {
	return pages(func(after string) ([]api.Job, string, error) {
		q.After, q.Limit = after, whole(q.Limit)
		l, err := c.Jobs(ctx, q)
		return l.Jobs, l.Next, err
	})
}

// MemberQuery selects members of a job. Zero fields select all.
type MemberQuery struct {
	Status muster.MemberStatus
	After  string
	Limit  int
}

// Members is a page of a job's members.
func (c JobAPI) Members(ctx context.Context, key muster.JobKey, q MemberQuery) (*api.MemberList, error) {
	v := values("status", string(q.Status), "after", q.After, "limit", positive(q.Limit))
	return fetch[api.MemberList](ctx, c.caller, request{method: http.MethodGet, path: jobPath(key, "members"), query: v})
}

// AllMembers goes through the pages. After an error it ends.
func (c JobAPI) AllMembers(ctx context.Context, key muster.JobKey, q MemberQuery) iter.Seq2[api.Member, error] {
	return pages(func(after string) ([]api.Member, string, error) {
		q.After, q.Limit = after, whole(q.Limit)
		l, err := c.Members(ctx, key, q)
		return l.Members, l.Next, err
	})
}

// values makes a query of names and values, without the empty ones.
func values(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	return v
}

func positive(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// MaxPage is the most that a page may hold.
const MaxPage = 1000

// whole is the limit for those who want all pages: the fewest of them, if no limit is given.
func whole(limit int) int {
	if limit > 0 {
		return limit
	}
	return MaxPage
}

// pages goes through pages until one has no next.
func pages[T any](page func(after string) ([]T, string, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		after := ""
		for {
			items, next, err := page(after)
			if err != nil {
				var zero T
				yield(zero, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" || next == after {
				return
			}
			after = next
		}
	}
}

// HasUpload asks whether content with this digest is there already.
func (c JobAPI) HasUpload(ctx context.Context, digest string) (bool, error) {
	err := c.call(ctx, request{method: http.MethodHead, path: path("v1", "uploads", digest)}, nil)
	if IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// Upload sends content with this digest, which open opens anew for each attempt.
func (c JobAPI) Upload(ctx context.Context, digest string, size int64, open func() (io.ReadCloser, error)) (*api.Upload, error) {
	r := request{
		method: http.MethodPut, path: path("v1", "uploads", digest), body: open, size: size, slow: true,
		header: http.Header{"Content-Type": {"application/octet-stream"}},
	}
	if size == 0 {
		// Of a body that is there but empty net/http cannot know the length, and sends it in chunks.
		r.body = func() (io.ReadCloser, error) { return http.NoBody, nil }
	}
	out := &api.Upload{Digest: digest, Size: size}
	err := c.call(ctx, r, out)
	return out, err
}
