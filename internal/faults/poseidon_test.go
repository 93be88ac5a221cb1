package faults

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/imagetest"
	"github.com/musterhq/muster/internal/locate"
)

const poseidonToken = "a-token-of-poseidons-own"

// newPoseidonHost is a host that serves Poseidon's API, and an image like those of its users there. It is not started yet.
func newPoseidonHost(t *testing.T) (h *host, image string) {
	t.Helper()
	h, _ = newContainerHost(t)
	h.write("token", poseidonToken+"\n")
	h.config.Compat.Poseidon = &api.PoseidonConfig{TokenFile: h.path("token")}
	users := imagetest.With(t, imagetest.Busybox(t), imagetest.Layer(t,
		imagetest.File("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nuser:x:1005:1005::/home/user:/bin/sh\n", 0o644),
		imagetest.Dir("workspace", 0o1777), imagetest.File("secret", "of root\n", 0o600), imagetest.Dir("hidden", 0o700), imagetest.File("hidden/file", "x", 0o644)))
	return h, h.archive("poseidon", imagetest.Configured(t, users, func(c *v1.Config) { c.WorkingDir = "/workspace" }))
}

// poseidonClient asks as clients of Poseidon do: it knows an address and a token, and nothing of ours.
type poseidonClient struct {
	t    *testing.T
	base string
}

func (h *host) poseidon() *poseidonClient {
	h.t.Helper()
	return &poseidonClient{h.t, "http://" + must(locate.ReadServer(h.data))(h.t).Address + "/api/v1/"}
}

func (c *poseidonClient) ask(method, path string, body any) (int, []byte) {
	c.t.Helper()
	raw, _ := json.Marshal(body)
	q := must(http.NewRequestWithContext(c.t.Context(), method, c.base+path, bytes.NewReader(raw)))(c.t)
	q.Header.Set("Poseidon-Token", poseidonToken)
	resp := must(http.DefaultClient.Do(q))(c.t)
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode, must(io.ReadAll(resp.Body))(c.t)
}

// must asks for what has to be answered with a status.
func (c *poseidonClient) must(status int, method, path string, body any) []byte {
	c.t.Helper()
	got, raw := c.ask(method, path, body)
	if got != status {
		c.t.Fatalf("%s %s: %d %s, want %d", method, path, got, raw, status)
	}
	return raw
}

// provide is a runner of environment 10.
func (c *poseidonClient) provide() string {
	c.t.Helper()
	var out struct{ RunnerID string }
	if err := json.Unmarshal(c.must(200, "POST", "runners", map[string]int{"executionEnvironmentId": 10, "inactivityTimeout": 120}), &out); err != nil {
		c.t.Fatal(err)
	}
	return "runners/" + out.RunnerID
}

// execution is a WebSocket to one.
type execution struct {
	*poseidonClient
	ws *websocket.Conn
}

func (c *poseidonClient) start(runner, command string, privileged bool) *execution {
	c.t.Helper()
	var out struct{ WebsocketURL string }
	raw := c.must(200, "POST", runner+"/execute", map[string]any{"command": command, "privilegedExecution": privileged, "timeLimit": 30, "environment": map[string]string{"GREETING": "it's me"}})
	if err := json.Unmarshal(raw, &out); err != nil {
		c.t.Fatal(err)
	}
	ws, _, err := websocket.Dial(c.t.Context(), out.WebsocketURL, &websocket.DialOptions{HTTPHeader: http.Header{"Poseidon-Token": {poseidonToken}}})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = ws.CloseNow() })
	return &execution{c, ws}
}

// until reads up to a message of a type, and is all that came, as "type text" by type.
func (e *execution) until(last string) (said map[string]string) {
	e.t.Helper()
	said = map[string]string{}
	ctx, cancel := context.WithTimeout(e.t.Context(), patience)
	defer cancel()
	for {
		_, raw, err := e.ws.Read(ctx)
		if err != nil {
			e.t.Fatalf("%v, after %q", err, said)
		}
		var m struct {
			Type string
			Data any
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			e.t.Fatal(err)
		}
		if m.Data != nil {
			said[m.Type] += fmt.Sprint(m.Data)
		}
		if m.Type == last {
			return said
		}
	}
}

func (c *poseidonClient) run(runner, command string, privileged bool) (stdout, stderr, exit string) {
	c.t.Helper()
	said := c.start(runner, command, privileged).until("exit")
	return said["stdout"], said["stderr"] + said["error"], said["exit"]
}

// A client of Poseidon, from an environment to the end of its runner, with real containers; and a server that is killed under it.
func TestPoseidonClient(t *testing.T) {
	t.Parallel()
	h, image := newPoseidonHost(t)
	h.start()
	c := h.poseidon()
	environment := map[string]any{"image": image, "prewarmingPoolSize": 2, "cpuLimit": 100, "memoryLimit": 32, "networkAccess": false, "exposedPorts": nil}
	c.must(201, "PUT", "execution-environments/10", environment)
	c.must(204, "PUT", "execution-environments/10", environment)
	statistics := func() (idle, used int) {
		var all map[string]struct{ IdleRunners, UsedRunners int }
		if err := json.Unmarshal(c.must(200, "GET", "statistics/execution-environments", nil), &all); err != nil {
			t.Fatal(err)
		}
		return all["10"].IdleRunners, all["10"].UsedRunners
	}
	h.eventually("two runners are idle", func() bool { idle, _ := statistics(); return idle == 2 })
	runner := c.provide()
	h.eventually("the pool is refilled", func() bool { idle, used := statistics(); return idle == 2 && used == 1 })

	// Files belong to root; others read them, and so run them by an interpreter, and make their own beside them.
	script := "#!/bin/sh\nid -un; pwd; echo \"$GREETING, $CODEOCEAN\"; env | grep -c MUSTER; echo wrong >&2; exit 3\n"
	c.must(204, "PATCH", runner+"/files", map[string]any{"copy": []map[string]string{
		{"path": "lib/script.sh", "content": base64.StdEncoding.EncodeToString([]byte(script))}, {"path": "/workspace/data/", "content": ""}}})
	stdout, stderr, exit := c.run(runner, "sh lib/script.sh", false)
	if stdout != "user\r\n/workspace\r\nit's me, true\r\n0\r\n" || stderr != "wrong\r\n" || exit != "3" {
		t.Errorf("%q %q %s", stdout, stderr, exit)
	}
	if stdout, stderr, exit = c.run(runner, "id -un && cat /secret", true); stdout != "root\r\nof root\r\n" || exit != "0" {
		t.Errorf("%q %q %s", stdout, stderr, exit)
	}
	if _, _, exit = c.run(runner, "echo more >> lib/script.sh || rm -f lib/script.sh", false); exit == "0" {
		t.Error("an unprivileged user changed a file of root's")
	}
	if stdout, stderr, exit = c.run(runner, "echo mine > lib/mine && cat lib/mine && tail -n +3 /proc/net/dev | grep -vc lo:", false); stdout != "mine\r\n0\r\n" {
		t.Errorf("%q %q %s", stdout, stderr, exit)
	}
	var list struct {
		Files []struct{ Name, EntryType, Permissions, Owner string }
	}
	if err := json.Unmarshal(c.must(200, "GET", runner+"/files", nil), &list); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(list.Files); got != "[{./data d rwxrwxrwt root} {./lib d rwxrwxrwt root} {./lib/mine - rw-r--r-- user} {./lib/script.sh - rwxr--r-- root}]" {
		t.Errorf("listed are %s", got)
	}
	// What the user may not read is not read for it.
	for _, path := range []string{"/secret", "/hidden/file"} {
		c.must(424, "GET", runner+"/files/raw?path="+path, nil)
		c.must(200, "GET", runner+"/files/raw?privilegedExecution=true&path="+path, nil)
	}
	c.must(424, "GET", runner+"/files?path=/hidden", nil)
	c.must(200, "GET", runner+"/files?path=/hidden&privilegedExecution=true", nil)
	if raw := c.must(200, "GET", runner+"/files/raw?path=lib/script.sh", nil); string(raw) != script {
		t.Errorf("%q", raw)
	}
	c.must(204, "PATCH", runner+"/files", map[string]any{"delete": []string{"./*"}})
	if raw := c.must(200, "GET", runner+"/files", nil); strings.TrimSpace(string(raw)) != `{"files":[]}` {
		t.Errorf("left is %s", raw)
	}

	// More memory than there is: this one ends as it does; the runner stays (P12).
	said := c.start(runner, "dd if=/dev/zero of=/dev/null bs=200M count=1", false).until("exit")
	if said["error"] != "" || said["exit"] != "137" {
		t.Errorf("%q", said)
	}

	// A client that leaves takes its execution along.
	e := c.start(runner, "echo ready; sleep 1000", false)
	e.until("stdout")
	_ = e.ws.CloseNow()
	h.eventually("the execution has ended", func() bool {
		stdout, _, _ := c.run(runner, "pgrep -f 'sleep 100[0]' || echo none", true)
		return strings.Contains(stdout, "none")
	})

	// A claimed runner outlives its server; the client goes on.
	h.kill()
	h.start()
	c = h.poseidon()
	if stdout, stderr, exit = c.run(runner, "echo still here", false); stdout != "still here\r\n" || exit != "0" {
		t.Errorf("%q %q %s", stdout, stderr, exit)
	}
	c.must(204, "GET", "health", nil)

	// The end of a runner is told to its client.
	e = c.start(runner, "echo ready; sleep 1000", false)
	e.until("stdout")
	c.must(204, "DELETE", runner, nil)
	if said := e.until("error"); !strings.Contains(said["error"], "released") {
		t.Errorf("%q", said)
	}
	c.must(410, "DELETE", runner, nil)
	c.must(410, "GET", runner+"/files", nil)
	c.must(204, "DELETE", "execution-environments/10", nil)
	c.must(404, "POST", "runners", map[string]int{"executionEnvironmentId": 10})
	if strings.Contains(h.log(), poseidonToken) {
		t.Error("the token is in the log")
	}
}
