package poseidon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// told is a message from the server, as clients read it.
type told struct {
	Type string          `json:"type"`
	Data json.RawMessage `json:"data"`
}

func (m told) text() (s string) { _ = json.Unmarshal(m.Data, &s); return s }

// session is one connection of a client.
type session struct {
	b  *bench
	ws *websocket.Conn
}

// run asks for an execution and connects to it.
func (b *bench) run(path string, request map[string]any) *session {
	b.Helper()
	url := b.asked(path, request)
	ws, _, err := b.dial(url)
	if err != nil {
		b.Fatal(err)
	}
	s := &session{b, ws}
	if m := s.next(); m.Type != "start" || m.Data != nil {
		b.Fatalf("first came %s %s", m.Type, m.Data)
	}
	return s
}

// asked is where an execution waits for its client.
func (b *bench) asked(path string, request map[string]any) string {
	b.Helper()
	raw, _ := json.Marshal(request)
	return decoded[map[string]string](b, b.do("POST", path+"/execute", string(raw), func(r *http.Request) { r.Host = b.host }))["websocketUrl"]
}

func (b *bench) dial(url string) (*websocket.Conn, *http.Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPHeader: http.Header{"Poseidon-Token": {token}}})
	if err == nil {
		ws.SetReadLimit(-1)
		b.Cleanup(func() { _ = ws.CloseNow() })
	}
	return ws, resp, err
}

func (s *session) next() (m told) {
	s.b.Helper()
	m, more := s.maybe()
	if !more {
		s.b.Fatal("nothing more came")
	}
	return m
}

// maybe is the next message; false if the connection was closed in order.
func (s *session) maybe() (m told, more bool) {
	s.b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	kind, raw, err := s.ws.Read(ctx)
	if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
		return m, false
	}
	if err != nil || kind != websocket.MessageText {
		s.b.Fatalf("%v %v", kind, err)
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		s.b.Fatalf("%v in %q", err, raw)
	}
	return m, true
}

func (s *session) enter(text string) {
	s.b.Helper()
	if err := s.ws.Write(context.Background(), websocket.MessageText, []byte(text)); err != nil {
		s.b.Fatal(err)
	}
}

// result is all that came.
type result struct {
	stdout, stderr string
	errors         []string
	last           string // timeout, or the exit code
}

// end reads to the end, which is a last message and a normal close.
func (s *session) end() (r result) {
	s.b.Helper()
	for r.last == "" {
		m, more := s.maybe()
		if !more {
			return r // an error alone, see P4
		}
		switch m.Type {
		case "stdout":
			r.stdout += m.text()
		case "stderr":
			r.stderr += m.text()
		case "error":
			r.errors = append(r.errors, m.text())
		case "timeout":
			r.last = "timeout"
		case "exit":
			r.last = string(m.Data)
		default:
			s.b.Fatalf("there came %s %s", m.Type, m.Data)
		}
	}
	_, _, err := s.ws.Read(context.Background())
	if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		s.b.Fatalf("it ended with %v", err)
	}
	return r
}

// inRunner is a claimed runner that a real init keeps, on the node's own files.
func inRunner(t *testing.T, change ...func(*parts, *Config)) (b *bench, path, work string, stop func()) {
	t.Helper()
	b = stocked(t, 2, false, change...)
	b.host = b.serve().Listener.Addr().String()
	work, stop = b.startInit(t)
	return b, b.provided(), work, stop
}

func TestExecutions(t *testing.T) {
	b, path, work, _ := inRunner(t)
	for _, c := range []struct {
		request map[string]any
		want    result
	}{
		{map[string]any{"command": "echo hi"}, result{stdout: "hi\r\n", last: "0"}},
		{map[string]any{"command": "exit 7"}, result{last: "7"}},
		{map[string]any{"command": "kill -USR1 $$"}, result{last: "138"}},
		{map[string]any{"command": "echo out; echo err >&2; exit 1"}, result{stdout: "out\r\n", stderr: "err\r\n", last: "1"}},
		{map[string]any{"command": "pwd"}, result{stdout: work + "\r\n", last: "0"}},
		{map[string]any{"command": "test -t 0 && test -t 1 && ! test -t 2 && stty size"}, result{stdout: "24 80\r\n", last: "0"}},
		{map[string]any{"command": `printf '%s|' 'a b' "it's" '$HOME' "$V" 'ü
x'`, "environment": map[string]string{"V": "1  2 '\"$"}}, result{stdout: "a b|it's|$HOME|1  2 '\"$|ü\r\nx|", last: "0"}},
		{map[string]any{"command": "env | grep -c MUSTER_; echo $HERE"}, result{stdout: "0\r\nsandbox\r\n", last: "0"}},
		{map[string]any{"command": "nonesuch-program"}, result{stderr: "nonesuch-program", last: "127"}},
		{map[string]any{"command": ""}, result{last: "0"}},
		// A letter that comes in two parts is one letter; what is no text is marked as such.
		{map[string]any{"command": `printf '\303'; sleep 0.05; printf '\274\377\303'`}, result{stdout: "ü\ufffd\ufffd", last: "0"}},
		{map[string]any{"command": `printf '<&>\000\033[0m' >&2`}, result{stderr: "<&>\x00\x1b[0m", last: "0"}},
		{map[string]any{"command": "head -c 3000000 /dev/zero | tr '\\0' x | wc -c; head -c 300000 /dev/zero | tr '\\0' x >&2"}, result{stdout: "3000000\r\n", stderr: strings.Repeat("x", 300000), last: "0"}},
	} {
		got := b.run(path, c.request).end()
		if c.want.last == "127" && strings.Contains(got.stderr, c.want.stderr) {
			got.stderr = c.want.stderr // the shell's own words
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%.80v:\ngot  %.300q\nwant %.300q", c.request, fmt.Sprint(got), fmt.Sprint(c.want))
		}
	}
}

// P2: a line runs in bash where there is one, as with Poseidon.
func TestLinesRunInBash(t *testing.T) {
	if _, err := os.Stat("/bin/bash"); err != nil {
		t.Skip(err)
	}
	b, path, _, _ := inRunner(t)
	for line, want := range map[string]string{
		`echo {1..3}`: "1 2 3\r\n", `echo "a\nb"`: "a\\nb\r\n", `[[ abc == a* ]] && cat <<< yes`: "yes\r\n", `a=(x y); echo ${a[1]} ${#a[@]}`: "y 2\r\n",
		`set -o pipefail; false | true; echo $?`: "1\r\n", `v=abcdef; echo ${v:0:2}; echo "it's $0"`: "ab\r\nit's /bin/bash\r\n",
	} {
		if got := b.run(path, map[string]any{"command": line}).end(); got.stdout != want || got.last != "0" {
			t.Errorf("%s: %+v, want %q", line, got, want)
		}
	}
}

func TestExecutionsAreCounted(t *testing.T) {
	b, path, _, _ := inRunner(t)
	for _, command := range []string{"echo x", "exit 3", "kill -TERM $$"} {
		b.run(path, map[string]any{"command": command}).end()
	}
	text := b.metrics()
	for _, want := range []string{`total{result="exit-0"} 1`, `total{result="other-exit"} 1`, `total{result="signal"} 1`, `total{result="out-of-memory"} 0`, "muster_claim_first_output_seconds_count 1"} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in the metrics", want)
		}
	}
}

func TestStdinIsATerminal(t *testing.T) {
	b, path, _, _ := inRunner(t)
	s := b.run(path, map[string]any{"command": "read a; read b; echo $b-$a"})
	s.enter("one\ntw")
	s.enter("o\n")
	if got := s.end(); !strings.HasSuffix(got.stdout, "two-one\r\n") || got.last != "0" {
		t.Errorf("%+v", got)
	}
	// Ctrl-\ and Ctrl-D mean what they mean on a terminal. Bash itself ignores the former, as long as it runs.
	s = b.run(path, map[string]any{"command": "exec sh -c 'echo ready; exec sleep 100'"})
	s.next()
	s.enter("\x1c")
	if got := s.end(); got.last != "131" {
		t.Errorf("%+v", got)
	}
	s = b.run(path, map[string]any{"command": "cat; echo end"})
	s.enter("\x04")
	if got := s.end(); !strings.HasSuffix(got.stdout, "end\r\n") || got.last != "0" {
		t.Errorf("%+v", got)
	}
}

func TestOneConnectionPerExecution(t *testing.T) {
	b, path, _, _ := inRunner(t)
	other := b.provided()
	url := b.asked(path, map[string]any{"command": "cat"})
	// It is the runner's own.
	if _, resp, err := b.dial(strings.Replace(url, path, other, 1)); err == nil || resp == nil || resp.StatusCode != 404 {
		t.Fatalf("%v %v", resp, err)
	}
	first, _, err := b.dial(url)
	if err != nil {
		t.Fatal(err)
	}
	if _, resp, err := b.dial(url); err == nil || resp == nil || resp.StatusCode != 404 {
		t.Fatalf("%v %v", resp, err)
	}
	_ = first.Write(t.Context(), websocket.MessageText, []byte("\x04"))
	if got := (&session{b, first}).ended(); got.last != "0" {
		t.Errorf("%+v", got)
	}
	if _, resp, err := b.dial(url); err == nil || resp == nil || resp.StatusCode != 404 {
		t.Fatalf("%v %v", resp, err)
	}
	// One that nobody came for.
	late := b.asked(path, map[string]any{"command": "true"})
	b.p.pending.mu.Lock()
	for _, e := range b.p.pending.byID {
		e.since = e.since.Add(-waitTime - time.Second)
	}
	b.p.pending.mu.Unlock()
	if _, resp, err := b.dial(late); err == nil || resp == nil || resp.StatusCode != 404 {
		t.Fatalf("%v %v", resp, err)
	}
}

// ended is end with the first message still to come.
func (s *session) ended() result {
	s.b.Helper()
	if m := s.next(); m.Type != "start" {
		s.b.Fatalf("first came %s", m.Type)
	}
	return s.end()
}

func TestTimeLimit(t *testing.T) {
	t.Parallel()
	b, path, work, _ := inRunner(t)
	for _, command := range []string{
		"echo $$ > pid; sleep 100",
		"trap '' TERM HUP QUIT; echo $$ > pid; while :; do sleep 0.1; done", // to be made to
	} {
		began := time.Now()
		got := b.run(path, map[string]any{"command": command, "timeLimit": 1}).end()
		if took := time.Since(began); got.last != "timeout" || took < 900*time.Millisecond || took > 3500*time.Millisecond {
			t.Errorf("%s: %+v after %s", command, got, took)
		}
		b.gone(work)
	}
	if got := b.run(path, map[string]any{"command": "echo usable", "timeLimit": 100}).end(); got.stdout != "usable\r\n" {
		t.Errorf("%+v", got)
	}
}

// gone waits until the process whose id a command wrote is there no more.
func (b *bench) gone(work string) {
	b.Helper()
	pid := 0
	b.eventually("the command says its pid", func() bool {
		raw, _ := os.ReadFile(filepath.Join(work, "pid"))
		pid, _ = strconv.Atoi(strings.TrimSpace(string(raw)))
		return pid > 0
	})
	b.eventually("the command ends", func() bool {
		_, err := os.Stat("/proc/" + strconv.Itoa(pid))
		return errors.Is(err, os.ErrNotExist)
	})
	_ = os.Remove(filepath.Join(work, "pid"))
}

func TestClientThatLeavesEndsItsExecution(t *testing.T) {
	t.Parallel()
	b, path, work, _ := inRunner(t)
	for _, c := range []struct{ command, note string }{
		{"trap 'echo asked > note; exit' QUIT; echo $$ > pid; echo ready; while :; do sleep 0.05; done", "asked\n"},
		{"trap '' TERM HUP QUIT INT; echo $$ > pid; echo ready; while :; do sleep 0.1; done", ""},
	} {
		s := b.run(path, map[string]any{"command": c.command})
		if m := s.next(); m.text() != "ready\r\n" {
			t.Fatalf("%s %s", m.Type, m.Data)
		}
		_ = s.ws.CloseNow()
		b.gone(work)
		if note, _ := os.ReadFile(filepath.Join(work, "note")); string(note) != c.note {
			t.Errorf("%s: the note is %q", c.command, note)
		}
		_ = os.Remove(filepath.Join(work, "note"))
	}
	// The runner is as good as before.
	if got := b.run(path, map[string]any{"command": "echo usable"}).end(); got.stdout != "usable\r\n" {
		t.Errorf("%+v", got)
	}
}

func TestRunnerWhoseProcessDoesNotEndIsDestroyed(t *testing.T) {
	b, path, _, _ := inRunner(t)
	b.p.patience.grace, b.p.patience.give = 20*time.Millisecond, 20*time.Millisecond
	s := b.run(path, map[string]any{"command": "trap '' QUIT; echo ready; while :; do sleep 1; done"})
	s.next()
	// Nothing gets there any more.
	b.set(func() { b.reach = muster.Faultf(muster.FaultUnavailable, "no node") })
	_ = s.ws.CloseNow()
	b.eventually("the runner is given back", func() bool {
		_, err := b.own.Claims.Claimed(strings.TrimPrefix(path, "runners/"))
		return err != nil
	})
}

func TestReleasedDuringAnExecution(t *testing.T) {
	b, path, _, stop := inRunner(t)
	s := b.run(path, map[string]any{"command": "echo ready; sleep 100"})
	s.next()
	b.want(b.do("DELETE", path, ""), 204, "")
	go stop() // as its node does
	if got := s.end(); got.last != "" || len(got.errors) != 1 || !strings.Contains(got.errors[0], "released") {
		t.Errorf("%+v", got)
	}
}

func TestOutOfMemory(t *testing.T) {
	b, path, _, stop := inRunner(t)
	s := b.run(path, map[string]any{"command": "echo ready; read x; kill -KILL $$"})
	s.next()
	b.set(func() { b.kills++ })
	s.enter("\n")
	// P12: the runner lives on, so it is the program's end like any other.
	if got := s.end(); got.last != "137" || len(got.errors) != 0 {
		t.Errorf("%+v", got)
	}
	// That was then.
	if got := b.run(path, map[string]any{"command": "kill -KILL $$"}).end(); got.last != "137" || len(got.errors) != 0 {
		t.Errorf("%+v", got)
	}
	// The sandbox itself.
	s = b.run(path, map[string]any{"command": "echo ready; sleep 100"})
	s.next()
	id := muster.AllocID(strings.TrimPrefix(path, "runners/"))
	b.propose(&state.AllocsReported{Node: "n1", Allocs: []state.AllocUpdate{{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeFailed,
		Failure: &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonOutOfMemory, Message: "over its memory limit"}}}})
	go stop()
	if got := s.end(); got.last != "" || len(got.errors) != 1 || got.errors[0] != outOfMemory {
		t.Errorf("%+v", got)
	}
}

func TestServerThatStopsSaysSo(t *testing.T) {
	b, path, _, _ := inRunner(t)
	s := b.run(path, map[string]any{"command": "echo ready; sleep 100"})
	s.next()
	go b.shutdown()
	if got := s.end(); got.last != "" || len(got.errors) != 1 || !strings.Contains(got.errors[0], "stopping") {
		t.Errorf("%+v", got)
	}
}

func TestExecutionThatCannotStart(t *testing.T) {
	b, path, work, _ := inRunner(t)
	if err := os.RemoveAll(work); err != nil {
		t.Fatal(err)
	}
	if got := b.run(path, map[string]any{"command": "true"}).end(); got.last != "127" || len(got.errors) != 1 {
		t.Errorf("%+v", got)
	}
	url := b.asked(path, map[string]any{"command": "true"})
	b.set(func() { b.reach = muster.Faultf(muster.FaultUnavailable, "no node") })
	if _, resp, err := b.dial(url); err == nil || resp.StatusCode != 500 {
		t.Errorf("%v %v", resp, err)
	}
}

// A client that does not read slows its program down, and loses nothing.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	b, path, _, _ := inRunner(t)
	s := b.run(path, map[string]any{"command": "seq 1 300000"})
	<-time.After(200 * time.Millisecond)
	got := s.end()
	want := strings.Builder{}
	for i := 1; i <= 300000; i++ {
		fmt.Fprintf(&want, "%d\r\n", i)
	}
	if got.stdout != want.String() || got.last != "0" {
		t.Errorf("%d bytes came, want %d; last %s", len(got.stdout), want.Len(), got.last)
	}
}

// Input that the program does not take does not keep the client's leaving from being seen.
func TestClientLeavesBehindItsInput(t *testing.T) {
	t.Parallel()
	b, path, work, _ := inRunner(t)
	b.p.patience.quiet = 50 * time.Millisecond
	s := b.run(path, map[string]any{"command": "stty -icanon -echo; echo $$ > pid; echo ready; exec sleep 100"})
	s.next()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	for s.ws.Write(ctx, websocket.MessageBinary, make([]byte, 1<<20)) == nil {
	}
	_ = s.ws.CloseNow()
	b.gone(work)
}

func TestWaitingExecutionsAreBounded(t *testing.T) {
	b := stocked(t, 1, true)
	path := b.provided()
	big := `{"command": "` + strings.Repeat("x", 1<<20) + `"}`
	for range 70 {
		b.want(b.do("POST", path+"/execute", big), 200, "")
	}
	q := &b.p.pending
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes > maxWaiting || len(q.byID) > 64 || len(q.byID) < 60 {
		t.Errorf("%d wait, of %d bytes", len(q.byID), q.bytes)
	}
}

// One that is never fetched does not hold what those after it were.
func TestFetchedExecutionsAreNotHeld(t *testing.T) {
	q := &pending{}
	now := time.Now()
	for i := range 100 {
		id := strconv.Itoa(i)
		q.add(&waiting{runner: "r", exec: &initwire.Exec{ID: id, Command: []string{"x"}}, since: now})
		if i == 0 {
			continue
		}
		if e := q.take("r", id, now); e == nil || e.exec == nil || e.exec.ID != id {
			t.Fatalf("%+v", e)
		}
		if q.take("r", id, now) != nil {
			t.Fatal("it was fetched twice")
		}
	}
	for _, e := range q.order[1:] {
		if e.exec != nil {
			t.Fatal("what was fetched is held")
		}
	}
	if q.bytes != q.order[0].size() {
		t.Errorf("%d bytes", q.bytes)
	}
}

// Where nobody knows why a connection broke, the client is told which one it was.
func TestLostConnectionIsNamed(t *testing.T) {
	b, path, _, stop := inRunner(t)
	b.p.patience.reason = 20 * time.Millisecond
	s := b.run(path, map[string]any{"command": "echo ready; sleep 100"})
	s.next()
	go stop() // its node does not say so
	got := s.end()
	want := "the connection to runner " + strings.TrimPrefix(path, "runners/") + " on node n1 was lost, and no reason was reported within 20ms: "
	if got.last != "" || len(got.errors) != 1 || !strings.HasPrefix(got.errors[0], want) {
		t.Errorf("%+v, want %q", got, want)
	}
}
