package client

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"github.com/musterhq/muster/api"
)

// TestAttachAgain: joining is repeated wherever the server goes away, for it changes nothing.
func TestAttachAgain(t *testing.T) {
	lost := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	for name, first := range map[string]http.HandlerFunc{
		"before it answers": lost,
		"when it has taken the message": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(api.ExecFirst, api.ExecFirstTaken)
			lost(w, r)
		},
		"before it says that it has joined": func(w http.ResponseWriter, r *http.Request) {
			if ws, err := websocket.Accept(w, r, nil); err == nil {
				_ = ws.CloseNow()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if asked.Add(1) <= 2 {
					first(w, r)
					return
				}
				w.Header().Set(api.ExecFirst, api.ExecFirstTaken)
				ws, err := websocket.Accept(w, r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = ws.CloseNow() }()
				tell(t, r.Context(), ws, api.ExecEvent{Type: api.ExecEventStarted, ID: "e1", Stdout: 7})
			}))
			e, err := c.Attach(t.Context(), "a", api.ExecAttach{Attach: "e1", Stdout: 7, Stderr: -1})
			if err != nil || asked.Load() != 3 {
				t.Fatalf("%v, asked %d times", err, asked.Load())
			}
			if e.ID() != "e1" || e.Offset(Stdout) != 7 {
				t.Errorf("%s at %d", e.ID(), e.Offset(Stdout))
			}
			_ = e.Close()
		})
	}
	var asked atomic.Int32
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		refuse(w, api.Problem{Status: 404, Title: "no such execution", Code: "not-found"})
	}))
	if _, err := c.Attach(t.Context(), "a", api.ExecAttach{Attach: "e1"}); !IsNotFound(err) || asked.Load() != 1 {
		t.Errorf("%v, asked %d times", err, asked.Load())
	}
}
