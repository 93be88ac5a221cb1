package client

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"github.com/musterhq/muster/api"
)

// TestExecFirst: the first message goes along with the request to a server that takes it, and nothing that
// may have started a command is asked for twice.
func TestExecFirst(t *testing.T) {
	var asked atomic.Int32
	first := func(r *http.Request) (req api.ExecRequest) {
		b, err := base64.RawURLEncoding.DecodeString(r.Header.Get(api.ExecFirst))
		if err == nil {
			err = json.Unmarshal(b, &req)
		}
		if err != nil {
			t.Errorf("%s: %v", b, err)
		}
		return req
	}
	started := func(w http.ResponseWriter, r *http.Request, hears bool) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = ws.CloseNow() }()
		ws.SetReadLimit(api.ExecMaxText)
		if hears {
			hear(t, r.Context(), ws, &api.ExecRequest{})
		}
		tell(t, r.Context(), ws, api.ExecEvent{Type: api.ExecEventStarted, ID: "e1"})
	}
	busy := api.Problem{Status: 503, Title: "Service Unavailable", Code: "unavailable"}
	for name, x := range map[string]struct {
		serve func(w http.ResponseWriter, r *http.Request, n int32)
		size  int // of the command
		asked int32
		ok    bool
	}{
		"taken": {func(w http.ResponseWriter, r *http.Request, _ int32) {
			if got := first(r); len(got.Command) != 1 || !strings.HasPrefix(got.Command[0], "x") {
				t.Errorf("%+v", got)
			}
			w.Header().Set(api.ExecFirst, api.ExecFirstTaken)
			started(w, r, false)
		}, 1, 1, true},
		"by a server that does not know it": {func(w http.ResponseWriter, r *http.Request, _ int32) { started(w, r, true) }, 1, 1, true},
		"too long for a header": {func(w http.ResponseWriter, r *http.Request, _ int32) {
			if r.Header.Get(api.ExecFirst) != "" {
				t.Error("it came along")
			}
			started(w, r, true)
		}, api.ExecMaxFirst, 1, true},
		"refused before it was taken": {func(w http.ResponseWriter, r *http.Request, n int32) {
			if n == 1 {
				refuse(w, busy)
				return
			}
			started(w, r, true)
		}, 1, 2, true},
		"refused when it was taken": {func(w http.ResponseWriter, _ *http.Request, _ int32) {
			w.Header().Set(api.ExecFirst, api.ExecFirstTaken)
			refuse(w, busy)
		}, 1, 1, false},
		"lost": {func(http.ResponseWriter, *http.Request, int32) { panic(http.ErrAbortHandler) }, 1, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			asked.Store(0)
			c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/version" {
					answer(w, 200, struct{}{})
					return
				}
				x.serve(w, r, asked.Add(1))
			}))
			// A connection that lies idle must not be used: package http would ask again by itself if it broke.
			_ = c.call(t.Context(), request{method: http.MethodGet, path: "/v1/version"}, &struct{}{})
			e, err := c.Exec(t.Context(), "a", api.ExecRequest{Command: []string{strings.Repeat("x", x.size)}})
			if (err == nil) != x.ok || asked.Load() != x.asked {
				t.Fatalf("%v, asked %d times", err, asked.Load())
			}
			if err == nil {
				if e.ID() != "e1" {
					t.Error(e.ID())
				}
				_ = e.Close()
			}
		})
	}
}
