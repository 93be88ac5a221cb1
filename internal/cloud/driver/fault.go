package driver

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"github.com/musterhq/muster"
)

// Effect says what a call does when it succeeds. It decides what an unclear answer means.
type Effect bool

// Effects of a call.
const (
	// Reads: nothing has happened when the answer is lost.
	Reads Effect = false
	// Makes: something may exist when the answer is lost.
	Makes Effect = true
)

// Unclear is the kind of fault of a call whose answer was lost or makes no sense.
func (e Effect) Unclear() muster.FaultKind {
	if e == Makes {
		return muster.FaultAmbiguous
	}
	return muster.FaultTransient
}

// StatusKind is the kind of fault that an HTTP status means when the body has no code that the
// driver knows. Look into the body first: clouds answer 403 for quotas and 500 for a lack of
// capacity.
func StatusKind(status int, e Effect) muster.FaultKind {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return muster.FaultAuth
	case http.StatusNotFound:
		return muster.FaultNotFound
	case http.StatusTooManyRequests:
		return muster.FaultRateLimited
	}
	return e.Unclear()
}

// Sent knows whether a request has left this machine.
type Sent struct {
	// Began is when it was about to be sent.
	Began time.Time

	looked, wrote atomic.Bool
}

// Trace returns a context whose HTTP requests note in Sent that they were sent.
func Trace(ctx context.Context) (context.Context, *Sent) {
	s := &Sent{Began: time.Now()}
	// Under a context that has ended nothing is sent, and no connection is looked for either.
	s.looked.Store(ctx.Err() != nil)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { s.looked.Store(true) },
		// The headers are in the same buffer as a short body, so the cloud may act from here on.
		WroteHeaders: func() { s.wrote.Store(true) },
	}), s
}

// kept reports whether the request certainly never left. A transport that reports nothing, not even
// that it looks for a connection, says nothing about that.
func (s *Sent) kept() bool { return s.looked.Load() && !s.wrote.Load() }

// Fault is the fault of a call that ended without a whole answer. A call that was never sent is
// transient, whatever it would have done.
func (s *Sent) Fault(call string, e Effect, err error) *muster.Fault {
	kind, message := e.Unclear(), call+": no answer"
	if s.kept() {
		kind, message = muster.FaultTransient, call+": not sent"
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		message += " before the call's time was over"
	}
	return &muster.Fault{Kind: kind, Message: message, Err: err}
}

// RetryAfter reads the header of that name, in seconds or as a date; otherwise what is given.
func RetryAfter(h http.Header, now time.Time, otherwise time.Duration) time.Duration {
	const most = time.Hour
	text := h.Get("Retry-After")
	if d, err := time.ParseDuration(text + "s"); err == nil && d > 0 {
		return min(d, most)
	}
	if at, err := http.ParseTime(text); err == nil && at.After(now) {
		return min(at.Sub(now), most)
	}
	return otherwise
}

// Slowdown counts refusals for too many calls, for clouds that do not say when to come again.
// The zero value is ready.
type Slowdown struct {
	mu sync.Mutex
	n  int
	// refused is when the refusal that was counted last was answered.
	refused time.Time
}

// slowest is the longest pause that a Slowdown asks for.
const slowest = time.Minute

// Refused is how long to wait after one more refusal, of a call that was sent then: 1 s, doubled each
// time, up to a minute. Calls that were under way together are one refusal: eight that are refused at
// once must not ask for a minute.
func (s *Slowdown) Refused(sent time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == 0 || !sent.Before(s.refused) {
		s.n++
		s.refused = time.Now()
	}
	return min(time.Second<<min(s.n-1, 6), slowest)
}

// Succeeded begins at 1 s again.
func (s *Slowdown) Succeeded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n = 0
}
