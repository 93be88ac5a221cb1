package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/wait"
)

// Streams of an allocation's output.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// OutputQuery says which output is read.
type OutputQuery struct {
	Alloc  muster.AllocID
	Stream string // Stdout or Stderr
	Offset int64  // where to begin
	Tail   int64  // begin so many bytes before the end instead; 0 for Offset
	Follow bool   // go on until the output is complete
}

// Output is the bytes of one stream of an allocation. It goes on by itself over
// lost connections, for Config.RetryFor each time, where it was. It is read by one goroutine; Close may
// be called by another.
type Output struct {
	ctx    context.Context
	cancel context.CancelFunc
	client *caller
	at     *url.URL // of the server that was asked last
	query  OutputQuery

	body    io.ReadCloser // nil between connections
	resp    *http.Response
	offset  int64 // of the next byte
	end     int64 // total that the current answer spoke of; -1 if it did not
	state   string
	note    string
	dropped int64
	wait    time.Duration // before the next connection
	over    bool
}

// Output opens a stream of an allocation's output. The caller closes it.
func (c JobAPI) Output(ctx context.Context, q OutputQuery) (*Output, error) {
	ctx, cancel := context.WithCancel(ctx)
	o := &Output{ctx: ctx, cancel: cancel, client: c.caller, query: q, offset: q.Offset}
	if err := o.connect(); err != nil {
		cancel()
		return nil, err
	}
	return o, nil
}

// Offset is that of the next byte in all that was ever written.
func (o *Output) Offset() int64 { return o.offset }

// Dropped is how many bytes before Offset were gone already when they were
// asked for: older than what is kept.
func (o *Output) Dropped() int64 { return o.dropped }

// State is what the server said when it was asked last: open, complete, incomplete or pruned.
func (o *Output) State() string { return o.state }

// Note says at the end why there may be more than could be read, as when its
// node cannot be reached; "" if there is nothing to say.
func (o *Output) Note() string { return o.note }

// Close ends it.
func (o *Output) Close() error {
	o.cancel()
	return nil
}

// Read reads what is there, or, when following, waits for more. io.EOF is the end of the output.
func (o *Output) Read(p []byte) (int, error) {
	for !o.over {
		if o.body == nil {
			if o.wait > 0 {
				if !wait.For(o.ctx, jitter(o.wait)) {
					return 0, o.ctx.Err()
				}
				o.client.findAgain(o.at)
			}
			if err := o.connect(); err != nil {
				return 0, err
			}
		}
		n, err := o.body.Read(p)
		o.offset += int64(n)
		if n > 0 {
			o.wait = 0
		}
		if err != nil {
			_ = o.body.Close()
			o.body = nil
			if o.ctx.Err() != nil {
				return n, o.ctx.Err()
			}
			if errors.Is(err, io.EOF) && o.done() {
				o.over = true
				return n, io.EOF
			}
			o.wait = min(max(2*o.wait, firstWait), longestWait)
		}
		if n > 0 || len(p) == 0 {
			return n, nil
		}
	}
	return 0, io.EOF
}

// done reports whether an answer that ended properly was whole. The server
// breaks off those that are not; a known end is a check on that.
func (o *Output) done() bool {
	o.note = o.resp.Trailer.Get(headerNote)
	return o.end < 0 || o.offset >= o.end
}

const (
	headerStart = "Muster-Output-Start"
	headerEnd   = "Muster-Output-End"
	headerState = "Muster-Output-State"
	headerNote  = "Muster-Output-Note" // a trailer
)

func (o *Output) connect() error {
	q := o.query
	v := values("offset", positive64(o.offset), "tail", positive64(q.Tail))
	if q.Tail > 0 && o.resp == nil {
		v.Del("offset")
	} else {
		v.Del("tail")
	}
	if q.Follow {
		v.Set("follow", "true")
	}
	o.at, _ = o.client.place()
	resp, err := o.client.stream(o.ctx, request{method: http.MethodGet, path: path("v1", "allocations", string(q.Alloc), "output", q.Stream), query: v})
	if err != nil {
		return err
	}
	first := o.resp == nil
	o.resp, o.body = resp, resp.Body
	o.end = -1
	if end, err := strconv.ParseInt(resp.Header.Get(headerEnd), 10, 64); err == nil {
		o.end = end
	}
	o.state = resp.Header.Get(headerState)
	start, err := strconv.ParseInt(resp.Header.Get(headerStart), 10, 64)
	switch {
	case err != nil:
	case first && q.Tail > 0:
		o.offset = start
	case start > o.offset:
		o.dropped += start - o.offset
		o.offset = start
	case start < o.offset:
		// Never the same byte twice, whatever the server thinks. An error shows at the next read.
		_, _ = io.CopyN(io.Discard, o.body, o.offset-start)
	}
	return nil
}

func positive64(n int64) string {
	if n <= 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}
