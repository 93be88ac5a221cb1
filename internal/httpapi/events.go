package httpapi

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/httpapi/eventstream"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
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
		e := eventstream.New(w, sub, in.Follow, in.event)
		if err := e.Run(ctx, pos); err != nil {
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
