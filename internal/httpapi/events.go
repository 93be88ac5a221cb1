package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/state"
)

const (
	// heartbeat is the longest silence of an event stream.
	heartbeat = 15 * time.Second
	// eventBatch bounds the changes taken from the feed at once, and so what a
	// slow reader keeps alive.
	eventBatch = 256
	// eventTooOld is the type of the last event of a reader that was too slow.
	eventTooOld = "too-old"
)

func (a *API) eventRoutes() {
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
	register(a, op, a.watchEvents)
}

type eventsIn struct {
	After     string `query:"after" maxLength:"60" doc:"Only changes after this: the id of an event, an index, or oldest for everything that is kept. Default: only what comes from now on."`
	LastID    string `header:"Last-Event-ID" maxLength:"60" doc:"The same, as browsers send it when they resume; it wins."`
	Namespace string `query:"namespace" maxLength:"200" doc:"Only of jobs and allocations in this namespace."`
	Job       string `query:"job" maxLength:"200" doc:"Only of this job and its allocations; in the namespace default unless another is given."`
	Node      string `query:"node" maxLength:"200" doc:"Only of this node and the allocations on it."`
	Follow    bool   `query:"follow" default:"true" doc:"false: end when everything up to now was sent."`
}

func (a *API) watchEvents(ctx context.Context, in *eventsIn) (*huma.StreamResponse, error) {
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
		endWrite(w)
	}}, nil
}

// topic is the narrowest part of the feed that has all that a reader wants.
func (in *eventsIn) topic() state.Topic {
	switch {
	case in.Job != "":
		return state.Topic{Job: muster.JobKey{Namespace: muster.Namespace(in.Namespace), Name: in.Job}}
	case in.Node != "":
		return state.Topic{Node: muster.NodeID(in.Node)}
	}
	return state.Topic{Namespace: muster.Namespace(in.Namespace)}
}

// eventStart is the position from which a reader wants to go on.
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
	pos, ok := parsePosition(from)
	if !ok {
		return pos, invalid(where, "is %q; give the id of an event, an index, or oldest", clip(from))
	}
	if last := feed.Last(); pos.Index > last {
		return pos, muster.Faultf(muster.FaultTooOld, "index %d is ahead of this server, which is at %d: it was restored from a backup; list again and go on from the list's index", pos.Index, last)
	}
	return pos, nil
}

// eventID writes a position so that parsePosition reads it back: "index.part",
// or "index" after all of an entry's changes.
func eventID(p state.Position) string {
	if p.Part == math.MaxInt {
		return strconv.FormatUint(p.Index, 10)
	}
	return strconv.FormatUint(p.Index, 10) + "." + strconv.Itoa(p.Part)
}

func parsePosition(s string) (state.Position, bool) {
	index, part, divided := strings.Cut(s, ".")
	i, err := strconv.ParseUint(index, 10, 64)
	if err != nil {
		return state.Position{}, false
	}
	if !divided {
		return state.AfterIndex(i), true
	}
	n, err := strconv.ParseUint(part, 10, 31)
	return state.Position{Index: i, Part: int(n)}, err == nil
}

// eventStream is one reader. What it has not read stays in the feed: nothing
// is queued for it.
type eventStream struct {
	w       http.ResponseWriter
	out     *bufio.Writer
	in      *eventsIn
	changes *state.Subscription
}

func (e *eventStream) run(ctx context.Context, pos state.Position) error {
	_, _ = e.out.WriteString(": muster events\nretry: 1000\nid: " + eventID(pos) + "\n\n")
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
				extendWrite(e.w) // the buffer may fill
				if err := e.send(ev); err != nil {
					return err
				}
			}
		}
		pos = next
		if quiet {
			// The connection is kept awake. Its id is where the feed has got to: a reader of something quiet resumes from
			// there, and not from what the feed has forgotten.
			_, _ = e.out.WriteString(": heartbeat\nid: " + eventID(pos) + "\n\n")
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
	extendWrite(e.w)
	if err := e.out.Flush(); err != nil {
		return err
	}
	return http.NewResponseController(e.w).Flush()
}

func (e *eventStream) send(ev *api.Event) error {
	b, err := encode(ev)
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

// tooOld tells a reader that fell out of the feed, and ends.
func (e *eventStream) tooOld(err error) error {
	b, jerr := json.Marshal(&problemOf(err).Problem)
	if jerr != nil {
		return jerr
	}
	extendWrite(e.w)
	if werr := e.write("", eventTooOld, b); werr != nil {
		return werr
	}
	if ferr := e.flush(); ferr != nil {
		return ferr
	}
	return err
}

// event is the public form of a change, or nil if the reader does not want it.
func (in *eventsIn) event(c *state.Change) *api.Event {
	ev := &api.Event{ID: eventID(c.Position()), Index: c.Index, Time: c.At.Std(), Type: string(c.Verb)}
	switch {
	case c.Job != nil || c.JobBefore != nil:
		j := c.Job
		if j == nil {
			j = c.JobBefore
		}
		ev.Namespace, ev.Job, ev.JobUID = string(j.Key.Namespace), j.Key.Name, string(j.UID)
		if c.Job != nil {
			now := present.Job(c.Job)
			ev.JobNow = &now
		}
		ev.Text = jobText(string(c.Verb), j)
	case c.Alloc != nil || c.AllocBefore != nil:
		al := c.Alloc
		if al == nil {
			al = c.AllocBefore
		}
		ev.Namespace, ev.Job, ev.JobUID = string(al.Run.Key.Namespace), al.Run.Key.Name, string(al.UID)
		ev.Alloc, ev.Node = string(al.ID), string(al.Node)
		if in.skips(ev) {
			return nil // before the work
		}
		if c.Alloc != nil {
			now := present.Alloc(c.Alloc)
			ev.AllocNow = &now
		}
		ev.Text = allocText(string(c.Verb), al)
	case c.Node != nil || c.NodeBefore != nil:
		n := c.Node
		if n == nil {
			n = c.NodeBefore
		}
		if c.Verb == "node.used" || c.Verb == "node.freed" || c.Verb == "node.images" {
			return nil // said by the allocation's event already, or nothing to anybody
		}
		ev.Node = string(n.ID)
		if c.Node != nil {
			now := present.Node(c.Node)
			ev.NodeNow = &now
		}
		ev.Text = nodeText(string(c.Verb), n)
	case c.Claim != nil:
		ev.Namespace, ev.Job, ev.JobUID, ev.Alloc = string(c.Claim.Env.Namespace), c.Claim.Env.Name, string(c.Claim.UID), string(c.Claim.Runner)
		ev.Text = claimText(string(c.Verb), c.Claim)
	case c.Breaker != nil:
		ev.Pool = string(c.Breaker.Pool)
		ev.Text = breakerText(string(c.Verb), c.Breaker)
	case c.Limits != nil:
		ev.Namespace = string(c.Limits.Name)
		ev.Text = limitsText(c.Limits)
	default:
		return nil
	}
	if in.skips(ev) {
		return nil
	}
	return ev
}

func (in *eventsIn) skips(ev *api.Event) bool {
	return in.Namespace != "" && ev.Namespace != in.Namespace ||
		in.Job != "" && ev.Job != in.Job ||
		in.Node != "" && ev.Node != in.Node
}

func claimText(verb string, c *state.Claim) string {
	what := fmt.Sprintf("claim %s of runner %s", c.ID, c.Runner)
	switch verb {
	case "claim.made":
		return what + " was made"
	case "claim.extended":
		return what + " was extended"
	}
	return what + " was " + string(c.State) + present.Because(c.Reason)
}

func environmentText(verb string, j *state.Job) string {
	name, _ := j.Key.Environment()
	what := "environment " + muster.JobKey{Namespace: j.Key.Namespace, Name: name}.String()
	switch verb {
	case "environment.set":
		return fmt.Sprintf("%s was set, version %d", what, j.Version)
	case "environment.deleted":
		return what + " was deleted"
	case "environment.alerted":
		return fmt.Sprintf("%s has %d warm of %d: too few for too long", what, j.Env.Warm, j.Env.Stock)
	case "environment.recovered":
		return fmt.Sprintf("%s has %d warm of %d: enough again", what, j.Env.Warm, j.Env.Stock)
	case "environment.wants":
		return fmt.Sprintf("%s wants %d warm", what, j.Env.Stock) + present.Because(j.Env.Why)
	case "job.ended":
		return what + " is gone"
	}
	return ""
}

func jobText(verb string, j *state.Job) string {
	if j.Env != nil {
		if s := environmentText(verb, j); s != "" {
			return s
		}
	}
	what := "job " + j.Key.String()
	switch verb {
	case "job.submitted":
		return fmt.Sprintf("%s was submitted with %s", what, muster.Counted(j.Count(), "member"))
	case "job.replaced":
		return fmt.Sprintf("%s was submitted again as version %d, with %s", what, j.Version, muster.Counted(j.Count(), "member"))
	case "job.stopping":
		return what + " is stopping" + present.Because(j.Reason)
	case "job.ended":
		return what + " " + string(j.Result) + present.Because(j.Reason)
	case "job.updated":
		return fmt.Sprintf("%s is at version %d%s", what, j.Version, present.Because(j.Standing.Note))
	case "job.rollout-done":
		return fmt.Sprintf("%s runs version %d, and each member of it is healthy", what, j.Version)
	case "job.rollout-failed":
		return fmt.Sprintf("version %d of %s is not rolled out any further%s", j.Version, what, present.Because(j.Standing.Reason))
	case "job.sized":
		return fmt.Sprintf("%s wants %s, one for each node that fits", what, muster.Counted(j.Waiting()+j.Placed, "member"))
	case "job.parked":
		return what + " waits" + present.Because(j.Parked)
	case "job.unparked":
		return what + " is looked at again"
	case "job.reserved":
		return fmt.Sprintf("%s was passed for long: room is kept for it on node %s", what, j.Reserved)
	case "job.released":
		return what + " has no room kept for it any more"
	case "job.output-pruned":
		return "the stored output of " + what + " was deleted to keep the quota"
	case "job.purged":
		return what + " was forgotten"
	}
	return what + " changed"
}

func allocText(verb string, al *state.Alloc) string {
	what := fmt.Sprintf("member %d of job %s, attempt %d,", al.Index, al.Run.Key, al.Attempt)
	if name, is := al.Run.Key.Environment(); is {
		what = fmt.Sprintf("runner %s of environment %s", al.ID, muster.JobKey{Namespace: al.Run.Key.Namespace, Name: name})
	}
	switch verb {
	case "alloc.claimed":
		return what + " was claimed"
	case "alloc.placed":
		return fmt.Sprintf("%s was placed on node %s", what, al.Node)
	case "alloc.starting":
		if al.Detail != "" {
			return fmt.Sprintf("%s is starting on node %s: %s", what, al.Node, al.Detail)
		}
		return fmt.Sprintf("%s is starting on node %s", what, al.Node)
	case "alloc.running":
		return fmt.Sprintf("%s is running on node %s", what, al.Node)
	case "alloc.stopping":
		return what + " was told to stop" + present.Because(al.StopCause)
	case "alloc.ended":
		how := map[muster.Outcome]string{
			muster.OutcomeSucceeded: "succeeded", muster.OutcomeFailed: "failed",
			muster.OutcomeStopped: "was stopped", muster.OutcomeLost: "was lost",
		}[al.Outcome]
		why := al.StopCause
		if al.Failure != nil {
			why = al.Failure.Message
		}
		return what + " " + how + present.Because(why)
	case "alloc.output":
		if al.Output.Stage == state.OutputComplete {
			return "the output of " + strings.TrimSuffix(what, ",") + " is stored"
		}
		return "the output of " + strings.TrimSuffix(what, ",") + " is " + present.OutputStage(&al.Output) + present.Because(al.Output.Why)
	case "alloc.purged":
		return what + " was forgotten"
	}
	return what + " changed"
}

func nodeText(verb string, n *state.Node) string {
	what := "node " + string(n.ID)
	switch verb {
	case "node.launching":
		return fmt.Sprintf("%s is launching in pool %s, offering %s", what, n.Pool, n.Offering.Name) + present.Because(n.StageReason)
	case "node.booting":
		return fmt.Sprintf("%s is booting, instance %s", what, n.Instance)
	case "node.adopted":
		return what + " was adopted" + present.Because(n.StageReason)
	case "node.serving":
		return what + " is serving"
	case "node.rejoined":
		return what + " answers again after its agent was started anew"
	case "node.kept":
		return what + " serves again" + present.Because(n.StageReason)
	case "node.draining", "node.terminating", "node.gone":
		return what + " is " + string(n.Stage) + present.By(n.StageWho) + present.Because(n.StageReason)
	case "node.health-reason":
		return what + " is still " + string(n.Health) + present.Because(n.HealthReason)
	case "node.evicted":
		return "what still runs on " + what + " is stopped: the time of its drain is over" + present.Because(n.IntentReason)
	case "node.purged":
		return what + " was forgotten"
	case "node.reserved":
		return what + " keeps the room that comes free for a job that was passed for long"
	case "node.released":
		return what + " keeps no room any more"
	case "node.plans-refused":
		return fmt.Sprintf("plans for %s were refused %s", what, muster.Counted(n.PlansRefused.Count, "time")) + present.Because(n.PlansRefused.Reason)
	}
	if intent, ok := strings.CutPrefix(verb, "node.intent-"); ok {
		return what + " is now to " + intent + present.By(n.IntentWho) + present.Because(n.IntentReason)
	}
	return what + " is " + strings.TrimPrefix(verb, "node.") + present.Because(n.HealthReason)
}
