// Package eventstream sends the changes of the state's feed as server-sent events, with heartbeats, and
// says when a reader was too slow.
package eventstream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/httpapi/schema"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

const (
	// Heartbeat is the longest silence of an event stream. Proxies close connections that are
	// silent for longer.
	Heartbeat = 15 * time.Second
	// batch bounds the changes that one step takes from the feed, and with it how many rows a
	// slow reader keeps in memory.
	batch = 256
	// tooOldType is the type of the last event of a reader that was too slow for the feed.
	tooOldType = "too-old"
)

// Stream is one reader. One goroutine owns it. What the reader has not read stays in the feed:
// nothing is queued for it, so a slow reader costs no memory.
type Stream struct {
	w       http.ResponseWriter
	out     *bufio.Writer
	changes *state.Subscription
	follow  bool
	event   func(*state.Change) *api.Event
}

// New makes a stream to a reader. event makes the public form of a change, or nil if the reader does not
// want it. Without follow the stream ends after the changes up to now.
func New(w http.ResponseWriter, changes *state.Subscription, follow bool, event func(*state.Change) *api.Event) *Stream {
	return &Stream{w: w, out: bufio.NewWriterSize(w, 32<<10), changes: changes, follow: follow, event: event}
}

// Run sends the changes after a position until ctx ends, the reader has gone, or it was too slow.
func (e *Stream) Run(ctx context.Context, pos state.Position) error {
	_, _ = e.out.WriteString(": muster events\nretry: 1000\nid: " + present.EventID(pos) + "\n\n")
	if err := e.flush(); err != nil {
		return err
	}
	for quiet := false; ; {
		changes, next, all, err := e.changes.Next(pos, batch)
		if err != nil {
			return e.tooOld(err)
		}
		for i := range changes {
			if ev := e.event(&changes[i]); ev != nil {
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
		case !e.follow:
			return nil
		}
		bounded, cancel := context.WithTimeout(ctx, Heartbeat)
		quiet = e.changes.Wait(bounded, pos) != nil
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (e *Stream) flush() error {
	door.ExtendWrite(e.w)
	if err := e.out.Flush(); err != nil {
		return err
	}
	return http.NewResponseController(e.w).Flush()
}

func (e *Stream) send(ev *api.Event) error {
	b, err := schema.Encode(ev)
	if err != nil {
		return fmt.Errorf("event %s: %w", ev.ID, err)
	}
	return e.write(ev.ID, ev.Type, b)
}

func (e *Stream) write(id, kind string, data []byte) error {
	if id != "" {
		_, _ = fmt.Fprintf(e.out, "id: %s\n", id)
	}
	_, err := fmt.Fprintf(e.out, "event: %s\ndata: %s\n\n", kind, bytes.TrimRight(data, "\n"))
	return err
}

// tooOld sends a last event to a reader that fell out of the feed. The status of the answer is long
// sent, so the problem is the data of that event. It has no id: a reader must list again and not
// resume.
func (e *Stream) tooOld(err error) error {
	b, jerr := json.Marshal(&problem.Of(err).Problem)
	if jerr != nil {
		return jerr
	}
	door.ExtendWrite(e.w)
	if werr := e.write("", tooOldType, b); werr != nil {
		return werr
	}
	if ferr := e.flush(); ferr != nil {
		return ferr
	}
	return err
}
