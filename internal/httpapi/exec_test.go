package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/socket"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// dial opens a WebSocket below the allocation.
func (in *insideBench) dial(t testing.TB, path string, edit ...func(*websocket.DialOptions)) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	o := &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}, HTTPClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	for _, e := range edit {
		e(o)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, resp, err := websocket.Dial(ctx, in.srv.URL+in.path+path, o)
	if c != nil {
		c.SetReadLimit(1 << 20)
		t.Cleanup(func() { _ = c.CloseNow() })
	}
	return c, resp, err
}

// talk is an execution from the client's side.
type talk struct {
	testing.TB
	c   *websocket.Conn
	ctx context.Context
	out [3]bytes.Buffer
}

func (in *insideBench) open(t testing.TB, first any) *talk {
	t.Helper()
	c, _, err := in.dial(t, "/exec")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	x := &talk{TB: t, c: c, ctx: ctx}
	x.say(first)
	return x
}

func (x *talk) say(v any) {
	x.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		x.Fatal(err)
	}
	if err := x.c.Write(x.ctx, websocket.MessageText, b); err != nil {
		x.Fatal(err)
	}
}

func (x *talk) stdin(p []byte) {
	x.Helper()
	if err := x.c.Write(x.ctx, websocket.MessageBinary, p); err != nil {
		x.Fatal(err)
	}
}

// next keeps output until an event comes.
func (x *talk) next() api.ExecEvent {
	x.Helper()
	for {
		kind, b, err := x.c.Read(x.ctx)
		if err != nil {
			x.Fatalf("%v after %q %q", err, x.out[1].String(), x.out[2].String())
		}
		if kind == websocket.MessageBinary {
			x.out[b[0]].Write(b[1:])
			continue
		}
		var e api.ExecEvent
		if err := json.Unmarshal(b, &e); err != nil {
			x.Fatalf("%v in %s", err, b)
		}
		return e
	}
}

// until reads output until it has what is asked for.
func (x *talk) until(what string) {
	x.Helper()
	for !strings.Contains(x.out[1].String(), what) {
		kind, b, err := x.c.Read(x.ctx)
		if err != nil || kind != websocket.MessageBinary {
			x.Fatalf("no %q: %v %s after %q", what, err, b, x.out[1].String())
		}
		x.out[b[0]].Write(b[1:])
	}
}

func (x *talk) started() string {
	x.Helper()
	e := x.next()
	if e.Type != api.ExecEventStarted || e.ID == "" {
		x.Fatalf("%+v %+v", e, e.Problem)
	}
	return e.ID
}

// ended reads to the end, and that the server closes well after it.
func (x *talk) ended() api.ExecEnd {
	x.Helper()
	e := x.next()
	if e.Type != api.ExecEventEnded || e.ExecEnd == nil {
		x.Fatalf("%+v %+v", e, e.Problem)
	}
	x.closed()
	return *e.ExecEnd
}

func (x *talk) closed() {
	x.Helper()
	if _, b, err := x.c.Read(x.ctx); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		x.Fatalf("%v %q", err, b)
	}
}

func (x *talk) failed(status int, code string) {
	x.Helper()
	e := x.next()
	if e.Type != api.ExecEventError || e.Problem == nil || e.Problem.Status != status || e.Problem.Code != code || e.Problem.Detail == "" {
		x.Fatalf("%+v %+v", e, e.Problem)
	}
	x.closed()
}

func shell(script string) api.ExecRequest {
	return api.ExecRequest{Command: []string{"sh", "-c", script}}
}

func (in *insideBench) run(r api.ExecRequest) api.ExecResult {
	in.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		in.Fatal(err)
	}
	a := in.do("POST", in.path+"/exec", string(b))
	if a.StatusCode != 200 {
		in.Fatalf("%d %s", a.StatusCode, a.body)
	}
	return as[api.ExecResult](in.bench, a)
}

func TestRunExec(t *testing.T) {
	in := newInside(t)
	r := shell("echo $HERE $A; pwd; cat; echo oops >&2; exit 3")
	r.Env, r.Input, r.Workdir = map[string]string{"A": "b c"}, "in", "/"
	got := in.run(r)
	if got.ExitCode != 3 || got.Stdout != "sandbox b c\n/\nin" || got.Stderr != "oops\n" || got.ID == "" || got.Truncated || got.Signal != "" {
		t.Errorf("%+v", got)
	}
	if got := in.run(shell("kill -9 $$")); got.ExitCode != 137 || got.Signal != "SIGKILL" {
		t.Errorf("%+v", got)
	}
	if got := in.run(shell(`printf '\377\000'; printf '\303\251' >&2`)); string(got.StdoutBase64) != "\xff\x00" || got.Stdout != "" || got.Stderr != "é" {
		t.Errorf("%+v", got)
	}
	r = shell("cat | od -An -tx1")
	r.InputBase64 = []byte{0, 255}
	if got := in.run(r); strings.TrimSpace(got.Stdout) != "00 ff" {
		t.Errorf("%+v", got)
	}
	// Cut within a letter: what is left is text all the same.
	if got := in.run(shell(`head -c 1048575 /dev/zero | tr '\0' x; printf '\303\251end'`)); !got.Truncated || len(got.Stdout) != 1<<20-1 {
		t.Errorf("%d %d %v", len(got.Stdout), len(got.StdoutBase64), got.Truncated)
	}
	r = shell("sleep 100")
	r.Timeout, r.KillGrace = api.Duration(50*time.Millisecond), api.Duration(time.Millisecond)
	if got := in.run(r); !got.TimedOut || got.Signal == "" {
		t.Errorf("%+v", got)
	}
	// A command that does not read its input is no failure.
	r = shell("exit 0")
	r.Input = strings.Repeat("x", 1<<20)
	if got := in.run(r); got.ExitCode != 0 {
		t.Errorf("%+v", got)
	}
}

func TestRunExecRefused(t *testing.T) {
	in := newInside(t)
	for body, want := range map[string]struct {
		status int
		code   string
	}{
		`{}`:                                                     {422, "invalid"},
		`{"command":[]}`:                                         {422, "invalid"},
		`{"command":[""]}`:                                       {422, "invalid"},
		`{"command":"true"}`:                                     {422, "invalid"},
		`{"command":["a\u0000b"]}`:                               {422, "invalid"},
		`{"command":["true"],"comand":1}`:                        {422, "invalid"},
		`{"command":["true"],"id":"a/b"}`:                        {422, "invalid"},
		`{"command":["true"],"tty":true}`:                        {422, "invalid"},
		`{"command":["true"],"stdin":true}`:                      {422, "invalid"},
		`{"command":["true"],"env":{"A=":"1"}}`:                  {422, "invalid"},
		`{"command":["true"],"timeout":"-1s"}`:                   {422, "invalid"},
		`{"command":["true"],"input":"a","input_base64":"AA=="}`: {422, "invalid"},
		`{"command":["true"],"input_base64":"?"}`:                {422, "invalid"},
		`{"command":["true"],"input_base64":[1]}`:                {422, "invalid"},
		`{"command":["true"],"detach":true,"input":"a"}`:         {422, "invalid"},
		`{"command":["/no/such/program"]}`:                       {422, api.CodeCommandNotFound},
		`{"command":["/etc/hosts"]}`:                             {422, api.CodeNotExecutable},
		`{"command":["true"],"workdir":"/no/such"}`:              {422, "invalid"},
		`not json`: {400, "invalid"},
	} {
		p := in.problem(in.do("POST", in.path+"/exec", body), want.status, want.code)
		if strings.Contains(p.Detail, "internal") {
			t.Errorf("%s: %s", body, p.Detail)
		}
	}
}

func TestExecutions(t *testing.T) {
	in := newInside(t)
	a := in.do("POST", in.path+"/exec", `{"command":["sh","-c","trap 'exit 7' TERM; echo err >&2; echo out; while :; do sleep 0.01; done"],"detach":true,"id":"mine"}`)
	if s := as[api.ExecStarted](in.bench, a); a.StatusCode != 202 || s.ID != "mine" {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	in.problem(in.do("POST", in.path+"/exec", `{"command":["true"],"id":"mine"}`), 409, "already-exists")
	e := get[api.Execution](in.bench, in.path+"/executions/mine")
	if !e.Running || !e.Detached || e.ID != "mine" || e.Started == nil || e.ExitCode != nil {
		t.Errorf("%+v", e)
	}
	x := in.open(t, api.ExecAttach{Attach: "mine"})
	x.started()
	x.until("out\n")
	in.problem(in.do("POST", in.path+"/executions/mine/signal", `{"signal":"NONE"}`), 422, "invalid")
	in.problem(in.do("POST", in.path+"/executions/none/signal", `{"signal":"TERM"}`), 404, "not-found")
	if a := in.do("POST", in.path+"/executions/mine/signal", `{"signal":"SIGTERM"}`); a.StatusCode != 204 {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	if end := x.ended(); end.ExitCode != 7 || x.out[1].String() != "out\n" || !strings.HasPrefix(x.out[2].String(), "err\n") {
		t.Errorf("%+v %q %q", end, x.out[1].String(), x.out[2].String())
	}
	// Again, from an offset, after its end.
	x = in.open(t, api.ExecAttach{Attach: "mine", Stdout: 2, Stderr: -1})
	if ev := x.next(); ev.Stdout != 2 {
		t.Errorf("%+v", ev)
	}
	if end := x.ended(); end.ExitCode != 7 || x.out[1].String() != "t\n" {
		t.Errorf("%+v %q", end, x.out[1].String())
	}
	x = in.open(t, api.ExecAttach{Attach: "none"})
	x.failed(404, "not-found")
	x = in.open(t, api.ExecAttach{Attach: "mine", Stdout: 1000})
	x.failed(410, "too-old")
	x = in.open(t, api.ExecAttach{Attach: "mine", Stdout: -2})
	x.failed(422, "invalid")

	l := get[api.ExecutionList](in.bench, in.path+"/executions")
	if len(l.Executions) != 1 || l.Executions[0].Running || *l.Executions[0].ExitCode != 7 || l.Executions[0].Ended == nil {
		t.Errorf("%+v", l)
	}
	in.problem(in.do("GET", in.path+"/executions/none", ""), 404, "not-found")
}

func TestExecSocket(t *testing.T) {
	in := newInside(t)
	x := in.open(t, shell("echo a; echo b >&2; exit 5"))
	x.started()
	if end := x.ended(); end.ExitCode != 5 || x.out[1].String() != "a\n" || x.out[2].String() != "b\n" {
		t.Errorf("%+v", end)
	}

	r := shell("cat; echo done >&2")
	r.Stdin = true
	x = in.open(t, r)
	x.started()
	x.stdin([]byte("one"))
	x.until("one")
	x.stdin([]byte("two"))
	x.say(api.ExecControl{Type: api.ExecCloseStdin})
	if end := x.ended(); end.ExitCode != 0 || x.out[1].String() != "onetwo" || x.out[2].String() != "done\n" {
		t.Errorf("%+v %q", end, x.out[1].String())
	}

	x = in.open(t, shell("trap 'echo got; exit 0' INT; echo ready; while :; do sleep 0.01; done"))
	x.started()
	x.until("ready")
	x.say(api.ExecControl{Type: api.ExecSignal, Signal: "INT"})
	if end := x.ended(); end.ExitCode != 0 || x.out[1].String() != "ready\ngot\n" {
		t.Errorf("%+v %q", end, x.out[1].String())
	}
}

func TestExecTerminal(t *testing.T) {
	in := newInside(t)
	r := shell("stty size; trap 'stty size' WINCH; echo ready; read a; read b; echo [$a$b]")
	r.TTY, r.Stdin, r.Rows, r.Cols = true, true, 33, 77
	x := in.open(t, r)
	x.started()
	x.until("33 77")
	x.until("ready")
	x.say(api.ExecControl{Type: api.ExecResize, Rows: 44, Cols: 88})
	x.stdin([]byte("x\n"))
	x.until("44 88")
	x.stdin([]byte("y\n"))
	if end := x.ended(); end.ExitCode != 0 || x.out[2].Len() != 0 {
		t.Errorf("%+v %q", end, x.out[1].String())
	}
}

func TestExecSocketRefuses(t *testing.T) {
	in := newInside(t)
	x := in.open(t, map[string]any{"command": []string{}})
	x.failed(422, "invalid")
	x = in.open(t, map[string]any{"command": []string{"/no/such"}})
	x.failed(422, api.CodeCommandNotFound)
	x = in.open(t, map[string]any{"command": []string{"true"}, "input": "a"})
	x.failed(422, "invalid")
	x = in.open(t, []int{1})
	x.failed(422, "invalid")
	for _, bad := range []func(*talk){
		func(x *talk) { x.stdin([]byte("nobody wants it")) },
		func(x *talk) { x.say(api.ExecControl{Type: "hello"}) },
		func(x *talk) { x.say(api.ExecControl{Type: api.ExecSignal, Signal: "HELLO"}) },
		func(x *talk) { x.say(api.ExecControl{Type: api.ExecResize, Rows: -1}) },
		func(x *talk) { x.say(strings.Repeat("x", socket.MaxControl)) },
	} {
		x := in.open(t, shell("sleep 100"))
		x.started()
		bad(x)
		x.failed(422, "invalid")
	}
	// A first message that is binary.
	c, _, err := in.dial(t, "/exec")
	if err != nil {
		t.Fatal(err)
	}
	x = &talk{TB: t, c: c, ctx: t.Context()}
	x.stdin([]byte(`{"command":["true"]}`))
	x.failed(422, "invalid")

	// The door is guarded as every other one is.
	for name, edit := range map[string]func(*websocket.DialOptions){
		"token":  func(o *websocket.DialOptions) { o.HTTPHeader.Del("Authorization") },
		"origin": func(o *websocket.DialOptions) { o.HTTPHeader.Set("Origin", "http://evil.example") },
		"host":   func(o *websocket.DialOptions) { o.Host = "evil.example" },
	} {
		want := map[string]int{"token": 401, "origin": 403, "host": 421}[name]
		if _, resp, err := in.dial(t, "/exec", edit); err == nil || resp == nil || resp.StatusCode != want {
			t.Errorf("%s: %v %v", name, resp, err)
		}
	}
}

// TestExecSlowFirst: a client that takes its time with the first message is served by a fresh connection.
func TestExecSlowFirst(t *testing.T) {
	in := newInside(t, func(c *parts) { c.Fresh = 1 })
	x := in.open(t, shell("echo ok"))
	x.started()
	x.ended()

	in.api.patience.First = 50 * time.Millisecond
	c, _, err := in.dial(t, "/exec")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Read(t.Context()); err == nil {
		t.Error("waited for ever")
	}
}

// BenchmarkExecFirstByte is from asking to the first byte of output: at init's socket, by the plain form (to its end), and by
// a WebSocket that is opened for it. CPU time is that of client and server together, without init and the command.
func BenchmarkExecFirstByte(b *testing.B) {
	in := newInside(b)
	header := http.Header{"Authorization": {"Bearer " + token}}
	client := &http.Client{Transport: &http.Transport{}}
	o := &websocket.DialOptions{HTTPHeader: header, HTTPClient: client}
	ctx := context.Background()
	measure := func(name string, one func(b *testing.B) (leave func())) {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			cpu := cpuUsed()
			for b.Loop() {
				began := time.Now()
				leave := one(b)
				took = append(took, time.Since(began))
				leave()
			}
			slices.Sort(took)
			b.ReportMetric(float64((cpuUsed()-cpu).Microseconds())/float64(len(took)), "cpu-µs/op")
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)/10].Microseconds()), "p10-µs")
		})
	}
	measure("init", func(b *testing.B) func() {
		conn, err := in.inits.Tunnel(ctx, nil, nil)
		if err != nil {
			b.Fatal(err)
		}
		x, err := initwire.StartExec(ctx, conn, &initwire.Exec{Command: []string{"/bin/echo", "x"}})
		if err == nil {
			_, _, _, err = x.Next()
		}
		if err != nil {
			b.Fatal(err)
		}
		return func() { _ = x.Close() }
	})
	measure("post", func(b *testing.B) func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, in.srv.URL+in.path+"/exec", strings.NewReader(`{"command":["/bin/echo","x"]}`))
		if err != nil {
			b.Fatal(err)
		}
		req.Header = header.Clone()
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			b.Fatal(resp.Status, string(text), err)
		}
		return func() {}
	})
	measure("websocket", func(b *testing.B) func() {
		c, _, err := websocket.Dial(ctx, in.srv.URL+in.path+"/exec", o)
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Write(ctx, websocket.MessageText, []byte(`{"command":["/bin/echo","x"]}`)); err != nil {
			b.Fatal(err)
		}
		for kind := websocket.MessageText; kind != websocket.MessageBinary; {
			if kind, _, err = c.Read(ctx); err != nil {
				b.Fatal(err)
			}
		}
		return func() { _ = c.CloseNow() }
	})
}

func cpuUsed() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
