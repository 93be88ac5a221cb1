package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/wait"
)

// EventQuery selects events. Zero fields select all.
type EventQuery struct {
	// After is where to begin: a log index or an event's ID; Oldest is all that
	// is kept, "" is from now on.
	After     string
	Namespace muster.Namespace
	Job       string // needs Namespace
	Node      muster.NodeID
	// Once ends the iteration when all events up to now have been told.
	Once bool
}

// Oldest, as EventQuery.After, begins with the oldest event that is kept.
const Oldest = "oldest"

// TooOld says that events from there on are no longer all kept: list what there
// is now, and go on from the list's index.
type TooOld struct {
	After   string
	Problem *api.Problem
}

func (t *TooOld) Error() string {
	return fmt.Sprintf("events after %s are no longer kept: %s", t.After, t.Problem.Error())
}

func (t *TooOld) Unwrap() error { return t.Problem }

const (
	// silence is how long a stream of events may say nothing, not even a comment,
	// before the connection is held for dead. The server says something every 15 s.
	silence = 45 * time.Second
	// maxEvent bounds one line of a stream of events.
	maxEvent = 16 << 20
)

// Events goes through events as they come. It goes on by itself over lost
// connections, for Config.RetryFor each time, without gap or repetition. It ends after an
// error: *TooOld, *Unreachable, ctx's, or a refusal.
func (c ClusterAPI) Events(ctx context.Context, q EventQuery) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		e := &events{client: c.caller, query: q, last: q.After}
		if e.last == "" {
			// Between "from now" and a first event there is nothing to resume by: make now a place.
			info, err := c.Server(ctx)
			if err != nil {
				yield(api.Event{}, err)
				return
			}
			e.last = strconv.FormatUint(info.Index, 10)
		}
		for delay := firstWait; ; delay = min(2*delay, longestWait) {
			before := e.last
			at, _ := c.place()
			more, err := e.connection(ctx, yield)
			if !more {
				return
			}
			if err != nil {
				yield(api.Event{}, err)
				return
			}
			if e.last != before {
				delay = firstWait
			}
			if !wait.For(ctx, jitter(delay)) {
				yield(api.Event{}, ctx.Err())
				return
			}
			c.findAgain(at)
		}
	}
}

// events is one iteration over events.
type events struct {
	client *caller
	query  EventQuery
	last   string // ID of the last one seen, or where to begin
}

// connection tells what one connection brings. More is false when the iteration
// is over; err is what it ends with; neither means that the connection was lost.
func (e *events) connection(ctx context.Context, yield func(api.Event, error) bool) (more bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	q := e.query
	v := values("after", e.last, "namespace", string(q.Namespace), "job", q.Job, "node", string(q.Node))
	if q.Once {
		v.Set("follow", "false")
	}
	resp, err := e.client.stream(ctx, request{
		method: http.MethodGet, path: "/v1/events", query: v,
		header: http.Header{"Accept": {"text/event-stream"}, "Last-Event-Id": {e.last}},
	})
	if err != nil {
		return true, tooOld(e.last, err)
	}
	defer func() { _ = resp.Body.Close() }()

	watch := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watch.Stop()
	lines := bufio.NewReaderSize(resp.Body, 64<<10)
	var block message
	for {
		line, err := readLine(lines)
		if err != nil {
			switch cause := context.Cause(ctx); {
			case errors.Is(err, errLongLine):
				return true, err
			case errors.Is(cause, errSilent):
				return true, nil
			case cause == nil && q.Once && err == io.EOF:
				return false, nil
			default:
				return true, cause // nil: the connection was lost
			}
		}
		watch.Reset(silence)
		if len(line) > 0 {
			block.field(line)
			continue
		}
		more, err := e.told(&block, yield)
		if !more || err != nil {
			return more, err
		}
		block = message{}
	}
}

var errSilent = errors.New("nothing came")

// eventTooOld is the type of the last event for a reader that was too slow; its data is a problem.
const eventTooOld = "too-old"

// told takes a block of the stream that is complete.
func (e *events) told(m *message, yield func(api.Event, error) bool) (more bool, err error) {
	if m.id == "" && len(m.data) == 0 || m.id != "" && m.id == e.last && len(m.data) > 0 {
		return true, nil // a comment, or one that was told before
	}
	if m.event == eventTooOld {
		p := &api.Problem{}
		if err := json.Unmarshal(m.data, p); err != nil {
			return true, fmt.Errorf("/v1/events: a problem that does not read: %w", err)
		}
		return true, tooOld(e.last, p)
	}
	var ev api.Event
	if len(m.data) > 0 {
		if err := json.Unmarshal(m.data, &ev); err != nil {
			return true, fmt.Errorf("/v1/events: an event that does not read: %w", err)
		}
	}
	m.id = cmp.Or(m.id, ev.ID)
	if m.id != "" {
		e.last = m.id
	}
	if len(m.data) == 0 {
		return true, nil // an id alone says that all up to there has been told
	}
	return yield(ev, nil), nil
}

// tooOld makes 410 an error of its own.
func tooOld(after string, err error) error {
	var p *api.Problem
	if errors.As(err, &p) && (p.Status == http.StatusGone || p.Code == string(muster.FaultTooOld)) {
		return &TooOld{after, p}
	}
	return err
}

// message is one block of a stream of server-sent events.
type message struct {
	id, event string
	data      []byte
}

// field takes a line of the block. Comments and unknown fields say nothing.
func (m *message) field(line []byte) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "id":
		m.id = string(value)
	case "event":
		m.event = string(value)
	case "data":
		if len(m.data) > 0 {
			m.data = append(m.data, '\n')
		}
		m.data = append(m.data, value...)
	}
}

var errLongLine = fmt.Errorf("/v1/events: a line is longer than %s", muster.Bytes(maxEvent))

// readLine is the next line without its end. io.EOF is the stream's end; what stands before it without an end is no line.
func readLine(r *bufio.Reader) ([]byte, error) {
	var long []byte
	for {
		part, err := r.ReadSlice('\n')
		if err == nil {
			part = bytes.TrimSuffix(bytes.TrimSuffix(part, []byte("\n")), []byte("\r"))
			if long == nil {
				return part, nil
			}
			return append(long, part...), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			if err == io.EOF && len(part)+len(long) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if long = append(long, part...); len(long) > maxEvent {
			return nil, errLongLine
		}
	}
}
