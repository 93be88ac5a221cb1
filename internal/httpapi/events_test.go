package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/httpapi/eventstream"
	"github.com/musterhq/muster/internal/state"
)

// sse is one message of a stream; comments and ids alone have no data.
type sse struct{ id, event, data, comment string }

// readSSE reads messages as the standard says, until the stream ends.
func readSSE(r io.Reader, each func(sse) bool) error {
	var m sse
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			if !each(m) {
				return nil
			}
			m = sse{}
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "":
			m.comment = value
		case "id":
			m.id = value
		case "event":
			m.event = value
		case "data":
			m.data += value
		}
	}
	return lines.Err()
}

// events reads everything that is kept after a position, without following.
func (b *bench) events(query string) (events []api.Event) {
	b.Helper()
	a := b.do("GET", "/v1/events?follow=false&"+query, "")
	if a.StatusCode != 200 || a.Header.Get("Content-Type") != "text/event-stream" {
		b.Fatalf("%d %s", a.StatusCode, a.body)
	}
	err := readSSE(strings.NewReader(a.body), func(m sse) bool {
		if m.data == "" {
			return true
		}
		var ev api.Event
		if err := json.Unmarshal([]byte(m.data), &ev); err != nil {
			b.Fatalf("%v in %q", err, m.data)
		}
		if ev.Type != m.event || ev.ID != m.id {
			b.Errorf("message %+v carries %+v", m, ev)
		}
		events = append(events, ev)
		return true
	})
	if err != nil {
		b.Fatal(err)
	}
	return events
}

func types(events []api.Event) []string {
	var out []string
	for _, e := range events {
		out = append(out, e.Type)
	}
	return out
}

// story lets a job run on two nodes and end.
func (b *bench) story() muster.JobUID {
	b.node("n1")
	b.node("n2")
	uid := b.submit("team", "j", 2)
	b.submit("default", "other", 1)
	b.place(uid, "n1", 0, 1)
	b.place(uid, "n2", 1, 1)
	b.report("n1", state.AllocUpdate{ID: muster.NewAllocID(uid, 0, 1), Status: muster.AllocRunning})
	b.report("n1", state.AllocUpdate{ID: muster.NewAllocID(uid, 0, 1), Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded})
	b.report("n2", state.AllocUpdate{ID: muster.NewAllocID(uid, 1, 1), Status: muster.AllocEnded, Outcome: muster.OutcomeFailed,
		Failure: &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonExit, Message: "exited with 1"}})
	b.propose(&state.NodeTerminating{ID: "n1", Reason: "idle"}, &state.NodeGone{ID: "n1"})
	b.propose(&state.JobsPurged{UIDs: []muster.JobUID{uid}})
	return uid
}

func TestEvents(t *testing.T) {
	b := newBench(t, 1000)
	uid := b.story()
	all := b.events("after=oldest")
	want := []string{
		"node.launching", "node.booting", "node.serving", "node.launching", "node.booting", "node.serving",
		"job.submitted", "job.submitted", "alloc.placed", "alloc.placed", "alloc.running", "alloc.ended", "alloc.ended", "job.ended",
		"node.terminating", "node.gone", "alloc.output", "alloc.purged", "alloc.purged", "job.purged",
	}
	if got := types(all); !slices.Equal(got, want) {
		t.Fatalf("%q\nwant %q", got, want)
	}
	seen := map[string]bool{}
	for i, e := range all {
		if e.Text == "" || e.Time.IsZero() || e.Index == 0 || seen[e.ID] || strings.Contains(e.Text, "%!") {
			t.Errorf("%+v", e)
		}
		seen[e.ID] = true
		objects := 0
		for _, there := range []bool{e.JobNow != nil, e.AllocNow != nil, e.NodeNow != nil} {
			if there {
				objects++
			}
		}
		if purged := strings.HasSuffix(e.Type, ".purged"); objects != 1 && !purged || purged && objects != 0 {
			t.Errorf("%s carries %d objects", e.Type, objects)
		}
		if e.JobNow != nil && e.JobNow.Spec != nil {
			t.Error("an event carries a spec")
		}
		// Resumed after each event, the rest comes, and only that.
		if got, want := types(b.events("after="+e.ID)), types(all[i+1:]); !slices.Equal(got, want) {
			t.Errorf("after %s: %q, want %q", e.ID, got, want)
		}
	}
	for i, says := range map[int]string{
		6: "job team/j was submitted with 2 members", 8: "member 0 of job team/j, attempt 1, was placed on node n1",
		12: "member 1 of job team/j, attempt 1, failed: exited with 1", 13: "job team/j failed: 1 of 2 members failed",
		14: "node n1 is terminating: idle", 16: "the output of member 0 of job team/j, attempt 1 is incomplete: the instance of node n1 is gone", 19: "job team/j was forgotten",
	} {
		if all[i].Text != says {
			t.Errorf("%d: %q, want %q", i, all[i].Text, says)
		}
	}
	index := all[10].Index
	if got := types(b.events(fmt.Sprintf("after=%d", index))); !slices.Equal(got, types(all[11:])) {
		t.Errorf("after an index: %q", got)
	}
	for query, want := range map[string][]string{
		"namespace=team":               {"job.submitted", "alloc.placed", "alloc.placed", "alloc.running", "alloc.ended", "alloc.ended", "job.ended", "alloc.output", "alloc.purged", "alloc.purged", "job.purged"},
		"namespace=team&job=j":         {"job.submitted", "alloc.placed", "alloc.placed", "alloc.running", "alloc.ended", "alloc.ended", "job.ended", "alloc.output", "alloc.purged", "alloc.purged", "job.purged"},
		"job=other":                    {"job.submitted"},
		"job=j":                        nil,
		"node=n2":                      {"node.launching", "node.booting", "node.serving", "alloc.placed", "alloc.ended", "alloc.purged"},
		"node=n1&namespace=team&job=j": {"alloc.placed", "alloc.running", "alloc.ended", "alloc.output", "alloc.purged"},
	} {
		if got := types(b.events("after=oldest&" + query)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	if got := b.events("namespace=team"); len(got) != 0 {
		t.Errorf("from now on: %q", types(got))
	}
	a := b.do("GET", "/v1/events?follow=false&after=oldest", "", header("Last-Event-ID", all[18].ID))
	if !strings.Contains(a.body, "job.purged") || strings.Contains(a.body, "job.submitted") {
		t.Errorf("Last-Event-ID does not win: %s", a.body)
	}
	if all[8].Alloc != string(muster.NewAllocID(uid, 0, 1)) || all[8].Node != "n1" || all[8].JobUID != string(uid) {
		t.Errorf("%+v", all[8])
	}
}

func TestEventsTooOld(t *testing.T) {
	b := newBench(t, 16)
	for i := range 30 {
		b.submit("default", fmt.Sprintf("j%d", i), 1)
	}
	p := b.problem(b.do("GET", "/v1/events?after=3", ""), 410, "too-old")
	if !strings.Contains(p.Detail, "list again") {
		t.Errorf("%q", p.Detail)
	}
	p = b.problem(b.do("GET", "/v1/events?after=999", ""), 410, "too-old")
	if !strings.Contains(p.Detail, "ahead") {
		t.Errorf("%q", p.Detail)
	}
	if got := b.events("after=oldest"); len(got) != 16 {
		t.Errorf("%d events kept", len(got))
	}
}

// follow opens a stream on a real connection; messages come on the channel,
// which is closed at its end.
func (b *bench) follow(url string) (<-chan sse, func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	if resp.StatusCode != 200 {
		b.Fatal(resp.Status)
	}
	out := make(chan sse)
	go func() {
		defer close(out)
		defer func() { _ = resp.Body.Close() }()
		_ = readSSE(resp.Body, func(m sse) bool {
			select {
			case out <- m:
				return true
			case <-ctx.Done():
				return false
			}
		})
	}()
	return out, func() {
		cancel()
		for range out {
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	}
}

func next(t *testing.T, from <-chan sse) sse {
	t.Helper()
	for {
		select {
		case m, ok := <-from:
			if !ok {
				t.Fatal("the stream ended")
			}
			if m.data != "" {
				return m
			}
		case <-time.After(10 * time.Second):
			t.Fatal("nothing came")
		}
	}
}

func TestEventsFollowAndResume(t *testing.T) {
	b := newBench(t, 1000)
	srv := b.serve()
	stream, stop := b.follow(srv.URL + "/v1/events")
	hello := <-stream
	if hello.comment == "" || hello.id == "" {
		t.Errorf("hello %+v", hello)
	}
	var ids []string
	for i := range 300 { // more than a batch
		b.submit("default", fmt.Sprintf("j%d", i), 1)
	}
	for i := range 300 {
		m := next(t, stream)
		if !strings.Contains(m.data, fmt.Sprintf(`"job":"j%d"`, i)) {
			t.Fatalf("%d: %+v", i, m)
		}
		ids = append(ids, m.id)
	}
	stop()
	stream, stop = b.follow(srv.URL + "/v1/events?after=" + ids[150])
	for i := 151; i < 300; i++ {
		if m := next(t, stream); m.id != ids[i] {
			t.Fatalf("resumed at %s, want %s", m.id, ids[i])
		}
	}
	b.submit("default", "last", 1)
	if m := next(t, stream); !strings.Contains(m.data, `"job":"last"`) {
		t.Errorf("%+v", m)
	}
	stop()
}

// TestEventsHeartbeat: silence is broken, and the id moves on with what was filtered out.
func TestEventsHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1000)
		client, server := net.Pipe()
		srv := b.parts.Door.Server(b.stop)
		l := &oneConn{conn: server, done: make(chan struct{})}
		served := make(chan error)
		go func() { served <- srv.Serve(l) }()
		go func() {
			_, _ = io.WriteString(client, "GET /v1/events?job=none HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+token+"\r\n\r\n")
		}()
		resp, err := http.ReadResponse(bufio.NewReader(client), nil)
		if err != nil {
			t.Fatal(err)
		}
		messages := make(chan sse)
		ended := make(chan error)
		go func() {
			ended <- readSSE(resp.Body, func(m sse) bool { messages <- m; return true })
		}()
		first := <-messages
		began := time.Now()
		b.submit("default", "j", 1)
		m := <-messages
		if took := time.Since(began); took != eventstream.Heartbeat || m.comment != "heartbeat" || m.data != "" {
			t.Errorf("after %s: %+v", took, m)
		}
		if want := fmt.Sprint(b.state.Latest().Index()); m.id != want || m.id == first.id {
			t.Errorf("id %s, want %s", m.id, want)
		}
		// A server that is shut down ends the stream.
		down := make(chan error)
		go func() { down <- srv.Shutdown(context.Background()) }()
		if err := <-ended; err != nil {
			t.Errorf("the stream broke: %v", err)
		}
		_ = client.Close()
		if err := <-down; err != nil {
			t.Error(err)
		}
		<-served
	})
}

// oneConn is a listener of one connection.
type oneConn struct {
	conn net.Conn
	done chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.done
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	return nil
}

func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// TestEventsSlowReader: a reader that stands still falls out of the feed, is
// told so, and nothing is queued for it.
func TestEventsSlowReader(t *testing.T) {
	b := newBench(t, 64)
	w := &gated{ResponseWriter: discard{http.Header{}}, gate: make(chan struct{}), reached: make(chan struct{}, 1)}
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://localhost/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.api.Handler().ServeHTTP(w, req)
	}()
	<-w.reached // the first write hangs
	for i := range 200 {
		b.submit("default", fmt.Sprintf("j%d", i), 1)
	}
	close(w.gate)
	<-done
	var last sse
	n := 0
	if err := readSSE(strings.NewReader(w.written.String()), func(m sse) bool {
		if m.data != "" {
			last = m
			n++
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	var p api.Problem
	if err := json.Unmarshal([]byte(last.data), &p); err != nil || last.event != "too-old" || p.Status != 410 || p.Code != "too-old" || last.id != "" {
		t.Errorf("the last message is %+v (%v)", last, err)
	}
	if n != 1 {
		t.Errorf("%d messages", n)
	}
}

// gated hangs in Write until its gate is open.
type gated struct {
	http.ResponseWriter
	gate    chan struct{}
	reached chan struct{}
	written buffer
}

func (g *gated) Write(p []byte) (int, error) {
	select {
	case g.reached <- struct{}{}:
	default:
	}
	<-g.gate
	return g.written.Write(p)
}

func (g *gated) Flush() {}
