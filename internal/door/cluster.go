package door

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/musterhq/muster/internal/problem"
)

type fromServerKey struct{}

// FromServer marks requests that another server of the cluster has passed on. That one has checked Host and
// Origin already, and this one is asked under a name that no client has used.
func FromServer(ctx context.Context) context.Context {
	return context.WithValue(ctx, fromServerKey{}, true)
}

type staleKey struct{}

// MayBeStale marks requests whose answer may be older than what the cluster has confirmed: CaughtUp is not
// asked.
func MayBeStale(ctx context.Context) context.Context { return context.WithValue(ctx, staleKey{}, true) }

// marked reports whether a context has one of the marks.
func marked(ctx context.Context, key any) bool {
	is, _ := ctx.Value(key).(bool)
	return is
}

// caughtUp is CaughtUp for one request.
func (d *Door) caughtUp(r *http.Request) error {
	if marked(r.Context(), staleKey{}) {
		return nil
	}
	return d.cfg.CaughtUp()
}

// Parameters of every read under /v1/, which say how old the answer may be.
const (
	// StaleParameter is true if the answer may be older than what the cluster has confirmed. A follower
	// answers by itself then.
	StaleParameter = "stale"
	// IndexParameter is the index of the log that the answer must have at least.
	IndexParameter = "min_index"
)

// takeAge takes these parameters from a request: handlers know nothing of them. What they ask for was done
// before, on a server that is one of several; the state of a server alone is never older.
func takeAge(r *http.Request) (*http.Request, *problem.Problem) {
	if !strings.Contains(r.URL.RawQuery, StaleParameter+"=") && !strings.Contains(r.URL.RawQuery, IndexParameter+"=") || !Reads(r) {
		return r, nil
	}
	query := r.URL.Query()
	if v, given := query[StaleParameter]; given && (len(v) != 1 || v[0] != "true" && v[0] != "false") {
		return r, problem.Invalid("query."+StaleParameter, "is %q; it is true or false", problem.Clip(strings.Join(v, ",")))
	}
	if _, p := LeastIndex(query); p != nil {
		return r, p
	}
	query.Del(StaleParameter)
	query.Del(IndexParameter)
	out, at := *r, *r.URL
	at.RawQuery = query.Encode()
	out.URL = &at
	return &out, nil
}

// LeastIndex is the index of the log that the answer to a query must have at least; 0 if it does not say.
func LeastIndex(query url.Values) (uint64, *problem.Problem) {
	v, given := query[IndexParameter]
	if !given {
		return 0, nil
	}
	n, err := strconv.ParseUint(strings.Join(v, ","), 10, 64)
	if err != nil {
		return 0, problem.Invalid("query."+IndexParameter, "is %q; it is an index of the log, as answers have it", problem.Clip(strings.Join(v, ",")))
	}
	return n, nil
}

// Reads reports whether a request reads from the API.
func Reads(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && strings.HasPrefix(r.URL.Path, "/v1/")
}

// Refuse answers a request that would not be admitted, and reports whether it did. It is for requests that
// another server answers: claims are not looked at, because the state of this one may be older.
func (d *Door) Refuse(w http.ResponseWriter, r *http.Request) bool {
	p := d.admitFrom(r)
	m := d.mounted(r.URL.Path)
	if p == nil && m == nil && !d.cfg.NoAuth && !open(r.URL.Path) {
		if _, shown, right := d.holder(r); !shown {
			p = d.checkToken(r)
		} else if !right {
			p = unauthorized("the claim's secret is wrong")
		}
	}
	if p == nil {
		return false
	}
	hurry(w)
	rec := &response{ResponseWriter: w}
	if m != nil {
		m.refuse(rec, r, p)
	} else {
		p.Write(rec)
	}
	d.cfg.Requests.Request("none", rec.code())
	return true
}
