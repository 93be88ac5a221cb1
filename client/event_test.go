package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
)

func event(w io.Writer, index int) {
	_, _ = fmt.Fprintf(w, "id: %d.0\nevent: job.live\ndata: {\"id\":\"%d.0\",\n", index, index)
	_, _ = fmt.Fprintf(w, "data: \"index\":%d,\"type\":\"job.live\"}\n\n", index)
}

// Events go on over cut connections, each told once, though cuts fall inside of them.
func TestEventsResume(t *testing.T) {
	var asked []string
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query().Get("after")+" "+r.Header.Get("Last-Event-ID"))
		if r.URL.Query().Get("namespace") != "n" || r.URL.Query().Get("job") != "j" {
			t.Error(r.URL)
		}
		after, _, _ := strings.Cut(r.URL.Query().Get("after"), ".")
		from, _ := strconv.Atoi(after)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ": hello\n\n")
		if from > 0 {
			event(w, from) // a server that tells one again
		}
		for i := from + 1; i <= from+2; i++ {
			event(w, i)
		}
		_, _ = fmt.Fprintf(w, "id: %d.0\ndata: {\"index\":", from+3)
		cut(t, w)
	}))
	next := uint64(1)
	for ev, err := range c.Events(t.Context(), EventQuery{After: "0", Namespace: "n", Job: "j"}) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Index != next {
			t.Fatalf("got %d, want %d", ev.Index, next)
		}
		if next++; next > 7 {
			break
		}
	}
	if got := strings.Join(asked, ", "); got != "0 0, 2.0 2.0, 4.0 4.0, 6.0 6.0" {
		t.Error(got)
	}
}

func TestEventsTooOld(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"status": func(w http.ResponseWriter, r *http.Request) {
			refuse(w, api.Problem{Status: 410, Title: "Gone", Detail: "kept from 100", Code: "too-old"})
		},
		"in the stream": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "event: too-old\ndata: {\"title\":\"Gone\",\"status\":410,\"detail\":\"kept from 100\",\"code\":\"too-old\"}\n\n")
		},
	} {
		c := serve(t, h)
		n := 0
		for _, err := range c.Events(t.Context(), EventQuery{After: "7"}) {
			n++
			var old *TooOld
			if !errors.As(err, &old) || err.Error() != "events after 7 are no longer kept: kept from 100" {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n != 1 {
			t.Errorf("%s: told %d times", name, n)
		}
	}
}

// "From now" is made a place, so that a connection that is cut before the first event loses none.
func TestEventsFromNow(t *testing.T) {
	calls := 0
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/server" {
			answer(w, 200, api.ServerInfo{Index: 41})
			return
		}
		if r.URL.Query().Get("after") != "41" {
			t.Error(r.URL)
		}
		if calls++; calls == 1 {
			cut(t, w)
			return
		}
		event(w, 42)
	}))
	for ev, err := range c.Events(t.Context(), EventQuery{}) {
		if err != nil || ev.Index != 42 {
			t.Errorf("%+v, %v", ev, err)
		}
		break
	}
}

// What is there now is told once, also when the connection is cut on the way.
func TestEventsOnce(t *testing.T) {
	calls := 0
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("follow") != "false" {
			t.Error(r.URL)
		}
		if calls++; calls == 1 {
			if r.URL.Query().Get("after") != Oldest {
				t.Error(r.URL)
			}
			event(w, 1)
			_, _ = io.WriteString(w, "id: 2.0\n\n")
			cut(t, w)
			return
		}
		if r.URL.Query().Get("after") != "2.0" {
			t.Error(r.URL)
		}
		event(w, 3)
		_, _ = io.WriteString(w, "id: 4.0\n\n")
	}))
	var got []uint64
	for ev, err := range c.Events(t.Context(), EventQuery{After: Oldest, Once: true}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ev.Index)
	}
	if fmt.Sprint(got) != "[1 3]" || calls != 2 {
		t.Errorf("%v in %d calls", got, calls)
	}
}

func TestEventsEndWithTheirContext(t *testing.T) {
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		event(w, 1)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range c.Events(ctx, EventQuery{After: "0"}) {
		cancel()
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Error(last)
	}
}

func TestEventsThatDoNotReadEnd(t *testing.T) {
	for body, want := range map[string]string{
		"id: 1.0\ndata: {\n\n":                         "/v1/events: an event that does not read: unexpected end of JSON input",
		"data: " + strings.Repeat("x", maxEvent+1<<17): "/v1/events: a line is longer than 16MiB",
	} {
		c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, body) }))
		n := 0
		for _, err := range c.Events(t.Context(), EventQuery{After: "0"}) {
			if n++; err == nil || err.Error() != want {
				t.Error(err)
			}
		}
		if n != 1 {
			t.Errorf("told %d times", n)
		}
	}
}
