package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/httpapi/schema"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

const (
	// heartbeat is the longest silence of an event stream. Proxies close connections that are
	// silent for longer.
	heartbeat = 15 * time.Second
	// eventBatch bounds the changes that one step takes from the feed, and with it how many rows a
	// slow reader keeps in memory.
	eventBatch = 256
	// eventTooOld is the type of the last event of a reader that was too slow for the feed.
	eventTooOld = "too-old"
)

// eventHandlers handle the stream of changes.
type eventHandlers struct{ *API }

func (a eventHandlers) routes() {
	op := operation(http.MethodGet, "/v1/events", "watch-events", tagEvents, "Watch what changes",
		"Server-sent events. The type of each is `event.type` of its data, an Event in JSON; its id is where to resume, in `after` or in the header Last-Event-ID. "+
			"A comment comes at least every 15 seconds, with an id that moves on even if nothing passed the filters. "+
			"Only the newest changes are kept: asking for older ones gets 410 (code too-old), and a reader that is too slow gets a last event `too-old` with a problem as its data. "+
			"List again then, and go on from the list's index.")
	op.Responses = map[string]*huma.Response{"200": {
		Description: "Events, without end.",
		Content:     map[string]*huma.MediaType{"text/event-stream": {Schema: a.schema(reflect.TypeFor[api.Event]())}},
	}}
	op.Errors = append(op.Errors, http.StatusGone, http.StatusUnprocessableEntity)
	register(a.API, op, a.watchEvents)
}

type eventsIn struct {
	After     string `query:"after" maxLength:"60" doc:"Only changes after this event id or index, or oldest: all that are kept. Default: only new changes."`
	LastID    string `header:"Last-Event-ID" maxLength:"60" doc:"The same, as sent by browsers that resume; it takes precedence."`
	Namespace string `query:"namespace" maxLength:"200" doc:"Only jobs and allocations of this namespace."`
	Job       string `query:"job" maxLength:"200" doc:"Only this job and its allocations; in namespace default unless another is given."`
	Node      string `query:"node" maxLength:"200" doc:"Only this node and its allocations."`
	Follow    bool   `query:"follow" default:"true" doc:"false: end after all changes up to now."`
}

func (a eventHandlers) watchEvents(ctx context.Context, in *eventsIn) (*huma.StreamResponse, error) {
	feed := a.cfg.State.Feed()
	pos, err := eventStart(in, feed)
	if err != nil {
		return nil, err
	}
	if _, _, err := feed.After(pos, 1); err != nil {
		return nil, err
	}
	if in.Job != "" && in.Namespace == "" {
		in.Namespace = string(muster.DefaultNamespace)
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		w.Header().Set("Content-Type", "text/event-stream")
		if r.Method == http.MethodHead {
			return
		}
		ctx, cancel := a.streaming(ctx)
		defer cancel()
		sub := feed.Subscribe(in.topic())
		defer sub.Close()
		e := &eventStream{w: w, out: bufio.NewWriterSize(w, 32<<10), in: in, changes: sub}
		if err := e.run(ctx, pos); err != nil {
			a.logger.DebugContext(ctx, "event stream ended", "error", err)
		}
		door.EndWrite(w)
	}}, nil
}

// topic is the narrowest topic of the feed that has all changes that the reader wants.
func (in *eventsIn) topic() state.Topic {
	switch {
	case in.Job != "":
		return state.Topic{Job: muster.JobKey{Namespace: muster.Namespace(in.Namespace), Name: in.Job}}
	case in.Node != "":
		return state.Topic{Node: muster.NodeID(in.Node)}
	}
	return state.Topic{Namespace: muster.Namespace(in.Namespace)}
}

// eventStart returns the position after which the reader wants to read. Last-Event-ID comes before
// after: a browser that reconnects repeats the old URL and adds the header.
func eventStart(in *eventsIn, feed *state.Feed) (state.Position, error) {
	where, from := "query.after", in.After
	if in.LastID != "" {
		where, from = "header.Last-Event-ID", in.LastID
	}
	switch from {
	case "":
		return state.AfterIndex(feed.Last()), nil
	case "oldest":
		return feed.Oldest(), nil
	}
	pos, ok := present.ParseEventID(from)
	if !ok {
		return pos, problem.Invalid(where, "is %q; give the id of an event, an index, or oldest", problem.Clip(from))
	}
	if last := feed.Last(); pos.Index > last {
		return pos, muster.Faultf(muster.FaultTooOld, "index %d is ahead of this server, which is at %d: it was restored from a backup; list again and go on from the list's index", pos.Index, last)
	}
	return pos, nil
}

// eventStream is one reader. One goroutine owns it. What the reader has not read stays in the feed:
// nothing is queued for it, so a slow reader costs no memory.
type eventStream struct {
	w       http.ResponseWriter
	out     *bufio.Writer
	in      *eventsIn
	changes *state.Subscription
}

func (e *eventStream) run(ctx context.Context, pos state.Position) error {
	_, _ = e.out.WriteString(": muster events\nretry: 1000\nid: " + present.EventID(pos) + "\n\n")
	if err := e.flush(); err != nil {
		return err
	}
	for quiet := false; ; {
		changes, next, all, err := e.changes.Next(pos, eventBatch)
		if err != nil {
			return e.tooOld(err)
		}
		for i := range changes {
			if ev := e.in.event(&changes[i]); ev != nil {
				door.ExtendWrite(e.w) // the buffer may fill
				if err := e.send(ev); err != nil {
					return err
				}
			}
		}
		pos = next
		if quiet {
			// The connection is kept awake. Its id is where the feed has got to: a reader of
			// something quiet resumes from there, and not from what the feed has forgotten.
			_, _ = e.out.WriteString(": heartbeat\nid: " + present.EventID(pos) + "\n\n")
		}
		if err := e.flush(); err != nil {
			return err
		}
		switch {
		case !all:
			continue
		case !e.in.Follow:
			return nil
		}
		bounded, cancel := context.WithTimeout(ctx, heartbeat)
		quiet = e.changes.Wait(bounded, pos) != nil
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (e *eventStream) flush() error {
	door.ExtendWrite(e.w)
	if err := e.out.Flush(); err != nil {
		return err
	}
	return http.NewResponseController(e.w).Flush()
}

func (e *eventStream) send(ev *api.Event) error {
	b, err := schema.Encode(ev)
	if err != nil {
		return fmt.Errorf("event %s: %w", ev.ID, err)
	}
	return e.write(ev.ID, ev.Type, b)
}

func (e *eventStream) write(id, kind string, data []byte) error {
	if id != "" {
		_, _ = fmt.Fprintf(e.out, "id: %s\n", id)
	}
	_, err := fmt.Fprintf(e.out, "event: %s\ndata: %s\n\n", kind, bytes.TrimRight(data, "\n"))
	return err
}

// tooOld sends a last event to a reader that fell out of the feed. The status of the answer is long
// sent, so the problem is the data of that event. It has no id: a reader must list again and not
// resume.
func (e *eventStream) tooOld(err error) error {
	b, jerr := json.Marshal(&problem.Of(err).Problem)
	if jerr != nil {
		return jerr
	}
	door.ExtendWrite(e.w)
	if werr := e.write("", eventTooOld, b); werr != nil {
		return werr
	}
	if ferr := e.flush(); ferr != nil {
		return ferr
	}
	return err
}

// event returns the public form of a change, nil if the reader does not want it. The filters need
// only the names, so the rest is made after them.
func (in *eventsIn) event(c *state.Change) *api.Event {
	ev := present.EventHead(c)
	if ev == nil || in.skips(ev) {
		return nil // before the work
	}
	present.EventBody(ev, c)
	return ev
}

func (in *eventsIn) skips(ev *api.Event) bool {
	return in.Namespace != "" && ev.Namespace != in.Namespace ||
		in.Job != "" && ev.Job != in.Job ||
		in.Node != "" && ev.Node != in.Node
}
