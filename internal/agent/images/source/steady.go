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
	stallAfter = time.Minute // without an byte; also the window of the rate
	leastRate  = 64 << 10    // bytes in each window but the first
)

// errSlow is the error of an answer that brings too little.
var errSlow = errors.New("it sends too slowly")

// steady is the body of an answer that ends with errSlow if too little comes. Only the time in
// which somebody waits for it counts, because a slow disk of this node is not the sender's fault.
type steady struct {
	body   io.ReadCloser
	cancel context.CancelFunc // of the request
	stall  *time.Timer

	waited  time.Duration // in this window
	got     int           // in this window
	started bool          // the first window is over
	err     error         // sticky
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
