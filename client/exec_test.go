package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/musterhq/muster/api"
)

// speak accepts a WebSocket and hands it to a test's server side.
func speak(t *testing.T, path string, f func(ctx context.Context, ws *websocket.Conn)) *Client {
	t.Helper()
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.EscapedPath() != path || r.Header.Get("Authorization") != "Bearer the-token" {
			refuse(w, api.Problem{Status: 404, Title: "Not Found", Detail: r.URL.Path + ": not found", Code: "not-found"})
			return
		}
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = ws.CloseNow() }()
		ws.SetReadLimit(api.ExecMaxMessage)
		f(r.Context(), ws)
	}))
}

func tell(t *testing.T, ctx context.Context, ws *websocket.Conn, v any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Error(err)
	}
	_ = ws.Write(ctx, websocket.MessageText, b) // a client that has left shows elsewhere
}

func hear(t *testing.T, ctx context.Context, ws *websocket.Conn, v any) {
	t.Helper()
	_, b, err := ws.Read(ctx)
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		t.Error(err)
	}
}

func TestExec(t *testing.T) {
	c := speak(t, "/v1/allocations/a-0-1/exec", func(ctx context.Context, ws *websocket.Conn) {
		var req api.ExecRequest
		hear(t, ctx, ws, &req)
		if strings.Join(req.Command, " ") != "cat -v" || !req.Stdin {
			t.Errorf("%+v", req)
		}
		tell(t, ctx, ws, api.ExecEvent{Type: api.ExecEventStarted, ID: "e1"})
		for {
			kind, b, err := ws.Read(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			if kind == websocket.MessageBinary {
				_ = ws.Write(ctx, websocket.MessageBinary, append([]byte{api.ExecStdout}, b...))
				continue
			}
			var m api.ExecControl
			_ = json.Unmarshal(b, &m)
			_ = ws.Write(ctx, websocket.MessageBinary, fmt.Appendf([]byte{api.ExecStderr}, "%s %s %d %d\n", m.Type, m.Signal, m.Rows, m.Cols))
			if m.Type == api.ExecCloseStdin {
				break
			}
		}
		tell(t, ctx, ws, map[string]string{"type": "of-later-versions"})
		tell(t, ctx, ws, api.ExecEvent{Type: api.ExecEventEnded, ExecEnd: &api.ExecEnd{ExitCode: 137, Signal: "KILL"}})
		_ = ws.Close(websocket.StatusNormalClosure, "")
	})
	e, err := c.Exec(t.Context(), "a-0-1", api.ExecRequest{Command: []string{"cat", "-v"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	in := bytes.Repeat([]byte("0123456789"), 30_000) // several messages
	go func() {
		err := errors.Join(e.Signal(t.Context(), "INT"), e.Resize(24, 80))
		_, werr := e.Write(in)
		if err := errors.Join(err, werr, e.CloseStdin()); err != nil {
			t.Error(err)
		}
	}()
	var out, errs bytes.Buffer
	end, err := e.Wait(&out, &errs)
	if err != nil || end.ExitCode != 137 || end.Signal != "KILL" || e.ID() != "e1" || e.End() != end {
		t.Error(end, err, e.ID())
	}
	if !bytes.Equal(out.Bytes(), in) || errs.String() != "signal INT 0 0\nresize  24 80\nclose-stdin  0 0\n" {
		t.Errorf("%d bytes, %q", out.Len(), errs.String())
	}
	if e.Offset(Stdout) != int64(out.Len()) || e.Offset(Stderr) != int64(errs.Len()) {
		t.Error(e.Offset(Stdout), e.Offset(Stderr))
	}
	if _, _, err := e.Next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestExecRefused(t *testing.T) {
	long := strings.Repeat("for so long ", 500)
	var asked atomic.Int32
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 { // opening is repeated, for nothing has begun
			refuse(w, api.Problem{Status: 503, Title: "Unavailable"})
			return
		}
		refuse(w, api.Problem{Status: 410, Title: "Gone", Detail: "it has ended " + long, Code: api.CodeEnded})
	}))
	_, err := c.Exec(t.Context(), "a", api.ExecRequest{Command: []string{"x"}})
	if !IsGone(err) || Code(err) != api.CodeEnded || !strings.HasSuffix(err.Error(), long) || asked.Load() != 2 {
		t.Error(err, asked.Load())
	}
	// By the first message, and by one in the middle.
	for _, begun := range []bool{false, true} {
		c = speak(t, "/v1/allocations/a/exec", func(ctx context.Context, ws *websocket.Conn) {
			hear(t, ctx, ws, &api.ExecRequest{})
			if begun {
				tell(t, ctx, ws, api.ExecEvent{Type: api.ExecEventStarted, ID: "e1"})
			}
			tell(t, ctx, ws, api.ExecEvent{Type: api.ExecEventError, Problem: &api.Problem{Status: 422, Detail: "nope", Code: api.CodeCommandNotFound}})
			_ = ws.Close(websocket.StatusNormalClosure, "")
		})
		e, err := c.Exec(t.Context(), "a", api.ExecRequest{Command: []string{"x"}})
		if begun {
			if err != nil {
				t.Fatal(err)
			}
			_, err = e.Wait(io.Discard, io.Discard)
			_ = e.Close()
		}
		if Code(err) != api.CodeCommandNotFound {
			t.Error(begun, err)
		}
	}
	// A server that does not know it.
	c = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, 200, "hello") }))
	if _, err := c.Exec(t.Context(), "a", api.ExecRequest{}); err == nil || !strings.Contains(err.Error(), "does not speak WebSocket") {
		t.Error(err)
	}
}

func TestExecLost(t *testing.T) {
	c := speak(t, "/v1/allocations/a/exec", func(ctx context.Context, ws *websocket.Conn) {
		hear(t, ctx, ws, &api.ExecAttach{})
		tell(t, ctx, ws, api.ExecEvent{Type: api.ExecEventStarted, ID: "e1", Stdout: 100, Stderr: 7})
		_ = ws.Write(ctx, websocket.MessageBinary, []byte("\x01abc"))
	})
	e, err := c.Attach(t.Context(), "a", api.ExecAttach{Attach: "e1", Stdout: -1, Stderr: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	var out bytes.Buffer
	if _, err := e.Wait(&out, io.Discard); !IsUnreachable(err) || out.String() != "abc" {
		t.Error(err, out.String())
	}
	if e.Offset(Stdout) != 103 || e.Offset(Stderr) != 7 {
		t.Error(e.Offset(Stdout), e.Offset(Stderr))
	}
	// One that is not there at all.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if _, err := dial(t, l.Addr().String()).Patient(-1).Exec(t.Context(), "a", api.ExecRequest{}); !IsUnreachable(err) || !strings.HasSuffix(err.Error(), "connection refused") {
		t.Error(err)
	}
}

// While the server takes nothing, a ping of its does not end the connection, and
// a signal goes another way.
func TestExecSignalsPastAFullStdin(t *testing.T) {
	signalled := make(chan string, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/allocations/a/executions/e1/signal", func(w http.ResponseWriter, r *http.Request) {
		var b api.ExecutionSignal
		_ = json.NewDecoder(r.Body).Decode(&b)
		signalled <- b.Signal
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /v1/allocations/a/exec", func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = ws.CloseNow() }()
		hear(t, r.Context(), ws, &api.ExecRequest{})
		tell(t, r.Context(), ws, api.ExecEvent{Type: api.ExecEventStarted, ID: "e1"})
		sig := <-signalled // without reading anything
		// It is sent; nobody waits for the answer. Not less time: one that cannot be sent by then takes the connection with it.
		one, cancel := context.WithTimeout(r.Context(), 300*time.Millisecond)
		_ = ws.Ping(one)
		cancel()
		tell(t, r.Context(), ws, api.ExecEvent{Type: api.ExecEventEnded, ExecEnd: &api.ExecEnd{Signal: sig}})
	})
	c := serve(t, mux)
	e, err := c.Exec(t.Context(), "a", api.ExecRequest{Command: []string{"x"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	var feeding sync.WaitGroup
	feeding.Go(func() {
		for b := make([]byte, 1<<20); ; {
			if _, err := e.Write(b); err != nil {
				return
			}
		}
	})
	for !e.fed.Load() {
		time.Sleep(time.Millisecond) // until it has begun
	}
	if err := e.Signal(t.Context(), "INT"); err != nil {
		t.Error(err)
	}
	end, err := e.Wait(io.Discard, io.Discard)
	if err != nil || end.Signal != "INT" {
		t.Error(end, err)
	}
	_ = e.Close() // wakes the one who writes
	feeding.Wait()
}

func TestDialPort(t *testing.T) {
	c := speak(t, "/v1/allocations/a/ports/80", func(ctx context.Context, ws *websocket.Conn) {
		// Gives back what comes, and ends its direction when the other has ended.
		for {
			kind, b, err := ws.Read(ctx)
			if err != nil {
				return
			}
			if kind == websocket.MessageText {
				break
			}
			_ = ws.Write(ctx, websocket.MessageBinary, b)
		}
		tell(t, ctx, ws, api.PortControl{Type: api.PortCloseWrite})
		_ = ws.Close(websocket.StatusNormalClosure, "")
	})
	dialling, cancel := context.WithCancel(t.Context())
	conn, err := c.DialPort(dialling, "a", 80)
	if err != nil {
		t.Fatal(err)
	}
	cancel() // it was for the dialling only
	want := bytes.Repeat([]byte("0123456789"), 100_000)
	go func() {
		if _, err := conn.Write(want); err != nil {
			t.Error(err)
		}
		if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
	}()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, want) {
		t.Error(len(got), err)
	}
	if _, err := conn.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	_ = conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("it can be read after it was closed")
	}

	// Deadlines.
	conn, err = c.DialPort(t.Context(), "a", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetReadDeadline(time.Now().Add(time.Hour))
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	// Where nothing is.
	if _, err := c.DialPort(t.Context(), "a", 81); !IsNotFound(err) {
		t.Error(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.DialPort(over, "a", 80); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
