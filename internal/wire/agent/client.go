package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/musterhq/muster"
)

// Deadlines of the client's calls. A call's own context may be shorter.
const (
	helloTimeout   = 10 * time.Second
	desiredTimeout = 30 * time.Second
	headerTimeout  = 30 * time.Second
	stallTimeout   = time.Minute
	// silenceTimeout ends a report stream from which nothing came.
	silenceTimeout = 3 * HeartbeatMillis * time.Millisecond
	// maxReport bounds the JSON of one report in bytes, where the caller does not.
	maxReport = 16 << 20
	// maxAnswer bounds any other JSON answer.
	maxAnswer = 16 << 20
)

// Client speaks to one agent. All methods may be called at once. Every call has a deadline or a
// longest silence, except a followed output: that may be silent for as long as its command is.
//
// Errors: *Refusal when the agent will not obey; else a *muster.Fault: FaultUnavailable when the
// agent could not be reached or answered too late, and for what it answered FaultNotFound,
// FaultInvalid, FaultConflict (not started), FaultTooOld (ended), FaultDiskLow (its disk is full)
// and FaultInternal.
type Client struct {
	dial func(ctx context.Context) (net.Conn, error)
	// protocol is the one that the agent said last that it speaks; 0: it has not said.
	protocol atomic.Int64
	http     *http.Client
	// slow is for calls whose answer begins when something has ended that takes its time; they have limits of their own.
	slow   *http.Client
	spares spares
}

// NewClient makes a client whose connections come from dial: a local socket
// (DialSocket) or one at the far end of an SSH connection.
func NewClient(dial func(ctx context.Context) (net.Conn, error)) *Client {
	of := func(begins time.Duration) *http.Client {
		return &http.Client{Transport: &http.Transport{
			DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			MaxIdleConnsPerHost:   16,
			IdleConnTimeout:       90 * time.Second,
			ResponseHeaderTimeout: begins,
			DisableCompression:    true,
		}}
	}
	return &Client{dial: dial, http: of(headerTimeout), slow: of(0)}
}

// Close closes idle connections, and opens none ahead of their use any more. Calls that are under way go on.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.slow.CloseIdleConnections()
	c.spares.close()
}

// Hello asks the agent who it is.
func (c *Client) Hello(ctx context.Context) (Hello, error) {
	var h Hello
	err := c.exchange(ctx, helloTimeout, http.MethodGet, "/v1/agent", nil, &h)
	if err == nil {
		c.protocol.Store(int64(h.Protocol))
	}
	return h, err
}

// spoken is the protocol that both sides know; theirs is 0 if the agent has not said.
func spoken(ours, theirs int64) int64 {
	if theirs <= 0 {
		return ours
	}
	return min(ours, theirs)
}

// SendDesired sends a set, in the protocol of the last Hello if that is lower than this build's. A *Refusal means that nothing of it was done.
func (c *Client) SendDesired(ctx context.Context, d Desired) (DesiredAnswer, error) {
	var a DesiredAnswer
	err := c.exchange(ctx, desiredTimeout, http.MethodPut, "/v1/desired", d, &a)
	return a, err
}

// Release frees the agent from a cluster, so that another may use it. Its
// sandboxes go on. The cluster must be the one that it obeys.
func (c *Client) Release(ctx context.Context, cluster string) error {
	return c.exchange(ctx, helloTimeout, http.MethodPost, "/v1/release?cluster="+url.QueryEscape(cluster), nil, nil)
}

// StepDown asks the agent to exit and leave its sandboxes to its successor.
func (c *Client) StepDown(ctx context.Context) error {
	return c.exchange(ctx, helloTimeout, http.MethodPost, "/v1/step-down", nil, nil)
}

// ErrReportTooLong is what a report that is longer than its bound ends the stream with.
var ErrReportTooLong = errors.New("the agent's report is longer")

// Reports yields what the agent reports until the loop breaks, ctx ends or the
// stream fails; the last pair then carries the error. Silence for three heartbeats is an error.
func (c *Client) Reports(ctx context.Context) iter.Seq2[Report, error] {
	most := func() int64 { return maxReport }
	return c.ReportsWithin(ctx, most, most, func(int64) {})
}

// ReportsWithin is Reports with a bound of the caller's in bytes: usual is asked for before each report, and most, which may cost
// more to find out, where a report is longer than that; one that is longer than most is an error. took is called
// with the bytes of each report before it is yielded; while it blocks, nothing is read.
func (c *Client) ReportsWithin(ctx context.Context, usual, most func() int64, took func(bytes int64)) iter.Seq2[Report, error] {
	return func(yield func(Report, error) bool) {
		stream, _, err := c.open(ctx, "/v1/reports", 0)
		if err != nil {
			yield(Report{}, err)
			return
		}
		defer func() { _ = stream.Close() }()
		// The time that the caller takes is no silence of the agent's: the timer runs only while a report is read.
		silence := stream.(*body).watch(silenceTimeout)
		bound := &bound{r: stream, most: most}
		dec := json.NewDecoder(bound)
		for before := int64(0); ; before = dec.InputOffset() {
			silence.Reset(silenceTimeout)
			bound.begin(usual())
			var r Report
			if err := dec.Decode(&r); err != nil {
				if bound.left <= 0 {
					err = fmt.Errorf("%w than %d bytes, the most that it can have", ErrReportTooLong, bound.limit)
				} else if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
					err = fmt.Errorf("the agent ended the stream")
				}
				took(bound.limit - bound.left)
				yield(Report{}, unreached("reports", cause(ctx, err)))
				return
			}
			silence.Stop()
			took(dec.InputOffset() - before)
			if !yield(r, nil) {
				return
			}
		}
	}
}

// bound reads at most so many bytes for one report. limit is raised to most at its end, once.
type bound struct {
	r           io.Reader
	most        func() int64
	limit, left int64
	raised      bool
}

func (b *bound) begin(limit int64) { b.limit, b.left, b.raised = limit, limit, false }

func (b *bound) Read(p []byte) (int, error) {
	if b.left <= 0 && !b.raised {
		b.raised = true
		if most := b.most(); most > b.limit {
			b.left, b.limit = b.left+most-b.limit, most
		}
	}
	if b.left <= 0 {
		return 0, io.EOF
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// OutputReader is part of a stream of output on its way.
type OutputReader struct {
	io.ReadCloser
	// Start is the offset of the first byte. It is later than the offset asked
	// for if the bytes between were dropped by the output limit.
	Start int64
	// Final: the end of this answer is the end of the stream for ever. A reader
	// that followed to a clean io.EOF knows the same.
	Final bool
}

// Stream reads a stream (Stdout or Stderr) of an allocation from offset. With
// follow it goes on until the command has ended. An error other than io.EOF says that bytes are
// missing: open again at the offset reached.
func (c *Client) Stream(ctx context.Context, id muster.AllocID, stream string, offset int64, follow bool) (*OutputReader, error) {
	path := "/v1/allocs/" + url.PathEscape(string(id)) + "/output/" + url.PathEscape(stream) + "?offset=" + strconv.FormatInt(offset, 10)
	stall := stallTimeout
	if follow {
		path += "&follow=true"
		stall = 0
	}
	body, header, err := c.open(ctx, path, stall)
	if err != nil {
		return nil, err
	}
	r := &OutputReader{ReadCloser: body, Start: offset, Final: header.Get(HeaderOutputFinal) == "true"}
	if s := header.Get(HeaderOutputStart); s != "" {
		if r.Start, err = strconv.ParseInt(s, 10, 64); err != nil || r.Start < 0 {
			_ = body.Close()
			return nil, muster.Faultf(muster.FaultInternal, "agent: header %s is %q", HeaderOutputStart, s)
		}
	}
	return r, nil
}

// CollectedOutput reads the tar of the n-th collected output, counted from 0 as in AllocReport.Outputs.
func (c *Client) CollectedOutput(ctx context.Context, id muster.AllocID, n int) (io.ReadCloser, error) {
	body, _, err := c.open(ctx, "/v1/allocs/"+url.PathEscape(string(id))+"/outputs/"+strconv.Itoa(n), stallTimeout)
	return body, err
}

// PutInput hands over the bytes of an input that a report needs. The agent checks the digest.
func (c *Client) PutInput(ctx context.Context, digest string, data io.Reader) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(stallTimeout, func() { cancel(errStalled) })
	defer timer.Stop()
	body := &watched{r: data, timer: timer, limit: stallTimeout}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://agent/v1/inputs/"+url.PathEscape(digest), io.NopCloser(body))
	if err != nil {
		return muster.Faultf(muster.FaultInvalid, "input %s: %v", digest, err)
	}
	return finish(ctx, c.http, req, nil)
}

// exchange is one request with a small JSON answer.
func (c *Client) exchange(ctx context.Context, limit time.Duration, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return muster.Faultf(muster.FaultInvalid, "agent: %s: %v", path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
	if err != nil {
		return muster.Faultf(muster.FaultInvalid, "agent: %s: %v", path, err)
	}
	req.Header.Set(HeaderProtocol, strconv.FormatInt(spoken(Protocol, c.protocol.Load()), 10))
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	by := c.http
	if limit > headerTimeout {
		by = c.slow
	}
	return finish(ctx, by, req, out)
}

func finish(ctx context.Context, by *http.Client, req *http.Request, out any) error {
	resp, err := by.Do(req)
	if err != nil {
		return unreached(req.URL.Path, cause(ctx, err))
	}
	defer func() { _ = resp.Body.Close() }()
	if !succeeded(resp) {
		return refused(resp)
	}
	if out == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return unreached(req.URL.Path, cause(ctx, err))
	}
	return nil
}

// open starts a GET whose body is read by the caller. With a stall limit the
// body fails when nothing came for that long.
func (c *Client) open(ctx context.Context, path string, stall time.Duration) (io.ReadCloser, http.Header, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		cancel(nil)
		return nil, nil, muster.Faultf(muster.FaultInvalid, "agent: %s: %v", path, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		err = unreached(req.URL.Path, cause(ctx, err))
		cancel(nil)
		return nil, nil, err
	}
	if !succeeded(resp) {
		err := refused(resp)
		_ = resp.Body.Close()
		cancel(nil)
		return nil, nil, err
	}
	b := &body{ctx: ctx, cancel: cancel, resp: resp}
	b.watched = watched{r: resp.Body, limit: stall}
	if stall > 0 {
		b.watch(stall)
	}
	return b, resp.Header, nil
}

// watch ends the answer when nothing came for so long.
func (b *body) watch(stall time.Duration) *time.Timer {
	b.limit = stall
	b.timer = time.AfterFunc(stall, func() { b.cancel(errStalled) })
	return b.timer
}

var errStalled = errors.New("nothing came for too long")

// watched pushes a timer ahead with each read.
type watched struct {
	r     io.Reader
	timer *time.Timer
	limit time.Duration
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if w.timer != nil && n > 0 {
		w.timer.Reset(w.limit)
	}
	return n, err
}

// body is an answer being read.
type body struct {
	watched
	ctx    context.Context
	cancel context.CancelCauseFunc
	resp   *http.Response
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.watched.Read(p)
	if err != nil && err != io.EOF {
		err = unreached(b.resp.Request.URL.Path, cause(b.ctx, err))
	}
	return n, err
}

func (b *body) Close() error {
	if b.timer != nil {
		b.timer.Stop()
	}
	b.cancel(nil)
	return b.resp.Body.Close()
}

// cause prefers why the context was cancelled to what the transport made of it.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

func unreached(what string, err error) error {
	return &muster.Fault{Kind: muster.FaultUnavailable, Message: "agent: " + what, Err: err}
}

// succeeded reports a 2xx. 101 is none: neither EOF nor a context ends a read of its body.
func succeeded(resp *http.Response) bool { return resp.StatusCode >= 200 && resp.StatusCode < 300 }

// refused reads an error answer.
func refused(resp *http.Response) error {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return muster.Faultf(muster.FaultInternal, "agent: %s: it upgraded to %q, which was not asked for", resp.Request.URL.Path, resp.Header.Get("Upgrade"))
	}
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if resp.StatusCode == http.StatusConflict {
		var r Refusal
		if json.Unmarshal(b, &r) == nil && r.Code != "" {
			return &r
		}
	}
	var p Problem
	told := json.Unmarshal(b, &p) == nil && p.Message != ""
	if !told {
		p.Message = resp.Status
	}
	kind := muster.FaultInternal
	switch resp.StatusCode {
	case http.StatusConflict:
		if told {
			kind = muster.FaultConflict
		}
	case http.StatusGone:
		kind = muster.FaultTooOld
	case http.StatusNotFound:
		kind = muster.FaultNotFound
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity, http.StatusMethodNotAllowed:
		kind = muster.FaultInvalid
	case http.StatusServiceUnavailable:
		kind = muster.FaultUnavailable
	case http.StatusInsufficientStorage:
		kind = muster.FaultDiskLow
	}
	return muster.Faultf(kind, "agent: %s: %s", resp.Request.URL.Path, p.Message)
}
