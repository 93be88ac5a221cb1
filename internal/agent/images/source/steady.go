package source

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// What an answer must bring to be waited for. An answer holds a place that others want: one that
// brings a byte now and then would hold it for hours.
const (
	// stallAfter is how long it may bring no byte. It is also the window of the rate.
	stallAfter = time.Minute
	// leastRate is how many bytes it must bring in each window but the first.
	leastRate = 64 << 10
)

// errSlow is the error of an answer that brings too little.
var errSlow = errors.New("it sends too slowly")

// steady is the body of an answer that ends with errSlow if too little comes. Only the time in
// which somebody waits for it counts, because a slow disk of this node is not the sender's fault.
type steady struct {
	body io.ReadCloser
	// cancel ends the request, and stall calls it.
	cancel context.CancelFunc
	stall  *time.Timer

	// waited is how long was waited in this window, and got how many bytes came in it.
	waited time.Duration
	got    int
	// started: the first window is over.
	started bool
	// err is the last error, which is answered again.
	err error
}

// steadily sends a request and watches over its answer.
func steadily(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	resp, err := rt.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	s := &steady{body: resp.Body, cancel: cancel, stall: time.AfterFunc(stallAfter, cancel)}
	s.stall.Stop()
	resp.Body = s
	return resp, nil
}

// Read reads some of the answer, or ends it.
func (s *steady) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	began := time.Now()
	s.stall.Reset(stallAfter)
	n, err := s.body.Read(p)
	stalled := !s.stall.Stop()
	s.waited += time.Since(began)
	s.got += n
	if stalled && err != io.EOF {
		err = errSlow
	}
	if err != nil {
		s.err = err
		return n, err
	}
	if s.waited >= stallAfter {
		if s.started && s.got < leastRate {
			s.cancel()
			s.err = errSlow
			return n, s.err
		}
		s.started, s.waited, s.got = true, 0, 0
	}
	return n, nil
}

// Close ends the request.
func (s *steady) Close() error {
	s.stall.Stop()
	err := s.body.Close()
	s.cancel()
	return err
}
