package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	outputBuffer = 64 << 10
	// A follower that has read all reads again after followFirst, then after twice that, up to
	// followLongest. That is live to the eye, and costs nearly nothing for a silent stream.
	followFirst   = 2 * time.Millisecond
	followLongest = 100 * time.Millisecond
)

// serveOutput answers with a stream of output from an offset; with follow it goes on until the end
// of the command. Each request reads for itself, so that a slow one delays nothing else.
func (a *Agent) serveOutput(w http.ResponseWriter, r *http.Request) {
	al := a.lookup(w, r)
	if al == nil {
		return
	}
	stream := r.PathValue("stream")
	if stream != wire.Stdout && stream != wire.Stderr {
		fail(w, http.StatusNotFound, fmt.Sprintf("no stream %q: want %s or %s", stream, wire.Stdout, wire.Stderr))
		return
	}
	offset, follow := int64(0), r.URL.Query().Get("follow") == "true"
	if s := r.URL.Query().Get("offset"); s != "" {
		var err error
		if offset, err = strconv.ParseInt(s, 10, 64); err != nil || offset < 0 {
			fail(w, http.StatusBadRequest, fmt.Sprintf("offset %q is not a number of bytes", s))
			return
		}
	}
	b, err := al.openOutput(r.Context(), follow)
	if err != nil {
		a.answerOr(w, nil, fmt.Errorf("output of allocation %s: %w", al.id, err))
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if b == nil {
		// It has no sandbox, or none yet: no output.
		if wait.Closed(al.done) {
			w.Header().Set(wire.HeaderOutputFinal, "true")
		}
		return
	}
	defer al.drop(b)
	c := &copier{w: w, control: http.NewResponseController(w), log: b.sandbox.Output(stream), offset: offset}
	if err := c.begin(wait.Closed(b.sandbox.Done())); err != nil {
		a.answerOr(w, nil, fmt.Errorf("output of allocation %s: %w", al.id, err))
		return
	}
	if !c.run(r.Context(), b.sandbox.Done(), follow) {
		// Bytes are missing, and it is too late for a status that says so. The reader asks again
		// from its offset.
		panic(http.ErrAbortHandler)
	}
}

// copier copies a stream of output to one reader.
type copier struct {
	w       http.ResponseWriter
	control *http.ResponseController
	log     contract.OutputLog
	offset  int64
}

// begin sends the header, which says where the answer starts: after the offset asked for, if the
// bytes before were dropped.
func (c *copier) begin(final bool) error {
	start, _, err := c.log.Bounds()
	if err != nil {
		return err
	}
	if c.offset < start {
		c.offset = start
		c.w.Header().Set(wire.HeaderOutputStart, strconv.FormatInt(start, 10))
	}
	if final {
		c.w.Header().Set(wire.HeaderOutputFinal, "true")
	}
	// A follower learns at once that it is connected.
	return c.flush()
}

// flush sends what was written, within the time that a reader has to take it.
func (c *copier) flush() error {
	_ = c.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	return c.control.Flush()
}

// run sends to the end so far, or with follow to the end of the command. It is false if it could
// not.
func (c *copier) run(ctx context.Context, done <-chan struct{}, follow bool) bool {
	buf := make([]byte, outputBuffer)
	timer := time.NewTimer(followLongest)
	defer timer.Stop()
	for pause := followFirst; ; {
		// The end is looked at before the output is read: so all that was written before the end is
		// read.
		ended := wait.Closed(done)
		n, err := c.log.ReadAt(buf, c.offset)
		if n > 0 {
			_ = c.control.SetWriteDeadline(time.Now().Add(writeTimeout))
			if _, e := c.w.Write(buf[:n]); e != nil {
				return false
			}
			c.offset += int64(n)
			pause = followFirst
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) || c.flush() != nil {
			return false
		}
		if !follow || ended {
			return true
		}
		timer.Reset(pause)
		pause = min(2*pause, followLongest)
		select {
		case <-ctx.Done():
			return false
		case <-done:
		case <-timer.C:
		}
	}
}
