package httpapi

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// TestExecFirst: a first message that comes with the request is done before the upgrade, and what is wrong with it told as
// by every other request.
func TestExecFirst(t *testing.T) {
	in := newInside(t)
	with := func(value string) func(*websocket.DialOptions) {
		return func(o *websocket.DialOptions) { o.HTTPHeader.Set(api.ExecFirst, value) }
	}
	message := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	join := func(v any) *talk {
		c, resp, err := in.dial(t, "/exec", with(message(v)))
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Get(api.ExecFirst); got != api.ExecFirstTaken {
			t.Errorf("the answer says %q", got)
		}
		return &talk{TB: t, c: c, ctx: t.Context()}
	}
	r := shell("cat; echo over")
	r.Stdin = true
	x := join(r)
	x.started()
	x.stdin([]byte("hello\n"))
	x.say(api.ExecControl{Type: api.ExecCloseStdin})
	if end := x.ended(); end.ExitCode != 0 || x.out[1].String() != "hello\nover\n" {
		t.Errorf("%+v %q", end, x.out[1].String())
	}
	r = shell("echo kept")
	r.Detach, r.ID = true, "mine"
	x = join(r)
	x.started()
	_ = x.c.CloseNow()
	x = join(api.ExecAttach{Attach: "mine"})
	x.started()
	if x.ended(); x.out[1].String() != "kept\n" {
		t.Errorf("%q", x.out[1].String())
	}
	for name, c := range map[string]struct {
		value  string
		status int
		code   string
		taken  bool
	}{
		"no base64":    {"{}", 422, "invalid", false},
		"no JSON":      {base64.RawURLEncoding.EncodeToString([]byte("x")), 400, "", false},
		"no command":   {message(api.ExecRequest{}), 422, "invalid", false},
		"too long":     {strings.Repeat("a", api.ExecMaxFirst+1), 422, "invalid", false},
		"no such file": {message(api.ExecRequest{Command: []string{"no-such-program"}}), 422, api.CodeCommandNotFound, true},
		"unknown":      {message(api.ExecAttach{Attach: "none"}), 404, "not-found", true},
	} {
		_, resp, err := in.dial(t, "/exec", with(c.value))
		if err == nil || resp == nil {
			t.Errorf("%s: it was opened", name)
			continue
		}
		var p api.Problem
		_ = json.NewDecoder(resp.Body).Decode(&p)
		if resp.StatusCode != c.status || c.code != "" && p.Code != c.code || (resp.Header.Get(api.ExecFirst) == api.ExecFirstTaken) != c.taken {
			t.Errorf("%s: %s %+v", name, resp.Status, p)
		}
	}
	// A node that refuses has started nothing.
	in.inits.mu.Lock()
	in.inits.err = muster.Faultf(muster.FaultConflict, "it is starting")
	in.inits.mu.Unlock()
	if _, resp, err := in.dial(t, "/exec", with(message(shell("true")))); err == nil || resp.StatusCode != http.StatusConflict {
		t.Errorf("%v", err)
	}
}
