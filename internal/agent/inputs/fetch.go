package inputs

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/destinations"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/wait"
)

// Times of fetching.
const (
	// fetchHeader bounds the wait for the header of an answer, fetchStall that for each further
	// piece.
	fetchHeader = 30 * time.Second
	fetchStall  = time.Minute
	// fetchFirst and fetchLongest are the first and the longest delay between two tries.
	fetchFirst   = 500 * time.Millisecond
	fetchLongest = 30 * time.Second
)

// checkDiskEvery is after how many bytes the room on the disk is checked again.
const checkDiskEvery = 16 << 20

var errTooLarge = errors.New("it is too large")

// fetch gets an input from its URL. It tries until the input is there or can never be, or nobody
// waits any more.
func (s *Cache) fetch(key wantKey, w *want) {
	ctx := w.ctx
	for delay := fetchFirst; ; delay = min(2*delay, fetchLongest) {
		f, final := s.fetchOnce(ctx, key)
		if ctx.Err() != nil || f == nil {
			return // landed, by this fetch or another; or nobody waits
		}
		s.mu.Lock()
		w.last = f
		if final {
			if s.wants[key] == w {
				delete(s.wants, key)
			}
			w.failure = f
			w.cancel()
			close(w.done)
		}
		s.mu.Unlock()
		if final {
			return
		}
		s.cfg.Logger.Warn("input not fetched, tried again", "url", plainURL(key.url), "error", f.Message)
		if !wait.For(ctx, delay) {
			return
		}
	}
}

// fetchOnce tries once. What the network or the server of the URL may do better next time is not
// final; what the user has to change is.
func (s *Cache) fetchOnce(ctx context.Context, key wantKey) (f *muster.Failure, final bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	where := plainURL(key.url)
	// outside is a failure that the next try may not have. Why the context ended says more than
	// that it did.
	outside := func(err error) (*muster.Failure, bool) {
		if c := context.Cause(ctx); c != nil {
			err = c
		}
		return contract.Failure(muster.FailureOutside, muster.ReasonInput, "%s: %v", where, err), false
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, key.url, nil)
	if err != nil || req.URL.Scheme != "http" && req.URL.Scheme != "https" {
		return contract.Failure(muster.FailureUser, muster.ReasonInput, "%s: only http and https can be fetched", where), true
	}
	resp, err := s.cfg.Client.Do(req)
	var refused *destinations.RefusedError
	if errors.As(err, &refused) {
		return contract.Failure(muster.FailureUser, muster.ReasonInput, "%s: %v", where, refused), true
	}
	if err != nil {
		var told *url.Error // has the URL in its text
		if errors.As(err, &told) {
			err = told.Err
		}
		return outside(err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch c := resp.StatusCode; {
	case c == http.StatusOK:
	// These may be over soon. Any other answer will be the same next time.
	case c >= 500, c == http.StatusTooManyRequests, c == http.StatusRequestTimeout, c == http.StatusTooEarly:
		return outside(errors.New(resp.Status))
	default:
		return contract.Failure(muster.FailureUser, muster.ReasonInput, "%s: %s", where, resp.Status), true
	}
	tooLarge := func() (*muster.Failure, bool) {
		return contract.Failure(muster.FailureUser, muster.ReasonInput, "%s: it is larger than %s, the most that an input may have on this node (input_limit of the pool)", where, muster.Bytes(s.cfg.Most)), true
	}
	if resp.ContentLength > s.cfg.Most {
		return tooLarge()
	}
	stall := time.AfterFunc(fetchStall, func() { cancel(errors.New("nothing came for too long")) })
	defer stall.Stop()
	// netErr tells a connection that broke from a disk that fails: write returns either.
	var netErr error
	// The answer may lie about its length, or say none: the bytes are counted.
	left, check := s.cfg.Most, int64(0)
	err = s.write(key.digest, readerFunc(func(p []byte) (int, error) {
		if left < 0 {
			return 0, errTooLarge
		}
		// The disk may fill up meanwhile, by this input or by others.
		if check <= 0 {
			if err := journal.Room(s.cfg.Dir, 0); err != nil {
				return 0, err
			}
			check = checkDiskEvery
		}
		n, err := resp.Body.Read(p)
		left, check = left-int64(n), check-int64(n)
		stall.Reset(fetchStall)
		if err != nil && err != io.EOF {
			netErr = err
		}
		return n, err
	}))
	switch {
	case err == nil:
		return nil, true
	case errors.Is(err, errTooLarge):
		return tooLarge()
	case errors.Is(err, journal.ErrDiskFull):
		return outside(err)
	case netErr != nil:
		return outside(netErr)
	case errors.Is(err, ErrDigest):
		return contract.Failure(muster.FailureUser, muster.ReasonInput, "%s: %v", where, err), true
	}
	return contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "%s: %v", where, err), true
}

// readerFunc is a reader made of a function.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// plainURL is a URL as it may be printed: without user, query and fragment, which may hold secrets,
// as in presigned URLs.
func plainURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(a URL that cannot be read)"
	}
	u.User, u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = nil, "", false, "", ""
	return u.String()
}
